"""Baselines (simple predictors to compare models with), and labels for slices of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from lrtasks.spec import Batch


class Baseline(Protocol):
    """A simple predictor that is fitted on training batches and then makes predictions like a model."""

    def fit(self, batches: Iterable[Batch]) -> None:
        """Estimate the values that the predictor needs from training batches."""

    def predict(self, batch: Batch) -> np.ndarray:
        """Return predictions, real values or class labels, with the shape of ``batch.y``."""


class PositionMean:
    """Predictor of the mean training target of each output position and channel, which is the best constant."""

    def fit(self, batches: Iterable[Batch]) -> None:
        total, count = 0.0, 0
        for batch in batches:
            total = total + batch.y.astype(np.float64).sum(axis=0)
            count += len(batch.y)
        self._mean = np.asarray(total) / count

    def predict(self, batch: Batch) -> np.ndarray:
        return np.broadcast_to(self._mean, batch.y.shape)


class MajorityClass:
    """Predictor of the most frequent class of the training targets, over all positions or in each group of positions.

    Args:
        classes: number of classes.
        answers: function from inputs ``x`` to labels ``y`` that hold only the answers, for tasks whose training targets
            also hold other labels.
        groups: number of groups.
        group: function from inputs ``x`` to the group 0..groups-1 of each position; an ignored position may have any
            group.
    """

    def __init__(
        self,
        classes: int,
        answers: Callable[[np.ndarray], np.ndarray] | None = None,
        *,
        groups: int = 1,
        group: Callable[[np.ndarray], np.ndarray] = lambda _: np.zeros((), dtype=np.int64),
    ) -> None:
        self._counts, self._answers, self._group = np.zeros((groups, classes), dtype=np.int64), answers, group

    def fit(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            y = self._answers(batch.x) if self._answers else batch.y
            place = np.broadcast_to(self._group(batch.x), y.shape) * self._counts.shape[1] + y
            self._counts += np.bincount(place[y >= 0], minlength=self._counts.size).reshape(self._counts.shape)

    def predict(self, batch: Batch) -> np.ndarray:
        best = self._counts.argmax(axis=1)[self._group(batch.x)]
        return np.broadcast_to(best, batch.y.shape).copy()


class Rule:
    """A predictor that needs no fitting.

    Args:
        guess: function from inputs ``batch.x`` to predictions, of a shape that broadcasts to the shape of ``batch.y``.
        classes: number of classes. Predictions outside 0..classes-1, where the rule finds no answer, become 0.
            ``None``: predictions are real values.
    """

    def __init__(self, guess: Callable[[np.ndarray], np.ndarray], classes: int | None = None) -> None:
        self._guess, self._classes = guess, classes

    def fit(self, batches: Iterable[Batch]) -> None:
        """Do nothing: the rule has no values to estimate."""

    def predict(self, batch: Batch) -> np.ndarray:
        guess = np.broadcast_to(self._guess(batch.x), batch.y.shape)
        return guess if self._classes is None else np.where((guess >= 0) & (guess < self._classes), guess, 0)


class ScaledFirstValue:
    """Predictor with a memory of one value: first input value times a factor fitted per output position."""

    def fit(self, batches: Iterable[Batch]) -> None:
        products, squares = 0.0, 0.0
        for batch in batches:
            first = batch.x[:, :1, :1].astype(np.float64)
            products = products + (first * batch.y).sum(axis=0)
            squares += float((first**2).sum())
        self._scale = np.asarray(products) / squares

    def predict(self, batch: Batch) -> np.ndarray:
        return batch.x[:, :1, :1] * self._scale


def octave(values: np.ndarray) -> np.ndarray:
    """Label each positive whole number with the largest power of two that is not above it, others with 0; int64.

    >>> octave(np.array([0, 1, 2, 3, 4, 7, 8, 1000])).tolist()
    [0, 1, 2, 2, 4, 4, 8, 512]
    """
    exponent: np.ndarray = np.frexp(np.maximum(values, 1))[1].astype(np.int64) - 1
    return np.where(np.asarray(values) > 0, 1 << exponent, 0)


def bin_starts(values: np.ndarray, limit: int, bins: int = 8) -> np.ndarray:
    """Divide 0..limit-1 into ``bins`` (at most ``limit``) equal bins; label each of ``values`` with its bin's start.

    >>> bin_starts(np.arange(16), 16, bins=4).tolist()
    [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]
    >>> bin_starts(np.arange(3), 3).tolist()
    [0, 1, 2]
    """
    bins = min(bins, limit)
    number = np.asarray(values) * bins // limit
    return -(-number * limit // bins)
