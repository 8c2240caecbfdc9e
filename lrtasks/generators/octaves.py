"""Bins of distances, lengths and positions for error analysis."""

from __future__ import annotations

import numpy as np


def octave(values: np.ndarray) -> np.ndarray:
    """Label each positive whole number with the greatest power of two that is not above it; int64.

    >>> octave(np.array([1, 2, 3, 4, 7, 8, 1000])).tolist()
    [1, 2, 2, 4, 4, 8, 512]
    """
    exponent: np.ndarray = np.frexp(values)[1].astype(np.int64) - 1
    return 1 << exponent


def bin_starts(values: np.ndarray, limit: int, bins: int = 8) -> np.ndarray:
    """Label each whole number of ``values``, all in ``0..limit-1``, with the start of its bin, of ``bins`` equal ones.

    >>> bin_starts(np.arange(16), 16, bins=4).tolist()
    [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]
    >>> bin_starts(np.arange(3), 3).tolist()
    [0, 1, 2]
    """
    bins = min(bins, limit)
    number = np.asarray(values) * bins // limit
    return -(-number * limit // bins)
