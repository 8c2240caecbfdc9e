"""Figures over many models, for a paper: score against step, length and cost, a heat map of tasks × models, profiles.

Each function takes runs (:func:`lrtasks.results.table.arrange`) and a list of records; the index of a run is the
position of its record. A line is the mean over seeds; its band extends from the lowest seed to the highest. The floor
is the median over seeds, as in a table. A model has the same colour and marker in all panels, and in all figures of the
same runs. :func:`draw_length` also takes runs with different settings at different lengths as different models.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from lrtasks.errors import UsageError
from lrtasks.generators.base import make
from lrtasks.generators.fingerprint import instances
from lrtasks.record import RunRecord
from lrtasks.registry import split_preset
from lrtasks.results.profile import draw_profile, make_profile
from lrtasks.results.settings import key, labels
from lrtasks.results.style import literal, metric, panels, series, styled, title
from lrtasks.results.table import CELL, MEASURED, aggregate, by_label, length_of_test

LOWEST = -0.25
"""Lower scores are drawn at this value: one failed run would make all other differences too small to see."""
NARROWEST = 0.1
"""Smallest height of a panel's score axis: differences of a thousandth are noise and must not fill the panel."""
TITLE = 24
"""Characters in a line of a panel's title."""
FLOOR: Mapping[str, Any] = {"linestyle": ":", "color": "grey", "linewidth": 0.9, "zorder": 1}
DIVERGED: Mapping[str, Any] = {
    "label": "diverged",
    "linestyle": "",
    "marker": "x",
    "color": "black",
    "zorder": 4,
    "clip_on": False,
}
COSTS = {
    "seconds_per_step": ("ms per training step", 1e3),
    "parameter_count": ("parameters", 1.0),
    "state_bytes": ("bytes of streaming state", 1.0),
    "peak_memory_bytes": ("MB of peak memory", 1e-6),
}
"""Costs for the horizontal axis: column of the frame, axis label, and factor from the column's unit to the label's."""


@styled
def draw_curves(runs: pd.DataFrame, records: Sequence[RunRecord]) -> Figure:
    """Draw validation score against training step: one panel per task, one line per model, the floor dotted.

    Mean and band are over the seeds that are done, as in a table, so they have the same seeds at every step. Each other
    seed has a thin line, with a cross at its end if it diverged.

    Raises:
        UsageError: if no run has a learning curve.
    """
    evaluated = runs[[bool(records[number].curve) for number in runs.index]]
    if evaluated.empty:
        raise UsageError("no run has a learning curve yet")
    figure, drawn = _panels(evaluated["row"].nunique())
    for panel, of_task in zip(drawn, _each(evaluated, "row"), strict=True):
        for own in _each(of_task, "column"):
            seeds = [records[number] for number in own.index]
            done = [record for record in seeds if record.status == "done"]
            if done:
                steps = sorted({point["step"] for record in done for point in record.curve})
                _line(panel, own, steps, [[record.score_at(step) for step in steps] for record in done])
            for record in (record for record in seeds if record.status != "done"):
                steps = [point["step"] for point in record.curve]
                _line(panel, own, steps, [[record.score_at(step) for step in steps]], linewidth=0.5, markersize=1.5)
                if record.status == "diverged":
                    panel.plot(*np.asarray(panel.get_lines()[-1].get_xydata())[-1:].T, **DIVERGED)
        _finish(panel, of_task, "training step", "validation")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return _with_legend(figure, drawn)


@styled
def draw_length(runs: pd.DataFrame, records: Sequence[RunRecord]) -> Figure:
    """Draw test score against length: a panel per task whose runs have several lengths.

    A solid line joins the scores of a model that was trained separately at each length, with the same settings; with
    one length it is a point. A dashed line joins the scores of a model that was trained at one length, on the test at
    this length (a filled marker) and on its further tests.

    Raises:
        UsageError: if no task has scores at two lengths of a model with the same settings.
    """
    settings = [json.loads(setup) for setup in runs["setup"]]
    lengths = [entry.pop("task length", None) for entry in settings]
    runs = runs.assign(length=lengths, otherwise=list(map(key, settings)))
    runs = runs[[isinstance(length, int) for length in lengths]]
    runs = runs.assign(column=by_label(runs["variant"], runs["setup"], runs["otherwise"]))
    done = runs.index[runs["score"].notna()]
    found = [(number, *test) for number in done for test in _tests_of(records[number])]
    tests = pd.DataFrame(found, columns=["run", "length", "score", "floor"]).astype({"floor": float})
    tests = tests.drop_duplicates(["run", "length"])  # the test precedes a further test at the trained length
    tests = tests.join(runs[["otherwise", "column", "seed"]], on="run")
    lengths_of = tests.groupby(["otherwise", "column"], observed=True)["length"].nunique()
    several = lengths_of[lengths_of > 1].index.unique("otherwise")
    drawn = _each(runs[runs["otherwise"].isin(several)], "otherwise", sort=False)
    if not drawn:
        hint = "train at several (--length 256,1024 in sweep), or test at several (--test-lengths 512,1024)"
        raise UsageError(f"no task has scores at two lengths of a model with the same settings; {hint}")
    names = [name for name, _ in labels([json.loads(of_task["otherwise"].iloc[0]) for of_task in drawn])]
    figure, axes = _panels(len(drawn))
    for panel, name, of_task in zip(axes, names, drawn, strict=True):
        for own in _each(of_task, "column"):
            scores, own_tests = own.pivot_table("score", "seed", "length"), tests[tests["run"].isin(own.index)]
            if scores.shape[1] > 1 or own_tests["length"].nunique() == 1:
                _line(panel, own, scores.columns, scores)
            for trained in _each(own[own["score"].notna()], "length"):
                scores = tests[tests["run"].isin(trained.index)].pivot_table("score", "run", "length")
                if scores.shape[1] > 1:
                    _line(panel, own, scores.columns, scores, linestyle="--", markerfacecolor="white")
                    length = trained["length"].iloc[0]
                    look = {**_look(own), "label": None}  # the line is in the legend already
                    panel.plot(length, max(scores[length].mean(), LOWEST), clip_on=False, zorder=3, **look)
        floors = tests[tests["run"].isin(of_task.index)].groupby(["length", "seed"])["floor"].mean()
        floors = floors.groupby("length").median()
        panel.plot(floors.index, np.maximum(floors, LOWEST), label="floor", **FLOOR)
        _finish(panel, of_task, "length", "test", floor=False)
        panel.set_title(literal(textwrap.fill(name, TITLE)))
        panel.set_xscale("log", base=2)
        panel.set_xticks(floors.index, [f"{length:,}" for length in floors.index], rotation=45, ha="right")
        panel.minorticks_off()
    return _with_legend(figure, axes)


@styled
def draw_scatter(runs: pd.DataFrame, _: Sequence[RunRecord], cost: str = "seconds_per_step") -> Figure:
    """Draw test score against a cost of :data:`COSTS`: a panel per task, a point per model, with the range over seeds.

    Raises:
        UsageError: if no run has a score and this cost.
    """
    name, factor = COSTS[cost]
    runs = runs.assign(**{cost: runs[cost].where(runs[cost] > 0)})  # the axis is logarithmic
    if cost in MEASURED:  # times of several devices have no mean
        runs[cost] = runs[cost].where(runs.groupby(CELL, observed=True)["device"].transform("nunique") < 2)
    known = runs.groupby(CELL, observed=True)[[cost, "score"]].transform("count").all(axis=1)
    if not known.any():
        raise UsageError(f"no run has a score and {name}")
    figure, drawn = _panels(runs[known]["row"].nunique())
    for panel, of_task in zip(drawn, _each(runs[known], "row"), strict=True):
        for own in _each(of_task, "column"):
            scores = own.groupby("seed")["score"].mean()
            mean, low, high = np.maximum([scores.mean(), scores.min(), scores.max()], LOWEST)
            spread = [[max(0.0, mean - low)], [max(0.0, high - mean)]]  # a mean is rounded
            how = {"linestyle": "", "capsize": 2, "clip_on": False, **_look(own)}
            panel.errorbar([own[cost].mean() * factor], [mean], yerr=spread, **how)
        _finish(panel, of_task, name, "test")
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        wide = LogLocator(subs=(1.0, 3.0) if high > 20 * low else (1.0, 2.0, 5.0))
        panel.xaxis.set_major_locator(wide if high > 4 * low else MaxNLocator(4))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.minorticks_off()
    return _with_legend(figure, drawn)


@styled
def draw_heatmap(runs: pd.DataFrame, _: Sequence[RunRecord]) -> Figure:
    """Draw the scaled score of tasks × models, of the median over seeds: 0 is the best trivial baseline, 1 perfect.

    Raises:
        UsageError: if no run has a score and a floor.
    """
    scaled = aggregate(runs).dropna(subset="scaled_median").pivot(index="row", columns="column", values="scaled_median")
    if scaled.empty:
        raise UsageError("no run has a scaled score: a test score and a floor")
    scaled = scaled.reindex(index=runs["row"].cat.categories, columns=runs["column"].cat.categories)
    rows, columns = scaled.shape
    wide, slanted = 0.06 * max(map(len, scaled.index)), 0.045 * max(map(len, scaled.columns))  # inches
    height = max(1.2, 0.3 + slanted) + max(0.66, 0.22 * rows)  # the label of the colour bar needs three rows
    width = 1.2 + max(wide, slanted) + 0.42 * columns
    figure, (panel,) = panels(1, 1, width, height)
    panel.grid(visible=False)
    image = panel.imshow(scaled, cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="none")
    names = [literal(title(name)) for name in scaled.columns]
    panel.set_xticks(range(columns), names, rotation=45, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(rows), map(literal, scaled.index))
    for (row, column), value in np.ndenumerate(scaled):
        if not np.isnan(value):
            colour = "black" if value > 0.55 else "white"
            text = f"{value:z.2f}" if abs(value) < 100 else f"{value:.0e}"
            panel.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
    figure.colorbar(image, ax=panel, label="scaled score", fraction=0.04)
    return figure


def draw_profiles(runs: pd.DataFrame, _: Sequence[RunRecord]) -> Figure:
    """Draw the profile of each model (:func:`lrtasks.results.profile.draw_profile`) from its runs on the fingerprint.

    Raises:
        UsageError: if no run with a score is on an instance of the profile.
    """
    tasks = {}
    for name in instances():
        task, preset = split_preset(name)
        tasks[name] = make(task, preset=preset or "small")
    made = [make_profile(own, tasks, label) for label, own in runs.groupby("column", observed=True)]
    found = [profile for profile in made if profile.cells]
    if not found:
        raise UsageError("no run is on an instance of the profile; lrtasks profile --model NAME makes such runs")
    return draw_profile(found)


KINDS: Mapping[str, Callable[..., Figure]] = {
    "curves": draw_curves,
    "length": draw_length,
    "scatter": draw_scatter,
    "heatmap": draw_heatmap,
    "profile": draw_profiles,
}
"""The figures by name."""


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    return panels(count, 4, 2.2 if count > 1 else 3.4, 1.8)


def _each(runs: pd.DataFrame, column: str, *, sort: bool = True) -> list[pd.DataFrame]:
    """Return the runs of each value of a column, in order."""
    return [own for _, own in runs.groupby(column, observed=True, sort=sort)]


def _look(own: pd.DataFrame) -> dict[str, Any]:
    """Return name, colour and marker of the model of these runs."""
    return {"label": literal(title(own["column"].iloc[0])), **series(own["column"].cat.codes.iloc[0])}


def _line(panel: Axes, own: pd.DataFrame, x: Sequence[float], seeds: Any, **how: Any) -> None:
    """Draw a model's mean over seeds, and for several seeds the band between the lowest and the highest."""
    values, look = np.array(seeds, dtype=float), _look(own)
    known = ~np.isnan(values).all(axis=0)
    at, values = np.array(x)[known], values[:, known]
    mean, low, high = (np.maximum(each(values, axis=0), LOWEST) for each in (np.nanmean, np.nanmin, np.nanmax))
    panel.plot(at, mean, clip_on=False, zorder=3, **look, **how)  # a marker on the panel's edge stays whole
    if len(values) > 1:
        panel.fill_between(at, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _finish(panel: Axes, of_task: pd.DataFrame, x: str, split: str, *, floor: bool = True) -> None:
    """Set title and axes of a task's panel, and draw the floor; ``split`` is ``test`` or ``validation``."""
    floors = of_task.groupby("seed")["floor"].mean().dropna()  # each seed has its own, as in a table
    if floor and len(floors):
        panel.axhline(max(floors.median(), LOWEST), label="floor", **FLOOR)
    panel.set_title(literal(textwrap.fill(of_task["row"].iloc[0], TITLE)))
    panel.set(xlabel=x, ylabel=f"{split} {metric(of_task['metric'].iloc[0])}")
    low, high = panel.get_ylim()
    low = max(low, LOWEST)
    panel.set_ylim(low, max(high, low + NARROWEST))


def _with_legend(figure: Figure, drawn: Sequence[Axes]) -> Figure:
    """Add one legend below all panels, with each name once, and the mark of divergence and the floor last."""
    entries: dict[str, Any] = {}
    for panel in drawn:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    entries |= {name: entries.pop(name) for name in ("diverged", "floor") if name in entries}
    widest = 0.55 + 0.055 * max(map(len, entries))  # inches, at the size of the legend's letters
    columns = max(1, int(figure.get_figwidth() // widest))
    figure.set_figheight(figure.get_figheight() + 0.15 * (1 - -len(entries) // columns))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
    return figure


def _tests_of(record: RunRecord) -> Iterator[tuple[int, float, float | None]]:
    """Yield length, score and floor of each test of one trained model, except those on stored datasets."""
    trained, stored = record.task["parameters"]["length"], record.stored_tests()
    for name in (name for name in record.scores if name not in stored):
        length, score = trained if name == "test" else length_of_test(name, trained), record.headline(name)
        if length is not None and score is not None:
            yield length, score, record.floor(name)
