"""Measure all cases of a bench, one after the other; finished measurements are kept and not repeated."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from lrtasks import models
from lrtasks.bench import BASELINE, PHASES, UNFUSED
from lrtasks.bench import measure as measuring
from lrtasks.bench.measure import Case, Settings, cost, kernel_entry, run_in_process, shared_parameters, sizes
from lrtasks.bench.report import SCHEMA, read_measurement
from lrtasks.errors import UsageError, require_whole, unknown
from lrtasks.evaluation import optimiser
from lrtasks.evaluation.environment import describe_environment, device_name, kernel_packages
from lrtasks.files import held, make_folder, write_atomically
from lrtasks.generators.base import MAX_LENGTH
from lrtasks.models.factory import is_registered, model_label, model_parameter_names


def all_models() -> list[str]:
    """Return the names of the usable registered models and of the baseline with unfused attention, sorted."""
    return sorted([*models.registry.usable(), UNFUSED])


def make_cases(
    names: Iterable[str],
    lengths: Iterable[int],
    settings: Settings,
    device: str = "cpu",
    hyper: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Case]:
    """Return a case for every model and length, sorted by length. The Transformer is added; it is first at each length.

    Args:
        names: models, as :func:`all_models` lists them, and addresses of the user's own models.
        device: ``"cpu"`` or ``"cuda"``.
        hyper: hyper-parameters that differ from a model's defaults, by the model's label; ``transformer-unfused`` has
            those of ``transformer``; ``model`` stands for the user's own model if there is exactly one.

    Raises:
        UsageError: for an unknown model or hyper-parameter, or a value or length out of range.
    """
    ordered, lengths, hyper = list(dict.fromkeys([BASELINE, *names])), sorted(set(lengths)), dict(hyper or {})
    labels = list(map(model_label, ordered))
    for label in (label for label in labels if labels.count(label) > 1):
        raise UsageError(f"two models are called {label!r}, found {', '.join(ordered)}; rename one of them")
    own = {model_label(name): name for name in ordered if not is_registered(name)}
    if len(own) == 1 and "model" in hyper:
        label, given = next(iter(own)), hyper.pop("model")
        for name in (name for name in given if name in hyper.get(label, {})):
            raise UsageError(f"{name} is given twice, as model.{name} and {label}.{name}")
        hyper[label] = {**hyper.get(label, {}), **given}
    for model, values in hyper.items():
        if model not in {*models.names(), *own}:
            known = {*models.names(), *own}
            raise unknown("model", model, known, ", ".join([*own, "a name that lrtasks list models prints"]))
        for name, option in shared_parameters(model_parameter_names(own.get(model, model))).items():
            if name in values:
                raise UsageError(f"{model}.{name} cannot differ between models; give {option} for all of them")
    for length in lengths:
        require_whole("a length", length, 1, MAX_LENGTH)
    for name in [*ordered, *(own.get(label, label) for label in hyper)]:
        if is_registered(name):
            _ = Case(name, 1, settings, device, hyper).factory  # raises
        else:  # report now settings that the user's own class does not take
            refusals = (_refusal(Case(name, length, settings, device, hyper)) for length in lengths)
            first = next(refusals, "")
            if first and all(refusals):  # a model may refuse some lengths
                raise UsageError(first)
    return [Case(name, length, settings, device, hyper) for length in lengths for name in ordered]


def _refusal(case: Case) -> str:
    """Return why the user's own model cannot be built; the measurement itself reports other errors."""
    try:
        with torch.device("meta"):
            case.build()
    except UsageError as error:
        return str(error)
    except Exception:  # such as .item() on a meta tensor
        pass
    return ""


def run_bench(cases: Sequence[Case], out: Path, *, time_limit: float = 600.0) -> Iterator[dict[str, Any]]:
    """Measure all cases, one process at a time, and yield the measurement of each case.

    A measurement that fails, or reaches the limit of ``time_limit`` seconds, is recorded with the reason and does not
    stop others. A finished measurement of the same settings, code and device is not repeated, even if it failed.

    Raises:
        UsageError: if the folder or a file in it cannot be used, another process is measuring into it, or the user's
            model is edited meanwhile.
    """
    if not 0 < time_limit < math.inf:
        raise UsageError(f"time_limit must be above 0 seconds and finite, found {time_limit:g}")
    make_folder(out, "the results folder")
    baseline: dict[str, Any] = {}
    sources = {case.model: case.factory.source or "" for case in cases}
    with held(out / ".lock", f"the measurements in {out}"):
        for case in cases:
            file = file_of(case, out)
            if file.exists():
                found = read_measurement(file)
                if found["identity"] != identity(case):
                    raise UsageError(f"{file} is a measurement of something else; remove it")
            else:
                found = _measure(case, time_limit, {} if case.model == BASELINE else baseline)
                source = sources[case.model]
                has_file = source and not source.startswith("object ")
                # a new process imports the present files, as the measuring processes did
                if has_file and run_in_process(attrgetter("factory.source"), case, time_limit=math.inf) != source:
                    raise UsageError(f"{case.model} was edited while it was measured; give the same command again")
                write_atomically(file, (json.dumps(found, indent=1, allow_nan=False) + "\n").encode())
            if case.model == BASELINE:
                baseline = found
            yield found


def _measure(case: Case, time_limit: float, baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a case, without the Transformer in phases where the Transformer's own measurement failed."""
    measured = partial(run_in_process, time_limit=time_limit)
    environment = {"threads": case.settings.threads, "processor": kernel_entry("cpuinfo", "model name")}
    found: dict[str, Any] = {"identity": identity(case), "environment": {**describe_environment(), **environment}}
    found |= {"sizes": measured(sizes, case), "schema": SCHEMA}
    for phase in PHASES:
        paired = "reason" not in baseline.get(phase, {})
        found[phase] = measured(cost, case, phase, paired)
        if paired and "reason" in found[phase]:  # a model that fails together with the Transformer may succeed alone
            found[phase] = measured(cost, case, phase, False)
    return json.loads(json.dumps(found), parse_constant=lambda _: None)  # diagnostics may hold NaN


def identity(case: Case) -> dict[str, Any]:
    """Return everything that determines a measurement, JSON-ready."""
    factory = case.factory
    return {
        "model": model_label(case.model),
        "hyper": factory.parameters,
        "baseline": replace(case, model=BASELINE).factory.parameters,
        "length": case.length,
        "settings": case.settings.parameters(),
        "device": case.device,
        "device_name": device_name(torch.device(case.device)),
        "torch": torch.__version__,
        **(kernel_packages() if case.device == "cuda" else {}),
        "source": source_digest(),
        "module": factory.source,
    }


def file_of(case: Case, out: Path) -> Path:
    """Return the file of a case's measurement. Each identity has its own file."""
    text = json.dumps(identity(case), sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    readable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in model_label(case.model))
    return out / f"{readable}-{case.length}-{digest}.json"


@cache
def source_digest() -> str:
    """Return a digest of the code that costs depend on: all built-in models, the optimiser and the measuring module."""
    built_in = Path(inspect.getfile(models)).parent.rglob("*.py")
    digest = hashlib.blake2b(digest_size=8)
    for file in sorted({*built_in, Path(inspect.getfile(optimiser)), Path(inspect.getfile(measuring))}):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
