"""Pixels as model inputs: bytes 0..255 as real values ``(byte / 255 - 0.5) / 0.5`` in float32."""

from __future__ import annotations

import numpy as np


def from_bytes(pixels: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert 8-bit pixels to float32 values in -1..1 of the same shape, and write them into ``out`` if it is given.

    >>> from_bytes(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    """
    values: np.ndarray = np.divide(pixels, np.float32(255), out=out, dtype=np.float32)
    values -= np.float32(0.5)
    values /= np.float32(0.5)
    return values
