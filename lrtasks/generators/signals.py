"""What the atomic tasks share: normalised noise and the two positional channels (DLR paper, section 3.1)."""

from __future__ import annotations

import functools

import numpy as np


def inf_normalised(signal: np.ndarray) -> np.ndarray:
    """Divide a signal by its largest absolute value; float32."""
    return (signal / np.abs(signal).max()).astype(np.float32)


def with_positions(*channels: np.ndarray) -> np.ndarray:
    """Stack channels, ``(length,)`` or ``(length, width)`` each, with cos(2πt/L) and sin(2πt/L); float32."""
    return np.column_stack([*channels, _positions(len(channels[0]))]).astype(np.float32, copy=False)


@functools.lru_cache(maxsize=8)
def _positions(length: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / length
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    table.setflags(write=False)
    return table
