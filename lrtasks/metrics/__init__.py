"""Metrics in NumPy, one file for each.

A metric computes ``k`` quantities per element, ``sums(prediction, batch) -> (*y.shape, k)``. These quantities are added
up over a set of elements, and ``value(sums) -> {name: number}`` computes the scores. The set contains all elements for
the pooled score of a stream, the elements of a batch for the batch score, and a group of elements for a slice.

To add a metric, add a file with a class and a line in :data:`METRICS`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from lrtasks.metrics.accuracy import Accuracy
from lrtasks.metrics.macro_f1 import MacroF1
from lrtasks.metrics.r2 import R2
from lrtasks.spec import Batch

__all__ = ["METRICS", "TEST_SOLVED", "VAL_SOLVED", "Metric", "scaled_score"]


class Metric(Protocol):
    """One kind of score.

    Class attributes:
        name: name of the headline score.
        batch_mean: whether the mean of the batch scores is reported as well, as the papers do.
    """

    name: ClassVar[str]
    batch_mean: ClassVar[bool]

    def __init__(self, classes: int) -> None:
        """Make a metric; ``classes`` is the number of classes of the target (channels for a real target)."""

    def sums(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        """Return the quantities to add up, ``(*y.shape, k)``; column 0 is 1 where an element counts, else 0."""

    def value(self, sums: np.ndarray) -> dict[str, float]:
        """Return the scores from the k sums over any set of elements; NaN if the set has no score."""

    def batch_value(self, sums: np.ndarray) -> dict[str, float]:
        """Return the scores of one batch, like :meth:`value` but as the papers' code computes them."""


VAL_SOLVED = 0.99
"""Scaled validation score from which a task counts as solved in training, at two consecutive evaluations."""
TEST_SOLVED = 0.95
"""Scaled test score from which a finished run counts as solved."""


def scaled_score(score: float, floor: float) -> float:
    """Return ``(score - floor) / (1 - floor)``: 0 is the score of the best baseline, 1 is perfect.

    >>> scaled_score(0.75, 0.5), scaled_score(1.0, 1.0)
    (0.5, 1.0)
    """
    return float(score >= 1) if floor >= 1 else (score - floor) / (1 - floor)


METRICS: dict[str, type[Metric]] = {"r2": R2, "accuracy": Accuracy, "macro_f1": MacroF1}
