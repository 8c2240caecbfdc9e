"""Scores of the published runs at the preset ``small``: tables for the site's pages, and the heat map of all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from regions import table

from lrtasks.results import RunRecord, frame, read_records
from lrtasks.results.formats import markdown_text, number
from lrtasks.results.report import heat_map_svg, read_report
from lrtasks.results.table import Aggregate, make_table, paper_notes

RESULTS = Path(__file__).parents[2] / "results"
SMALL = RESULTS / "small"
TODAY = {
    "fair": "With a learning rate chosen on validation, by seeds 0 to 2",
    "calibration": "Single runs that solve it",
}
"""Folders with runs under today's presets, and what they show."""
NONE_YET = "No runs are published yet."


def of_task(words: Sequence[str]) -> str:
    """What each model scores on one task, the best first."""
    (name,) = words
    return "\n\n".join(filter(None, [*(_solvers(name, folder) for folder in TODAY), _scores(name)])) or NONE_YET


def _solvers(name: str, folder: str) -> str:
    """Who solves a task, from which step, and up to which length the trained model does."""
    runs = runs_of(RESULTS / folder)
    if not (runs["task"] == name).any():
        return ""
    made = make_table(runs[runs["task"] == name], unequal_budgets=True)
    header = ["task", "model", "score", "floor", "learning rate", "solved at step", "samples", "generalises to"]
    rows = []
    for (row, column), cell in made.cells.items():
        length = cell.median_of("generalisation_length")
        steps = cell.median_of("steps_to_solve")
        samples = steps and steps * cell.first("budget.batch_size")
        rows.append(
            [
                *(made.row_labels[row], made.column_labels[column], cell.shown(), _floor(cell)),
                *(
                    f"{cell.first('budget.lr'):g}",
                    number(steps),
                    number(samples),
                ),
                "" if length is None else number(length),
            ]
        )
    return f"{TODAY[folder]} ([records](../../results/{folder}/README.md)):\n\n" + table(header, rows)


def _scores(name: str) -> str:
    """What each model scored in the table of 2,000 steps at one learning rate."""
    found = _cells("task", [name])
    if not found:
        return ""
    settings = {row for row, _, _ in found}
    has_paper = any(cell.paper is not None for _, _, cell in found)
    found.sort(key=lambda item: (item[0], -_median(item[2])))
    rows = []
    for row, model, cell in found:
        first = cell.runs[0]
        paper = "" if cell.paper is None else f"{cell.paper:g} ({first['paper_source']}, {first['paper_where']})"
        row_of_several = [row] if len(settings) > 1 else []
        figure = [paper] if has_paper else []
        rows.append(
            [*row_of_several, model, cell.shown(), _floor(cell), *figure, number(cell.first("parameter_count"))]
        )
    figure = ["the paper's"] if has_paper else []
    header = [*(["task"] if len(settings) > 1 else []), "model", "score", "floor", *figure, "parameters"]
    notes = [note for note in paper_notes(cell for _, _, cell in found) if note.startswith("not comparable")]
    return "\n\n".join([table(header, rows), *map(markdown_text, notes)])


def of_models(words: Sequence[str]) -> str:
    """What the models called ``words`` score on every task."""
    found = _cells("model", words)
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
    return heat_map_svg(read_report([SMALL]))


KINDS: dict[str, Callable[[Sequence[str]], str]] = {"task": of_task, "models": of_models}


def _cells(column: str, names: Sequence[str]) -> list[tuple[str, str, Aggregate]]:
    """Row label, column label and aggregate of the runs of some tasks or models, in the order of the table."""
    runs = runs_of(SMALL)
    chosen = runs[(runs["preset"] == "small") & runs[column].isin(names)]
    if not len(chosen):
        return []
    made = make_table(chosen, unequal_budgets=True)
    return [(made.row_labels[row], made.column_labels[place], cell) for (row, place), cell in made.cells.items()]


@functools.cache
def runs_of(folder: Path) -> pd.DataFrame:
    """The frame of all runs published in ``folder``."""
    records(folder)  # none may be unreadable
    return frame(folder)


@functools.cache
def records(folder: Path) -> list[RunRecord]:
    """All runs published in ``folder``, none of which may be unreadable."""
    found, problems = read_records(folder)
    if problems:
        raise ValueError(f"published records cannot be read: {'; '.join(problems)}")
    return [record for _, record in found]


def _floor(cell: Aggregate) -> str:
    return f"{number(cell.floor[1], 3)} `{cell.floor[0]}`" if cell.floor else ""


def _median(cell: Aggregate) -> float:
    return float("-inf") if cell.median is None else cell.median
