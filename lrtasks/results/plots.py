"""Plots of records and portraits as PNG files. matplotlib is imported when first used, without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lrtasks.models.portraits import Portrait
from lrtasks.record import RunRecord, score_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_PANEL_SAMPLES = 4
MAX_COLUMNS = 3


def draw_curve(record: RunRecord) -> Figure:
    """Training loss and validation score over steps."""
    metric = record.task["metric"]
    figure = _figure(columns=2)
    steps = [point["step"] for point in record.curve]
    loss, score = figure.subplots(1, 2)
    loss.plot(steps, [point["loss"] for point in record.curve], "o-")
    loss.set(xlabel="step", ylabel=f"training loss ({record.task['name']})", yscale="log")
    score.plot(steps, [point[metric] for point in record.curve], "o-", label="validation")
    for name, scores in record.baselines.items():
        if scores.get(metric) is not None:
            score.axhline(scores[metric], linestyle="--", color="grey", linewidth=0.8)
            score.annotate(f"floor: {name}", (steps[0], scores[metric]), fontsize=7, color="grey")
    score.set(xlabel="step", ylabel=metric)
    return figure


def draw_slices(record: RunRecord) -> Figure:
    """The test score within each group, one panel per breakdown, of which there is at least one."""
    slices = record.filled_slices()
    figure = _figure(columns=len(slices))
    panels = np.atleast_1d(figure.subplots(1, len(slices)))
    for panel, (name, rows) in zip(panels, slices.items(), strict=True):
        score = score_name(rows)
        values = [np.nan if row[score] is None else row[score] for row in rows]
        labels = [str(row["label"]) for row in rows]
        panel.bar(range(len(rows)), values)
        panel.set_xticks(range(len(rows)), labels, rotation=_rotation(labels), fontsize=7)
        panel.set(xlabel=name, ylabel=score, ylim=(min(0, np.nanmin(values, initial=0)), 1.02))
    return figure


def draw_figures(figures: Mapping[str, Mapping[str, tuple[float, float | None]]]) -> Figure:
    """One panel per figure: its value in each module, with its spread where there is one.

    Args:
        figures: by name, value and spread (or None) by the module's name.
    """
    columns = min(MAX_COLUMNS, len(figures))
    rows = -(-len(figures) // columns)
    figure = _figure(columns, rows)
    for number, (name, modules) in enumerate(figures.items(), 1):
        panel = figure.add_subplot(rows, columns, number)
        for place, (value, spread) in enumerate(modules.values()):
            panel.bar(place, value, yerr=spread, capsize=4, color="tab:blue")
        pattern, labels = _differing(list(modules))
        panel.set_xticks(range(len(labels)), labels, rotation=_rotation(labels), fontsize=7)
        panel.set(xlabel=pattern, ylabel=name.replace("_", " "))
        if panel.get_ylim()[0] < 0 <= min(value for value, _ in modules.values()):
            panel.set_ylim(bottom=0)
    return figure


def draw_portrait(states: Mapping[str, Portrait], pictures: np.ndarray | None = None) -> Figure:
    """One portrait at several moments (before and after training), side by side.

    Args:
        states: the portrait by moment.
        pictures: where positions are pixels, the samples seen, ``(samples, rows, columns)``.
    """
    if pictures is not None and next(iter(states.values())).kind == "positions":
        return _draw_pictures(states, pictures)
    figure = _figure(columns=len(states))
    panels = np.atleast_1d(figure.subplots(1, len(states)))
    for panel, (moment, portrait) in zip(panels, states.items(), strict=True):
        _DRAWERS[portrait.kind](panel, portrait)
        panel.set_title(f"{portrait.title}, {moment}", fontsize=8)
        panel.set(xlabel=portrait.x_label, ylabel=portrait.y_label)
    return figure


def _draw_pictures(states: Mapping[str, Portrait], pictures: np.ndarray) -> Figure:
    """Each sample as the model saw it, and beside it what the portrait says of its pixels at each moment."""
    found = {
        f"{portrait.title}, {moment}": next(iter(portrait.series.values())).reshape(pictures.shape)
        for moment, portrait in states.items()
    }
    lowest, highest = min(map(np.min, found.values())), max(map(np.max, found.values()))
    figure = _figure(columns=1 + len(found), rows=len(pictures))
    grid = figure.subplots(len(pictures), 1 + len(found), squeeze=False)
    for row, panels in enumerate(grid):
        panels[0].imshow(pictures[row], cmap="gray")
        panels[0].set_title(f"sample {row}", fontsize=8)
        for panel, (title, values) in zip(panels[1:], found.items(), strict=True):
            drawn = panel.imshow(values[row], vmin=lowest, vmax=highest, interpolation="nearest")
            panel.set_title(title, fontsize=8)
        for panel in panels:
            panel.set_axis_off()
    figure.colorbar(drawn, ax=grid[:, 1:])
    return figure


def draw_predictions(
    x: np.ndarray, target: np.ndarray, prediction: np.ndarray, shape: tuple[int, int], classes: int
) -> Figure:
    """Image, target and predicted class of each pixel for a few samples.

    Args:
        x: ``(batch, pixels, 1)``.
        target: ``(batch, pixels)`` classes.
        prediction: ``(batch, pixels)`` classes.
        shape: rows and columns.
        classes: number of classes.
    """
    count = min(MAX_PANEL_SAMPLES, len(x))
    figure = _figure(columns=3, rows=count)
    for row, panels in enumerate(figure.subplots(count, 3, squeeze=False)):
        panels[0].imshow(x[row].reshape(shape), cmap="gray")
        for panel, labels in zip(panels[1:], (target, prediction), strict=True):
            panel.imshow(labels[row].reshape(shape), cmap="viridis", vmin=0, vmax=classes - 1, interpolation="nearest")
        for panel, title in zip(panels, ("image", "target", "prediction"), strict=True):
            panel.set_title(title, fontsize=8)
            panel.set_axis_off()
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write ``figure`` as PNG and return its path."""
    figure.savefig(path, dpi=110)
    return path


def _figure(columns: int, rows: int = 1) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(4.5 * max(columns, 1), 3.5 * rows), layout="constrained")


def _lines(panel: Axes, portrait: Portrait) -> None:
    for name, values in portrait.series.items():
        first = 1 if portrait.log_x else 0
        panel.plot(np.arange(first, len(values)), values[first:], linewidth=0.7, label=name)
    panel.set_xscale("log" if portrait.log_x else "linear")
    panel.set_yscale("log" if portrait.log_y else "linear")
    if len(portrait.series) > 1:
        panel.legend(fontsize=6)


def _plane(panel: Axes, portrait: Portrait) -> None:
    angle = np.linspace(0, 2 * np.pi, 361)
    panel.plot(np.cos(angle), np.sin(angle), color="grey", linewidth=0.6)
    for name, values in portrait.series.items():
        panel.plot(values.real, values.imag, ".", markersize=2, label=name)
    panel.set_aspect("equal")


def _image(panel: Axes, portrait: Portrait) -> None:
    from matplotlib.ticker import MaxNLocator

    (matrix,) = portrait.series.values()
    drawn = panel.imshow(
        matrix, aspect="auto" if matrix.shape[0] != matrix.shape[1] else "equal", interpolation="nearest"
    )
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    panel.figure.colorbar(drawn, ax=panel)


def _bars(panel: Axes, portrait: Portrait) -> None:
    width = 0.8 / len(portrait.series)
    for number, (name, heights) in enumerate(portrait.series.items()):
        panel.bar(np.arange(len(heights)) + number * width, heights, width, label=name)
    panel.set_xticks(range(len(portrait.labels)), portrait.labels, fontsize=7)
    if len(portrait.series) > 1:
        panel.legend(fontsize=6)


def _rotation(labels: Sequence[str]) -> int:
    """Degrees by which labels of bars are turned so that long ones do not overlap."""
    return 60 if max(map(len, labels)) > 4 else 0


def _differing(names: Sequence[str]) -> tuple[str, list[str]]:
    """Dotted names as a pattern with stars, and what stands in its place in each.

    >>> _differing(["blocks.0.attention", "blocks.2.attention"])
    ('blocks.*.attention', ['0', '2'])
    """
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) > 1 or len(names) == 1:
        return "module", list(names)
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    pattern = ".".join(part if equal else "*" for part, equal in zip(parts[0], same, strict=True))
    labels = [".".join(part for part, equal in zip(name, same, strict=True) if not equal) for name in parts]
    return pattern, labels


_DRAWERS = {"lines": _lines, "plane": _plane, "image": _image, "positions": _image, "bars": _bars}
