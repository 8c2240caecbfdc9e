"""Whether samples depend on what they may depend on alone, and whether those of other streams are others."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np

from lrtasks.generators import randomness as random
from lrtasks.generators.base import Task, stack
from lrtasks.generators.checks.probe import Probe, Problem, batch_digest
from lrtasks.spec import Batch

SHARED = 64
"""Samples of two splits that are compared: a pool of up to about 90 samples shows itself."""


def check_independence(probe: Probe) -> Iterator[Problem]:
    """A sample is the same in every batch it is in, and at every call."""
    task, count, seed = probe
    batch = probe.batch()
    expected = batch_digest(batch)
    for array in (batch.x, batch.y):
        array[...] = 0  # whoever receives a batch may write to it
    if batch_digest(probe.batch()) != expected:
        yield (
            "the same call twice gives different samples: it draws from something else than rng (the clock, an unseeded"
            " generator), keeps state between calls, or returns an array that it keeps"
        )
        return
    order = [*reversed(range(0, count, 2)), *range(1, count, 2), 0]
    mixed = probe.batch(order)
    vectorised = type(task).samples is not Task.samples
    for row, index in enumerate(order):
        if batch_digest(_row(mixed, row)) != batch_digest(probe.batch([index])):
            hint = " (samples() must take all draws from one generator before asking for the next)" * vectorised
            yield f"sample {index} depends on the order, the size or the repeats of the batch it is in{hint}"
            return
    if vectorised:
        rngs = random.generators(task.key(seed, "train"), range(count))
        if batch_digest(stack([task.sample(rng) for rng in rngs])) != expected:
            yield "samples() gives other arrays than sample(), one by one, from the same generators"


def _row(batch: Batch, row: int) -> Batch:
    rows = slice(row, row + 1)
    mask = None if batch.mask is None else batch.mask[rows]
    meta = None if batch.meta is None else {name: column[rows] for name, column in batch.meta.items()}
    return Batch(batch.x[rows], batch.y[rows], mask, meta)


def check_streams(probe: Probe) -> Iterator[Problem]:
    """Samples, seeds, splits and attempts differ from each other."""
    task, count, seed = probe
    indices = range(count)
    batch = probe.batch()
    if all(np.array_equal(batch.x[0], other) for other in batch.x[1:]):
        yield "all samples are equal: sample() does not draw from rng"
        return
    others = {
        f"seed {seed + 1}": task.batch(indices, seed + 1),
        "split 'val'": task.batch(indices, seed, "val"),
        "split 'test'": task.batch(indices, seed, "test"),
        "attempt 1": task.batch(indices, seed, attempt=1),
    }
    same = [name for name, other in others.items() if np.array_equal(batch.x, other.x)]
    for name in same:
        yield f"{name} gives the same samples as seed {seed}, split 'train', attempt 0"
    if not same:
        yield from _shared_samples(probe)


def _shared_samples(probe: Probe) -> Iterator[Problem]:
    train = {row.tobytes() for row in probe.batch(range(SHARED)).x}
    seen = sum(row.tobytes() in train for row in probe.batch(range(SHARED), "test").x)
    if seen > SHARED // 2:
        yield (
            f"{seen} of {SHARED} test inputs are among {SHARED} training inputs: at these parameters there are too few"
            " different ones, or they come from a pool that the splits share; a test score would measure memory"
        )


_SECOND_PROCESS = """
import json, pickle, sys
out, sys.stdout = sys.stdout, sys.stderr
path, payload = pickle.load(sys.stdin.buffer)
sys.path[:] = path
from lrtasks.generators.checks import batch_digest
task, samples, seed = pickle.loads(payload)
digest = batch_digest(task.batch(range(samples), seed))
heavy = [name for name in ("torch", "tensorflow", "jax") if name in sys.modules]
print(json.dumps([digest, heavy]), file=out)
"""


def check_process(probe: Probe) -> Iterator[Problem]:
    """A worker process can make the same batch, and need not load a deep-learning framework to do so."""
    if type(probe.task).__module__ == "__main__":
        warnings.warn(
            f"{type(probe.task).__name__} is defined in __main__, where no other process can import it from: put it"
            " into a module to have its independence of the process checked",
            stacklevel=2,
        )
        return
    try:
        payload = pickle.dumps(tuple(probe))
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
        return
    digest, heavy = json.loads(second.stdout)
    if digest != batch_digest(probe.batch()):
        yield "a second process gives other samples (does it depend on hash(), on a set's order or on global state?)"
    if heavy:
        yield (
            f"making a batch imports {' and '.join(heavy)}, which every worker process and every user without it pays"
            " for; put the task into a module of its own that imports NumPy alone"
        )
