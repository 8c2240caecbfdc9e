"""Figures of a task: input and target of a few samples, side by side. matplotlib is imported at the first use."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lrtasks.errors import require_whole
from lrtasks.generators.base import Task
from lrtasks.spec import IGNORED, Batch, Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MAX_SAMPLES = 16
TITLE_WIDTH = 140
MAX_LINES = 4
"""Up to this number of channels, a signal is drawn as lines; with more channels, as a heat map."""
MAX_PREDICTIONS = 4
"""Largest number of samples in a figure of predictions."""


def preview(task: Task, *, samples: int = 2, seed: int = 0) -> Figure:
    """Draw the first ``samples`` training samples of ``task``, one below the other, as a matplotlib figure.

    Raises:
        UsageError: for an argument outside its range.
    """
    from matplotlib.figure import Figure

    require_whole("samples", samples, 1, MAX_SAMPLES)
    batch = task.batch(range(samples), seed)
    height = 4.5 if task.image_shape() is not None else 2.0
    figure = Figure(figsize=(11, 0.6 + height * samples), dpi=100, layout="constrained")
    title = task.name + "".join(f"  {name}={value}" for name, value in task.parameters().items())
    figure.suptitle(textwrap.fill(title, TITLE_WIDTH), fontsize=9)
    for index, part in enumerate(figure.subfigures(samples, 1, squeeze=False)[:, 0]):
        draw_sample(part, task, batch, index)
    return figure


def save_predictions(task: Task, batch: Batch, prediction: np.ndarray, path: Path) -> None:
    """Write a PNG with image, target and predicted class of each pixel for a few samples of an image task.

    ``prediction`` has classes ``(batch, pixels)``. A symbolic link at ``path`` is replaced, not followed.
    """
    from matplotlib.figure import Figure

    from lrtasks.files import write_atomically

    shape = task.image_shape()
    assert shape is not None
    count = min(MAX_PREDICTIONS, len(batch.x))
    figure = Figure(figsize=(9, 3 * count), layout="constrained")
    for row, panels in enumerate(figure.subplots(count, 3, squeeze=False)):
        _draw_image(panels[0], batch.x[row].reshape(shape))
        for panel, labels in zip(panels[1:], (batch.y, prediction), strict=True):
            _draw_classes(panel, labels[row].reshape(shape), task.target)
        for panel, title in zip(panels, ("image", "target", "prediction"), strict=True):
            panel.set_title(title, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(path, buffer.getbuffer())


def draw_sample(figure: Figure | SubFigure, task: Task, batch: Batch, index: int) -> None:
    """Draw sample ``index`` of a batch of ``task``: as text, or with one panel for the input and one for the target."""
    text = task.text(batch, index)
    if text is not None:
        _draw_text(figure.add_subplot(), text)
        return
    given, asked = figure.subplots(1, 2)
    x, y, image = batch.x[index], batch.y[index], task.image_shape()
    if image is None:
        _draw(given, x, task.input, 0)
        _draw(asked, y, task.target, 0 if task.target.pooled else task.input.length - task.target.length)
    else:
        _draw_image(given, x.reshape(image))
        if task.target.length == task.input.length:
            _draw_classes(asked, y.reshape(image), task.target)
        else:
            _draw_text(asked, f"class {', '.join(map(str, y.ravel()))}")
    given.set_title(f"input of sample {index}", fontsize=8)
    asked.set_title(f"target of sample {index}", fontsize=8)


def _draw(panel: Axes, array: np.ndarray, spec: Spec, first: int) -> None:
    """Draw a signal as lines or a heat map, tokens as points; the first position on the axis is ``first``."""
    last = first + len(array)
    positions = np.arange(first, last)
    if spec.kind == "token":
        shown = array != IGNORED
        panel.plot(positions[shown], array[shown], ".", markersize=4)
        panel.set_ylabel("token", fontsize=8)
    elif spec.width <= MAX_LINES:
        for channel in range(spec.width):
            panel.plot(positions, array[:, channel], linewidth=0.8, label=f"channel {channel}")
        panel.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    else:
        extent = (first - 0.5, last - 0.5, spec.width - 0.5, -0.5)
        scale = float(np.abs(array).max()) or 1.0
        image = panel.imshow(array.T, extent=extent, aspect="auto", cmap="RdBu", interpolation="nearest")
        image.set_clim(-scale, scale)
        panel.set_ylabel("channel", fontsize=8)
    panel.set_xlim(first - 0.5, last - 0.5)
    panel.set_xlabel("position", fontsize=8)
    panel.tick_params(labelsize=7)


def _draw_image(panel: Axes, image: np.ndarray) -> None:
    panel.imshow(image, cmap="gray", interpolation="nearest")
    panel.set_axis_off()


def _draw_classes(panel: Axes, target: np.ndarray, spec: Spec) -> None:
    """Draw the class of each pixel, with a legend of the classes."""
    drawn = panel.imshow(target, cmap="viridis", vmin=0, vmax=spec.width - 1, interpolation="nearest")
    for label, color in enumerate(drawn.to_rgba(np.arange(spec.width))):
        panel.plot([], [], "s", color=color, label=f"class {label}")
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1))
    panel.set_axis_off()


def _draw_text(panel: Axes, text: str) -> None:
    panel.text(0, 1, text, family="monospace", fontsize=7, va="top", wrap=True, parse_math=False)
    panel.set_axis_off()
