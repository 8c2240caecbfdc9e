"""Scores of the published runs at the preset ``small``: tables for the site's pages, and the heat map of all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from regions import table

from lrtasks.results import RunRecord, read_records
from lrtasks.results.cell import Cell
from lrtasks.results.report import heat_map_svg, make_report, read_sources
from lrtasks.results.table import make_table

RESULTS = Path(__file__).parents[2] / "results"
SMALL = RESULTS / "small"
NONE_YET = "No runs are published yet."


def of_task(words: Sequence[str]) -> str:
    """What each model scores on one task, the best first."""
    (name,) = words
    found = _cells(lambda record: record.task["name"] == name)
    if not found:
        return NONE_YET
    settings = {row for row, _, _ in found}
    found.sort(key=lambda item: (item[0], -_mean(item[2])))
    rows = []
    for row, model, cell in found:
        paper = f"{cell.paper.value:g} ({cell.paper.source}, {cell.paper.where})" if cell.paper else ""
        count = "" if cell.parameter_count is None else f"{cell.parameter_count:,}"
        rows.append([*([row] if len(settings) > 1 else []), model, cell.shown(), _floor(cell), paper, count])
    header = [*(["task"] if len(settings) > 1 else []), "model", "score", "floor", "the paper's", "parameters"]
    return table(header, rows)


def of_models(words: Sequence[str]) -> str:
    """What the models called ``words`` score on every task."""
    found = _cells(lambda record: record.model["name"] in words)
    if not found:
        return NONE_YET
    columns = sorted({model for _, model, _ in found})
    rows = []
    for row in dict.fromkeys(row for row, _, _ in found):
        here = {model: cell for label, model, cell in found if label == row}
        floor = _floor(next(iter(here.values())))
        rows.append([row, floor, *(here[model].shown() if model in here else "" for model in columns)])
    return table(["task", "floor", *columns], rows)


def heat_map() -> str:
    """The heat map of tasks × models, as SVG."""
    return heat_map_svg(make_report(read_sources([SMALL])))


KINDS: dict[str, Callable[[Sequence[str]], str]] = {"task": of_task, "models": of_models}


def _cells(wanted: Callable[[RunRecord], bool]) -> list[tuple[str, str, Cell]]:
    """Row label, column label and cell of the runs that are ``wanted``, in the order of the table."""
    chosen = [record for record in records(SMALL) if record.preset == "small" and wanted(record)]
    if not chosen:
        return []
    made = make_table(chosen, unequal_budgets=True)
    cells = sorted(made.cells.items())
    return [(made.row_labels[row], made.column_labels[column], cell) for (row, column), cell in cells]


@functools.cache
def records(folder: Path) -> list[RunRecord]:
    """All runs published in ``folder``, none of which may be unreadable."""
    found, problems = read_records(folder)
    if problems:
        raise ValueError(f"published records cannot be read: {'; '.join(problems)}")
    return [record for _, record in found]


def _floor(cell: Cell) -> str:
    return f"{cell.floor[1]:z.3f} `{cell.floor[0]}`" if cell.floor else ""


def _mean(cell: Cell) -> float:
    return cell.score.mean if cell.score else float("-inf")
