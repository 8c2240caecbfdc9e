"""Results of a finished run beyond its score: slices, diagnostics, learning curve and figures of the modules.

Matplotlib draws the figures; it needs no display.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lrtasks.errors import UsageError, printable
from lrtasks.files import make_folder
from lrtasks.record import FILE, RunRecord, current_record, score_name
from lrtasks.registry import own_source, registered_only
from lrtasks.results import style
from lrtasks.results.formats import TextTable, number

if TYPE_CHECKING:
    from lrtasks.generators import Batch, Task
    from lrtasks.models.ops.layers import Portrait

SAMPLES = 4
"""Number of test samples that a model processes before its modules return their figures (``portraits()``)."""
PANEL = 4.5, 3.5
"""Width and height of a panel, in inches."""
FEW = 16
"""Lines with at most this number of points have markers."""


def analyze(run: Path, out: Path) -> tuple[RunRecord, list[Path]]:
    """Draw all figures of the run in folder ``run`` into folder ``out``.

    Returns:
        The record and the paths of the figures.

    Raises:
        UsageError: if the record cannot be read, has no learning curve yet, or the folder ``out`` cannot be written to
            or is a link.
    """
    if not (run / FILE).exists() and (inside := next(run.rglob(FILE), None)):
        raise UsageError(f"{run} is a folder of several runs; analyze takes one of them, such as {inside.parent}")
    record = current_record(run)
    if not record.curve:
        raise UsageError(f"{run} has nothing to analyze yet: its status is {record.status}")
    if out.is_symlink():  # in a results folder of someone else, a link may point to a place outside the folder
        raise UsageError(f"the folder of the plots {out} is a symbolic link; give its target as --out")
    make_folder(out, "the folder of the plots")
    drawn = {"curve": draw_curve(record)}
    if record.filled_slices():
        drawn["slices"] = draw_slices(record)
    if numbers := module_numbers(record):
        drawn["diagnostics"] = draw_diagnostics(numbers)
    with registered_only():
        task = _task_of(run, record)
        if task is not None:
            batch = task.batch(range(SAMPLES), 0, "test")
            shape = task.image_shape()
            images = None if shape is None else batch.x.reshape(-1, *shape)
            for name, states in module_states(run, batch).items():
                drawn[re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")] = draw_module(states, images)
    # follow=False: a link in the folder is replaced, not followed
    return record, [style.save(figure, out / f"{stem}.png", follow=False) for stem, figure in drawn.items()]


def slice_tables(record: RunRecord) -> list[TextTable]:
    """Return one table per slice: first of the test, then of the further tests (with the test's name)."""
    found = record.slices | {
        f"{name} ({test})": rows for test, own in record.further_slices.items() for name, rows in own.items()
    }
    tables = []
    for name, rows in found.items():
        if rows:
            score = score_name(rows)
            lines = [[str(row["label"]), number(row[score], 4), number(row.get("elements"))] for row in rows]
            tables.append(TextTable([name, score, "elements"], lines))
    return tables


def diagnostics_table(record: RunRecord) -> TextTable:
    """Return the model's diagnostics, one line per module and value; an array of two or more axes as its shape."""
    lines = [
        [module, name, _shown(value)] for module, values in record.diagnostics.items() for name, value in values.items()
    ]
    return TextTable(["module", "diagnostic", "value"], lines)


def _shown(value: Any) -> str:
    """Return a diagnostic as text of one line.

    >>> _shown(0.123456), _shown(7), _shown([0.5, None]), _shown([[[1.0] * 9] * 4] * 2)
    ('0.1235', '7', '[0.5, None]', '2 × 4 × 9 numbers, in record.json')
    """
    shape, inner = list[str](), value
    while isinstance(inner, list) and inner:
        shape.append(str(len(inner)))
        inner = inner[0]
    if len(shape) > 1:
        return f"{' × '.join(shape)} numbers, in {FILE}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def module_numbers(record: RunRecord) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Return the numeric diagnostics by name and module: the value and its spread ``NAME_std`` (or ``None``).

    A negative value is not a spread, but a separate diagnostic.
    """
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for module, values in record.diagnostics.items():
        # float: Matplotlib cannot draw an integer of more than 64 bits
        numbers = {name: float(value) for name, value in values.items() if type(value) in (int, float)}
        spreads = {f"{name}_std" for name in numbers if numbers.get(f"{name}_std", -1) >= 0}
        for name, value in numbers.items():
            if name not in spreads:
                spread = numbers[f"{name}_std"] if f"{name}_std" in spreads else None
                found.setdefault(name, {})[module] = (value, spread)
    return found


def module_states(run: Path, batch: Batch) -> dict[str, dict[str, Portrait]]:
    """Return the figures of a registered model's modules on ``batch``, by title, before and after training.

    Raises:
        UsageError: if the run's weights cannot be read, or do not fit its model.
    """
    import torch

    from lrtasks.evaluation.run import load_model
    from lrtasks.models.base import offered

    found: dict[str, dict[str, Portrait]] = {}
    mask = None if batch.mask is None else torch.from_numpy(batch.mask)
    for moment in ("before training", "after training"):
        model = load_model(run, trained=moment == "after training").eval()
        with torch.no_grad():
            model(torch.from_numpy(batch.x), mask)
            for name, portraits in offered(model, "portraits"):
                for portrait in portraits():
                    found.setdefault(f"{name} {portrait.title}", {})[moment] = portrait
    return found


def _task_of(run: Path, record: RunRecord) -> Task | None:
    """Return the run's task if its task and model are registered here and its weights are stored, else ``None``.

    Classes of the user may have the names of registered ones; the digests of their source files differ.
    """
    from lrtasks import generators, models
    from lrtasks.evaluation.loop import WEIGHTS

    own = any(":" in str(named.get("address")) for named in (record.task, record.model))
    if own or not (run / WEIGHTS).exists():
        return None
    with suppress(UsageError):  # the packages that define the task and the model may be missing or broken here
        kinds = generators.registry.get(record.task["name"]), models.registry.get(record.model["name"])
        if [own_source(kind) for kind in kinds] == [record.task.get("source"), record.model.get("source")]:
            return kinds[0].make(**record.task["parameters"])
    return None


@style.styled
def draw_curve(record: RunRecord) -> Figure:
    """Draw training loss and validation score over steps, with the baselines' scores."""
    metric = record.task["metric"]
    steps = [point["step"] for point in record.curve]
    figure, (loss, score) = style.panels(2, 2, *PANEL)
    loss.plot(steps, np.array([point.get("loss") for point in record.curve], float), "o-")
    loss.set(xlabel="step", ylabel=f"training loss ({printable(record.task['name'])})", yscale="log")
    score.plot(steps, np.array([point.get(metric) for point in record.curve], float), "o-")
    for name, scores in record.baselines.items():
        if scores.get(metric) is not None:
            score.axhline(scores[metric], linestyle="--", color="grey", linewidth=0.8)
            at, above = (steps[0], scores[metric]), (0, 2)
            score.annotate(
                style.literal(f"baseline: {name}"), at, above, textcoords="offset points", fontsize=7, color="grey"
            )
    score.set(xlabel="step", ylabel=f"validation {style.metric(metric)}")
    return figure


@style.styled
def draw_slices(record: RunRecord) -> Figure:
    """Draw the test score within each group, one panel per slice; the record must have a slice."""
    slices = record.filled_slices()
    figure, panels = style.panels(len(slices), len(slices), *PANEL)
    for panel, (name, rows) in zip(panels, slices.items(), strict=True):
        score = score_name(rows)
        values = [np.nan if row[score] is None else row[score] for row in rows]
        _name_bars(panel, [str(row["label"]) for row in rows])
        panel.bar(range(len(rows)), values)
        panel.set(xlabel=style.literal(name), ylabel=score, ylim=(min(0, np.nanmin(values, initial=0)), 1.02))
    return figure


@style.styled
def draw_diagnostics(numbers: Mapping[str, Mapping[str, tuple[float, float | None]]]) -> Figure:
    """Draw one panel per numeric diagnostic of :func:`module_numbers`: its value and spread in each module."""
    figure, panels = style.panels(len(numbers), 3, *PANEL)
    for panel, (name, modules) in zip(panels, numbers.items(), strict=True):
        for bar, (value, spread) in enumerate(modules.values()):
            panel.bar(bar, value, yerr=spread, capsize=4)
        _name_bars(panel, list(modules))
        panel.set(xlabel="module", ylabel=style.literal(name.replace("_", " ")))
        if panel.get_ylim()[0] < 0 <= min(value for value, _ in modules.values()):
            panel.set_ylim(bottom=0)
    return figure


@style.styled
def draw_module(states: Mapping[str, Portrait], images: np.ndarray | None = None) -> Figure:
    """Draw a module's figures before and after training side by side.

    ``images`` are the samples, ``(samples, rows, columns)``, for tasks whose positions are pixels.
    """
    if images is not None and next(iter(states.values())).kind == "positions":
        return _draw_images(states, images)
    figure, panels = style.panels(len(states), len(states), *PANEL)
    for panel, (moment, shown) in zip(panels, states.items(), strict=True):
        {"lines": _lines, "plane": _plane, "bars": _bars}.get(shown.kind, _image)(panel, shown)
        panel.set_title(f"{shown.title}, {moment}", fontsize=8)
        panel.set(xlabel=shown.x_label, ylabel=shown.y_label)
        if len(shown.series) > 1:
            panel.legend(fontsize=6)
    return figure


def _draw_images(states: Mapping[str, Portrait], images: np.ndarray) -> Figure:
    """Draw one row per sample: the input image, then the module's value at each pixel, one image per moment."""
    found = {
        f"{shown.title}, {moment}": next(iter(shown.series.values())).reshape(images.shape)
        for moment, shown in states.items()
    }
    lowest, highest = min(map(np.min, found.values())), max(map(np.max, found.values()))
    wide = 1 + len(found)
    figure, panels = style.panels(wide * len(images), wide, *PANEL)
    grid = np.array(panels, dtype=object).reshape(len(images), wide)
    for row, (first, *others) in enumerate(grid):
        first.imshow(images[row], cmap="gray")
        first.set_title(f"sample {row}", fontsize=8)
        for panel, (title, values) in zip(others, found.items(), strict=True):
            drawn = panel.imshow(values[row], vmin=lowest, vmax=highest, interpolation="nearest")
            panel.set_title(title, fontsize=8)
    for panel in panels:
        panel.set_axis_off()
    figure.colorbar(drawn, ax=list(grid[:, 1:].flat))
    return figure


def _lines(panel: Axes, shown: Portrait) -> None:
    first = 1 if shown.log_x else 0
    for name, values in shown.series.items():
        marker = "o" if len(values) <= FEW else ""
        panel.plot(np.arange(first, len(values)), values[first:], marker=marker, linewidth=0.7, label=name)
    if not shown.log_x:
        panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    panel.set(xscale="log" if shown.log_x else "linear", yscale="log" if shown.log_y else "linear")


def _plane(panel: Axes, shown: Portrait) -> None:
    angle = np.linspace(0, 2 * np.pi, 361)
    panel.plot(np.cos(angle), np.sin(angle), color="grey", linewidth=0.6)
    for name, values in shown.series.items():
        panel.plot(values.real, values.imag, ".", markersize=2, label=name)
    panel.set_aspect("equal")


def _image(panel: Axes, shown: Portrait) -> None:
    (matrix,) = shown.series.values()
    square = matrix.shape[0] == matrix.shape[1]
    drawn = panel.imshow(matrix, aspect="equal" if square else "auto", interpolation="nearest")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    panel.figure.colorbar(drawn, ax=panel)


def _bars(panel: Axes, shown: Portrait) -> None:
    width = 0.8 / len(shown.series)
    for place, (name, heights) in enumerate(shown.series.items()):
        panel.bar(np.arange(len(heights)) + place * width, heights, width, label=name)
    panel.set_xticks(range(len(shown.labels)), shown.labels, fontsize=7)


def _name_bars(panel: Axes, labels: Sequence[str]) -> None:
    """Write names below the bars; rotate all if a name has more than four letters, since long names would overlap."""
    names = list(map(style.literal, labels))
    panel.set_xticks(range(len(labels)), names, rotation=60 if max(map(len, labels)) > 4 else 0, fontsize=7)
