"""What the page says: results by task and model, in the order in which they are shown."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lrtasks.metrics import scaled_score
from lrtasks.record import STATUSES, RunRecord
from lrtasks.results.formats import number
from lrtasks.results.frame import make_frame, read_runs
from lrtasks.results.table import Aggregate, Table, make_table

SOLVED = 0.95
"""Score from which a task counts as solved, as in ``lrtasks sweep``."""

COSTS = {
    "seconds_per_step": ("time per step", "s"),
    "state_bytes": ("streaming state", "B"),
    "parameter_count": ("parameters", ""),
    "peak_memory_bytes": ("peak device memory", "B"),
}
"""What a result costs: column of the frame, title and unit. On a CPU the peak is mostly the interpreter's: left out."""


class State(NamedTuple):
    """What stands in a cell that has no scaled score: a short word, and what it means."""

    word: str
    meaning: str


STATES = {
    "diverged": State("div.", "diverged: the loss stopped being a number"),
    "failed": State("failed", "the run ended with an error"),
    "interrupted": State("stopped", "the process ended before the run"),
    "running": State("running", "not finished"),
    "nan": State("NaN", "the score is no number"),
    "unscored": State("none", "the record lacks the score"),
    "scored": State("–", "no floor below 1 to compare the score with"),
}


@dataclass(frozen=True)
class Result:
    """What one model reached on one task: a cell of the heat map.

    Attributes:
        id: name of its details within the page, made of letters, digits and dashes.
        row: number of its task.
        column: number of its model.
        cell: the runs, which differ in nothing but the seed.
        records: their records.
        folders: their folders.
        floor: name and headline score of the best trivial baseline.
        scaled: score above the floor; ``None`` without a score, a floor, or room above it.
        state: ``scored``, or why there is no score: one of :data:`STATES`.
    """

    id: str
    row: int
    column: int
    cell: Aggregate
    records: tuple[RunRecord, ...]
    folders: tuple[Path, ...]
    floor: tuple[str, float] | None
    scaled: float | None
    state: str

    @property
    def score(self) -> float | None:
        """Median of the headline score over the seeds that have one."""
        return self.cell.median

    @property
    def solved(self) -> str:
        """Of several seeds how many solved the task, ``2/3``; without a scaled score how many there are, ``×3``."""
        seeds = len(set(self.cell.seeds))
        if seeds == 1 or self.score is None:
            return ""
        return "{}/{}".format(*self.cell.solved) if self.cell.solved else f"×{seeds}"

    @cached_property
    def costs(self) -> dict[str, float]:
        """Mean over the seeds of each of :data:`COSTS` that is known."""
        on_cpu = any(device.startswith("cpu") for device in self.cell.devices)
        found = {
            "seconds_per_step": self.cell.cost("seconds_per_step"),
            "state_bytes": self.cell.first("state_bytes"),
            "parameter_count": self.cell.first("parameter_count"),
            "peak_memory_bytes": None if on_cpu else self.cell.cost("peak_memory_bytes"),
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def remarks(self) -> list[str]:
        """What the score hides: runs of the cell that ended otherwise."""
        if self.score is None:
            return []
        statuses = [run["status"] for run in self.cell.unscored()]
        others = Counter("without a score" if status == "done" else status for status in statuses)
        return [f"{count} of {len(self.records)} runs {outcome}" for outcome, count in sorted(others.items())]


@dataclass(frozen=True)
class Axis:
    """A task under one budget (a row of the heat map), or a model under one setting (a column).

    Attributes:
        id: name of its section or row within the page.
        label: name, and the settings that distinguish it from others of this name.
        name: the name.
        metric: name of the headline score (tasks).
        floor: name and headline score of the best trivial baseline of any of its runs (tasks).
    """

    id: str
    label: str
    name: str
    metric: str = ""
    floor: tuple[str, float] | None = None

    @property
    def settings(self) -> str:
        """What the label says in brackets after the name."""
        return self.label.removeprefix(self.name).strip().removeprefix("(").removesuffix(")")


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes:
        rows: tasks, the ones that models do best first.
        columns: models, the ones that do best first.
        results: by number of row and column; what was not run is missing.
        left_out: one line for each file that could not be read.
    """

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    results: Mapping[tuple[int, int], Result]
    left_out: tuple[str, ...]

    @cached_property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status."""
        found = Counter(record.status for result in self.results.values() for record in result.records)
        return {status: found[status] for status in ("done", *STATUSES) if found[status]}

    @cached_property
    def devices(self) -> list[str]:
        """What the runs were timed on."""
        return sorted({device for result in self.results.values() for device in result.cell.devices})

    @cached_property
    def costs(self) -> dict[str, tuple[str, str]]:
        """Those of :data:`COSTS` that any result has."""
        known = {name for result in self.results.values() for name in result.costs}
        return {name: cost for name, cost in COSTS.items() if name in known}

    def states(self) -> dict[str, State]:
        """The states of the cells without a scaled score."""
        found = {result.state for result in self.results.values() if result.scaled is None}
        return {name: state for name, state in STATES.items() if name in found}

    def in_row(self, row: int) -> list[Result]:
        """The results on one task, best score first, those without a score last."""
        return self._by_row[row]

    @cached_property
    def _by_row(self) -> list[list[Result]]:
        found: list[list[Result]] = [[] for _ in self.rows]
        for (row, _), result in self.results.items():
            found[row].append(result)
        return [sorted(row, key=lambda result: (result.score is None, -(result.score or 0.0))) for row in found]

    def tasks(self) -> dict[str, list[int]]:
        """Numbers of the rows of each task, by its name."""
        found: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            found.setdefault(row.name, []).append(place)
        return found


def read_report(folders: Sequence[Path], *, unequal_budgets: bool = False) -> Report:
    """The report of all runs below ``folders``; raises as :func:`make_report`, and for folders without a record."""
    runs, left_out = read_runs(folders)
    return make_report(runs, left_out, unequal_budgets=unequal_budgets)


def make_report(
    runs: Sequence[tuple[Path, RunRecord]], left_out: Sequence[str] = (), *, unequal_budgets: bool = False
) -> Report:
    """Arrange runs as tasks × models, best first in both directions (:func:`lrtasks.results.table.make_table`).

    Args:
        runs: folders and records.
        left_out: one line for each file that could not be read.
        unequal_budgets: give runs of unequal budgets on one task rows of their own.

    Raises:
        UsageError: if runs on one task had unequal budgets and ``unequal_budgets`` does not allow it.
    """
    table = make_table(make_frame(runs), unequal_budgets=unequal_budgets)
    floors: dict[int, tuple[str, float] | None] = {}
    for (row, _), cell in table.cells.items():
        floors[row] = floors.get(row) or cell.floor
    above = {place: _above(cell, cell.floor or floors[place[0]]) for place, cell in table.cells.items()}
    rows = _best_first(len(table.row_labels), above, 0)
    columns = _best_first(len(table.column_labels), above, 1)
    new_row, new_column = ({old: new for new, old in enumerate(order)} for order in (rows, columns))
    name = _Names()
    results = {}
    for row, column in sorted(table.cells, key=lambda place: (new_row[place[0]], new_column[place[1]])):
        cell, place = table.cells[row, column], (new_row[row], new_column[column])
        found = [runs[run["index"]] for run in cell.runs]
        results[place] = Result(
            name(table.row_labels[row], table.column_labels[column]),
            *place,
            cell,
            tuple(record for _, record in found),
            tuple(folder for folder, _ in found),
            cell.floor or floors[row],
            above[row, column],
            "scored" if cell.median is not None else _state(found),
        )
    tasks = [(table.row_labels[row], _some_run(table, 0, row), floors[row]) for row in rows]
    models = [(table.column_labels[column], _some_run(table, 1, column)) for column in columns]
    return Report(
        tuple(Axis(name("task", label), label, run["task"], run["metric"], floor) for label, run, floor in tasks),
        tuple(Axis(name("model", label), label, run["model"]) for label, run in models),
        results,
        tuple(left_out),
    )


def _some_run(table: Table, axis: int, place: int) -> Mapping[str, Any]:
    return next(cell.runs[0] for key, cell in table.cells.items() if key[axis] == place)


def _above(cell: Aggregate, floor: tuple[str, float] | None) -> float | None:
    return scaled_score(cell.median, floor[1]) if cell.median is not None and floor else None


def _best_first(count: int, above: Mapping[tuple[int, int], float | None], axis: int) -> list[int]:
    """Places by the sum of their scaled scores, each limited to 0..1: what was not run adds nothing."""
    parts: list[list[float]] = [[] for _ in range(count)]
    for place, value in above.items():
        if value is not None:
            parts[place[axis]].append(min(max(value, 0.0), 1.0))
    sums = [math.fsum(part) for part in parts]  # the same whatever the order of the records
    return sorted(range(count), key=lambda place: (-sums[place], place))


def _state(runs: Sequence[tuple[Path, RunRecord]]) -> str:
    """Why a cell has no score."""
    statuses = {record.status for _, record in runs}
    for status in ("diverged", "failed", "running", "interrupted"):
        if status in statuses:
            return status
    return "nan" if any(record.task["metric"] in record.scores.get("test", {}) for _, record in runs) else "unscored"


class _Names:
    """Names within the page: letters, digits and dashes of what they stand for, each given once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def __call__(self, *parts: str) -> str:
        words = [re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts]
        stem = name = "--".join(word or "x" for word in words)
        while name in self._taken:
            self._taken[stem] += 1
            name = f"{stem}-{self._taken[stem]}"
        self._taken[name] = 1
        return name


def two_digits(value: float | None) -> str:
    """A scaled score; one far below the floor is of no use beyond -1.

    >>> two_digits(0.987), two_digits(-69.0), two_digits(None)
    ('0.99', '< -1', '')
    """
    return "< -1" if value is not None and value < -1 else number(value, 2)
