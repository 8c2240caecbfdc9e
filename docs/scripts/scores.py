"""Scores of the published runs at the preset ``small``: tables for the site's pages, and the heat map of all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from regions import table

from lrtasks.results import RunRecord, read_records
from lrtasks.results.formats import markdown_text, number
from lrtasks.results.frame import make_frame
from lrtasks.results.plots import draw_heatmap
from lrtasks.results.style import encode
from lrtasks.results.table import Row, arrange, make_table, paper_notes, shown

RESULTS = Path(__file__).parents[2] / "results"
FAIR = RESULTS / "fair"
CHECKS = ("choices", "rates", "sizes", "state-bytes", "steps")
"""Folders of runs that check a finding with variants of a model; the report and the frame do not contain them."""
PUBLISHED = sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name not in (*CHECKS, "bench", "gpu"))
TODAY = {
    "fair": "With a learning rate chosen on validation, by seeds 0 to 2",
    "calibration": "Single runs that solve it",
}
"""Folders with runs under today's presets, and a heading for each."""
NONE_YET = "No runs are published yet."


def of_task(words: Sequence[str]) -> str:
    """Return the tables of the models' scores on one task."""
    (name,) = words
    return "\n\n".join(filter(None, (_solvers(name, folder) for folder in TODAY))) or NONE_YET


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
    notes = [markdown_text(note) for note in paper_notes(made.cells) if note.startswith("not comparable")]
    heading = f"{TODAY[folder]} ([records](../../results/{folder}/README.md)):"
    return "\n\n".join([heading, table(header, rows), *notes])


def of_models(words: Sequence[str]) -> str:
    """Return the table of the scores of the models named in ``words`` on every task, under the fair protocol."""
    runs = runs_of(FAIR)
    chosen = runs[runs["model"].isin(words)]
    if chosen.empty:
        return NONE_YET
    found = make_table(chosen).cells
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


@functools.cache
def runs_of(folder: Path) -> pd.DataFrame:
    """Return the frame of all runs published in ``folder``."""
    return make_frame(runs_in(folder))


def records(folder: Path) -> list[RunRecord]:
    """Return the records of all runs published in ``folder``."""
    return [record for _, record in runs_in(folder)]


@functools.cache
def runs_in(folder: Path) -> list[tuple[Path, RunRecord]]:
    """Return folders and records of all runs published in ``folder``; raise ValueError for an unreadable record."""
    found, problems = read_records(folder)
    if problems:
        raise ValueError(f"published records cannot be read: {'; '.join(problems)}")
    return found


def _floor(cell: Row) -> str:
    return "" if cell["floor"] is None else f"{number(cell['floor'], 3)} `{cell['baseline']}`"
