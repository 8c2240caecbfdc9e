"""Accuracy over labelled positions."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from lrtasks.spec import Batch


class Accuracy:
    """Share of the labelled positions that are predicted correctly."""

    name: ClassVar[str] = "accuracy"
    batch_mean: ClassVar[bool] = False

    def __init__(self, classes: int) -> None:
        pass

    def sums(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        labelled = batch.y >= 0
        return np.stack([labelled, (prediction == batch.y) & labelled], axis=-1)

    def value(self, sums: np.ndarray) -> dict[str, float]:
        count, right = sums
        return {"accuracy": float(right / count) if count else math.nan}

    batch_value = value

    def sample_values(self, sums: np.ndarray) -> dict[str, np.ndarray]:
        """Return scores of each sample from its sums, ``(batch, 2)``; the mean over samples is reported.

        A sample without labels has the score NaN and does not count.
        """
        return {"sequence_accuracy": np.where(sums[:, 0] > 0, sums[:, 0] == sums[:, 1], np.nan)}
