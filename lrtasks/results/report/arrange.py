"""Arranging records: which are one result, in which order tasks and models stand, how the results are named."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrtasks.results.frame import make_frame
from lrtasks.results.report.content import COSTS, MEASURED, SOLVED, Cell, ModelColumn, Report, Result, TaskRow
from lrtasks.results.report.scale import above_floor
from lrtasks.results.report.sources import Sources
from lrtasks.results.table import make_table


def make_report(sources: Sources, *, unequal_budgets: bool = False) -> Report:
    """Arrange records as tasks × models, best first in both directions; see :func:`lrtasks.results.table.make_table`.

    Raises:
        UsageError: if runs on one task had unequal budgets and ``unequal_budgets`` does not allow it.
    """
    folders: dict[str, Path] = {}
    for folder, record in sources.runs:
        folders.setdefault(record.to_json(), folder)
    arranged = make_table(make_frame(sources.runs), unequal_budgets=unequal_budgets)
    records = [record for _, record in sources.runs]
    found = {
        place: Cell(cell.runs, tuple(records[run["index"]] for run in cell.runs))
        for place, cell in arranged.cells.items()
    }
    table: Any = dataclasses.replace(arranged, cells=found)
    floors = [_row_floor(table, row) for row in range(len(table.row_labels))]
    above = {key: _above(cell, cell.floor or floors[key[0]]) for key, cell in table.cells.items()}
    rows = _best_first(table.row_labels, above, lambda key: key[0])
    columns = _best_first(table.column_labels, above, lambda key: key[1])
    ids = _Ids()
    results = {}
    for new_row, row in enumerate(rows):
        for new_column, column in enumerate(columns):
            if (row, column) in table.cells:
                cell = table.cells[row, column]
                name = ids.make(table.row_labels[row], table.column_labels[column])
                floor = cell.floor or floors[row]
                results[new_row, new_column] = _result(name, new_row, new_column, cell, floor, above[row, column])
    return Report(
        tuple(_task_row(ids, table, row, floors[row]) for row in rows),
        tuple(
            _model_column(ids, table.column_labels[column], [r for r in results.values() if r.column == number])
            for number, column in enumerate(columns)
        ),
        results,
        folders,
        sources.left_out,
    )


def _row_floor(table: Any, row: int) -> tuple[str, float] | None:
    return next((cell.floor for key, cell in sorted(table.cells.items()) if key[0] == row and cell.floor), None)


def _above(cell: Cell, floor: tuple[str, float] | None) -> float | None:
    return above_floor(cell.score.mean, floor[1]) if cell.score and floor else None


def _best_first(
    labels: Sequence[str],
    above: Mapping[tuple[int, int], float | None],
    number_of: Callable[[tuple[int, int]], int],
) -> list[int]:
    """Numbers of the labels by the sum of their limited values, in falling order: what was not run adds nothing."""
    parts = [_limited(value for key, value in above.items() if number_of(key) == i) for i in range(len(labels))]
    sums = [math.fsum(part) for part in parts]  # the same whatever the order of the records
    return sorted(range(len(labels)), key=lambda i: (-sums[i], i))


def _limited(values: Iterable[float | None]) -> list[float]:
    """The values that are there, each limited to 0..1."""
    return [min(max(value, 0.0), 1.0) for value in values if value is not None]


def _result(
    name: str, row: int, column: int, cell: Cell, floor: tuple[str, float] | None, above: float | None
) -> Result:
    state = "scored" if cell.score else _state(cell)
    return Result(name, row, column, cell, floor, above, state, _costs(cell))


def _state(cell: Cell) -> str:
    """Why a cell has no score."""
    statuses = {record.status for record in cell.records}
    for status in ("diverged", "failed", "running", "interrupted"):
        if status in statuses:
            return status
    return "nan" if any(cell.metric in record.scores.get("test", {}) for record in cell.records) else "unscored"


def _costs(cell: Cell) -> dict[str, float]:
    # a mean over different machines would be the cost of none of them
    several = len(cell.devices) > 1
    found: dict[str, list[float]] = {name: [] for name in COSTS if not (several and name in MEASURED)}
    for record in cell.records:
        for name, values in found.items():
            value = (record.model if name in record.model else record.cost).get(name)
            if value is not None:
                values.append(value)
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def _task_row(ids: _Ids, table: Any, row: int, floor: tuple[str, float] | None) -> TaskRow:
    cell = next(cell for key, cell in sorted(table.cells.items()) if key[0] == row)
    label = table.row_labels[row]
    return TaskRow(ids.make("task", label), label, cell.records[0].task["name"], cell.metric, floor)


def _model_column(ids: _Ids, label: str, results: Sequence[Result]) -> ModelColumn:
    scores = [result.score for result in results if result.score is not None]
    above = _limited(result.above for result in results)
    known = {name: [result.costs[name] for result in results if name in result.costs] for name in COSTS}
    return ModelColumn(
        ids.make("model", label),
        label,
        results[0].cell.records[0].model["name"],
        float(np.mean(above)) if above else None,
        len(above),
        len(scores),
        sum(score >= SOLVED for score in scores),
        {name: float(np.median(values)) for name, values in known.items() if values},
    )


class _Ids:
    """Names within the page: letters, digits and dashes of what they stand for, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def make(self, *parts: Any) -> str:
        words = [re.sub(r"[^a-z0-9]+", "-", str(part).lower()).strip("-") for part in parts]
        stem = "--".join(word or "x" for word in words)
        name, number = stem, 1
        while name in self._taken:
            number += 1
            name = f"{stem}-{number}"
        self._taken.add(name)
        return name
