"""Check that a task keeps the contract of :class:`lrtasks.generators.Task`. Nothing here imports torch."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from lrtasks.check import BrokenContractError, collect
from lrtasks.errors import UsageError
from lrtasks.evaluation.scoring import Scorer
from lrtasks.generators import randomness
from lrtasks.generators.base import SPLITS, Split, Task, make, misdeclared, mislabelled, stack
from lrtasks.registry import malformed
from lrtasks.spec import IGNORED, Batch, Spec, misfit

OVERLAP_SAMPLES = 64
"""Number of training and of test samples to compare; enough to detect a common pool of up to about 90 samples."""


def check_task(task: Task | type[Task] | str, *, samples: int = 8, seed: int = 0) -> None:
    """Check that a task keeps its contract; return nothing if it does.

    It checks parameters, specs, loss and metric; shapes, dtypes and ranges of samples and labels; baselines, slices,
    images, further tests and exact answers. It also checks that

    * sample i depends only on the task, seed, split and i, not on order, batch size, repeats, earlier calls, global
      random numbers or the process;
    * seeds, splits and samples differ;
    * a vectorised ``samples`` gives the same arrays as ``sample``.

    One batch is made in a second interpreter with another hash seed, which must not import torch, tensorflow or jax.

    Args:
        task: a task that makes small samples; or a class or a registered name, checked at its defaults.
        samples: number of samples to draw for each check, at least 2.
        seed: seed of the samples.

    Raises:
        UsageError: if there are problems, naming all of them; or for wrong arguments.
    """
    if samples < 2:
        raise UsageError(f"samples must be at least 2, found {samples}")
    task = _instance(task)
    probe = _Probe(task, samples, seed)
    problems = next(filter(None, (collect(probe, *stage) for stage in _STAGES)), [])
    if problems:
        title = getattr(task, "name", type(task).__name__)
        raise BrokenContractError(f"task {title!r} breaks the contract", problems)


def batch_digest(batch: Batch, decimals: int | None = None) -> str:
    """Return a 128-bit hash of everything in a batch. If ``decimals`` is given, round real values to it first."""
    state = hashlib.blake2b(digest_size=16)
    for array in (batch.x, batch.y, batch.mask):
        if array is not None and array.dtype.kind == "f" and decimals is not None:
            array = np.rint(array.astype(np.float64) * 10.0**decimals).astype(np.int64)
        state.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    state.update(json.dumps(batch.meta, sort_keys=True, default=lambda value: value.tolist()).encode())
    return state.hexdigest()


def _instance(task: Any) -> Task:
    if isinstance(task, str):
        return make(task)
    if isinstance(task, type) and issubclass(task, Task):
        for problem in malformed(task):
            raise UsageError(f"task {task.__name__}: {problem}")
        return task()
    if not isinstance(task, Task):
        raise UsageError(f"check_task takes a task, a subclass of lrtasks.generators.Task or a name, found {task!r}")
    return task


class _Probe(NamedTuple):
    """The task, and the number and seed of the samples that the checks draw."""

    task: Task
    samples: int
    seed: int

    def batch(self, indices: Sequence[int] | None = None, split: Split = "train") -> Batch:
        """Return the samples at ``indices``, by default the first :attr:`samples`."""
        return self.task.batch(range(self.samples) if indices is None else indices, self.seed, split)


# Checks before samples are drawn: name, parameters, specs, loss, metric, version.


def _declaration(probe: _Probe) -> Iterator[str]:
    task = probe.task
    task.require_name()
    if malformations := list(malformed(type(task))):
        yield from malformations
        return
    for field in ("input", "target"):
        spec: object = getattr(task, field)
        if not isinstance(spec, Spec):
            raise UsageError(f"{field} must be a Spec, found {spec!r}")
    if task.target.length > task.input.length and not task.target.pooled:
        lengths = f"{task.target.length} against {task.input.length}"
        yield f"the target is read at the last positions of the input, but is longer ({lengths})"
    yield from misdeclared(task)
    version, causal = cast(object, task.version), cast(object, task.causal)
    if not isinstance(version, int) or version < 1:
        yield f"version must be a whole number of at least 1, found {version!r}"
    if not isinstance(causal, bool):
        yield f"causal must be True or False, found {causal!r}"
    if type(task).make(**json.loads(json.dumps(task.parameters()))) != task:
        yield f"parameters() does not rebuild the task: {task.parameters()!r}"


# Checks of the shapes, dtypes and ranges of samples.


def _batches(probe: _Probe) -> list[str]:
    """Check a batch of each split, up to the first with a problem. A later check compares their samples."""
    return next(filter(None, (list(_batch_problems(probe, split)) for split in SPLITS)), [])


def _batch_problems(probe: _Probe, split: Split) -> Iterator[str]:
    """Check that a batch has the right form and can be scored."""
    target, batch = probe.task.target, probe.batch(split=split)
    for name in ("x", "y"):
        if not getattr(batch, name).flags.writeable:
            raise UsageError(f"{name} of a batch must be writable, found a read-only array; return a copy")
    if problem := misfit(batch, probe.task.input, target):
        raise UsageError(f"split {split!r}: {problem}")
    if batch.mask is not None:
        yield from _mask_problems(probe.task, batch.mask, batch.y)
    for name, values in (batch.meta or {}).items():
        try:
            json.dumps(values, default=lambda entry: entry.tolist())
        except (AttributeError, TypeError, ValueError):
            kind = type(values[0]).__name__
            yield f"meta {name!r} must be a number, a string, an array or a list of them, found {kind}"
    if target.kind == "token" and np.all(batch.y == IGNORED):
        yield f"y has no label in split {split!r} (all are {IGNORED}), so nothing can be scored"
    if target.kind == "real" and np.ptp(batch.y) == 0:
        yield f"y is constant in split {split!r} ({batch.y.flat[0]:g} everywhere), so R2 is undefined"


def _mask_problems(task: Task, mask: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Check that no mask is all False, that padding is where models expect it, and that no label is at padding."""
    target = task.target
    if not mask.any(axis=1).all():
        yield "mask is False at every position of a sample"
    if target.pooled:
        return  # padding may be on either side
    padding = ~mask[:, task.input.length - target.length :]
    if target.kind == "token":
        labelled = np.argwhere(padding & (y != IGNORED))
        if labelled.size:
            row, at = labelled[0]
            found = f"{y[row, at]} at y[{row}, {at}]"
            yield f"y must be {IGNORED} at padding (mask False), which is not scored, found {found}"
    elif padding.any():
        yield (
            "mask is False at positions of a real target, which is scored everywhere: pad what comes before the target,"
            " or predict one value for the sequence (pooled)"
        )


# Checks that samples depend only on task, seed, split and index, and that different samples differ.


def _independence(probe: _Probe) -> Iterator[str]:
    """Check that a sample is the same in every batch and in every call."""
    task, count, seed = probe
    batch = probe.batch()
    expected = batch_digest(batch)
    for array in (batch.x, batch.y):
        array[...] = 0  # the receiver of a batch may write to it
    if batch_digest(probe.batch()) != expected:
        raise UsageError(
            "the same call twice gives different samples: it draws from something other than rng (np.random, random, an"
            " unseeded generator, the clock), keeps state between calls, or returns an array that it keeps"
        )
    order = [*reversed(range(0, count, 2)), *range(1, count, 2), 0]
    mixed = probe.batch(order)
    vectorised = type(task).samples is not Task.samples
    for row, index in enumerate(order):
        if batch_digest(stack([mixed.sample(row)])) != batch_digest(probe.batch([index])):
            hint = " (samples() must take all draws from one generator before asking for the next)" * vectorised
            problem = f"sample {index} depends on the order, the size or the repeats of the batch it is in"
            raise UsageError(problem + hint)
    if vectorised:
        rngs = randomness.Generators(task.key(seed, "train"), range(count))
        if batch_digest(stack([task.sample(rng) for rng in rngs])) != expected:
            yield "samples() gives other arrays than sample(), one by one, from the same generators"


def _streams(probe: _Probe) -> Iterator[str]:
    """Check that different samples, seeds, splits and attempts give different inputs."""
    task, count, seed = probe
    indices, batch = range(count), probe.batch()
    if (batch.x == batch.x[0]).all():
        raise UsageError("all samples are equal: sample() does not draw from rng")
    if task.target.kind == "real" and (batch.y == batch.y[0]).all():
        raise UsageError(f"y is the same in all of {count} samples, so a model needs no input to predict it")
    others = {
        f"seed {seed + 1}": task.batch(indices, seed + 1),
        "split 'val'": task.batch(indices, seed, "val"),
        "split 'test'": task.batch(indices, seed, "test"),
        "attempt 1": task.batch(indices, seed, attempt=1),
    }
    same = [name for name, other in others.items() if np.array_equal(batch.x, other.x)]
    yield from (f"{name} gives the same samples as seed {seed}, split 'train', attempt 0" for name in same)
    train, test = probe.batch(range(OVERLAP_SAMPLES)), probe.batch(range(OVERLAP_SAMPLES), "test")
    for split, drawn in (("train", train), ("test", test)):
        if problem := misfit(drawn, task.input, task.target):
            raise UsageError(f"split {split!r}: {problem}")
    labels = np.unique(train.y[train.y != IGNORED])
    if task.target.kind == "token" and len(labels) == 1:
        raise UsageError(f"y has only the label {labels[0]} in {OVERLAP_SAMPLES} samples, so there is nothing to learn")
    known = {row.tobytes() for row in train.x}
    seen = sum(row.tobytes() in known for row in test.x)
    if seen > OVERLAP_SAMPLES // 2 and not same:
        yield (
            f"{seen} of {OVERLAP_SAMPLES} test inputs are among {OVERLAP_SAMPLES} training inputs: these parameters"
            " allow too few different inputs, or splits draw from one pool; a test score would measure memory"
        )


_SECOND_PROCESS = """
import importlib.util, json, pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
path, (module, file), payload = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from lrtasks.check.task import batch_digest
from lrtasks.registry import module_of_file
if importlib.util.find_spec(module) is None:
    module_of_file(file)
task, samples, seed = pickle.loads(payload)
digest = batch_digest(task.batch(range(samples), seed))
heavy = [name for name in ("torch", "tensorflow", "jax") if name in sys.modules]
print(json.dumps([digest, heavy]), file=out)
"""


def _process(probe: _Probe) -> Iterator[str]:
    """Check that a worker process makes the same batch without importing a deep-learning framework."""
    if type(probe.task).__module__ == "__main__":
        warnings.warn(
            f"{type(probe.task).__name__} is defined in __main__, which other processes cannot import: put it into a"
            " module to check that its samples do not depend on the process",
            stacklevel=2,
        )
        return
    place = type(probe.task).__module__, Path(inspect.getsourcefile(type(probe.task)) or "")
    try:
        payload = pickle.dumps(tuple(probe))
    except Exception as error:
        why = "it cannot be pickled, as background workers need (is the class at the top of a module?)"
        raise UsageError(f"{why}: {error}") from None
    second = subprocess.run(
        [sys.executable, "-c", _SECOND_PROCESS],
        input=pickle.dumps((sys.path, place, payload)),
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"},
        check=False,
    )
    if second.returncode != 0:
        reason = second.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise UsageError(f"a second process cannot make a batch: {' '.join(reason)}")
    digest, heavy = json.loads(second.stdout)
    if digest != batch_digest(probe.batch()):
        yield "a second process gives other samples (does it depend on hash(), on a set's order or on global state?)"
    if heavy:
        yield (
            f"making a batch imports {' and '.join(heavy)}, which slows down every worker process and fails for users"
            " without it; put the task into a separate module that imports NumPy only"
        )


# Checks of baselines, slices, text, images, further tests and answers.


def _baselines(probe: _Probe) -> Iterator[str]:
    """Check that baselines can be fitted, and that they predict without looking at the targets."""
    baselines = probe.task.checked_baselines()
    if not baselines:
        yield "baselines() is empty: a model's score means little without the score of a trivial predictor"
    target, batch = probe.task.target, probe.batch()
    second, unlike = probe.batch(range(probe.samples, 2 * probe.samples)), batch._replace(y=np.roll(batch.y, 1, axis=0))
    classes = np.arange(target.width)
    for name, baseline in baselines.items():
        title = f"baseline {name!r}"
        baseline.fit([batch, second])
        found, blind = baseline.predict(batch), baseline.predict(unlike)
        if not isinstance(found, np.ndarray) or found.shape != batch.y.shape:
            form = found.shape if isinstance(found, np.ndarray) else type(found).__name__
            yield f"{title} must predict the shape of y, {batch.y.shape}, found {form}"
        elif not np.isfinite(found).all():
            yield f"{title} predicts values that are not finite"
        elif target.kind == "token" and not np.isin(found, classes).all():
            strange = found[~np.isin(found, classes)][0].item()
            yield f"{title} must predict classes in 0..{target.width - 1}, found {strange}"
        elif not np.array_equal(found, blind):
            yield f"{title} looks at the targets that it predicts; use only the shape of batch.y"


def _slices(probe: _Probe) -> Iterator[str]:
    """Check that slices label the elements of ``y``."""
    batch = probe.batch()
    if len(batch.y) in batch.y.shape[1:]:  # one label per sample would pass as one per position
        batch = probe.batch(range(len(batch.y) + 1))
    slices: object = probe.task.slices(batch)
    if not isinstance(slices, Mapping):
        raise UsageError(f"slices() must return a dictionary of labels by name, found {type(slices).__name__}")
    yield from mislabelled(slices, batch.y.shape)


def _scores(probe: _Probe) -> None:
    """Check that derived scores, if there are any, can be recorded; a baseline makes the predictions."""
    if type(probe.task).derived_scores is Task.derived_scores:
        return
    batch = probe.batch(range(OVERLAP_SAMPLES), "test")
    for baseline in probe.task.checked_baselines().values():
        baseline.fit([batch])
        scorer = Scorer(probe.task)
        scorer.update(baseline.predict(batch), batch)
        scorer.scores()


def _views(probe: _Probe) -> Iterator[str]:
    """Check text, duplicate key, image shape, and that further tests have the widths of the task."""
    task, batch = probe.task, probe.batch()
    for method, kind, wanted in (("text", str, "a string"), ("duplicate_key", bytes, "bytes")):
        found: object = getattr(task, method)(batch, probe.samples - 1)
        if not (found is None or isinstance(found, kind)):
            yield f"{method}() must return {wanted} or None, found {found!r}"
    image = task.image_shape()
    if image is not None and math.prod(image) != task.input.length:
        yield f"image_shape() must hold the {task.input.length} positions of the input, found {image}"
    task.checked_tests()


def _answers(probe: _Probe) -> None:
    """Check that ``answer``, unless it refuses, returns the targets of test samples; training may have more labels."""
    batch = probe.batch(split="test")
    for row, (x, y) in enumerate(zip(batch.x, batch.y, strict=True)):
        try:
            found: object = probe.task.answer(x.copy())
        except UsageError:  # the target is not a function of the input
            return
        if not isinstance(found, np.ndarray) or found.shape != y.shape:
            form = found.shape if isinstance(found, np.ndarray) else type(found).__name__
            raise UsageError(f"answer(x) must return the shape of one target, {y.shape}, found {form}")
        if not np.array_equal(found, y):
            at = tuple(np.argwhere(found != y)[0].tolist())
            raise UsageError(
                f"answer(x) must return the y of x in split 'test', {y[at]} at y{[row, *at]}, found {found[at]}"
            )


_STAGES = (
    (_declaration,),
    (_batches,),
    (_independence, _streams, _baselines, _slices, _scores, _views, _answers),
    (_process,),
)
"""Checks in stages: a stage runs only if the ones before it found no problem."""
