"""The tables of the pages in ``results/``, made from the records in the folder of each page."""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from regions import table
from scores import FAIR, PUBLISHED, RESULTS, runs_in, runs_of

from lrtasks.bench.report import COSTS, Report, read_measurements
from lrtasks.generators.base import GROUPS, names
from lrtasks.metrics import TEST_SOLVED, scaled_score
from lrtasks.results import frame, style
from lrtasks.results.formats import number, render
from lrtasks.results.frame import COLUMNS, make_frame, write_frame
from lrtasks.results.table import Row, make_table

FRAME = RESULTS / "published.parquet"
"""The frame of all published runs, which is part of the installed package."""


CHANGE = 0.05
"""Smallest change of a scaled score that is counted as one."""


def frame_is_fresh(*, write: bool) -> bool:
    """Return whether :data:`FRAME` matches the published records; with ``write``, make the frame again if not."""
    made = make_frame([run for folder in PUBLISHED for run in runs_in(folder)])
    made["folder"] = [str(Path(folder).relative_to(RESULTS)) for folder in made["folder"]]
    fresh = FRAME.exists() and frame(FRAME).astype(str).equals(made.reset_index(drop=True).astype(str))
    if write and not fresh:
        write_frame(made, FRAME)
    return fresh


def columns(_: Path, __: Sequence[str]) -> str:
    """Return the table of the columns of the frame of runs."""
    return table(["column", "meaning"], [[f"`{name}`", words] for name, words in COLUMNS.items()])


def runs(page: Path, words: Sequence[str]) -> str:
    """Return the output of ``lrtasks table FOLDER --format markdown``; words may be ``transpose`` and ``unequal``."""
    made = make_table(runs_of(page.parent), unequal_budgets="unequal" in words)
    return render("markdown", made.tables(transpose="transpose" in words), made.notes())


def lengths(page: Path, words: Sequence[str]) -> str:
    """Return the scores of a folder's runs on one task, on the test and at longer lengths, the best first.

    With the word ``fair``, the table also has the fair cells of the same models in the same setup.
    """
    folder, *more = words
    runs = runs_of(page.parent / folder)
    if "fair" in more:
        fair = runs_of(FAIR)
        same = fair["model"].isin(runs["model"]) & fair["setup"].isin(runs["setup"])
        runs = pd.concat([runs, fair[same]]).copy()  # the copy joins blocks of columns
    made = make_table(runs)
    tested = made.by_length()
    assert tested is not None
    lines = []
    for cell, (_, model, *scores) in zip(made.cells, tested.lines, strict=True):
        selected = json.loads(cell["selected"] or "{}") or {"lr": cell["budget.lr"]}
        rate = ", ".join(f"{value:g}" for value in selected.values())
        lines.append([model, f"{cell['solved']:.0f} of {cell['different_seeds']}", rate, *scores])
    lines.sort(key=lambda line: [-float(text.split()[0]) if text[0].isdigit() else 0.0 for text in line[3:-1]])
    header = ["model", "seeds that solve it", "learning rate", *tested.header[2:]]
    floor = made.cells[0]
    return table(header, lines) + f"\n\nFloor of the test: {number(floor['floor'], 3)} ({floor['baseline']})."


def leaderboard(page: Path, words: Sequence[str]) -> str:
    """Return for each capability group and model of a folder the number of solved tasks and the mean scaled score."""
    (folder,) = words
    made = make_table(runs_of(page.parent / folder))
    models, lines = made.labels("column"), []
    for group in GROUPS:
        tasks = names(group)
        here = [cell for cell in made.cells if cell["task"] in tasks]
        by_model = [_summary([cell for cell in here if cell["column"] == model]) for model in models]
        if here:
            lines.append([group, str(len({cell["row"] for cell in here})), *by_model])
    return table(["group", "tasks", *models], lines)


def _summary(cells: Sequence[Row]) -> str:
    """Return ``2 of 3 solved, 0.71``: most seeds solve 2 tasks; 0.71 is the mean scaled score of the medians (>= 0)."""
    if not cells:
        return ""
    solved = sum(2 * cell["solved"] > cell["different_seeds"] for cell in cells)
    mean = statistics.mean(max(0, scaled_score(cell["median"], cell["floor"])) for cell in cells)
    return f"{solved} of {len(cells)} solved, {mean:.2f}"


def seeds(page: Path, _: Sequence[str]) -> str:
    """Return a sentence with the mean scaled score of each seed over all cells in the page's folder."""
    runs = runs_of(page.parent)
    means = runs["scaled_score"].clip(0, 1).groupby(runs["seed"]).mean()
    *first, last = [f"{number(mean, 3)} for seed {seed}" for seed, mean in means.items()]
    said = f"Over all cells, the mean scaled score (limited to 0 to 1) is {', '.join(first)} and {last}:"
    return "\n".join(textwrap.wrap(said, 130))


def measurements(page: Path, words: Sequence[str]) -> str:
    """Return the output of ``lrtasks bench --out FOLDER --show --format markdown``; a word is a subfolder."""
    report = Report(read_measurements(page.parent.joinpath(*words)))
    return render("markdown", report.tables(), report.notes())


CHARTED = ("mega", "transformer", "longvq", "focus", "gated-deltanet", "mamba2", "seqboat", "gla", "dlr", "s4d")
"""Models in the chart of costs, the slowest first."""


@style.styled
def cost_chart() -> Figure:
    """Draw time and memory of a training step against the length, from the measurements in ``results/bench``."""
    rows = Report(read_measurements(RESULTS / "bench")).rows()
    figure, panels = style.panels(2, 2, 4.2, 3.2, (1.4, 0))
    for panel, name in zip(panels, ("training_seconds", "training_bytes"), strict=True):
        title, unit, size = COSTS[name]
        for number_, model in enumerate(CHARTED):
            points = [(row["length"], row[name] / size) for row in rows if row["model"] == model and row[name]]
            panel.loglog(*zip(*points, strict=True), label=style.title(model), **style.series(number_))
        panel.set_xlabel("length")
        panel.set_ylabel(f"{title} ({unit.split()[-1]})")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def suites(page: Path, words: Sequence[str]) -> str:
    """Return the commands that make the runs of a page's folder, one for each model; the words begin each command."""
    tasks: dict[str, set[str]] = {}
    for model, task in cells_of(runs_of(page.parent))[["model", "task"]].to_numpy():
        tasks.setdefault(model, set()).add(task)
    lines = [f'SUITE="{" ".join(words)}"']
    for model in sorted(tasks):
        command = f"$SUITE --models {model} --tasks {','.join(sorted(tasks[model]))}"
        # a line ends after a comma, so that the next one continues the list
        lines += textwrap.wrap(command.replace(",", ", "), 130, break_on_hyphens=False)
    block = "\n".join(line.replace(", ", ",") + "\\" * line.endswith(",") for line in lines)
    return f"```bash\n{block}\n```"


def cells_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with the names of model and task (``TASK@PRESET``) that their commands contain."""
    return runs.assign(**runs["command"].str.extract(r"--model (?P<model>\S+) --task (?P<task>\S+)"))


def rates(page: Path, _: Sequence[str]) -> str:
    """Return scaled scores of seed 0 by rate for each cell with a run in the page's folder, and what they sum up to.

    A second table has the cells that more seeds ran at the highest rate.
    """
    tried = cells_of(runs_of(page.parent))
    runs = pd.concat([cells_of(runs_of(FAIR)), tried]).query("seed == 0")
    scores = runs.pivot(index=["task", "model"], columns="budget.lr", values="scaled_score")
    scores = scores[scores[max(scores)].notna()].dropna(axis="columns", how="all")
    lines = [
        [*cell, *(number(score, 3) for score in line)] for cell, line in zip(scores.index, scores.values, strict=True)
    ]
    low, high = (scores[rate] for rate in sorted(scores)[-2:])
    won, lost = (
        f"{len(own)} ({', '.join(f'{model} on {task}' for task, model in own)})"
        for own in ([*low.index[a.ge(TEST_SOLVED) & b.lt(TEST_SOLVED)]] for a, b in ((high, low), (low, high)))
    )
    rises, falls = high.gt(low + CHANGE).sum(), high.lt(low - CHANGE).sum()
    said = (
        f"Of {len(scores)} cells, {won} are solved by seed 0 at {high.name:g} and not at {low.name:g}, and {lost} at"
        f" {low.name:g} and not at {high.name:g}. The scaled score rises by more than {CHANGE} in {rises} cells and"
        f" falls by more than {CHANGE} in {falls}."
    )
    shown = table(["task", "model", *(f"lr {rate:g}" for rate in scores)], lines)
    several = [
        [*cell, f"{own['solved'].sum():.0f} of {len(own)}", ", ".join(number(score, 3) for score in own["score"])]
        for cell, own in tried.sort_values("seed").groupby(["task", "model"])
        if len(own) > 1
    ]
    seeds = table(["task", "model", "seeds that solve it", f"scores of seeds 0, 1 and 2 at {high.name:g}"], several)
    return "\n".join(textwrap.wrap(said, 130)) + f"\n\n{shown}\n\nCells with more seeds:\n\n{seeds}"
