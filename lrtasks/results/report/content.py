"""What the page says: results by task and model, in the order in which they are shown."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from lrtasks.metrics import scaled_score
from lrtasks.record import STATUSES, RunRecord
from lrtasks.results.formats import number
from lrtasks.results.frame import make_frame, read_runs
from lrtasks.results.table import COUNTS, Aggregate, make_table

COSTS = {
    "seconds_per_step": ("time per step", "s"),
    "state_bytes": ("streaming state", "B"),
    "parameter_count": ("parameters", ""),
    "peak_memory_bytes": ("peak device memory", "B"),
}
"""What a result costs: column of the frame, title and unit. On a CPU the peak is mostly the interpreter's: left out."""


class State(NamedTuple):
    """What stands in a cell that has no scaled score."""

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
        found = {name: self.cell.first(name) if name in COUNTS else self.cell.cost(name) for name in COSTS}
        return {
            name: value
            for name, value in found.items()
            if value is not None and not (on_cpu and name == "peak_memory_bytes")
        }

    @property
    def remarks(self) -> list[str]:
        """What the score hides: runs of the cell that ended otherwise."""
        if self.score is None:
            return []
        statuses = [run["status"] for run in self.cell.unscored]
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
        found = [result for (place, _), result in self.results.items() if place == row]
        return sorted(found, key=lambda result: (result.score is None, -(result.score or 0.0)))

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
    scaled: dict[tuple[int, int], float | None] = {}
    for place, cell in table.cells.items():
        floor = cell.floor or floors[place[0]]
        scaled[place] = scaled_score(cell.median, floor[1]) if cell.median is not None and floor else None
    rows, columns = _best_first(len(table.row_labels), scaled, 0), _best_first(len(table.column_labels), scaled, 1)
    name = _namer()
    results = {}
    for place in ((row, column) for row in rows for column in columns if (row, column) in table.cells):
        row, column = place
        cell, new = table.cells[place], (rows.index(row), columns.index(column))
        found = [runs[run["index"]] for run in cell.runs]
        results[new] = Result(
            name(table.row_labels[row], table.column_labels[column]),
            *new,
            cell,
            tuple(record for _, record in found),
            tuple(folder for folder, _ in found),
            cell.floor or floors[row],
            scaled[place],
            "scored" if cell.median is not None else _state([record for _, record in found]),
        )
    tasks, models = [], []
    for row in rows:
        text = table.row_labels[row]
        run = next(cell.runs[0] for (place, _), cell in table.cells.items() if place == row)
        tasks.append(Axis(name("task", text), text, run["task"], run["metric"], floors[row]))
    for column in columns:
        text = table.column_labels[column]
        models.append(Axis(name("model", text), text, table.columns[column][0].runs[0]["model"]))
    return Report(tuple(tasks), tuple(models), results, tuple(left_out))


def _best_first(count: int, scaled: Mapping[tuple[int, int], float | None], axis: int) -> list[int]:
    """Places by the sum of their scaled scores, each limited to 0..1: what was not run adds nothing."""
    parts: list[list[float]] = [[] for _ in range(count)]
    for place, value in scaled.items():
        if value is not None:
            parts[place[axis]].append(min(max(value, 0.0), 1.0))
    # an exact sum is the same whatever the order of the records
    return sorted(range(count), key=lambda place: (-math.fsum(parts[place]), place))


def _state(records: Sequence[RunRecord]) -> str:
    """Why a cell has no score."""
    statuses = {record.status for record in records}
    found = [status for status in ("diverged", "failed", "running", "interrupted") if status in statuses]
    has_one = any(record.task["metric"] in record.scores.get("test", {}) for record in records)
    return found[0] if found else "nan" if has_one else "unscored"


def _namer() -> Callable[..., str]:
    """Makes names within the page: letters, digits and dashes of what they stand for, each given once."""
    taken = set[str]()

    def name(*parts: str) -> str:
        stem = "--".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)
        free = (text for text in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if text not in taken)
        taken.add(found := next(free))
        return found

    return name


def two_digits(value: float | None) -> str:
    """A scaled score; one far below the floor is of no use beyond -1.

    >>> two_digits(0.987), two_digits(-69.0), two_digits(None)
    ('0.99', '< -1', '')
    """
    return "< -1" if value is not None and value < -1 else number(value, 2)
