"""What a task draws: shapes, dtypes and ranges of its samples, one by one and in batches."""

from __future__ import annotations

import json
import random as python_random
from collections.abc import Iterator
from typing import Any

import numpy as np

from lrtasks.generators import randomness as random
from lrtasks.generators.base import SPLITS, Task
from lrtasks.generators.checks.probe import Probe, Problem
from lrtasks.spec import IGNORED, Sample, Spec


def check_samples(probe: Probe) -> Iterator[Problem]:
    """Samples one by one, up to the first that is wrong."""
    task, count, seed = probe
    first: Sample | None = None
    for index, rng in enumerate(random.generators(task.key(seed, "train"), range(count))):
        before = _global_states()
        try:
            sample: Any = task.sample(rng)
        except NotImplementedError:
            yield "sample() is missing: write sample(self, rng), which returns a lrtasks.generators.Sample"
            return
        except Exception as error:
            yield probe.raised("sample()", error)
            return
        shared, found = list(_global_problems(before)), list(_sample_problems(task, sample))
        if not found and first is not None:
            found = list(_unlike(first, sample))
        if shared or found:
            yield from (*shared, *(f"sample {index}: {problem}" for problem in found))
            return
        first = first or sample


def check_batches(probe: Probe) -> Iterator[Problem]:
    """Batches of each split, which a vectorised ``samples`` may make by another road."""
    task, count, _ = probe
    for split in SPLITS:
        try:
            batch = probe.batch(split=split)
        except Exception as error:
            yield probe.raised(f"batch() of split {split!r}", error)
            return
        for name, array, spec in (("x", batch.x, task.input), ("y", batch.y, task.target)):
            found = list(_array_problems(name, array, spec, spec.shape(count)))
            if not found and not array.flags.writeable:
                found = [f"{name} of a batch must be writable, found a read-only array; return a copy"]
            yield from found
        if task.target.kind == "token" and np.all(batch.y == IGNORED):
            yield f"y ignores every label of a batch (all are {IGNORED}), so nothing is learned or scored"
        shape = (count, task.input.length)
        if batch.mask is not None and (batch.mask.shape != shape or batch.mask.dtype != bool):
            yield f"mask must be {shape} bool, found {batch.mask.shape} {batch.mask.dtype}"
        for name, column in (batch.meta or {}).items():
            if len(column) != count:
                yield f"meta {name!r} must have one entry for each of {count} samples, found {len(column)}"


def _global_states() -> tuple[Any, Any]:
    """Where the random numbers stand that every piece of code shares."""
    state: Any = np.random.get_state()
    return (state[1].tobytes(), *state[2:]), python_random.getstate()


def _global_problems(before: tuple[Any, Any]) -> Iterator[Problem]:
    for name, then, now in zip(("np.random.*", "random.*"), before, _global_states(), strict=True):
        if then != now:
            yield (
                f"sample() draws from the random numbers that all code shares ({name}); draw from its argument rng"
                " (rng.integers(2, size=8), rng.standard_normal(8), ...)"
            )


def _sample_problems(task: Task, sample: Any) -> Iterator[Problem]:
    if not isinstance(sample, Sample):
        yield f"sample() must return lrtasks.generators.Sample(x, y), found {type(sample).__name__}"
        return
    for name, array, spec in (("x", sample.x, task.input), ("y", sample.y, task.target)):
        yield from _array_problems(name, array, spec, spec.shape(1)[1:])
    yield from _mask_problems(task, sample)
    meta: object = sample.meta
    if not (meta is None or isinstance(meta, dict)):
        yield f"meta must be a dictionary or None, found {type(meta).__name__}"
        return
    for name, value in (meta or {}).items():
        try:
            json.dumps({name: value}, default=lambda entry: entry.tolist())
        except (AttributeError, TypeError, ValueError):
            yield f"meta {name!r} must be a number, a text, an array or a list of them, found {type(value).__name__}"


def _array_problems(name: str, array: Any, spec: Spec, shape: tuple[int, ...]) -> Iterator[Problem]:
    """What is wrong with ``x`` or ``y``; labels may be ignored in ``y`` alone."""
    dtype = np.dtype(np.float32 if spec.kind == "real" else np.int64)
    if not isinstance(array, np.ndarray):
        yield f"{name} must be a NumPy array, found {type(array).__name__}"
    elif array.shape != shape or array.dtype != dtype:
        mend = f"; use .astype(np.{dtype})" if array.shape == shape else ""
        yield f"{name} must be {shape} {dtype} as its spec says, found {array.shape} {array.dtype}{mend}"
    elif spec.kind == "real":
        if not np.isfinite(array).all():
            first = np.argwhere(~np.isfinite(array))[0].tolist()
            yield f"{name} holds values that are not finite, first at {name}{first}"
    else:
        scored = array[array != IGNORED] if name == "y" else array
        if scored.size and (scored.min() < 0 or scored.max() >= spec.width):
            also = f" (or {IGNORED}, where a label is not scored)" if name == "y" else ""
            yield f"{name} must be in 0..{spec.width - 1}{also}, found {scored.min()}..{scored.max()}"


def _mask_problems(task: Task, sample: Sample) -> Iterator[Problem]:
    """A mask is True at some positions, pads where models expect it, and nothing is scored at padding."""
    mask, length = sample.mask, task.input.length
    if mask is None:
        return
    if not isinstance(mask, np.ndarray) or mask.shape != (length,) or mask.dtype != bool:
        found = f"{mask.shape} {mask.dtype}" if isinstance(mask, np.ndarray) else type(mask).__name__
        yield f"mask must be {(length,)} bool, found {found}"
        return
    if not mask.any():
        yield "mask is False at every position"
    if task.target.pooled:
        if (mask[1:] & ~mask[:-1]).any():
            yield "mask must be True first and False after: a pooled target is read at the last valid position"
    elif task.target.kind == "token" and isinstance(sample.y, np.ndarray) and sample.y.shape == (task.target.length,):
        labelled = ~mask[length - task.target.length :] & (sample.y != IGNORED)
        if labelled.any():
            first = int(labelled.argmax())
            yield (
                f"y must be {IGNORED} at padding (mask False), where nothing is to be predicted, found"
                f" {sample.y[first]} at y[{first}]"
            )
    elif task.target.kind == "real" and not mask[length - task.target.length :].all():
        yield (
            "mask is False at positions of a real target, which is scored everywhere: pad what comes before the target,"
            " or predict one value for the sequence (pooled)"
        )


def _unlike(first: Sample, sample: Sample) -> Iterator[Problem]:
    """What a sample has and the first one has not, or the other way round."""
    if (first.mask is None) != (sample.mask is None):
        yield "either all samples have a mask or none, found both (give np.ones(length, bool) where nothing is padded)"
    names, others = (None if meta is None else sorted(meta) for meta in (first.meta, sample.meta))
    if names != others:
        yield f"meta must have the same names in all samples, found {others} after {names}"
