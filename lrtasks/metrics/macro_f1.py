"""Macro F1 and macro (balanced) accuracy."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from lrtasks.spec import Batch


class MacroF1:
    """Mean of the F1 and of the accuracy of each class, over all labelled positions.

    F1 counts the classes that occur in targets or predictions; accuracy counts the classes that occur in targets. The
    DLR paper's code calls ``balanced_accuracy_score`` of scikit-learn, which does the same. Both differ from a mean
    over all classes only in small batches.

    Args:
        classes: number of classes.
    """

    name: ClassVar[str] = "macro_f1"
    batch_mean: ClassVar[bool] = True

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def sums(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        """Return the columns: labelled; then for each class: right, predicted, and there (in the target)."""
        labelled, columns = batch.y >= 0, []
        for label in range(self._classes):
            predicted, there = (prediction == label) & labelled, batch.y == label
            columns += [predicted & there, predicted, there]
        return np.stack([labelled, *columns], axis=-1)

    def value(self, sums: np.ndarray) -> dict[str, float]:
        right, predicted, there = sums[1:].reshape(-1, 3).T.astype(np.float64)
        seen = predicted + there > 0
        if not seen.any():
            return {"macro_f1": math.nan, "macro_accuracy": math.nan}
        f1 = 2 * right[seen] / (predicted + there)[seen]
        accuracy = right[there > 0] / there[there > 0]
        return {"macro_f1": float(f1.mean()), "macro_accuracy": float(accuracy.mean())}

    batch_value = value

    def class_rows(self, sums: np.ndarray) -> list[dict[str, Any]]:
        """Return the F1 of each class, ``None`` for a class that occurs neither in targets nor in predictions."""
        right, predicted, there = sums[1:].reshape(-1, 3).T.astype(np.float64)
        seen = predicted + there
        return [
            {"label": label, "f1": float(2 * right[label] / seen[label]) if seen[label] else None}
            for label in range(self._classes)
        ]
