"""Overlap of two splits: they share no randomness, but in a small input space both can draw the same inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lrtasks.generators.base import Split, Task

MOST_SAMPLES, MOST_TOKENS = 50_000, 2**19
"""Largest numbers of inputs and tokens that are drawn from each split, which takes about a second."""


def overlap(task: Task, train_samples: int, test_samples: int, seed: int = 0) -> float:
    """Return the share of test inputs that also occur among the training inputs, 0..1.

    The share is 0 for real-valued inputs, which are assumed to be all different. For tokens, the first samples of each
    split are drawn and compared: at most :data:`MOST_SAMPLES` samples and :data:`MOST_TOKENS` tokens per split. If the
    training set is larger, the share is a lower bound.

    >>> import lrtasks
    >>> overlap(lrtasks.make("recall", length=2, vocab=8), 1000, 100)
    1.0
    >>> overlap(lrtasks.make("recall", length=64), 1000, 100)
    0.0
    """
    if task.input.kind == "real":
        return 0.0

    def inputs(samples: int, split: Split) -> Iterator[bytes]:
        samples = max(1, min(samples, MOST_SAMPLES, MOST_TOKENS // task.input.length))
        for first in range(0, samples, 512):
            yield from map(np.ndarray.tobytes, task.batch(range(first, min(first + 512, samples)), seed, split).x)

    train = set(inputs(train_samples, "train"))
    return float(np.mean([x in train for x in inputs(test_samples, "test")]))
