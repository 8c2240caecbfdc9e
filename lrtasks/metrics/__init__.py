"""Scores, one file each, on NumPy.

A metric turns predictions into sums per element, ``sums(prediction, batch) -> (*y.shape, k)``, and sums into scores,
``value(sums) -> {name: number}``. The pooled score of a stream, the score of one batch and the score of one group of
elements are ``value`` of the sums over all elements, over a batch and over a group.

A new metric is one file with a class and one line in :data:`METRICS`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from lrtasks.errors import unknown
from lrtasks.metrics.accuracy import Accuracy
from lrtasks.metrics.macro_f1 import MacroF1
from lrtasks.metrics.r2 import R2
from lrtasks.spec import Batch

__all__ = ["METRICS", "TEST_SOLVED", "VAL_SOLVED", "Metric", "make_metric", "scaled_score"]


class Metric(Protocol):
    """One kind of score.

    Class attributes:
        name: the headline score.
        batch_mean: whether the mean over batches is reported as well, as the papers print it.
    """

    name: ClassVar[str]
    batch_mean: ClassVar[bool]

    def __init__(self, classes: int) -> None:
        """``classes``: number of classes of the target (channels, if it is real)."""

    def sums(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        """What is summed, ``(*y.shape, k)``; column 0 is 1 where an element counts, and 0 elsewhere."""

    def value(self, sums: np.ndarray) -> dict[str, float]:
        """Scores from the k sums over any set of elements; NaN where the set has no score."""

    def batch_value(self, sums: np.ndarray) -> dict[str, float]:
        """As :meth:`value`, for one batch as the papers' code computes it."""


VAL_SOLVED = 0.99
"""Scaled validation score that counts as solved while training, at two evaluations in a row."""
TEST_SOLVED = 0.95
"""Scaled test score from which a finished run counts as solved."""


def scaled_score(score: float, floor: float) -> float:
    """``(score - floor) / (1 - floor)``: 0 is no better than the best baseline, 1 is perfect.

    >>> scaled_score(0.75, 0.5), scaled_score(1.0, 1.0)
    (0.5, 1.0)
    """
    return (score - floor) / (1 - floor) if floor < 1 else float(score >= 1)


METRICS: dict[str, type[Metric]] = {"r2": R2, "accuracy": Accuracy, "macro_f1": MacroF1}


def make_metric(name: str, classes: int) -> Metric:
    """The metric called ``name``, one of :data:`METRICS`.

    Raises:
        UsageError: if there is none.
    """
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    return METRICS[name](classes)
