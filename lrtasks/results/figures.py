"""Figures of one run, drawn by matplotlib, which is imported when first used and needs no display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lrtasks.errors import UsageError, printable
from lrtasks.files import write_atomically
from lrtasks.record import RunRecord, score_name
from lrtasks.results.style import encode, styled
from lrtasks.results.style import metric as metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lrtasks.models.portraits import Portrait

MAX_SAMPLES = 4
MAX_COLUMNS = 3


@styled
def draw_curve(record: RunRecord) -> Figure:
    """Training loss and validation score over steps, with the baselines' scores."""
    metric = record.task["metric"]
    figure = _figure(columns=2)
    steps = [point["step"] for point in record.curve]
    loss, score = figure.subplots(1, 2)
    loss.plot(steps, [point.get("loss") for point in record.curve], "o-")
    loss.set(xlabel="step", ylabel=f"training loss ({printable(record.task['name'])})", yscale="log")
    score.plot(steps, [point.get(metric) for point in record.curve], "o-")
    for name, scores in record.baselines.items():
        if scores.get(metric) is not None:
            score.axhline(scores[metric], linestyle="--", color="grey", linewidth=0.8)
            score.annotate(f"baseline: {name}", (steps[0], scores[metric]), fontsize=7, color="grey")
    score.set(xlabel="step", ylabel=f"validation {metric_name(metric)}")
    return figure


@styled
def draw_slices(record: RunRecord) -> Figure:
    """The test score within each group, one panel per breakdown, of which there is at least one."""
    slices = record.filled_slices()
    figure = _figure(columns=len(slices))
    for panel, (name, rows) in zip(figure.subplots(1, len(slices), squeeze=False)[0], slices.items(), strict=True):
        score = score_name(rows)
        values = [np.nan if row[score] is None else row[score] for row in rows]
        _name_bars(panel, [str(row["label"]) for row in rows])
        panel.bar(range(len(rows)), values)
        panel.set(xlabel=name, ylabel=score, ylim=(min(0, np.nanmin(values, initial=0)), 1.02))
    return figure


@styled
def draw_diagnostics(numbers: Mapping[str, Mapping[str, tuple[float, float | None]]]) -> Figure:
    """One panel per number that modules report: its value in each module, with its spread where there is one.

    Args:
        numbers: by name, value and spread (or None) by the module's name.
    """
    columns = min(MAX_COLUMNS, len(numbers))
    rows = -(-len(numbers) // columns)
    figure = _figure(columns, rows)
    for place, (name, modules) in enumerate(numbers.items(), 1):
        panel = figure.add_subplot(rows, columns, place)
        for bar, (value, spread) in enumerate(modules.values()):
            panel.bar(bar, value, yerr=spread, capsize=4)
        pattern, labels = _pattern(list(modules))
        _name_bars(panel, labels)
        panel.set(xlabel=pattern, ylabel=name.replace("_", " "))
        if panel.get_ylim()[0] < 0 <= min(value for value, _ in modules.values()):
            panel.set_ylim(bottom=0)
    return figure


@styled
def draw_module(states: Mapping[str, Portrait], pictures: np.ndarray | None = None) -> Figure:
    """What a module shows of itself at several moments (before and after training), side by side.

    Args:
        states: what it shows by moment.
        pictures: where positions are pixels, the samples seen, ``(samples, rows, columns)``.
    """
    if pictures is not None and next(iter(states.values())).kind == "positions":
        return _draw_pictures(states, pictures)
    figure = _figure(columns=len(states))
    for panel, (moment, shown) in zip(figure.subplots(1, len(states), squeeze=False)[0], states.items(), strict=True):
        {"lines": _lines, "plane": _plane, "bars": _bars}.get(shown.kind, _image)(panel, shown)
        panel.set_title(f"{shown.title}, {moment}", fontsize=8)
        panel.set(xlabel=shown.x_label, ylabel=shown.y_label)
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write ``figure`` as PNG and return its path; a link there is replaced, not followed."""
    try:
        write_atomically(path, encode(figure, ".png"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path


def _draw_pictures(states: Mapping[str, Portrait], pictures: np.ndarray) -> Figure:
    """Each sample as the model saw it, and beside it what the module says of its pixels at each moment."""
    found = {
        f"{shown.title}, {moment}": next(iter(shown.series.values())).reshape(pictures.shape)
        for moment, shown in states.items()
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


def _figure(columns: int, rows: int = 1) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(4.5 * columns, 3.5 * rows), layout="constrained")


def _lines(panel: Axes, shown: Portrait) -> None:
    for name, values in shown.series.items():
        first = 1 if shown.log_x else 0
        panel.plot(np.arange(first, len(values)), values[first:], linewidth=0.7, label=name)
    panel.set(xscale="log" if shown.log_x else "linear", yscale="log" if shown.log_y else "linear")
    if len(shown.series) > 1:
        panel.legend(fontsize=6)


def _plane(panel: Axes, shown: Portrait) -> None:
    angle = np.linspace(0, 2 * np.pi, 361)
    panel.plot(np.cos(angle), np.sin(angle), color="grey", linewidth=0.6)
    for name, values in shown.series.items():
        panel.plot(values.real, values.imag, ".", markersize=2, label=name)
    panel.set_aspect("equal")


def _image(panel: Axes, shown: Portrait) -> None:
    from matplotlib.ticker import MaxNLocator

    (matrix,) = shown.series.values()
    square = matrix.shape[0] == matrix.shape[1]
    drawn = panel.imshow(matrix, aspect="equal" if square else "auto", interpolation="nearest")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    panel.figure.colorbar(drawn, ax=panel)


def _bars(panel: Axes, shown: Portrait) -> None:
    width = 0.8 / len(shown.series)
    for number, (name, heights) in enumerate(shown.series.items()):
        panel.bar(np.arange(len(heights)) + number * width, heights, width, label=name)
    panel.set_xticks(range(len(shown.labels)), shown.labels, fontsize=7)
    if len(shown.series) > 1:
        panel.legend(fontsize=6)


def _name_bars(panel: Axes, labels: Sequence[str]) -> None:
    """Names below the bars, turned where long ones would overlap."""
    panel.set_xticks(range(len(labels)), labels, rotation=60 if max(map(len, labels)) > 4 else 0, fontsize=7)


def _pattern(names: Sequence[str]) -> tuple[str, list[str]]:
    """Dotted names as a pattern with stars, and what stands in its place in each.

    >>> _pattern(["blocks.0.attention", "blocks.2.attention"])
    ('blocks.*.attention', ['0', '2'])
    """
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) > 1 or len(names) == 1:
        return "module", list(names)
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    pattern = ".".join(part if equal else "*" for part, equal in zip(parts[0], same, strict=True))
    return pattern, [".".join(part for part, equal in zip(name, same, strict=True) if not equal) for name in parts]
