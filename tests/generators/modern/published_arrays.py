"""Samples of the published generators, and what tests of the modern tasks compare with them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import stats

from lrtasks.generators import Task
from lrtasks.spec import IGNORED


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


def accuracy(task: Task, baseline: str, samples: int = 2048, fitted: int = 1024) -> float:
    """Pooled accuracy of a baseline on test samples."""
    predictor = task.baselines()[baseline]
    size = 64
    predictor.fit([task.batch(range(first, first + size)) for first in range(0, fitted, size)])
    right = scored = 0
    for first in range(0, samples, size):
        batch = task.batch(range(first, first + size), split="test")
        labelled = batch.y >= 0
        right += int(((predictor.predict(batch) == batch.y) & labelled).sum())
        scored += int(labelled.sum())
    return right / scored
