"""R², the share of the targets' variance that the predictions explain."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from lrtasks.spec import Batch

BATCH_VARIANCE = 1e-5
"""Smallest denominator of the R² of one batch (code of the DLR paper, arXiv:2212.00768)."""


class R2:
    """R² = 1 - mean((prediction - target)²) / mean((target - mean(target))²) over every element, in float64."""

    name: ClassVar[str] = "r2"
    batch_mean: ClassVar[bool] = True

    def __init__(self, classes: int) -> None:
        pass

    def sums(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        target = batch.y.astype(np.float64)
        error = (prediction.astype(np.float64) - target) ** 2
        return np.stack([np.ones_like(target), target, target**2, error], axis=-1)

    def value(self, sums: np.ndarray) -> dict[str, float]:
        variance, error = _variance_and_error(sums)
        return {"r2": 1 - error / variance if variance > 0 else math.nan}

    def batch_value(self, sums: np.ndarray) -> dict[str, float]:
        variance, error = _variance_and_error(sums)
        return {"r2": 1 - error / max(variance, BATCH_VARIANCE)}


def _variance_and_error(sums: np.ndarray) -> tuple[float, float]:
    count, total, squares, error = (float(value) for value in sums)
    variance = squares / count - (total / count) ** 2
    # the rounding error of a constant target does not count as variance
    return (variance if variance > 1e-12 * squares / count else 0.0), error / count
