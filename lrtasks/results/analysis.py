"""What a finished run says beyond its score, as tables and plots: breakdowns, learning curve, what the model holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrtasks import models
from lrtasks.errors import UsageError, first_line
from lrtasks.evaluation import checkpoint
from lrtasks.evaluation.loop import WEIGHTS
from lrtasks.evaluation.subject import build_subject
from lrtasks.files import make_folder
from lrtasks.generators import Batch, Task, make, registry
from lrtasks.models.base import offered
from lrtasks.models.portraits import Portrait
from lrtasks.record import FILE, RunRecord, read_record, score_name
from lrtasks.results import plots

PORTRAIT_SAMPLES = 4
"""Test samples that a model sees before it is asked for its portraits."""


def analyze(run: Path, out: Path) -> tuple[RunRecord, list[Path]]:
    """Write all plots of the run in folder ``run`` to folder ``out``.

    Returns:
        The record and the paths of the plots.

    Raises:
        UsageError: if there is no readable record, nothing to show yet, or a folder that cannot be written to.
    """
    record = read_record(run)
    if not record.curve:
        raise UsageError(f"{run} has nothing to analyze yet: its status is {record.status}")
    make_folder(out, "the folder of the plots")
    written = [plots.save(plots.draw_curve(record), out / "curve.png")]
    if record.filled_slices():
        written.append(plots.save(plots.draw_slices(record), out / "slices.png"))
    figures = module_figures(record)
    if figures:
        written.append(plots.save(plots.draw_figures(figures), out / "diagnostics.png"))
    # the packages that brought task and model may be missing here, or broken by now
    registered = record.model.get("structure") is None and record.model["name"] in models.registry.usable()
    there = registered and record.task["name"] in registry.usable()
    if there and (run / WEIGHTS).exists():
        task = make(record.task["name"], **record.task["parameters"])
        batch = task.batch(range(PORTRAIT_SAMPLES), 0, "test")
        shape = task.image_shape()
        pictures = None if shape is None else batch.x.reshape(-1, *shape)
        for name, states in portraits(run, record, task, batch).items():
            stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            written.append(plots.save(plots.draw_portrait(states, pictures), out / f"{stem}.png"))
    return record, written


def slice_tables(record: RunRecord) -> str:
    """The breakdowns as text, one table each."""
    tables = []
    for name, rows in record.filled_slices().items():
        score = score_name(rows)
        lines = [f"{name:>12}  {score:>10}  elements"]
        for row in rows:
            value = "-" if row[score] is None else f"{row[score]:.4f}"
            lines.append(f"{row['label']!s:>12}  {value:>10}  {row.get('elements', '')}")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def diagnostics_table(record: RunRecord) -> str:
    """The model's diagnostics as text: one line per module and value; of arrays only the shape."""
    lines = []
    for module, values in record.diagnostics.items():
        for name, value in values.items():
            lines.append(f"{module}  {name}  {_shown(value)}")
    return "\n".join(lines)


def module_figures(record: RunRecord) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Diagnostics that are numbers: by name, for each module that has it, the value and its spread (``NAME_std``)."""
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for module, values in record.diagnostics.items():
        numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
        spreads = {f"{name}_std" for name in numbers}
        for name, value in numbers.items():
            if name not in spreads:
                found.setdefault(name, {})[module] = (value, numbers.get(f"{name}_std"))
    return found


def portraits(run: Path, record: RunRecord, task: Task, batch: Batch) -> dict[str, dict[str, Portrait]]:
    """Portraits that a registered model gives of itself on ``batch``, by title, at each moment.

    Raises:
        UsageError: if the run's weights cannot be read, or are not those of its model.
    """
    model = build_subject(record.model["name"], task, record.model["parameters"], record.seed).module
    found: dict[str, dict[str, Portrait]] = {}
    for moment in ("before training", "after training"):
        if moment == "after training":
            weights = checkpoint.load(run / WEIGHTS)
            try:
                model.load_state_dict(weights["model"])
            except (KeyError, RuntimeError) as error:
                reason = first_line(error)
                raise UsageError(f"{run / WEIGHTS} does not fit the model of its record ({reason})") from None
        for title, portrait in _take(model, batch):
            found.setdefault(title, {})[moment] = portrait
    return found


def _shown(value: Any) -> str:
    """A diagnostic in a line.

    >>> _shown(0.123456), _shown(7), _shown([0.5, None]), _shown([[[1.0] * 9] * 4] * 2)
    ('0.1235', '7', '[0.5, None]', '2 × 4 × 9 numbers, in record.json')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    shape = []
    inner = value
    while isinstance(inner, list) and inner:
        shape.append(len(inner))
        inner = inner[0]
    return f"{' × '.join(map(str, shape))} numbers, in {FILE}" if len(shape) > 1 else str(value)


def _take(model: nn.Module, batch: Batch) -> list[tuple[str, Portrait]]:
    mask = None if batch.mask is None else torch.from_numpy(batch.mask)
    with torch.no_grad():
        model.eval()(torch.from_numpy(batch.x), mask)
        return [
            (f"{name} {portrait.title}", portrait)
            for name, portraits in offered(model, "portraits")
            for portrait in portraits()
        ]
