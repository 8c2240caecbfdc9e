"""Pictures of tasks: input and target of one sample, drawn again from the task's settings."""

from __future__ import annotations

import inspect
import math
import shlex
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrtasks import generators
from lrtasks.errors import UsageError
from lrtasks.generators import Batch
from lrtasks.generators.base import Task
from lrtasks.generators.preview import MAX_LINES
from lrtasks.results.report.axes import axis_for
from lrtasks.results.report.charts import LOW, Series, line_chart
from lrtasks.results.report.pictures import class_image, grey_image, signed_rows
from lrtasks.results.report.readable import setting
from lrtasks.spec import IGNORED, Spec

MAX_POSITIONS = 1024
"""Longer samples are drawn at the task's ``small`` preset."""
MAX_TEXT = 2000
"""Characters of a sample's text that are shown."""


@dataclass(frozen=True)
class Panel:
    """Input or target of a sample.

    Attributes:
        title: which of the two, and what of it.
        description: what a screen reader says in place of the picture.
        svg: a chart of it, or
        picture: a picture as a data URI; with neither the title says it all.
        rows: the picture shows channels × positions, and may be stretched.
    """

    title: str
    description: str = ""
    svg: str | None = None
    picture: str | None = None
    rows: bool = False


@dataclass(frozen=True)
class Sample:
    """One sample of a task.

    Attributes:
        summary: what the task asks for, in one sentence of its own.
        command: what draws it again.
        text: the sample as text, for tasks that are read; else ``None``.
        panels: input and target, for the others.
    """

    summary: str
    command: str
    text: str | None
    panels: tuple[Panel, ...]


def draw_sample(name: str, parameters: dict[str, Any]) -> Sample | str:
    """Sample 0 of a task with these parameters, or why there is none: another machine may lack the task."""
    try:
        task = generators.make(name, **parameters)
        if task.input.length > MAX_POSITIONS and task.image_shape() is None:
            parameters = generators.registry.get(name).preset_values("small")[0]
            task = generators.make(name, **parameters)
        return _sample(task, task.batch(range(1)), parameters)
    except UsageError as error:
        return str(error)
    except Exception as error:  # a plug-in's own code may raise anything, and the report goes on without it
        return f"{type(error).__name__}: {error}"


def _sample(task: Task, batch: Batch, parameters: dict[str, Any]) -> Sample:
    words = [f"{key}={setting(value)}" for key, value in parameters.items() if value is not None]
    command = shlex.join(["lrtasks", "preview", task.name, *(w for word in words for w in ("--set", word))])
    summary = inspect.cleandoc(type(task).__doc__ or "").split("\n\n")[0].replace("``", "").replace("\n", " ")
    text = task.text(batch, 0)
    if text is not None:
        return Sample(summary, command, text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...", ())
    return Sample(summary, command, None, _panels(task, batch.x[0], batch.y[0]))


def _panels(task: Task, x: np.ndarray, y: np.ndarray) -> tuple[Panel, Panel]:
    shape = task.image_shape()
    if shape is None:
        first = 0 if task.target.pooled else task.input.length - task.target.length
        return _panel("Input", x, task.input, 0), _panel("Target", y, task.target, first)
    pixels = f"{shape[0]} × {shape[1]} pixels"
    image = Panel(f"Input: {pixels}", f"grey image of {pixels}", picture=grey_image(x.reshape(shape)))
    if y.size != x.size:
        return image, _panel("Target", y, task.target, 0)
    classes = f"{task.target.width} classes"
    return image, Panel(
        f"Target: {classes}", f"the class of each pixel, {classes}", picture=class_image(y.reshape(shape))
    )


def _panel(title: str, values: np.ndarray, spec: Spec, first: int) -> Panel:
    """Signals as lines or as rows of pixels, tokens as dots, over input positions from ``first`` on."""
    if spec.kind == "token" and len(values) == 1:
        return Panel(f"{title}: class {values[0]}")
    last = first + len(values) - 1
    content = _channels(spec.width) if spec.kind == "real" else f"tokens out of {spec.width}"
    title, description = f"{title}: {content}", f"{title}, {content}, positions {first} to {last}"
    if spec.kind == "real" and spec.width > MAX_LINES:
        return Panel(title, description, picture=signed_rows(values.T), rows=True)
    columns = values.T if spec.kind == "real" else np.where(values == IGNORED, np.nan, values)[None]
    positions = range(first, last + 1)
    chart = line_chart(
        [Series(f"channel {i}", _points(positions, column), i) for i, column in enumerate(columns)],
        description=description,
        x_label="position",
        y_label="value" if spec.kind == "real" else "token",
        x=axis_for(positions),
        y=axis_for(columns[np.isfinite(columns)].tolist()),
        drawn="lines" if spec.kind == "real" else "dots",
        height=LOW,
    )
    return Panel(title, description, svg=str(chart))


def _points(positions: range, column: np.ndarray) -> list[tuple[float, float | None]]:
    values = [value if math.isfinite(value) else None for value in column.tolist()]
    return list(zip(positions, values, strict=True))


def _channels(count: int) -> str:
    return "1 channel" if count == 1 else f"{count} channels"
