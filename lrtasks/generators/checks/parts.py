"""What a task offers beside its samples: floors, slices, text and picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lrtasks.generators.baselines import Baseline
from lrtasks.generators.checks.probe import Probe, Problem
from lrtasks.spec import IGNORED, Batch


def check_floors(probe: Probe) -> Iterator[Problem]:
    """Floors can be fitted and asked, and do not look at what they are to predict."""
    try:
        floors: object = probe.task.baselines()
    except Exception as error:
        yield probe.raised("baselines()", error)
        return
    if not isinstance(floors, Mapping):
        yield f"baselines() must return a dictionary of predictors by name, found {type(floors).__name__}"
        return
    if not floors:
        yield "baselines() is empty: a score says something beside that of a predictor that learns nothing"
    for name, floor in floors.items():
        yield from _floor_problems(probe, name, floor)


def _floor_problems(probe: Probe, name: str, floor: Baseline) -> Iterator[Problem]:
    task, count = probe.task, probe.samples
    batch = probe.batch()
    ignores = bool((batch.y == IGNORED).any()) and task.target.kind == "token"
    try:
        floor.fit([batch, probe.batch(range(count, 2 * count))])
    except Exception as error:
        hint = f" (labels of {IGNORED} are there and count for nothing)" if ignores else ""
        yield probe.raised(f"fit() of floor {name!r}", error) + hint
        return
    try:
        prediction: Any = floor.predict(batch)
        blind: Any = floor.predict(batch._replace(y=np.roll(batch.y, 1, axis=0)))
    except Exception as error:
        yield probe.raised(f"predict() of floor {name!r}", error)
        return
    if not isinstance(prediction, np.ndarray) or prediction.shape != batch.y.shape:
        found = prediction.shape if isinstance(prediction, np.ndarray) else type(prediction).__name__
        yield f"floor {name!r} must predict the shape of y, {batch.y.shape}, found {found}"
    elif not np.isfinite(prediction).all():
        yield f"floor {name!r} predicts values that are not finite"
    elif task.target.kind == "token" and not np.isin(prediction, np.arange(task.target.width)).all():
        yield f"floor {name!r} must predict classes in 0..{task.target.width - 1}, found {_strange(probe, prediction)}"
    elif not np.array_equal(prediction, blind):
        yield f"floor {name!r} looks at the targets it is asked to predict; use batch.y for its shape alone"


def _strange(probe: Probe, prediction: np.ndarray) -> Any:
    return prediction[~np.isin(prediction, np.arange(probe.task.target.width))][0].item()


def check_slices(probe: Probe) -> Iterator[Problem]:
    """Breakdowns label the elements of ``y``."""
    batch = probe.batch()
    try:
        slices: object = probe.task.slices(batch)
    except Exception as error:
        yield probe.raised("slices()", error)
        return
    if not isinstance(slices, Mapping):
        yield f"slices() must return a dictionary of labels by name, found {type(slices).__name__}"
        return
    for name, labels in slices.items():
        yield from _slice_problems(name, np.asarray(labels), batch)


def _slice_problems(name: str, labels: np.ndarray, batch: Batch) -> Iterator[Problem]:
    try:
        np.broadcast_to(labels, batch.y.shape)
    except ValueError:
        mend = "; one label per sample needs axes for the others: labels[:, None]" * (labels.shape == batch.y.shape[:1])
        yield f"slice {name!r} must broadcast to y, {batch.y.shape}, found {labels.shape}{mend}"
        return
    if labels.dtype.kind not in "biufU" or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
        yield f"slice {name!r} must be labelled by finite numbers or texts, found {labels.dtype} {labels.flat[0]!r}"


def check_views(probe: Probe) -> Iterator[Problem]:
    """Text, fingerprint and picture are there in the right form, or not at all."""
    task, batch = probe.task, probe.batch()
    for method, kind in (("text", str), ("fingerprint", bytes)):
        try:
            found: object = getattr(task, method)(batch, probe.samples - 1)
        except Exception as error:
            yield probe.raised(f"{method}()", error)
        else:
            if not (found is None or isinstance(found, kind)):
                wanted = "a text" if kind is str else "bytes"
                yield f"{method}() must return {wanted} or None, found {found!r}"
    image = task.image_shape()
    if image is not None and math.prod(image) != task.input.length:
        yield f"image_shape() must hold the {task.input.length} positions of the input, found {image}"
