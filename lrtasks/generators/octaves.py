"""Logarithmic bins for distances and lengths in error analysis."""

from __future__ import annotations

import numpy as np


def octave(values: np.ndarray) -> np.ndarray:
    """Label each positive whole number with the greatest power of two that is not above it; int64.

    >>> octave(np.array([1, 2, 3, 4, 7, 8, 1000])).tolist()
    [1, 2, 2, 4, 4, 8, 512]
    """
    exponent: np.ndarray = np.frexp(values)[1].astype(np.int64) - 1
    return 1 << exponent
