"""Conformance checks for tasks and models of this package and of others; they return problems as sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from lrtasks.config import split_setting
from lrtasks.errors import UsageError, in_one_line, own_frames, unknown, with_line
from lrtasks.registry import split_preset
from lrtasks.spec import Spec

S = TypeVar("S")

LENGTH = 61
LONG = 517
"""Sequence lengths of the checked inputs, not multiples of any chunk length. The long one has several chunks."""
EVEN = 64
"""A multiple of common chunk lengths. Many layers have a faster form for it, which could look ahead."""
SPECS = {
    "signals": (Spec("real", LONG, 3), Spec("real", LONG, 2)),
    "tokens": (Spec("token", EVEN, 7), Spec("token", EVEN, 5)),
    "signals, last positions": (Spec("real", LENGTH, 3), Spec("real", 9, 1)),
    "tokens, whole sequence": (Spec("token", LENGTH, 7), Spec("token", 1, 5, pooled=True)),
}
"""Inputs and targets on which models are checked."""
ANY_TASK = "cumsum"
"""Task on which a preset of a model is checked if the preset is not for one task."""


def collect(subject: S, *checks: Callable[[S], Iterable[str] | None]) -> list[str]:
    """Run checks and collect the problems that they return, yield or raise, one line each.

    A :class:`UsageError` ends its check, but not the other checks. Any other exception is a problem too, since checks
    call code of other packages. Its function and line in the first file outside this package are named.
    """
    found: list[str] = []
    for check in checks:
        try:
            found += (" ".join(problem.split()) for problem in check(subject) or ())
        except UsageError as problem:
            found.append(in_one_line(problem))
        except Exception as error:
            own = own_frames(error)
            name = f"{own[0].name}()" if own else check.__name__.removeprefix("_").replace("_", " ")
            found.append(f"{name} raised {with_line(error)}")
    return found


class BrokenContractError(UsageError):
    """Raised with all ``problems`` of a task or a model, one entry each."""

    def __init__(self, title: str, problems: list[str]) -> None:
        super().__init__(f"{title}: {'; '.join(problems)}")
        self.problems = problems


def problems_of(check: Callable[..., None], subject: Any, **options: Any) -> list[str]:
    """Return the problems that ``check_task`` or ``check_model`` reports, one entry each."""
    try:
        check(subject, **options)
    except BrokenContractError as broken:
        return broken.problems
    return []


def check_registered(name: str, *, preset: str = "small", settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check a task or a model and all of its presets, as ``lrtasks check`` does.

    A model is checked in causal and in bidirectional form, on signals and on tokens, with targets for every position,
    for the last positions and for the whole sequence. With a target for every position, signals have 517 positions and
    tokens 64; other sequences have 61.

    Args:
        name: a registered name or an address; if a task and a model have the same name, the task is checked. A task may
            have a preset (``word-problem@a5``), which then sets its parameters.
        settings: parameters that override those of ``preset``.

    Returns:
        ``kind`` (``"task"`` or ``"model"``), ``name``, ``problems`` (one entry each) and ``refused``: the cases that
        were not checked because the model cannot be built for them, listed by the model's reason.

    Raises:
        UsageError: for an unknown name or preset, settings that are refused, or a package that cannot be used.
    """
    from lrtasks import generators, models

    task_name, task_preset = split_preset(name)
    is_task, refused = generators.registry.owns(task_name), dict[str, list[str]]()
    owner = "task." if is_task else "model."
    given = {key.removeprefix(owner): value for key, value in (settings or {}).items()}
    if not is_task and name not in models.names() and ":" not in name:
        known = [*generators.names(), *models.names()]
        raise unknown("task or model", name, known, "FILE.py:NAME, or a name that lrtasks list prints")
    from lrtasks.run_config import RunConfig, require_preset

    if is_task:
        from lrtasks.check.task import check_task

        cls = generators.registry.get(task_name)
        require_preset(preset, [cls])
        chosen = task_preset or (preset if preset in cls.presets else None)
        problems = problems_of(check_task, generators.make(task_name, preset=chosen, **given))
        pairs = [(task_name, "dlr", each) for each in cls.presets]
    else:
        # LABEL.NAME stays as it is
        own = {key if split_setting(key)[0] == "model" else f"model.{key}": value for key, value in given.items()}
        hyper = RunConfig.make(ANY_TASK, name, preset=preset, settings=own).model.parameters
        problems = _check_model(name, hyper, refused)
        presets = () if ":" in name else models.registry.get(name).presets
        pairs = [(task or ANY_TASK, name, each) for each, _, task in (key.partition("/") for key in presets)]
    for task, model, each in pairs:
        try:
            RunConfig.make(task, model, preset=each)
        except UsageError as error:
            if not any(problem in str(error) for problem in problems):  # a problem of every preset was found above
                problems.append(f"preset {each}: {error}")
    return {"kind": "task" if is_task else "model", "name": name, "problems": problems, "refused": refused}


def listed(cases: Collection[str]) -> str:
    """Return the names of cases of a model's check, or ``every case``."""
    return "every case" if len(cases) == 2 * len(SPECS) else "; ".join(cases)


def _check_model(name: str, hyper: dict[str, Any], refused: dict[str, list[str]]) -> list[str]:
    from lrtasks.check.model import check_model  # loads torch

    found: list[tuple[str, str]] = []
    for direction in ("causal", "bidirectional"):
        for what, (input, target) in SPECS.items():
            case = f"{direction} on {what}"
            try:
                how = {"input": input, "target": target, "causal": direction == "causal", **hyper}
                problems = problems_of(check_model, name, **how)
            except UsageError as error:
                refused.setdefault(str(error), []).append(case)
            except Exception as error:
                found.append((case, f"it cannot be built: {with_line(error)}"))
            else:
                found += [(case, problem) for problem in problems]
    # merge problems that differ only in their numbers, because several layers may have the same problem
    merged: dict[str, tuple[str, dict[str, None]]] = {}
    for case, problem in found:
        merged.setdefault(re.sub(r"\d[\d.e+-]*", "", problem), (problem, {}))[1][case] = None
    lines = [f"{listed(cases)}: {problem}" for problem, cases in merged.values()]
    if sum(map(len, refused.values())) == 2 * len(SPECS):
        lines.append("it cannot be built for any of the inputs and targets that were tried")
    return lines
