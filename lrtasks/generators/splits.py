"""Overlap of two splits: they share no randomness, but in a small input space both can draw the same inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lrtasks.generators.base import Split, Task

MOST_SAMPLES = 50_000
MOST_TOKENS = 2**19
"""Largest numbers of inputs and tokens that are drawn from each split, which takes about a second."""
BATCH = 512


def overlap(task: Task, train_samples: int, test_samples: int, seed: int = 0) -> float:
    """Return the share of test inputs that also occur among the training inputs, 0..1.

    The share is 0 for real-valued inputs, which are assumed to be all different. For tokens, the first samples of each
    split are drawn and compared: at most :data:`MOST_SAMPLES` samples and :data:`MOST_TOKENS` tokens per split. If the
    training set is larger, the share is a lower bound.

    >>> from lrtasks.generators import make
    >>> overlap(make("recall", length=2, vocab=8), 1000, 100)
    1.0
    >>> overlap(make("recall", length=64), 1000, 100)
    0.0
    """
    if task.input.kind == "real":
        return 0.0
    train = set(_inputs(task, train_samples, seed, "train"))
    test = [x in train for x in _inputs(task, test_samples, seed, "test")]
    return float(np.mean(test))


def _inputs(task: Task, samples: int, seed: int, split: Split) -> Iterator[bytes]:
    samples = max(1, min(samples, MOST_SAMPLES, MOST_TOKENS // task.input.length))
    for first in range(0, samples, BATCH):
        batch = task.batch(range(first, min(first + BATCH, samples)), seed, split)
        yield from (x.tobytes() for x in batch.x)
