"""Predictors that learn nothing of the input's long-range structure: a score near theirs means "learned nothing"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from lrtasks.spec import Batch


class Baseline(Protocol):
    """A trivial predictor: fitted on training batches, then asked for predictions like a model."""

    def fit(self, batches: Iterable[Batch]) -> None:
        """Estimate whatever the predictor needs from training data."""

    def predict(self, batch: Batch) -> np.ndarray:
        """Predictions of the shape of ``batch.y``: real values, or class labels."""


class PositionMean:
    """The best constant per output position and channel: the mean of the training targets there."""

    def fit(self, batches: Iterable[Batch]) -> None:
        total, count = 0.0, 0
        for batch in batches:
            total = total + batch.y.astype(np.float64).sum(axis=0)
            count += len(batch.y)
        self._mean = np.asarray(total) / count

    def predict(self, batch: Batch) -> np.ndarray:
        return np.broadcast_to(self._mean, batch.y.shape)


class MajorityClass:
    """The most frequent class of the training targets, at every position."""

    def __init__(self, classes: int) -> None:
        self._counts = np.zeros(classes, dtype=np.int64)

    def fit(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self._counts += np.bincount(batch.y[batch.y >= 0].ravel(), minlength=len(self._counts))

    def predict(self, batch: Batch) -> np.ndarray:
        return np.full(batch.y.shape, int(self._counts.argmax()))


class InputCopy:
    """Copy input channels to output channels, zeros elsewhere: what needs no memory at all.

    Args:
        channels: for each output channel, the input channel to copy at the same position, or ``None`` for zeros.
    """

    def __init__(self, channels: Iterable[int | None]) -> None:
        self._channels = list(channels)

    def fit(self, batches: Iterable[Batch]) -> None:
        """Nothing to estimate."""

    def predict(self, batch: Batch) -> np.ndarray:
        prediction = np.zeros(batch.y.shape)
        for output, source in enumerate(self._channels):
            if source is not None:
                prediction[..., output] = batch.x[:, -batch.y.shape[1] :, source]
        return prediction


class ScaledFirstValue:
    """The best multiple, at each output position, of the input's first value: all that one remembered value gives."""

    def fit(self, batches: Iterable[Batch]) -> None:
        products, squares = 0.0, 0.0
        for batch in batches:
            first = batch.x[:, :1, :1].astype(np.float64)
            products = products + (first * batch.y).sum(axis=0)
            squares += float((first**2).sum())
        self._scale = np.asarray(products) / squares

    def predict(self, batch: Batch) -> np.ndarray:
        return batch.x[:, :1, :1] * self._scale
