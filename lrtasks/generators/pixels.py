"""Pixels as model inputs: bytes 0..255 as real values ``(byte / 255 - 0.5) / 0.5`` in float32."""

from __future__ import annotations

import numpy as np

LEVELS = (np.arange(256, dtype=np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
"""The value of each byte, -1..1."""


def from_bytes(pixels: np.ndarray) -> np.ndarray:
    """Convert 8-bit pixels to float32 values in -1..1 of the same shape.

    >>> from_bytes(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    """
    values: np.ndarray = LEVELS[pixels]
    return values
