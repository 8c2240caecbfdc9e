"""Choose settings such as the learning rate on validation, then run the other seeds at the chosen values.

Seed 0 runs at every value. The best run on validation is chosen; a run that was solved earlier wins a tie. The other
seeds then run at its values alone. The test stream has no part in the choice. All runs stay in the results folder;
their records say which values were tried (``selection``), and tables show the chosen ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lrtasks.budget import SHARED_BUDGET
from lrtasks.config import split_setting
from lrtasks.errors import UsageError, unknown
from lrtasks.record import RunRecord
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import Suite

BY = ("val",)
"""Streams on which settings can be chosen."""

Runner = Callable[[Sequence[RunConfig]], list[RunRecord]]
"""Carries out runs and gives their records in order."""


def require_selectable(suite: Suite, by: str) -> tuple[str, ...]:
    """The settings that are selected: those that vary, but for parameters of tasks, which make a grid.

    Raises:
        UsageError: for an unknown stream, if no model or budget setting has several values, or if one is shared by
            compared models.
    """
    if by not in BY:
        raise unknown("stream to select on", by, BY)
    names = tuple(name for name in suite.varied if not of_task(name, suite))
    if not names:
        raise UsageError("--select needs a setting of model or budget with several values, such as --lr 3e-4,1e-3,3e-3")
    for name in names:
        if split_setting(name)[1] in SHARED_BUDGET:
            raise UsageError(f"{split_setting(name)[1]} is the same for all compared models and cannot be selected")
    return names


def of_task(setting: str, suite: Suite) -> bool:
    """Whether a setting is a parameter of a task."""
    owner, bare = split_setting(setting)
    return owner == "task" or (owner is None and any(bare in run.task.parameter_names() for run in suite.runs))


def run_selected(
    suite: Suite, names: Sequence[str], runner: Runner, out: Path
) -> tuple[list[RunConfig], list[RunRecord]]:
    """Carry out a suite with selection; the chosen runs of all seeds and their records.

    Args:
        suite: runs of all values and all seeds.
        names: the settings that are selected (:func:`require_selectable`).
        runner: carries out runs.
        out: results folder.
    """
    bare = [split_setting(name)[1] for name in names]
    groups: dict[str, list[RunConfig]] = {}
    for run in suite.runs:
        groups.setdefault(_group(run, bare), []).append(run)
    first = [run for runs in groups.values() for run in runs if run.seed == min(other.seed for other in runs)]
    records = dict(zip([run.digest for run in first], runner(first), strict=True))
    chosen: list[RunConfig] = []
    for runs in groups.values():
        tried = [run for run in runs if run.digest in records]
        best = max(tried, key=lambda run: _rank(records[run.digest]))
        values = {name: sorted({_value(run, name) for run in tried}, key=str) for name in bare}
        for run in tried:
            _note(records[run.digest], run, out, values, chosen=run is best)
        wanted = {name: _value(best, name) for name in bare}
        chosen += [run for run in runs if all(_value(run, name) == value for name, value in wanted.items())]
    left = [run for run in chosen if run.digest not in records]
    records |= dict(zip([run.digest for run in left], runner(left) if left else [], strict=True))
    for run in left:
        first_seed = next(other for other in chosen if _group(other, bare) == _group(run, bare) and other not in left)
        values = records[first_seed.digest].selection.get("values", {})
        _note(records[run.digest], run, out, values, chosen=True)
    return chosen, [records[run.digest] for run in chosen]


def _group(run: RunConfig, bare: Sequence[str]) -> str:
    """What runs share that differ in seed and selected settings alone."""
    identity = run.identity()
    without = {key: value for key, value in identity["budget"].items() if key not in bare}
    parameters = {key: value for key, value in identity["model"]["parameters"].items() if key not in bare}
    model = {**identity["model"], "parameters": parameters}
    return json.dumps({**identity, "budget": without, "model": model, "seed": None}, sort_keys=True)


def _value(run: RunConfig, name: str) -> Any:
    return run.model.parameters[name] if name in run.model.parameters else run.budget.parameters()[name]


def _rank(record: RunRecord) -> tuple[float, float]:
    """Sort key of a run for the choice: validation score, then the earlier solution."""
    score = record.headline("val") if record.status == "done" else None
    solved = record.steps_to_solve
    return (-math.inf if score is None else round(score, 4), -math.inf if solved is None else -solved)


def _note(record: RunRecord, run: RunConfig, out: Path, values: dict[str, Any], *, chosen: bool) -> None:
    """Note in a run's record what was tried, and whether this run was chosen."""
    record.selection = {"by": BY[0], "values": values, "chosen": chosen}
    folder = run.folder(out.absolute())
    if folder.is_dir() and record.digest == run.digest:
        record.write(folder)
