"""Tasks × models from run records, with floors, costs and the papers' figures beside the scores.

Records are merged to one cell only if they differ in nothing but the seed. Where a cell would hold runs of several
settings, it is split: rows are labelled by what differs in task and budget, columns by what differs in the model's own
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.record import RunRecord
from lrtasks.results import formats
from lrtasks.results.cell import Cell
from lrtasks.results.formats import Sheet
from lrtasks.results.settings import (
    Settings,
    by_number,
    key,
    label,
    labels,
    model_settings,
    require_equal_budgets,
    shared_budget,
    task_settings,
    telling,
    versions_note,
)


@dataclass(frozen=True)
class Table:
    """A grid of cells with labelled rows and columns; cells may be missing."""

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: Mapping[tuple[int, int], Cell]

    def rows(self) -> list[dict[str, Any]]:
        """One flat entry per cell."""
        return [self.cells[place].row() for place in sorted(self.cells)]

    def column(self, number: int) -> list[Cell]:
        """The cells of one model, in the order of the rows."""
        return [cell for (_, column), cell in sorted(self.cells.items()) if column == number]

    def scores(self) -> Sheet:
        """Task, metric, floor, then for each model our score and the paper's."""
        columns = range(len(self.column_labels))
        has_paper = {column for column in columns if any(cell.paper for cell in self.column(column))}
        header = ["task", "metric", "floor"]
        joined = set()
        for column, name in enumerate(self.column_labels):
            header.append(name)
            if column in has_paper:
                joined.add(len(header))
                header.append("paper")
        lines = []
        for row, name in enumerate(self.row_labels):
            present = [self.cells[row, column] for column in columns if (row, column) in self.cells]
            floor = next((cell.floor for cell in present if cell.floor), None)
            line = [name, present[0].metric, f"{floor[1]:z.3f} {floor[0]}" if floor else ""]
            for column in columns:
                cell = self.cells.get((row, column))
                line.append(cell.shown() if cell else "")
                if column in has_paper:
                    line.append(f"{cell.paper.value:g}" if cell and cell.paper else "")
            lines.append(line)
        return Sheet(header, lines, frozenset(joined))

    def costs(self) -> Sheet:
        """For each model the range of its costs over the rows."""
        lines = []
        for number, name in enumerate(self.column_labels):
            cells = self.column(number)
            counts = [cell.parameter_count for cell in cells if cell.parameter_count is not None]
            states = [cell.state_bytes for cell in cells if cell.state_bytes is not None]
            times = [1e3 * seconds for cell in cells for seconds in cell.step_seconds]
            devices = sorted({device for cell in cells for device in cell.devices})
            lines.append(
                [
                    name,
                    _range(counts, "{:,}".format),
                    _range(states, "{:,}".format) or ("none" if counts else ""),
                    _range(times, formats.digits),
                    "; ".join(devices),
                ]
            )
        return Sheet(["model", "parameters", "state bytes", "ms per step", "device"], lines)

    def notes(self) -> list[str]:
        """What a reader must know about the figures."""
        counts = {cell.score.count for cell in self.cells.values() if cell.score}
        several = sorted(counts - {1})
        notes = []
        if several:
            seeds = f"{several[0]} to {several[-1]}" if len(several) > 1 else f"{several[0]}"
            notes.append(f"±: half the 95 % interval of the mean over {seeds} seeds (Student t)")
        if 1 in counts:
            notes.append("without ±: a single seed, which has no interval")
        notes += versions_note(record for cell in self.cells.values() for record in cell.records)
        figures = [cell.paper for cell in self.cells.values() if cell.paper]
        sources = sorted({f"{figure.source} ({figure.where})" for figure in figures})
        return [*notes, f"paper: {'; '.join(sources)}"] if sources else notes

    def text(self, *, costs: bool = True, width: int | None = None) -> str:
        """The table for a terminal of ``width`` columns, or of any."""
        return formats.text([self.scores(), *([self.costs()] if costs else [])], self.notes(), width=width)


def make_table(records: Sequence[RunRecord], *, unequal_budgets: bool = False) -> Table:
    """Arrange records as tasks × models; see the module's own words on what is merged. Copies of a record count once.

    Args:
        records: at least one.
        unequal_budgets: allow runs on one task that differ in the shared part of their budgets
            (:data:`lrtasks.results.settings.SHARED_BUDGET`), in rows of their own.

    Raises:
        UsageError: if there are none, or budgets are unequal where they must not be.
    """
    if not records:
        raise UsageError("a table needs at least one run record")
    if not unequal_budgets:
        require_equal_budgets(records)
    records = list({record.to_json(): record for record in records}.values())
    row_settings: dict[str, Settings] = {}
    column_settings: dict[str, Settings] = {}
    grouped: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        row, column = {**task_settings(record), **shared_budget(record)}, model_settings(record)
        row_settings[key(row)], column_settings[key(column)] = row, column
        grouped.setdefault((key(row), key(column)), []).append(record)
    columns = _merge_columns(column_settings, grouped)
    row_labels = dict(zip(row_settings, labels(list(row_settings.values())), strict=True))
    row_keys = sorted(row_settings, key=lambda row_key: by_number(row_labels[row_key]))
    names = sorted(set(columns.values()), key=by_number)
    cells = {
        (row_keys.index(row_key), names.index(columns[column_key])): Cell(
            tuple(sorted(members, key=lambda record: record.seed))
        )
        for (row_key, column_key), members in grouped.items()
    }
    return Table(tuple(row_labels[row_key] for row_key in row_keys), tuple(names), cells)


def _merge_columns(settings: Mapping[str, Settings], grouped: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Label each column key; settings that never meet in one row (a preset's own for one task) share a column."""
    by_row: dict[str, list[str]] = {}
    for row_key, column_key in grouped:
        by_row.setdefault(row_key, []).append(column_key)
    conflicts: dict[str, set[str]] = {}
    for here in by_row.values():
        for name in {settings[column_key]["name"] for column_key in here}:
            alike = [settings[column_key] for column_key in here if settings[column_key]["name"] == name]
            conflicts.setdefault(name, set()).update(telling(alike))
    return {column_key: label(entry, sorted(conflicts[entry["name"]])) for column_key, entry in settings.items()}


def _range(values: Sequence[float], shown: Callable[[Any], str]) -> str:
    """One value, or the least and the greatest."""
    if not values:
        return ""
    least, greatest = shown(min(values)), shown(max(values))
    return least if least == greatest else f"{least} – {greatest}"
