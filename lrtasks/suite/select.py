"""Choose settings such as the learning rate by validation score, then run the other seeds at the chosen values.

The lowest seed, usually 0, runs at every value. The run with the best validation score is chosen. If scores are equal
to four decimals, the run that solved the task in fewer steps is chosen. If the steps are also equal, the run that was
named first is chosen. The other seeds then run only at the chosen values. The test stream has no influence on the
choice. All runs stay in the results folder. Their records name the values that were tried (``selection``), and tables
show the chosen runs.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrtasks.budget import SHARED_BUDGET, Budget
from lrtasks.config import split_setting
from lrtasks.errors import UsageError, require_known
from lrtasks.files import held
from lrtasks.models.factory import describe_parameters
from lrtasks.record import FILE, FINISHED, LOCK, RunRecord, read_record, read_records, split_selected
from lrtasks.results.settings import cell_of
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import Suite, labelled
from lrtasks.suite.run import look

BY = ("val",)
"""Streams on which settings can be chosen."""

OnEnd = Callable[[RunConfig, RunRecord], None]
Runner = Callable[[Sequence[RunConfig], OnEnd], list[RunRecord]]
"""A function that executes runs, calls a function for each run that has ended, and returns all records in order."""


def require_selectable(suite: Suite, by: str) -> tuple[str, ...]:
    """Return the settings to select: all settings that vary, except parameters of tasks, which make a grid.

    Raises:
        UsageError: for an unknown stream; if no setting of model or budget has several values; if such a setting must
            be equal for all compared models; or if it belongs to one of several models.
    """
    require_known("stream to select on", by, BY)
    names = tuple(name for name in suite.varied if not of_task(name, suite))
    if not names:
        raise UsageError("--select needs a setting of model or budget with several values, such as --lr 3e-4,1e-3,3e-3")
    for name in names:
        owner, bare = split_setting(name)
        if bare in SHARED_BUDGET and owner != "model":
            raise UsageError(f"{bare} is the same for all compared models and cannot be selected")
        if bare in Budget.parameter_names() and bare not in SHARED_BUDGET:
            for model in suite.models:
                if any(entry["name"] == bare for entry in describe_parameters(model) or ()):
                    both = f"{model} has an argument {bare}, and so has the budget"
                    raise UsageError(f"{both}; rename the argument, since a selection names settings without owner")
        if len(suite.models) > 1 and labelled(name, suite.models):
            raise UsageError(f"{name} belongs to one model and cannot be selected beside others; name this model alone")
    return names


def of_task(setting: str, suite: Suite) -> bool:
    """Return whether a setting is a parameter of a task."""
    owner, bare = split_setting(setting)
    return owner == "task" or (owner is None and any(bare in run.task.parameter_names() for run in suite.runs))


def run_selected(
    suite: Suite, names: Sequence[str], runner: Runner, out: Path
) -> tuple[list[RunConfig], list[RunRecord], dict[str, RunRecord]]:
    """Execute a suite with a selection of the settings ``names`` (:func:`require_selectable`).

    Returns:
        The chosen runs of all seeds; their records; and, by title, the records of runs that failed at other values. If
        any failed, the choice is not final. If another process works on a run of the first seed, nothing is chosen in
        its group yet: the best run so far is returned, and no other seed runs.
    """
    bare = _bare(suite, names)
    groups = _groups(suite, bare)
    first = [run for runs in groups for run in _of_lowest_seed(runs)]
    records = dict(zip([run.digest for run in first], runner(first, lambda *_: None), strict=True))
    chosen: list[RunConfig] = []
    tried_values: dict[str, dict[str, Any]] = {}
    decided, earlier = list[RunConfig](), set[tuple[str, str]]()
    for runs in groups:
        tried = [run for run in runs if run.digest in records]
        best = max(tried, key=lambda run: _rank(records[run.digest]))
        found = [_values(run, bare) for run in tried]
        # a value may be a list; a setting of another model of the suite is missing
        known = [name for name in bare if name in found[0]]
        values = {name: sorted({repr(each[name]): each[name] for each in found}.values(), key=str) for name in known}
        if any(records[run.digest].status == "running" for run in tried):
            # another process works on a candidate; two commands could choose different values
            tried_values[best.digest] = values
            chosen.append(best)
            continue
        decided.append(best)
        earlier |= {cell_of(record) for run in tried if (record := records[run.digest]).selection.get("chosen")}
        for run in tried:
            _note(records[run.digest], run, out, values, chosen=run is best)
        same = [run for run in runs if _values(run, bare) == _values(best, bare)]
        if all(records[run.digest].status not in FINISHED for run in tried):
            same = [best]  # no value was chosen, so no other seed can run at it
        tried_values |= {run.digest: values for run in same}
        chosen += same
    _settle_others(decided, records, out, tried_values, earlier)
    left = [run for run in chosen if run.digest not in records]

    def note(run: RunConfig, record: RunRecord) -> None:
        _note(record, run, out, tried_values[run.digest], chosen=True)

    # noted as each run ends, so that a table of an unfinished suite has one column for a model
    for run, record in zip(left, runner(left, note) if left else [], strict=True):
        records[run.digest] = record
        note(run, record)
    failed = {
        run.title(): records[run.digest]
        for run in first
        if run.digest not in tried_values and records[run.digest].status not in FINISHED
    }
    return chosen, [records[run.digest] for run in chosen], failed


def planned(suite: Suite, names: Sequence[str], out: Path | None = None) -> list[RunConfig]:
    """Return as many runs as :func:`run_selected` executes.

    The other seeds have the best value if the runs of the first seed are finished below ``out``, otherwise the first.
    Without ``names``, nothing is selected.
    """
    if not names:
        return suite.runs
    bare, found = _bare(suite, names), list[RunConfig]()
    for runs in _groups(suite, bare):
        first = _of_lowest_seed(runs)
        tried = [(run, look(run, run.folder(out))[1]) for run in first] if out else []
        ranks = {run.digest: _rank(record) for run, record in tried if record}
        best = max(first, key=lambda run: ranks[run.digest]) if len(ranks) == len(first) else first[0]
        at = _values(best, bare)
        found += first + [run for run in runs if run.seed != first[0].seed and _values(run, bare) == at]
    return found


def _bare(suite: Suite, names: Sequence[str]) -> list[str]:
    """Return settings as records name them: without their owner and without the label of their model."""
    bare = [name.partition(".")[2] if labelled(name, suite.models) else split_setting(name)[1] for name in names]
    return [name.replace("-", "_") for name in bare]


def _groups(suite: Suite, bare: Sequence[str]) -> list[list[RunConfig]]:
    """Return the runs that differ only in seed and the settings ``bare``, together."""
    groups: dict[tuple[str, str], list[RunConfig]] = {}
    for run in suite.runs:
        record = replace(run.record(), selection={"values": dict.fromkeys(bare)})
        groups.setdefault(cell_of(record), []).append(run)
    return list(groups.values())


def _of_lowest_seed(runs: Sequence[RunConfig]) -> list[RunConfig]:
    lowest = min(run.seed for run in runs)
    return [run for run in runs if run.seed == lowest]


def _values(run: RunConfig, bare: Sequence[str]) -> dict[str, Any]:
    """Return the values of the settings ``bare``, including defaults that the run's identity leaves out."""
    defaults = {entry["name"]: entry["default"] for entry in describe_parameters(run.model.address or "") or ()}
    return split_selected({**defaults, **run.budget.parameters(), **run.model.parameters}, bare)[0]


def _rank(record: RunRecord) -> tuple[float, float]:
    """Return the sort key of a run for the choice: validation score to four decimals, then fewer steps."""
    score = record.headline("val") if record.status == "done" else None
    solved = record.steps_to_solve
    return (-math.inf if score is None else round(score, 4), -math.inf if solved is None else -solved)


def _note(record: RunRecord, run: RunConfig, out: Path, values: dict[str, Any], *, chosen: bool) -> None:
    """Note in a run's record which values were tried, and whether this run was chosen."""
    recorded, _ = split_selected({**run.budget.identifying(), **run.model.parameters}, [*values])
    left_out = {name: value for name, value in _values(run, [*values]).items() if name not in recorded}
    selection = {"by": BY[0], "values": values, "chosen": chosen} | ({"defaults": left_out} if left_out else {})
    if record.selection == selection:  # the folder of a finished selection may be read-only
        return
    record.selection = selection
    _write_selection(run.folder(out.absolute()), record)


def _write_selection(folder: Path, record: RunRecord) -> None:
    """Write the selection of ``record`` to the file in ``folder``, unless it is another run's or cannot be changed."""
    if not (folder / FILE).exists():  # a lock would make the folder of a refused run
        return
    try:
        with held(folder / LOCK, str(folder)):
            found = read_record(folder)  # another command may have changed it since
            if (found.digest, found.status) == (record.digest, record.status):
                found.selection = record.selection
                found.write(folder)
    except (UsageError, FileNotFoundError, PermissionError):
        return
    except OSError as error:
        if error.errno != errno.EROFS:
            raise


def _settle_others(
    best: Sequence[RunConfig],
    records: Mapping[str, RunRecord],
    out: Path,
    chosen: Collection[str],
    earlier: Collection[tuple[str, str]],
) -> None:
    """Note the choice in runs that an earlier selection chose and that are not in this suite.

    Other seeds at the values that are chosen now stay chosen; runs at other values do not. ``best`` has the runs of the
    first seed that are chosen now, ``chosen`` the digests of all runs that are chosen now, and ``earlier`` the cells
    that earlier selections, perhaps of other settings, gave to the runs of the first seed.
    """
    replaced = {cell_of(records[run.digest]) for run in best} | {*earlier}
    same = {cell_of(replace(record, selection={})): record for run in best if (record := records[run.digest])}
    for folder in {run.folder(out.absolute()).parent for run in best}:
        for place, other in read_records(folder)[0] if folder.is_dir() else ():
            if not other.selection.get("chosen") or other.digest in chosen or cell_of(other) not in replaced:
                continue
            now = same.get(cell_of(replace(other, selection={})))
            selection = now.selection if now else {**other.selection, "chosen": False}
            if other.selection != selection:
                other.selection = selection
                _write_selection(place, other)
