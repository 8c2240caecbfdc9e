"""Figures over many models, for a paper: score against step, test length and cost, and tasks × models as a heat map.

Each function takes the table of the runs (:func:`lrtasks.results.table.make_table`) and all records, which a run's
``index`` counts. A line is the mean over seeds; its band reaches from the lowest seed to the highest. A model has the
same colour and marker in all panels, and in all figures of the same runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.metrics import scaled_score
from lrtasks.record import RunRecord
from lrtasks.results.settings import key, labels
from lrtasks.results.style import metric, panels, series, styled, title
from lrtasks.results.table import Aggregate, Table, length_of_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST = -0.25
"""No panel reaches below this score: one that failed would flatten the others."""
NARROWEST = 0.1
"""Scores that a panel shows at least: differences of a thousandth are noise."""
FLOOR: Mapping[str, Any] = {"linestyle": ":", "color": "grey", "linewidth": 0.9, "zorder": 1}
COSTS = {
    "seconds_per_step": ("ms per training step", 1e3),
    "parameter_count": ("parameters", 1.0),
    "state_bytes": ("bytes of streaming state", 1.0),
    "peak_memory_bytes": ("MB of peak memory", 1e-6),
}
"""What a score can be drawn against: column of the frame, its name, and the factor to the unit of that name."""


@styled
def draw_curves(table: Table, records: Sequence[RunRecord]) -> Figure:
    """Validation score against training step: one panel per task, one line per model, the floor dotted.

    Raises:
        UsageError: if no run was evaluated while it was trained.
    """
    found: dict[int, dict[int, list[RunRecord]]] = {}
    for (row, column), cell in table.cells.items():
        runs = [record for run in cell.runs if (record := records[run["index"]]).curve]
        if runs:
            found.setdefault(row, {})[column] = runs
    if not found:
        raise UsageError("no run has a learning curve yet")
    figure, drawn = _panels(len(found))
    for panel, (row, models) in zip(drawn, found.items(), strict=True):
        for column, runs in models.items():
            name = runs[0].task["metric"]
            steps = sorted({point["step"] for record in runs for point in record.curve})
            _line(panel, table, column, steps, [_carried(record, name, steps) for record in runs])
        _finish(panel, table, row, "training step", "validation ")
    return _with_legend(figure, drawn)


@styled
def draw_length(table: Table, records: Sequence[RunRecord]) -> Figure:
    """Test score against length: a panel per task whose runs have several lengths.

    A solid line joins models that were trained at each length; a dashed line leads from a model that was trained once,
    at its first point, to its further tests.

    Raises:
        UsageError: if no task has scores at two lengths.
    """
    # by the task's settings but the length: by model, the row, the length of training and the runs of each
    found: dict[str, dict[int, list[tuple[int, int, Aggregate]]]] = {}
    for (row, column), cell in table.cells.items():
        setup = json.loads(cell.runs[0]["setup"])
        length = setup.pop("task length", None)
        if isinstance(length, int):
            found.setdefault(key(setup), {}).setdefault(column, []).append((row, length, cell))
    further = {run["index"]: _further(records[run["index"]]) for cell in table.cells.values() for run in cell.runs}
    drawn = {
        group: models
        for group, models in found.items()
        if any(
            len(cells) > 1 or any(len(further[run["index"]]) > 1 for _, _, cell in cells for run in cell.runs)
            for cells in models.values()
        )
    }
    if not drawn:
        raise UsageError(
            "no task has scores at two lengths; train at several (--length 256,1024 in sweep), or test there"
            " (--test-lengths 512,1024)"
        )
    names = [text for text, _ in labels([json.loads(group) for group in drawn])]
    figure, axes = _panels(len(drawn))
    for panel, name, models in zip(axes, names, drawn.values(), strict=True):
        floors: dict[int, float] = {}
        for column, cells in models.items():
            trained = sorted(cells, key=lambda entry: entry[1])
            scored = {length: scores for _, length, cell in trained if (scores := cell.values("score"))}
            if len(scored) > 1:
                _line(panel, table, column, list(scored), list(zip_longest(*scored.values(), fillvalue=np.nan)))
            floors |= {length: cell.floor[1] for _, length, cell in trained if cell.floor}
            for _, _, cell in trained:
                tests = [further[run["index"]] for run in cell.runs if run["score"] is not None]
                at = sorted({length for test in tests for length in test})
                if len(at) > 1:
                    rows = [[test.get(length, (np.nan, np.nan))[0] for length in at] for test in tests]
                    _line(panel, table, column, at, rows, linestyle="--")
                floors |= {length: floor for test in tests for length, (_, floor) in test.items()}
        lengths = sorted(floors)
        panel.plot(lengths, [floors[length] for length in lengths], label="floor", **FLOOR)
        row = min(row for cells in models.values() for row, _, _ in cells)
        _finish(panel, table, row, "length", "test ", floor=False)
        panel.set_title(name)
        panel.set_xscale("log", base=2)
        panel.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45, ha="right")
        panel.minorticks_off()
    return _with_legend(figure, axes)


@styled
def draw_scatter(table: Table, _: Sequence[RunRecord], cost: str = "seconds_per_step") -> Figure:
    """Test score against a cost, one of :data:`COSTS`: a panel per task, a point per model, with the range over seeds.

    Raises:
        UsageError: if no run has both.
    """
    from matplotlib.ticker import EngFormatter, LogLocator

    name, factor = COSTS[cost]
    points: dict[int, dict[int, tuple[float, list[float]]]] = {}
    for (row, column), cell in table.cells.items():
        values = [run[cost] for run in cell.runs if run[cost] is not None]
        if values and cell.values("score"):
            points.setdefault(row, {})[column] = float(np.mean(values)) * factor, cell.values("score")
    if not points:
        raise UsageError(f"no run has a score and {name}")
    figure, drawn = _panels(len(points))
    for panel, (row, models) in zip(drawn, points.items(), strict=True):
        for column, (x, scores) in models.items():
            mean = float(np.mean(scores))
            spread = [[mean - min(scores)], [max(scores) - mean]]
            name_of = title(table.column_labels[column])
            panel.errorbar([x], [mean], yerr=spread, linestyle="", capsize=2, label=name_of, **series(column))
        _finish(panel, table, row, name, "test ")
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.minorticks_off()
    return _with_legend(figure, drawn)


@styled
def draw_heatmap(table: Table, _: Sequence[RunRecord]) -> Figure:
    """Tasks × models: the scaled score, 0 at the best trivial baseline and 1 for a perfect score.

    Raises:
        UsageError: if no run has a score and a floor below 1.
    """
    scaled = np.full((len(table.row_labels), len(table.column_labels)), np.nan)
    floors = {row: cell.floor[1] for (row, _), cell in table.cells.items() if cell.floor}
    for (row, column), cell in table.cells.items():
        if cell.score and row in floors:
            scaled[row, column] = scaled_score(cell.score.mean, floors[row])
    if np.isnan(scaled).all():
        raise UsageError("no run has a scaled score: a test score and a floor below 1")
    rows, columns = scaled.shape
    figure, (panel,) = panels(1, 1, 1.6 + 0.42 * columns, 1.2 + 0.22 * rows)
    panel.grid(visible=False)
    image = panel.imshow(scaled, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    names = [title(name) for name in table.column_labels]
    panel.set_xticks(range(columns), names, rotation=45, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(rows), table.row_labels)
    for row, column in zip(*np.nonzero(~np.isnan(scaled)), strict=True):
        value = scaled[row, column]
        colour = "black" if value > 0.55 else "white"
        panel.text(column, row, f"{value:z.2f}", ha="center", va="center", fontsize=6, color=colour)
    figure.colorbar(image, ax=panel, label="scaled score", fraction=0.04)
    return figure


KINDS: Mapping[str, Callable[..., Figure]] = {
    "curves": draw_curves,
    "length": draw_length,
    "scatter": draw_scatter,
    "heatmap": draw_heatmap,
}
"""The figures by name."""


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    return panels(count, 4, 2.2 if count > 1 else 3.4, 1.8)


def _line(panel: Axes, table: Table, column: int, x: Sequence[float], seeds: Sequence[Any], **how: Any) -> None:
    """A model's mean over seeds, and the band between its lowest and highest seed where there are several."""
    values = np.array(seeds, dtype=float)
    known = ~np.isnan(values).all(axis=0)
    at, values = np.array(x)[known], values[:, known]
    panel.plot(at, np.nanmean(values, axis=0), label=title(table.column_labels[column]), **series(column), **how)
    if len(values) > 1:
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        panel.fill_between(at, low, high, color=series(column)["color"], alpha=0.2, linewidth=0)


def _finish(panel: Axes, table: Table, row: int, x: str, of: str, *, floor: bool = True) -> None:
    """Title, axes and floor of a task's panel."""
    cell = next(cell for (place, _), cell in table.cells.items() if place == row)
    if cell.floor and floor:
        panel.axhline(cell.floor[1], label="floor", **FLOOR)
    panel.set_title(table.row_labels[row])
    panel.set(xlabel=x, ylabel=of + metric(cell.metric))
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, LOWEST), max(high, low + NARROWEST))


def _with_legend(figure: Figure, drawn: Sequence[Axes]) -> Figure:
    """One legend below all panels, each name once, the floor last."""
    entries: dict[str, Any] = {}
    for panel in drawn:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    if "floor" in entries:
        entries["floor"] = entries.pop("floor")
    widest = 0.55 + 0.055 * max(map(len, entries))  # inches, at the size of the legend's letters
    columns = max(1, int(figure.get_figwidth() // widest))
    figure.set_figheight(figure.get_figheight() + 0.15 * (1 - -len(entries) // columns))
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)
    return figure


def _carried(record: RunRecord, name: str, steps: Sequence[int]) -> np.ndarray:
    """A run's validation score at each step: that of its last evaluation so far, as if it went on after stopping."""
    scores = np.array([point.get(name) for point in record.curve], dtype=float)
    last = np.searchsorted([point["step"] for point in record.curve], steps, side="right") - 1
    return np.where(last < 0, np.nan, scores[last])


def _further(record: RunRecord) -> dict[int, tuple[float, float]]:
    """Score of one trained model, and the floor, by the length of the test."""
    trained = record.task["parameters"].get("length")
    found: dict[int, tuple[float, float]] = {}
    for name in record.scores if isinstance(trained, int) else ():
        length, score = trained if name == "test" else length_of_test(name, trained), record.score_of(name)
        if length is not None and score is not None:
            floor = record.floor(name)
            found[length] = score, np.nan if floor is None else floor
    return found
