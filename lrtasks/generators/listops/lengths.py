"""How long random ListOps expressions are: the law of their lengths, and which lengths can occur at all."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lrtasks.errors import UsageError

OPERATOR_PROBABILITY = 0.25
RAREST = 1e-5
"""Least probability of the wanted lengths; at this one, an expression of 8,000 tokens takes about 0.1 s."""


class Limits(NamedTuple):
    """Which expressions are wanted.

    Attributes:
        min_length: bound that the number of tokens must exceed (exclusive), at least 1.
        max_length: bound that the number of tokens must stay below (exclusive).
        max_depth: depth of the deepest nodes, the root having depth 1; at that depth every node is a digit.
        max_args: greatest number of arguments of an operator (the least is 2).
    """

    min_length: int
    max_length: int
    max_depth: int
    max_args: int


def length_law(limit: int, max_depth: int, max_args: int) -> np.ndarray:
    """Probability of each length 0..``limit`` of an unconditioned random expression, ``(limit + 1,)`` float64.

    With G_d(z) the generating function of the length of a tree that has d levels left, G_1 = z and
    G_{d+1}(z) = 3/4 z + 1/4 z² (G_d² + ... + G_d^A) / (A - 1), A = ``max_args``; the powers are convolutions, taken by
    FFT. Lengths above ``limit`` are left out: lengths only add up, so they cannot lead back below it. Every entry is
    exact to an absolute error of about 1e-15.
    """
    leaf = np.zeros(limit + 1)
    leaf[1] = 1.0
    law = leaf
    size = _transform_size(max_args * limit + 1)
    for _ in range(max_depth - 1):
        spectrum = np.fft.rfft(law, size)
        powers = spectrum
        for _ in range(max_args - 2):
            powers = spectrum * (1 + powers)
        arguments = np.fft.irfft(spectrum * powers, size)[: limit - 1] / (max_args - 1)
        law = (1 - OPERATOR_PROBABILITY) * leaf
        law[2:] += OPERATOR_PROBABILITY * arguments
    return law


@functools.lru_cache(maxsize=32)
def acceptance(limits: Limits) -> float:
    """Probability that an unconditioned random expression keeps within ``limits``."""
    law = length_law(limits.max_length - 1, limits.max_depth, limits.max_args)
    return float(law[limits.min_length + 1 :].sum())


def longest(max_depth: int, max_args: int) -> int:
    """Number of tokens of the longest expression: every operator has ``max_args`` arguments, at every depth."""
    length = 1
    for _ in range(max_depth - 1):
        length = 2 + max_args * length
    return length


def reachable(limit: int, max_depth: int, max_args: int) -> np.ndarray:
    """Which lengths 0..``limit`` occur at all, ``(limit + 1,)`` bool, by exact set arithmetic.

    >>> np.flatnonzero(reachable(20, max_depth=3, max_args=2)).tolist()
    [1, 4, 7, 10]
    """
    lengths = np.zeros(limit + 1, dtype=bool)
    lengths[1] = True
    for _ in range(max_depth - 1):
        sums = previous = lengths
        found = lengths.copy()
        for _ in range(max_args - 1):
            sums = _sumset(sums, previous)
            found[2:] |= sums[:-2]
        if (found == lengths).all():
            break
        lengths = found
    return lengths


def check(task: str, limits: Limits) -> None:
    """Raise :class:`UsageError` if no expression keeps within ``limits``, or too few do to wait for one."""
    wanted = f"more than {limits.min_length} and fewer than {limits.max_length} tokens"
    trees = f"depth {limits.max_depth} and 2 to {limits.max_args} arguments"
    if limits.max_length - limits.min_length < 2:
        raise UsageError(f"{task}: min_length and max_length are both excluded, and nothing has {wanted}")
    if acceptance(limits) >= RAREST:
        return
    most = longest(limits.max_depth, limits.max_args)
    reach = f"with {trees}, lengths reach from 4 to {most if most < 1e9 else format(most, '.1e')}"
    possible = np.flatnonzero(reachable(limits.max_length + 3, limits.max_depth, limits.max_args))[1:]
    within = (possible > limits.min_length) & (possible < limits.max_length)
    if within.any():
        raise UsageError(f"{task}: fewer than one expression in {1 / RAREST:.0f} has {wanted}: widen them ({reach})")
    nearest = [*possible[possible <= limits.min_length][-1:], *possible[possible >= limits.max_length][:1]]
    raise UsageError(f"{task}: no expression has {wanted}: {reach}, the nearest: {' and '.join(map(str, nearest))}")


def _sumset(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Lengths that are a sum of one from each set. The counts behind it are whole, so rounding the FFT is exact."""
    size = _transform_size(2 * len(first))
    counts = np.fft.irfft(np.fft.rfft(first, size) * np.fft.rfft(second, size), size)
    return counts[: len(first)] > 0.5


def _transform_size(least: int) -> int:
    return 1 << (least - 1).bit_length()
