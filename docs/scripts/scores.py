"""Scores of the published runs at the preset ``small``: tables for the site's pages, and the heat map of all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from regions import table

from lrtasks.results import RunRecord, frame, read_records
from lrtasks.results.formats import markdown_text, number
from lrtasks.results.plots import draw_heatmap
from lrtasks.results.style import encode
from lrtasks.results.table import Row, arrange, make_table, paper_beside, paper_notes, shown

RESULTS = Path(__file__).parents[2] / "results"
SMALL, FAIR = RESULTS / "small", RESULTS / "fair"
CHECKS = ("choices", "sizes", "state-bytes")
"""Folders of runs that check a finding with variants of a model; the report and the frame do not contain them."""
PUBLISHED = sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name not in (*CHECKS, "bench"))
TODAY = {
    "fair": "With a learning rate chosen on validation, by seeds 0 to 2",
    "calibration": "Single runs that solve it",
}
"""Folders with runs under today's presets, and a heading for each."""
NONE_YET = "No runs are published yet."


def of_task(words: Sequence[str]) -> str:
    """Return the tables of the models' scores on one task."""
    (name,) = words
    return "\n\n".join(filter(None, [*(_solvers(name, folder) for folder in TODAY), _scores(name)])) or NONE_YET


def _solvers(name: str, folder: str) -> str:
    """Return the table of a folder's runs on a task: scores, step and cost of the solution, generalisation length."""
    runs = runs_of(RESULTS / folder)
    if not (runs["task"] == name).any():
        return ""
    made = make_table(runs[runs["task"] == name], unequal_budgets=True)
    header = ["task", "model", "score", "floor", "rate", "solved at step", "samples", "ms per step", "generalises to"]
    rows = []
    for cell in made.cells:
        steps = cell["steps_to_solve"]
        samples = steps and steps * cell["budget.batch_size"]
        line = [cell["row"], cell["column"], shown(cell), _floor(cell), f"{cell['budget.lr']:g}"]
        speed = number(cell["seconds_per_step"] and 1e3 * cell["seconds_per_step"])
        rows.append([*line, number(steps), number(samples), speed, number(cell["generalisation_length"])])
    return f"{TODAY[folder]} ([records](../../results/{folder}/README.md)):\n\n" + table(header, rows)


def _scores(name: str) -> str:
    """Return the models' scores on a task in the runs of 2,000 steps at one learning rate, the best first."""
    found = _cells("task", [name])
    if not found:
        return ""
    settings = {cell["row"] for cell in found}
    has_paper = any(paper_beside(cell) is not None for cell in found)
    found.sort(key=lambda cell: (cell["row"], -(float("-inf") if cell["median"] is None else cell["median"])))
    rows = []
    for cell in found:
        figure = number(paper_beside(cell)) and f"{cell['paper']:g} ({cell['paper_source']}, {cell['paper_where']})"
        rows.append(
            [
                *([cell["row"]] if len(settings) > 1 else []),
                *(cell["column"], shown(cell), _floor(cell)),
                *([figure] if has_paper else []),
                number(cell["parameter_count"]),
            ]
        )
    figure = ["the paper's"] if has_paper else []
    header = [*(["task"] if len(settings) > 1 else []), "model", "score", "floor", *figure, "parameters"]
    notes = [note for note in paper_notes(found) if note.startswith("not comparable")]
    return "\n\n".join([table(header, rows), *map(markdown_text, notes)])


def of_models(words: Sequence[str]) -> str:
    """Return the table of the scores of the models named in ``words`` on every task."""
    found = _cells("model", words)
    if not found:
        return NONE_YET
    columns = sorted({cell["column"] for cell in found})
    rows = []
    for row in dict.fromkeys(cell["row"] for cell in found):
        here = {cell["column"]: cell for cell in found if cell["row"] == row}
        floor = _floor(next(iter(here.values())))
        rows.append([row, floor, *(shown(here[model]) if model in here else "" for model in columns)])
    return table(["task", "floor", *columns], rows)


def heat_map() -> str:
    """Return the heat map of tasks × models under the fair protocol, as ``lrtasks plot heatmap`` writes it in SVG."""
    return encode(draw_heatmap(arrange(runs_of(FAIR)), []), ".svg").decode()


KINDS: dict[str, Callable[[Sequence[str]], str]] = {"task": of_task, "models": of_models}


def _cells(column: str, names: Sequence[str]) -> list[Row]:
    """Return the cells of some tasks or models, in the order of the table."""
    runs = runs_of(SMALL)
    chosen = runs[(runs["preset"] == "small") & runs[column].isin(names)]
    return make_table(chosen, unequal_budgets=True).cells if len(chosen) else []


@functools.cache
def runs_of(folder: Path) -> pd.DataFrame:
    """Return the frame of all runs published in ``folder``."""
    records(folder)  # raises an error for an unreadable record
    return frame(folder)


@functools.cache
def records(folder: Path) -> list[RunRecord]:
    """Return the records of all runs published in ``folder``; raise ValueError for an unreadable record."""
    found, problems = read_records(folder)
    if problems:
        raise ValueError(f"published records cannot be read: {'; '.join(problems)}")
    return [record for _, record in found]


def _floor(cell: Row) -> str:
    return "" if cell["floor"] is None else f"{number(cell['floor'], 3)} `{cell['baseline']}`"
