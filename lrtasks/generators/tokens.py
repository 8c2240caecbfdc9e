"""What tasks of tokens share: checked inputs, padding on the right, longer further tests, simple predictors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.octaves import octave
from lrtasks.spec import IGNORED, Batch, Sample


class Rule:
    """A predictor that needs no fitting.

    Args:
        predict: predictions of the shape of ``batch.y`` from ``batch.x``.
    """

    def __init__(self, predict: Callable[[Batch], np.ndarray]) -> None:
        self.predict = predict

    def fit(self, batches: Iterable[Batch]) -> None:
        """Nothing to estimate."""


def checked_tokens(name: str, x: Any, vocab: int) -> np.ndarray:
    """The tokens of one input that a user gives, as int64.

    Args:
        name: the task's name, for messages.
        x: tokens, ``(length,)``.
        vocab: size of the vocabulary.

    Raises:
        UsageError: for another shape, for numbers that are not whole, and for tokens outside the vocabulary.
    """
    try:
        tokens = np.asarray(x)
    except ValueError:
        raise UsageError(f"{name}: answer takes the tokens of one sample, found a ragged list") from None
    if tokens.ndim != 1 or len(tokens) == 0:
        raise UsageError(f"{name}: answer takes the tokens of one sample, shape (length,), found {tokens.shape}")
    if tokens.dtype.kind not in "iu":
        raise UsageError(f"{name}: tokens must be whole numbers, found {tokens.dtype}")
    outside = (tokens < 0) | (tokens >= vocab)
    if outside.any():
        first = int(outside.argmax())
        raise UsageError(f"{name}: tokens must be in 0..{vocab - 1}, found {tokens[first]} at position {first}")
    return tokens.astype(np.int64)


def without_padding(tokens: np.ndarray, pad: int) -> np.ndarray:
    """``tokens`` up to the last one that is not ``pad``."""
    valid = np.flatnonzero(tokens != pad)
    return tokens[: valid[-1] + 1] if len(valid) else tokens[:0]


def padded_sample(x: Sequence[int] | np.ndarray, y: np.ndarray, length: int, pad: int) -> Sample:
    """A sample of ``length`` positions: ``x`` and its labels ``y``, then the token ``pad``, where the mask is False."""
    tokens, labels, mask = np.full(length, pad), np.full(length, IGNORED), np.zeros(length, dtype=bool)
    tokens[: len(x)], labels[: len(y)], mask[: len(x)] = x, y, True
    return Sample(tokens, labels, mask)


def check_range(name: str, field: str, bounds: tuple[int, int]) -> None:
    """Raise :class:`UsageError` if a range of whole numbers begins above its end."""
    if bounds[0] > bounds[1]:
        raise UsageError(f"{name}: {field} must not begin above its end, found {list(bounds)}")


def octaves_of(values: np.ndarray) -> np.ndarray:
    """Label whole numbers by octave, those below 1 as 1: for slices, whose labels count only at scored positions."""
    return octave(np.maximum(values, 1))


def last_where(condition: np.ndarray) -> np.ndarray:
    """For each position of the last axis, the last position up to it where ``condition`` holds; -1 if there is none.

    >>> last_where(np.array([False, True, False, False, True])).tolist()
    [-1, 1, 1, 1, 4]
    """
    positions = np.where(condition, np.arange(condition.shape[-1]), -1)
    return np.maximum.accumulate(positions, axis=-1)
