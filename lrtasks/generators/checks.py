"""A conformance check for tasks, ours and other people's: whether the promises of :class:`Task` hold, in words."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators import rng as random
from lrtasks.generators.base import IGNORED, SPLITS, Batch, Task, stack
from lrtasks.specs import Spec

LOSSES = {"real": ("mse",), "token": ("cross-entropy", "balanced-cross-entropy")}
METRICS = {"real": ("r2",), "token": ("accuracy", "macro_f1")}


def check_task(task: Task, *, samples: int = 8, seed: int = 0) -> None:
    """Check that a task keeps its promises; return nothing if it does.

    Checked are: specs, loss and metric; parameters that rebuild the task; shapes, dtypes and ranges of a batch; that
    sample i depends on nothing but task, seed, split and i (not on order, batch size, repeats, earlier calls or the
    process: one batch is made in a second interpreter with another hash seed); that seeds, splits and samples
    differ; that a vectorised ``samples`` equals ``sample``; shapes of floors, slices and pictures.

    Args:
        task: an instance, with parameters that make small samples.
        samples: number of samples to draw for each check, at least 2.
        seed: seed of the samples drawn.

    Raises:
        UsageError: naming everything that is wrong.
    """
    if not isinstance(task, Task):
        raise UsageError(f"check_task takes an instance of a subclass of lrtasks.generators.Task, found {task!r}")
    if samples < 2:
        raise UsageError(f"samples must be at least 2, found {samples}")
    for stage in (_check_declaration, _check_arrays, _check_behaviour):
        problems = list(_caught(stage, _Probe(task, samples, seed)))
        if problems:
            title = getattr(task, "name", type(task).__name__)
            raise UsageError(f"task {title!r} breaks the contract: {'; '.join(problems)}")


def batch_digest(batch: Batch, decimals: int | None = None) -> str:
    """Hash of everything in a batch, 128 bits; real values are first rounded to ``decimals`` if that is given."""
    state = hashlib.blake2b(digest_size=16)
    for array in (batch.x, batch.y, batch.mask):
        if array is not None and array.dtype.kind == "f" and decimals is not None:
            array = np.rint(array.astype(np.float64) * 10.0**decimals).astype(np.int64)
        state.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    state.update(json.dumps(batch.meta, sort_keys=True, default=lambda value: value.tolist()).encode())
    return state.hexdigest()


class _Probe(NamedTuple):
    """What is checked, and on which samples."""

    task: Task
    samples: int
    seed: int


def _caught(check: Callable[[_Probe], Iterator[str]], probe: _Probe) -> Iterator[str]:
    """Problems that ``check`` finds, an exception being one."""
    try:
        yield from check(probe)
    except Exception as error:
        yield f"{check.__name__.removeprefix('_check_')}: raised {type(error).__name__}: {error}"


def _check_declaration(probe: _Probe) -> Iterator[str]:
    task = probe.task
    if not hasattr(task, "name"):
        yield "it has no name; register the class with @lrtasks.generators.registry.register(NAME)"
        return
    specs: dict[str, object] = {"input": task.input, "target": task.target}
    for field, spec in specs.items():
        if not isinstance(spec, Spec):
            yield f"{field} must be a Spec, found {spec!r}"
            return
    if task.target.length > task.input.length:
        yield (
            f"the target is read at the last positions of the input, but is longer"
            f" ({task.target.length} against {task.input.length})"
        )
    for field, allowed in (("loss", LOSSES), ("metric", METRICS)):
        if getattr(task, field) not in allowed[task.target.kind]:
            names = " or ".join(repr(name) for name in allowed[task.target.kind])
            yield f"{field} of a {task.target.kind} target must be {names}, found {getattr(task, field)!r}"
    if not isinstance(task.version, int) or task.version < 1:
        yield f"version must be a whole number of at least 1, found {task.version!r}"
    if type(task).make(**json.loads(json.dumps(task.parameters()))) != task:
        yield f"parameters() does not rebuild the task: {task.parameters()!r}"


def _check_arrays(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    for split in SPLITS:
        batch = task.batch(range(samples), seed, split)
        yield from _array_problems("x", batch.x, task.input, samples, ignored=False)
        yield from _array_problems("y", batch.y, task.target, samples, ignored=True)
        shape = (samples, task.input.length)
        if batch.mask is not None and (batch.mask.shape != shape or batch.mask.dtype != bool):
            yield f"mask must be {shape} bool, found {batch.mask.shape} {batch.mask.dtype}"
        elif batch.mask is not None and not batch.mask.any(axis=1).all():
            yield "mask is False at every position of some sample"
        for name, column in (batch.meta or {}).items():
            if len(column) != samples:
                yield f"meta {name!r} must have one entry for each of {samples} samples, found {len(column)}"


def _array_problems(name: str, array: Any, spec: Spec, samples: int, ignored: bool) -> Iterator[str]:
    """What is wrong with ``x`` or ``y``; labels that are ``ignored`` are allowed in targets."""
    dtype, shape = (np.float32 if spec.kind == "real" else np.int64), spec.shape(samples)
    if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
        found = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        yield f"{name} must be {shape} {np.dtype(dtype)} as its spec says, found {found}"
    elif spec.kind == "real":
        if not np.isfinite(array).all():
            yield f"{name} holds values that are not finite"
    else:
        scored = array[array != IGNORED] if ignored else array
        if scored.size == 0:
            yield f"{name} ignores every label"
        elif scored.min() < 0 or scored.max() >= spec.width:
            also = f" (or {IGNORED})" if ignored else ""
            yield f"{name} must be in 0..{spec.width - 1}{also}, found {scored.min()}..{scored.max()}"


def _check_behaviour(probe: _Probe) -> Iterator[str]:
    for check in (_check_independence, _check_streams, _check_floors, _check_slices, _check_views, _check_process):
        yield from _caught(check, probe)


def _check_independence(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    batch = task.batch(range(samples), seed)
    expected = batch_digest(batch)
    for array in (batch.x, batch.y):
        array[...] = 0  # whoever receives a batch may write to it
    if batch_digest(task.batch(range(samples), seed)) != expected:
        yield "the same call twice gives different samples (hidden state, or arrays shared between batches)"
        return
    order = [*reversed(range(0, samples, 2)), *range(1, samples, 2), 0]
    mixed = task.batch(order, seed)
    for row, index in enumerate(order):
        alone = batch_digest(task.batch([index], seed))
        if batch_digest(_row(mixed, row)) != alone:
            yield f"sample {index} depends on the order, the size or the repeats of the batch it is in"
            return
    rngs = random.generators(task.key(seed, "train"), range(samples))
    if batch_digest(stack([task.sample(rng) for rng in rngs])) != expected:
        yield "samples() gives other arrays than sample()"


def _row(batch: Batch, row: int) -> Batch:
    rows = slice(row, row + 1)
    mask = None if batch.mask is None else batch.mask[rows]
    meta = None if batch.meta is None else {name: column[rows] for name, column in batch.meta.items()}
    return Batch(batch.x[rows], batch.y[rows], mask, meta)


def _check_streams(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    indices = range(samples)
    batch = task.batch(indices, seed)
    if all(np.array_equal(batch.x[0], other) for other in batch.x[1:]):
        yield "all samples are equal"
    others = {
        f"seed {seed + 1}": task.batch(indices, seed + 1),
        "split 'val'": task.batch(indices, seed, "val"),
        "split 'test'": task.batch(indices, seed, "test"),
        "attempt 1": task.batch(indices, seed, attempt=1),
    }
    for name, other in others.items():
        if np.array_equal(batch.x, other.x):
            yield f"{name} gives the same samples as seed {seed}, split 'train', attempt 0"


def _check_floors(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    batch = task.batch(range(samples), seed)
    for name, floor in task.floors().items():
        floor.fit([task.batch(range(samples), seed), task.batch(range(samples, 2 * samples), seed)])
        prediction = floor.predict(batch)
        if prediction.shape != batch.y.shape:
            yield f"floor {name!r} must predict the shape of y, {batch.y.shape}, found {prediction.shape}"
        elif not np.isfinite(prediction).all():
            yield f"floor {name!r} predicts values that are not finite"
        elif task.target.kind == "token" and not np.isin(prediction, np.arange(task.target.width)).all():
            yield f"floor {name!r} must predict classes in 0..{task.target.width - 1}"


def _check_slices(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    batch = task.batch(range(samples), seed)
    for name, labels in task.slices(batch).items():
        try:
            np.broadcast_to(labels, batch.y.shape)
        except ValueError:
            yield f"slice {name!r} must broadcast to y, {batch.y.shape}, found {np.shape(labels)}"


def _check_views(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    batch = task.batch(range(samples), seed)
    text: object = task.text(batch, samples - 1)
    if not (text is None or isinstance(text, str)):
        yield f"text() must return a text or None, found {text!r}"
    fingerprint: object = task.fingerprint(batch, samples - 1)
    if not (fingerprint is None or isinstance(fingerprint, bytes)):
        yield f"fingerprint() must return bytes or None, found {fingerprint!r}"
    image = task.image_shape()
    if image is not None and math.prod(image) != task.input.length:
        yield f"image_shape() must hold the {task.input.length} positions of the input, found {image}"


_SECOND_PROCESS = """
import pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
path, payload = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from lrtasks.generators.checks import batch_digest
task, samples, seed = pickle.loads(payload)
print(batch_digest(task.batch(range(samples), seed)), file=out)
"""


def _check_process(probe: _Probe) -> Iterator[str]:
    task, samples, seed = probe
    if type(task).__module__ == "__main__":
        warnings.warn(
            f"{type(task).__name__} is defined in __main__, where no other process can import it from: put it into a"
            " module to have its independence of the process checked",
            stacklevel=2,
        )
        return
    try:
        payload = pickle.dumps((task, samples, seed))
    except Exception as error:
        yield f"it cannot be pickled, as background workers need (is the class at the top of a module?): {error}"
        return
    second = subprocess.run(
        [sys.executable, "-c", _SECOND_PROCESS],
        input=pickle.dumps((sys.path, payload)),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"},
        check=False,
    )
    if second.returncode != 0:
        reason = second.stderr.decode(errors="replace").strip().splitlines()[-1:]
        yield f"a second process cannot make a batch: {' '.join(reason)}"
    elif second.stdout.decode().strip() != batch_digest(task.batch(range(samples), seed)):
        yield "a second process gives other samples (does it depend on hash(), on a set's order or on global state?)"
