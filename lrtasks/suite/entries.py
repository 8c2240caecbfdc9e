"""The runs of a suite as plain data: which there are, which cannot be, and which must not stand beside each other."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lrtasks import generators
from lrtasks import models as registered
from lrtasks.errors import UsageError
from lrtasks.evaluation.choices import lacking, split_setting
from lrtasks.evaluation.identity import new_record, repeat_command, run_folder
from lrtasks.evaluation.presets import Plan, assign, resolve
from lrtasks.record import RunRecord
from lrtasks.results.settings import SHARED_BUDGET, distinguishing, label


@dataclass(frozen=True)
class Entry:
    """One run of a suite.

    Attributes:
        model: a registered model's name.
        task: a task's name.
        preset: the preset that fills in what is left open.
        seed: the run's seed.
        settings: parameters of task, model and budget by bare name.
    """

    model: str
    task: str
    preset: str = "small"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def title(self) -> str:
        """What a reader should see, with all that sets the run apart."""
        settings = "".join(f" {name}={value}" for name, value in self.settings.items())
        return f"{self.model} on {self.task}{settings} seed {self.seed}"

    def command(self) -> list[str]:
        """The words of the command that carries out the run."""
        return repeat_command(self.model, self.task, self.preset, self.seed, **self.owned(), data=None)

    def plan(self) -> Plan:
        """Task, model and budget with all that the preset fills in.

        Raises:
            UsageError: for what names and values alone show to be impossible.
        """
        plan = resolve(self.task, self.model, preset=self.preset, **self.owned())
        registered.registry.get(self.model).make(**plan.hyper)
        plan.task.key(self.seed, "train")  # raises for a bad seed
        return plan

    def folder(self, out: Path) -> Path:
        """The run's folder below ``out``."""
        return run_folder(out, self.plan(), self.seed)

    def failed_record(self, reason: str) -> RunRecord:
        """The record of a run whose process could not write one."""
        record = new_record(self.plan(), self.preset, self.seed, shlex.join(self.command()))
        record.status = "failed"
        record.notes.append(reason)
        return record

    def owned(self) -> dict[str, dict[str, Any]]:
        """The settings, sorted into ``parameters`` of the task, ``hyper`` of the model and ``budget``."""
        return assign(self.task, self.model, self.settings)


def expand(
    models: Iterable[str],
    tasks: Iterable[str],
    *,
    preset: str = "small",
    seeds: Iterable[int] = (0,),
    grid: Iterable[Mapping[str, Any]] = ({},),
    settings: Mapping[str, Any] | None = None,
) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """All combinations of models, tasks, grid points and seeds.

    Args:
        models: names of registered models.
        tasks: names of tasks.
        preset: preset of every run.
        seeds: seeds of every combination.
        grid: settings that vary, one mapping per point (a sweep over lengths: ``{"length": 1024}``, ...).
        settings: settings of every run.

    Returns:
        The entries, and those that cannot be, each with the reason.
    """
    models, seeds, grid = list(models), list(seeds), list(grid)
    entries: list[Entry] = []
    skipped: list[tuple[Entry, str]] = []
    for task in tasks:
        for point in grid:
            for model in models:
                these = [Entry(model, task, preset, seed, {**(settings or {}), **point}) for seed in seeds]
                reason = impossible(these[0]) if these else None
                if reason is None:
                    entries += these
                else:
                    skipped += [(entry, reason) for entry in these]
    return entries, skipped


def sides(entry: Entry) -> tuple[dict[str, Any], dict[str, Any]]:
    """Row and column of an entry in a grid of tasks × models, with the settings that belong to each."""
    row: dict[str, Any] = {"name": entry.task, "preset": entry.preset}
    column: dict[str, Any] = {"name": entry.model}
    of_task = _parameters_of(entry.task)
    for setting, value in entry.settings.items():
        owner, name = split_setting(setting)
        in_row = owner == "task" or (owner != "model" and (name in of_task or name in SHARED_BUDGET))
        (row if in_row else column)[name] = value
    return row, column


def _parameters_of(task: str) -> list[str]:
    """Names of a task's parameters; none of a task that cannot be used, whose runs are only told of."""
    try:
        return generators.registry.get(task).parameter_names()
    except UsageError:
        return []


def side_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label rows or columns by their names and by what was set, where that is not the same for all of one name."""
    differ = {
        name: distinguishing([other for other in settings if other["name"] == name])
        for name in dict.fromkeys(entry["name"] for entry in settings)
    }
    return [label(entry, [name for name in differ[entry["name"]] if name in entry]) for entry in settings]


def titles(entries: Sequence[Entry]) -> list[str]:
    """What a reader should see of each entry beside the others: of its settings only those in which they differ."""
    if not entries:
        return []
    rows, columns = (side_labels(side) for side in zip(*map(sides, entries), strict=True))
    return [f"{column} on {row} seed {entry.seed}" for entry, row, column in zip(entries, rows, columns, strict=True)]


def impossible(entry: Entry) -> str | None:
    """Why a run cannot be, as far as names, values and shapes tell; ``None`` if they tell nothing against it."""
    try:
        unknown = lacking(entry.settings, [entry.model], [entry.task])
        if unknown:
            return f"no parameter {unknown[0]!r}"
        plan = entry.plan()
        # shapes only: a model refuses a task when it is built, most of them by whether it is to be causal
        with torch.device("meta"), torch.random.fork_rng([]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = registered.registry.get(entry.model).make(**plan.hyper)
            config.build(plan.task.input, plan.task.target, causal=plan.task.causal)
    except UsageError as error:
        return str(error)
    except Exception:
        return None  # whatever else goes wrong is the run's to report
    return None


def require_distinct(entries: Sequence[Entry], folders: Sequence[Path]) -> None:
    """Raise :class:`UsageError` if two runs are the same."""
    first: dict[Path, int] = {}
    for number, folder in enumerate(folders):
        before = first.setdefault(folder, number)
        if before != number:
            one, other = entries[before].title(), entries[number].title()
            same = f"{other} twice" if one == other else f"{other}, which is the same run as {one}"
            raise UsageError(f"the suite has {same} (numbers {before + 1} and {number + 1})")


def require_equal_budgets(entries: Sequence[Entry], plans: Sequence[Plan], may_differ: Collection[str] = ()) -> None:
    """Check that runs on one task with the same parameters share :data:`lrtasks.results.settings.SHARED_BUDGET`.

    Args:
        entries: runs.
        plans: their plans.
        may_differ: budget fields that need not be equal.

    Raises:
        UsageError: if they do not; the message names two runs, the field and both values.
    """
    first: dict[str, tuple[Entry, Plan]] = {}
    for entry, plan in zip(entries, plans, strict=True):
        one, its = first.setdefault(json.dumps(plan.task.identity(), sort_keys=True), (entry, plan))
        for name in SHARED_BUDGET:
            values = [getattr(its.budget, name), getattr(plan.budget, name)]
            if values[0] != values[1] and name not in may_differ:
                raise UsageError(
                    f"unequal budgets on {entry.task}: {name} is {values[0]} for {one.model} and {values[1]} for"
                    f" {entry.model}; give {name} for all runs, or ask for it (--unequal-budgets)"
                )
