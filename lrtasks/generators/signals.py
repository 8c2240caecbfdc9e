"""What the atomic tasks share: normalised noise, the two positional channels, bins (DLR paper, section 3.1)."""

from __future__ import annotations

import functools

import numpy as np


def noise(rng: np.random.Generator, length: int) -> np.ndarray:
    """White Gaussian noise divided by its largest absolute value; ``(length,)`` float32."""
    signal = rng.standard_normal(length)
    signal /= np.abs(signal).max()
    return signal.astype(np.float32)


def unit_vectors(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors drawn uniformly from the unit sphere of the last axis; float64."""
    vectors = rng.standard_normal(shape)
    vectors /= np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    return vectors


def padded(signal: np.ndarray, length: int) -> np.ndarray:
    """``signal`` followed by zeros up to ``length``; float32."""
    longer = np.zeros(length, np.float32)
    longer[: len(signal)] = signal
    return longer


def delayed(signal: np.ndarray, lag: int) -> np.ndarray:
    """``y[t] = signal[t - lag]`` if ``t >= lag`` else 0, of the length of ``signal``."""
    late = np.zeros_like(signal)
    late[lag:] = signal[: len(signal) - lag]
    return late


def with_positions(*channels: np.ndarray) -> np.ndarray:
    """Stack channels, ``(length,)`` or ``(length, width)`` each, with cos(2πt/L) and sin(2πt/L); float32."""
    return np.column_stack([*channels, _positions(len(channels[0]))]).astype(np.float32, copy=False)


@functools.lru_cache(maxsize=8)
def _positions(length: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / length
    table = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    table.setflags(write=False)
    return table


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
