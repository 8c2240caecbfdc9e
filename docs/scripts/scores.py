"""Scores of the published runs at the preset ``small``: tables for the pages, and the heat map of all."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from regions import link, table

from lrtasks.registry import split_preset
from lrtasks.results import RunRecord, read_records
from lrtasks.results.formats import TextTable, markdown_text, number
from lrtasks.results.frame import make_frame
from lrtasks.results.plots import draw_heatmap
from lrtasks.results.style import encode
from lrtasks.results.table import Row, Table, arrange, make_table, paper_notes

RESULTS = Path(__file__).parents[2] / "results"
TASKS = Path(__file__).parents[1] / "tasks"
FAIR = RESULTS / "fair"
CHECKS = ("choices", "rates", "sizes", "state-bytes", "steps", "window")
"""Folders of runs that check a finding with variants of a model; the report and the frame do not contain them."""
PUBLISHED = sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name not in (*CHECKS, "bench", "gpu"))
TODAY = {
    "fair": "Medians of seeds 0 to 2, with the learning rate that validation chose",
    "calibration": "Single runs that solve the task",
}
"""Folders with runs under today's presets, and a heading for each."""
STEP = (
    "The column `at step` has the median step from which the scaled score on validation was at least 0.99. It is empty"
    " if half of the seeds or more do not reach this score."
)
NONE_YET = "No runs at preset `small` are published yet."


def solvers(page: Path, words: Sequence[str]) -> str:
    """Return for each preset of a task the models by the number of solving seeds, the floor, and a short memory."""
    (name,) = words
    short = _medians(RESULTS / "window")
    cells = [cell for cell in _fair_cells() if cell["task"] == name]
    lines = []
    for task in sorted({cell["instance"] for cell in cells}):
        own = [cell for cell in cells if cell["instance"] == task]
        named = [[seeds, ", ".join(f"{cell['column']} {_median(cell)}" for cell in at)] for seeds, at in _by_seeds(own)]
        first = f"`{split_preset(task)[1] or 'small'}`"
        named.append(["floor", _floor(own[0])])
        if task in short:
            control = f"[short memory]({link(page, RESULTS / 'window' / 'README.md')})"
            named.append([control, f"transformer that sees 15 positions {short[task]}"])
        lines += [[first, *named[0]], *(["", *line] for line in named[1:])]
    return table(["preset", "solved in", "models, with the median score"], lines)


def solved(page: Path, words: Sequence[str]) -> str:
    """Return for each of the named models its tasks by the number of seeds that solve them."""
    lines = []
    for model in words:
        first = f"`{model}`"
        for seeds, at in _by_seeds([cell for cell in _fair_cells() if cell["model"] == model]):
            scores = [(cell["instance"], link(page, TASKS / cell["task"]), cell["scaled_median"]) for cell in at]
            named = ", ".join(f"[{task}]({address}.md) {number(score, 3)}" for task, address, score in scores)
            lines.append([first, seeds, named])
            first = ""
    if not lines:
        return NONE_YET
    missing = [f"`{model}`" for model in words if model not in {cell["model"] for cell in _fair_cells()}]
    said = f"\n\nNot run yet: {', '.join(missing)}." if missing else ""
    return table(["model", "solved in", "tasks, with the scaled score of the median"], lines) + said


def short_memory(page: Path, _: Sequence[str]) -> str:
    """Return for each task of a folder with one model its scores, and the fair cells at most 0.02 above the median."""
    made = make_table(runs_of(page.parent))
    instances, lines = _instances(made), []
    for cell in made.cells:
        task = instances[cell["row"]]
        own = [record for record in records(page.parent) if f"--task {task} " in record.command]
        scores = sorted(record.scores["test"][record.task["metric"]] for record in own)
        fair = [at for at in _fair_cells() if at["instance"] == task and at["median"] <= cell["median"] + 0.02]
        named = ", ".join(f"{at['column']} {_median(at)}" for at in fair)
        span = f"{number(scores[0], 3)} to {number(scores[-1], 3)}"
        lines.append([f"`{task}`", _floor(cell), _median(cell), span, named])
    return table(["task", "floor", "this model", "all its runs", "models at most 0.02 above it"], lines)


@functools.cache
def _medians(folder: Path) -> dict[str, str]:
    """Return the median score of each task of a folder with one model, by the task's name in commands."""
    made = make_table(runs_of(folder))
    instances = _instances(made)
    return {instances[cell["row"]]: _median(cell) for cell in made.cells}


@functools.cache
def _fair_cells() -> list[Row]:
    """Return the fair cells, the best first; ``instance`` is the task's name in commands (``TASK@PRESET``)."""
    made = make_table(runs_of(FAIR))
    instances = _instances(made)
    cells = [{**cell, "instance": instances[cell["row"]]} for cell in made.cells]
    return sorted(cells, key=lambda cell: -cell["scaled_median"])


def _instances(made: Table) -> dict[str, str]:
    """Return for each row the shortest name of its task in the commands of the runs."""
    named = made.runs.assign(instance=made.runs["command"].str.extract(r"--task (\S+)", expand=False))
    return {row: min(own["instance"], key=len) for row, own in named.groupby("row", observed=True)}


def _by_seeds(cells: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield ``2 of 3 seeds`` and the cells that so many seeds solve, the most seeds first."""
    for solved in sorted({cell["solved"] for cell in cells}, reverse=True):
        at = [cell for cell in cells if cell["solved"] == solved]
        yield f"{solved:.0f} of {at[0]['different_seeds']} seeds", at


def _median(cell: Row) -> str:
    return number(cell["median"], 3)


def tests(_: Path, words: Sequence[str]) -> str:
    """Return the tables of the models' scores on one task and its further tests (``2x``: twice the length)."""
    (name,) = words
    made = [found for folder in TODAY if (found := _tests(name, folder))]
    return "\n\n".join([*made, STEP] if made else [NONE_YET])


def _tests(name: str, folder: str) -> str:
    """Return the table of a folder's runs on a task: solved seeds, rate, step of the solution, scores of all tests."""
    runs = runs_of(RESULTS / folder)
    if not (runs["task"] == name).any():
        return ""
    made = make_table(runs[runs["task"] == name], unequal_budgets=True)
    tested = made.by_length() or TextTable(["task", "model", "test"], [])
    scores = {(row, column): line for row, column, _, *line in tested.lines}
    header = ["task", "model", "solved", "learning rate", "at step", "floor", *tested.header[2:]]
    instances, rows = _instances(made), []
    for row, cells in made.along("row").items():
        for cell in sorted(cells, key=lambda cell: -cell["median"]):
            count = f"{cell['solved']:.0f} of {cell['different_seeds']}"
            own = made.runs[(made.runs["row"] == row) & (made.runs["column"] == cell["column"])]
            given = re.findall(r"--set model\.(\S+)", own["command"].iloc[0])
            model = cell["column"] + (f" ({', '.join(given)})" if given else "")
            start = [instances[row], model, count, f"{cell['budget.lr']:g}", number(cell["steps_to_solve"])]
            rows.append([*start, _floor(cell), _median(cell), *scores.get((row, cell["column"]), [])])
    notes = [markdown_text(note) for note in paper_notes(made.cells) if note.startswith("not comparable")]
    heading = f"{TODAY[folder]} ([records](../../results/{folder}/README.md)):"
    return "\n\n".join([heading, table(header, rows), *notes])


def heat_map() -> str:
    """Return the heat map of tasks × models under the fair protocol, as ``lrtasks plot heatmap`` writes it in SVG."""
    return encode(draw_heatmap(arrange(runs_of(FAIR)), []), ".svg").decode()


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
