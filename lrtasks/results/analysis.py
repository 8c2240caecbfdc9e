"""What a finished run says beyond its score: breakdowns, diagnostics, learning curve, and what the model holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrtasks.errors import UsageError
from lrtasks.files import make_folder
from lrtasks.record import FILE, RunRecord, read_record, score_name
from lrtasks.results import figures
from lrtasks.results.formats import TextTable, number

if TYPE_CHECKING:
    from torch import nn

    from lrtasks.generators import Batch, Task
    from lrtasks.models.portraits import Portrait

SAMPLES = 4
"""Test samples that a model sees before its modules are asked what they hold."""


def analyze(run: Path, out: Path) -> tuple[RunRecord, list[Path]]:
    """Draw all figures of the run in folder ``run`` into folder ``out``.

    Returns:
        The record and the paths of the figures.

    Raises:
        UsageError: if there is no readable record, nothing to show yet, or a folder that cannot be written to.
    """
    record = read_record(run)
    if not record.curve:
        raise UsageError(f"{run} has nothing to analyze yet: its status is {record.status}")
    if out.is_symlink():  # it may lead out of a results folder that someone else made
        raise UsageError(f"the folder of the plots {out} is a link; give --out the folder that is meant")
    make_folder(out, "the folder of the plots")
    drawn = {"curve": figures.draw_curve(record)}
    if record.filled_slices():
        drawn["slices"] = figures.draw_slices(record)
    numbers = module_numbers(record)
    if numbers:
        drawn["diagnostics"] = figures.draw_diagnostics(numbers)
    task = _task_of(run, record)
    if task is not None:
        batch = task.batch(range(SAMPLES), 0, "test")
        shape = task.image_shape()
        pictures = None if shape is None else batch.x.reshape(-1, *shape)
        for name, states in module_states(run, batch).items():
            stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
            drawn[stem] = figures.draw_module(states, pictures)
    return record, [figures.save(figure, out / f"{stem}.png") for stem, figure in drawn.items()]


def slice_tables(record: RunRecord) -> list[TextTable]:
    """The breakdowns, one table each."""
    tables = []
    for name, rows in record.filled_slices().items():
        score = score_name(rows)
        lines = [[str(row["label"]), number(row[score], 4), number(row.get("elements"))] for row in rows]
        tables.append(TextTable([name, score, "elements"], lines))
    return tables


def diagnostics_table(record: RunRecord) -> TextTable:
    """The model's diagnostics: one line per module and value; of arrays only the shape."""
    lines = [
        [module, name, _shown(value)] for module, values in record.diagnostics.items() for name, value in values.items()
    ]
    return TextTable(["module", "diagnostic", "value"], lines)


def module_numbers(record: RunRecord) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Diagnostics that are numbers: by name, for each module that has it, the value and its spread (``NAME_std``)."""
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for module, values in record.diagnostics.items():
        numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
        spreads = {f"{name}_std" for name in numbers}
        for name, value in numbers.items():
            if name not in spreads:
                found.setdefault(name, {})[module] = (value, numbers.get(f"{name}_std"))
    return found


def module_states(run: Path, batch: Batch) -> dict[str, dict[str, Portrait]]:
    """What the modules of a registered model show of themselves on ``batch``, by title, before and after training.

    Raises:
        UsageError: if the run's weights cannot be read, or are not those of its model.
    """
    from lrtasks.evaluation import load_model

    found: dict[str, dict[str, Portrait]] = {}
    for moment in ("before training", "after training"):
        model = load_model(run, trained=moment == "after training")
        for title, portrait in _portraits(model, batch):
            found.setdefault(title, {})[moment] = portrait
    return found


def _task_of(run: Path, record: RunRecord) -> Task | None:
    """The run's task, if its task and model are registered here and the run has left its weights."""
    from lrtasks import generators, models
    from lrtasks.evaluation.loop import WEIGHTS

    # the packages that brought task and model may be missing here, or broken by now
    known = record.model["name"] in models.registry.usable() and record.task["name"] in generators.registry.usable()
    own = record.model.get("source") is not None
    if own or not (known and (run / WEIGHTS).exists()):
        return None
    return generators.make(record.task["name"], **record.task["parameters"])


def _portraits(model: nn.Module, batch: Batch) -> list[tuple[str, Portrait]]:
    import torch

    from lrtasks.models.base import offered

    mask = None if batch.mask is None else torch.from_numpy(batch.mask)
    with torch.no_grad():
        model.eval()(torch.from_numpy(batch.x), mask)
        return [
            (f"{name} {portrait.title}", portrait)
            for name, portraits in offered(model, "portraits")
            for portrait in portraits()
        ]


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
