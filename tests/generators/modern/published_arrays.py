"""Samples of the published generators, and what tests of the modern tasks compare with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from scipy import stats

from lrtasks.generators import Task
from lrtasks.generators.base import Split
from lrtasks.spec import IGNORED, Batch


def published(name: str) -> dict[str, np.ndarray]:
    """The arrays of one file beside this one."""
    with np.load(Path(__file__).with_name(f"{name}.npz")) as arrays:
        return {key: arrays[key] for key in arrays.files}


def asked(y: np.ndarray) -> np.ndarray:
    """The labels of one sample that are scored, in order."""
    return y[y != IGNORED]


def same_law(ours: Iterable[int] | np.ndarray, theirs: Iterable[int] | np.ndarray) -> float:
    """p-value of two samples of whole numbers having one law: chi-square, rare values joined to their neighbours."""
    samples = [np.asarray(list(values)).ravel() for values in (ours, theirs)]
    values = np.unique(np.concatenate(samples))
    counts = np.stack([np.searchsorted(np.sort(sample), values, side="right") for sample in samples])
    counts = np.diff(counts, prepend=0, axis=1)
    smaller = int(counts.sum(axis=1).argmin())
    joined: list[np.ndarray] = []
    for column in counts.T:
        if joined and joined[-1][smaller] < 8:
            joined[-1] = joined[-1] + column
        else:
            joined.append(column)
    if len(joined) > 1 and joined[-1][smaller] < 8:
        joined[-2:] = [joined[-2] + joined[-1]]
    if len(joined) == 1:
        return 1.0
    return float(stats.chi2_contingency(np.stack(joined, axis=1)).pvalue)


@functools.lru_cache(maxsize=2)
def batches(task: Task, split: Split, samples: int) -> list[Batch]:
    """Samples for the baselines of one task, 64 at a time."""
    return [task.batch(range(first, first + 64), split=split) for first in range(0, samples, 64)]


def accuracy(
    task: Task,
    baseline: str,
    where: Callable[[Batch], np.ndarray] | None = None,
    *,
    samples: int = 2048,
    fitted: int = 1024,
) -> float:
    """Pooled accuracy of a baseline on test samples, where a slice is as asked."""
    predictor = task.baselines()[baseline]
    predictor.fit(batches(task, "train", fitted))
    right = scored = 0
    for batch in batches(task, "test", samples):
        labelled = (batch.y >= 0) & (True if where is None else where(batch))
        right += int(((predictor.predict(batch) == batch.y) & labelled).sum())
        scored += int(labelled.sum())
    return right / scored
