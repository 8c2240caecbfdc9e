"""A suite as a TOML file.

models = ["dlr", "attention"]      # or "all", which is what is meant where it is left out
tasks = ["shift", "reverse"]       # the same
preset = "small"
seeds = 3                          # 0, 1 and 2
settings = { steps = 500 }         # of every run
time_limit = 3600                  # seconds
unequal_budgets = false            # true: runs on one task may differ in steps, batch size, ...

[[runs]]                           # single runs, beside those combinations or in place of them
model = "dlr"
task = "shift"
seed = 7
preset = "small"                   # by default the suite's
settings = { kernel = "prod" }     # beside the suite's
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lrtasks import generators, models
from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError, unknown
from lrtasks.evaluation.choices import OWNERS, override, require_known, require_known_preset, select
from lrtasks.suite.entries import Entry, expand, impossible


@dataclass(frozen=True)
class Combinations(Config):
    """What a suite says as a whole; without ``models`` and ``tasks`` in a file that lists runs it has those alone."""

    name: ClassVar[str] = "suite"

    models: str | tuple[str, ...] = parameter("all", "names of models, or all")
    tasks: str | tuple[str, ...] = parameter("all", "names of tasks, or all")
    preset: str = parameter("small", "preset of every run")
    seeds: int = parameter(1, "how many seeds, counted from 0", at_least=1)
    time_limit: float | None = parameter(None, "seconds after which a run is stopped", above=0)
    unequal_budgets: bool = parameter(False, "let runs on one task differ in the shared part of their budgets")


@dataclass(frozen=True)
class SingleRun(Config):
    """One entry of ``[[runs]]``, without its settings."""

    name: ClassVar[str] = "run"

    model: str = parameter("", "a model's name")
    task: str = parameter("", "a task's name")
    preset: str | None = parameter(None, "its preset; none: the suite's")
    seed: int = parameter(0, "its seed", at_least=0)


@dataclass(frozen=True)
class Suite:
    """What a file asks for.

    Attributes:
        entries: the runs.
        skipped: combinations that cannot be, each with the reason.
        time_limit: seconds after which a run is stopped, or ``None``.
        unequal_budgets: whether runs on one task may differ in the shared part of their budgets.
    """

    entries: list[Entry]
    skipped: list[tuple[Entry, str]]
    time_limit: float | None
    unequal_budgets: bool


def read_suite(file: str | Path, settings: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite.

    Args:
        file: TOML, as the module's own words show.
        settings: settings of every run, which win over the file's.

    Raises:
        UsageError: if it cannot be read, has an unknown key or a value of a wrong type, or lists a run that cannot be.
    """
    file = Path(file)
    content = _parse(file)
    _require_keys(f"key of suite {file}", content, [*Combinations.parameter_names(), "settings", "runs"])
    try:
        return make_suite(content, settings or {})
    except UsageError as error:
        raise UsageError(f"in {file}: {error}") from None


def make_suite(content: Mapping[str, Any], settings: Mapping[str, Any], *, options: Iterable[str] = ()) -> Suite:
    """The suite that a file with this ``content`` asks for; see :func:`read_suite`.

    Args:
        content: what TOML made of the file.
        settings: settings of every run, which win over the file's.
        options: what else the user could have meant by the name of an unknown setting.

    Raises:
        UsageError: for a value of a wrong type, an unknown model, task, preset or setting, or a run that cannot be.
    """
    content = dict(content)
    runs = content.pop("runs", [])
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise UsageError(f"runs must be tables, each under a heading [[runs]], found {runs!r}")
    shared = _settings(content)
    combinations = Combinations.make(**content)
    wanted = bool({"models", "tasks"} & content.keys()) or not runs
    if "seeds" in content and not wanted:
        raise UsageError("seeds are for models and tasks, of which there are none; a run has its own seed")
    entries: list[Entry] = []
    skipped: list[tuple[Entry, str]] = []
    if wanted:
        chosen = select(models.registry, combinations.models), select(generators.registry, combinations.tasks)
        require_known_preset(combinations.preset, *chosen)
        both = override(shared, settings)
        if not runs:
            require_known(both, *chosen, options)
        seeds = range(combinations.seeds)
        entries, skipped = expand(*chosen, preset=combinations.preset, seeds=seeds, settings=both)
    for number, run in enumerate(runs, 1):
        try:
            entries.append(_run(run, combinations.preset, shared, settings))
        except UsageError as error:
            raise UsageError(f"run {number}: {error}") from None
    return Suite(entries, skipped, combinations.time_limit, combinations.unequal_budgets)


def _run(content: dict[str, Any], preset: str, shared: Mapping[str, Any], given: Mapping[str, Any]) -> Entry:
    """A single run; unlike a combination it stands there because somebody wants it, so that it must be possible."""
    content = dict(content)
    _require_keys("key", content, [*SingleRun.parameter_names(), "settings"])
    settings = override(override(shared, _settings(content)), given)
    run = SingleRun.make(**content)
    for key in ("model", "task"):
        if key not in content:
            raise UsageError(f"{key} is missing")
    entry = Entry(run.model, run.task, run.preset or preset, run.seed, settings)
    require_known(settings, [run.model], [run.task])
    reason = impossible(entry)
    if reason is not None:
        raise UsageError(reason)
    return entry


def _settings(content: dict[str, Any]) -> dict[str, Any]:
    """Take the settings out of ``content``; ``model.kernel`` without quotes is a table ``model`` to TOML."""
    settings = content.pop("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(f"settings must be a table such as {{ steps = 500 }}, found {settings!r}")
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name in OWNERS and isinstance(value, dict):
            flat |= {f"{name}.{bare}": entry for bare, entry in value.items()}
        else:
            flat[name] = value
    return flat


def _require_keys(what: str, content: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in content:
        if key not in known:
            raise unknown(what, key, known)


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the suite {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the suite {file} is not valid TOML: {error}") from None
