"""Expand a suite into run configs; reject impossible runs, duplicate runs and unequal budgets.

A suite can be defined in Python, on the command line or in a TOML file (docs/suites.md shows an example). The keys of
the file are the parameters of :class:`Combinations`, ``settings`` for every run, and the tables ``[[runs]]`` for single
runs (:class:`SingleRun`), each with ``settings`` of its own.
"""

from __future__ import annotations

import itertools
import math
import tomllib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from lrtasks import generators, models
from lrtasks.budget import MOST_SEEDS, Budget
from lrtasks.config import Config, flat, override, parameter, parse_assignment, split_setting
from lrtasks.errors import UsageError, unknown
from lrtasks.models.factory import model_label
from lrtasks.results.settings import require_equal_budgets, setup_of
from lrtasks.run_config import RunConfig

LISTS = tuple(entry["name"] for entry in Budget.describe_parameters() if entry["type"].startswith("tuple"))
"""Budget fields that are lists: a comma in their value does not make a grid."""
MAX_RUNS = 1_000_000
"""Largest number of runs of one suite; a larger number is rejected as a mistake."""


@dataclass(frozen=True)
class Combinations(Config):
    """The keys of a suite file other than ``settings`` and ``runs``."""

    name: ClassVar[str] = "suite"

    models: str | tuple[str, ...] = parameter("all", "models, separated by commas, or all")
    tasks: str | tuple[str, ...] = parameter("all", "tasks, separated by commas, or all")
    preset: str = parameter("small", "preset of every run")
    seeds: int = parameter(1, "number of seeds, counted from 0", at_least=1, at_most=MOST_SEEDS)
    time_limit: float | None = parameter(None, "time limit of a run in seconds", above=0)
    unequal_budgets: bool = parameter(False, "allow runs on one task to differ in the shared part of their budgets")


@dataclass(frozen=True)
class SingleRun(Config):
    """One entry of ``[[runs]]``, without its settings."""

    name: ClassVar[str] = "run"

    model: str = parameter("", "a model")
    task: str = parameter("", "a task")
    preset: str | None = parameter(None, "preset of the run; none: the preset of the suite")
    seed: int = parameter(0, "seed of the run", at_least=0)


@dataclass(frozen=True)
class Suite:
    """The runs of a suite, and how to execute them.

    Attributes:
        skipped: model, task and reason of each combination that is impossible.
        time_limit: seconds after which a run is stopped, or ``None``.
        unequal_budgets: whether runs on one task may differ in the shared part of their budgets.
        varied: settings that the grid varies.
    """

    runs: list[RunConfig] = field(default_factory=list)
    skipped: list[tuple[str, str, str]] = field(default_factory=list)
    time_limit: float | None = None
    unequal_budgets: bool = False
    varied: tuple[str, ...] = ()

    @property
    def models(self) -> set[str]:
        """Addresses or names of the models."""
        return {run.model.address or run.model.name for run in self.runs}


def expand(
    chosen_models: Iterable[str],
    chosen_tasks: Iterable[str],
    *,
    preset: str = "small",
    seeds: Iterable[int] = (0,),
    grid: Iterable[Mapping[str, Any]] = ({},),
    settings: Mapping[str, Any] | None = None,
    options: Iterable[str] = (),
    others: Iterable[str] = (),
) -> Suite:
    """Make a run for each combination of models, tasks, grid points and seeds.

    Args:
        chosen_models: names or addresses of models.
        chosen_tasks: names or addresses of tasks.
        grid: settings that vary, one mapping per point (a sweep over lengths: ``{"length": 1024}``, ...).
        settings: settings of every run; ``LABEL.NAME`` applies only to models with this label.
        options: other names that the user could have meant by an unknown setting, for a hint.
        others: other models of the same suite, which may have settings ``LABEL.NAME``, too.

    Raises:
        UsageError: if no run is possible at a point of the grid, or no run of a model that has its own setting. The
            reason is often a misspelt setting.
    """
    suite, seeds, chosen_models, points = Suite(), list(seeds), list(chosen_models), list(grid)
    every = [*chosen_models, *others]
    seen: set[str] = set()
    refused: dict[tuple[int, str | None], str] = {}
    possible: set[tuple[int, str | None]] = set()
    built: set[str] = set()
    for task, (place, point), model in itertools.product(list(chosen_tasks), enumerate(points), chosen_models):
        given = {**(settings or {}), **point}
        belongs = {name: labelled(name, every) for name in given}
        own = {name: value for name, value in given.items() if not belongs[name] or model in belongs[name]}
        this = repr((task, model, sorted(own.items())))
        if this in seen and own != given:  # the grid varies a setting of another model
            continue
        seen.add(this)
        key = place, model if any(model in own_to for own_to in belongs.values()) else None
        try:
            how: dict[str, Any] = {"preset": preset, "settings": own, "options": options}
            one = RunConfig.make(task, model, seed=seeds[0], **how)
            what = repr((one.model, one.task.input, one.task.target, one.task.causal))
            if what not in built:  # points of the grid that differ only in the budget need one check
                require_possible(one)
                built.add(what)
        except UsageError as error:
            suite.skipped.append((model, task, str(error)))
            refused.setdefault(key, f"{model} on {task}: {error}")
        else:
            suite.runs.extend(replace(one, seed=seed) for seed in seeds)
            possible.add(key)
    for key in (key for key in refused if key not in possible):
        point = points[key[0]]
        hint = ""
        for name, value in point.items():
            if f" {split_setting(name)[1]} must be a list" in refused[key] and not isinstance(value, list):
                tried = dict.fromkeys(str(other.get(name)) for other in points)
                hint = f"; write a single list in brackets: {name}=[{','.join(tried)}]"
        raise UsageError(f"no run is possible with {point or 'these settings'}: {refused[key]}{hint}")
    return suite


def labelled(setting: str, chosen_models: Iterable[str]) -> list[str]:
    """Return the models that a setting ``LABEL.NAME`` belongs to; an empty list for a setting of every run."""
    prefix, dot, _ = setting.replace("-", "_").partition(".")
    return [model for model in chosen_models if dot and model_label(model).replace("-", "_") == prefix]


def read_suite(file: str | Path, settings: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite from a TOML file.

    Args:
        file: the file, in the format that the module's docstring describes.
        settings: settings of every run; they override the settings in the file.

    Raises:
        UsageError: if the file cannot be read, or has an unknown key, a value of a wrong type or an impossible run.
    """
    file = Path(file)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the suite {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the suite {file} is not valid TOML: {error}") from None
    try:
        if not content:
            raise UsageError('the suite is empty; for all models and tasks write models = "all"')
        return make_suite(content, settings or {})
    except UsageError as error:
        raise UsageError(f"in {file}: {error}") from None


def make_suite(content: Mapping[str, Any], settings: Mapping[str, Any], *, options: Iterable[str] = ()) -> Suite:
    """Make a suite from the content of a suite file; see :func:`read_suite`.

    A setting whose text has commas varies, also in a single run: each of its values makes a point of the grid. The
    ``settings`` override those in ``content``; a hint on an unknown setting may name ``options``.

    Raises:
        UsageError: for a value of a wrong type, an unknown model or task, an impossible single run, and as in
            :func:`expand`.
    """
    content, keys = dict(content), [*Combinations.parameter_names(), "settings", "runs"]
    for key in (key for key in content if key not in keys):
        raise unknown("key", key, keys)
    singles, shared = content.pop("runs", []), _take_settings(content)
    if not isinstance(singles, list) or not all(isinstance(single, dict) for single in singles):
        raise UsageError(f"runs must be tables, each under a heading [[runs]], found {singles!r}")
    whole = Combinations.make(**content)
    combined = bool({"models", "tasks"} & content.keys()) or not singles
    if "seeds" in content and not combined:
        raise UsageError("seeds belong to models and tasks, and the suite names neither; each run has its own seed")
    suite, grid = Suite(), dict[str, list[Any]]()
    every = [model for single in singles if isinstance(model := single.get("model"), str)]
    if combined:
        chosen_models, tasks = models.registry.select(whole.models), generators.registry.select(whole.tasks)
        every += chosen_models
        grid, fixed = split_grid(override(shared, settings))
        points = _points(grid, len(chosen_models) * len(tasks) * whole.seeds)
        how: dict[str, Any] = {"preset": whole.preset, "seeds": range(whole.seeds), "grid": points, "settings": fixed}
        suite = expand(chosen_models, tasks, **how, options=options, others=every)
    for number, single in enumerate(singles, 1):
        try:
            found, own_grid = _single(dict(single), whole.preset, shared, settings, every)
        except UsageError as error:
            raise UsageError(f"run {number}: {error}") from None
        suite.runs.extend(found)
        grid |= own_grid
    return Suite(suite.runs, suite.skipped, whole.time_limit, whole.unequal_budgets, tuple(grid))


def split_grid(settings: Mapping[str, Any]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Split settings into those that vary, with lists of their values, and the others.

    >>> split_grid({"length": "64,128", "steps": 20})
    ({'length': [64, 128]}, {'steps': 20})

    A text with a colon is one value, the layers of a hybrid model:

    >>> split_grid({"layers": "gla:2,attention:1"})
    ({}, {'layers': 'gla:2,attention:1'})

    The values of a list are in brackets; a list of the budget may also be written without brackets, and is then one
    value:

    >>> split_grid({"sizes": "[3,5],[7]", "betas": "[0.9,0.99],[0.9,0.95]", "test_lengths": "64,128"})
    ({'sizes': [[3, 5], [7]], 'betas': [[0.9, 0.99], [0.9, 0.95]]}, {'test_lengths': '64,128'})
    """
    grid = {
        name: _values(name, value)
        for name, value in settings.items()
        if isinstance(value, str) and "," in value and ":" not in value
        if value.startswith("[") or split_setting(name)[1] not in LISTS
    }
    return grid, {name: value for name, value in settings.items() if name not in grid}


def _values(name: str, text: str) -> list[Any]:
    """Return the values of a setting that a text separates with commas."""
    values = parse_assignment(f"{name}=[{text}]")[1]
    if isinstance(values, list):
        return values
    return [parse_assignment(f"{name}={part.strip()}")[1] for part in text.split(",")]


def require_comparable(runs: Sequence[RunConfig], may_differ: Collection[str] = ()) -> None:
    """Check that no two runs are the same, and that runs on one task share :data:`lrtasks.budget.SHARED_BUDGET`.

    Raises:
        UsageError: if two runs are the same, or if runs on one task with the same parameters differ in a shared field
            that is not in ``may_differ``; the message names two runs, the field and both values.
    """
    numbers: dict[str, int] = {}
    for number, run in enumerate(runs):
        before = numbers.setdefault(run.digest, number)
        if before != number:
            earlier, later = runs[before].title(), run.title()
            same = f"{later} twice" if earlier == later else f"{later}, which is the same run as {earlier}"
            raise UsageError(f"the suite has {same} (numbers {before + 1} and {number + 1})")
    setups = ((run.model.name, setup_of(run.record())) for run in runs)
    require_equal_budgets(setups, "give one value for all runs, or allow several (--unequal-budgets)", may_differ)


def _points(grid: Mapping[str, list[Any]], runs: int = 1) -> list[dict[str, Any]]:
    """Return the points of a grid; raise :class:`UsageError` if ``runs`` runs at each of them are too many."""
    count = runs * math.prod(map(len, grid.values()))
    if count > MAX_RUNS:
        raise UsageError(f"the suite has {count:,} runs; at most {MAX_RUNS:,} are allowed")
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]


def _single(
    content: dict[str, Any],
    preset: str,
    shared: Mapping[str, Any],
    given: Mapping[str, Any],
    chosen_models: Sequence[str],
) -> tuple[list[RunConfig], dict[str, list[Any]]]:
    """Return a single run, once for each point of its grid, and the grid.

    A setting ``LABEL.NAME`` for every run does not apply to it if it belongs to another of the ``chosen_models``.

    Raises:
        UsageError: if a run is impossible (a combination would be skipped).
    """
    for key in (key for key in content if key not in (keys := [*SingleRun.parameter_names(), "settings"])):
        raise unknown("key", key, keys)
    own = _take_settings(content)
    settings = override(override(shared, own), given)
    single = SingleRun.make(**content)
    for key in (key for key in ("model", "task") if key not in content):
        raise UsageError(f"{key} is missing")
    belongs = {name: name not in own and labelled(name, chosen_models) for name in settings}
    settings = {name: value for name, value in settings.items() if single.model in (belongs[name] or [single.model])}
    grid, fixed = split_grid(settings)
    how: dict[str, Any] = {"preset": single.preset or preset, "seed": single.seed}
    made = [RunConfig.make(single.task, single.model, settings={**fixed, **point}, **how) for point in _points(grid)]
    for run in made:
        require_possible(run)
    return made, grid


def require_possible(run: RunConfig) -> None:
    """Raise :class:`UsageError` if names, values or shapes make a run impossible. Nothing is computed."""
    try:
        with torch.device("meta"), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.model.build(run.task.input, run.task.target, run.task.causal)
    except UsageError:
        raise
    except Exception:  # the run itself reports all other errors
        return


def _take_settings(content: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings from ``content`` and return them flat: TOML reads ``model.kernel`` as a table ``model``."""
    settings = content.pop("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(f"settings must be a table such as {{ steps = 500 }}, found {settings!r}")
    return dict(flat(settings))
