"""Random ListOps expressions whose length lies within limits, exactly as by rejection but in a millisecond or two.

The law (Nangia and Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning", arXiv:1804.06028; Long Range
Arena): a node above the depth limit is an operator with probability 1/4, otherwise a digit; an operator has 2..A
arguments; every choice is uniform; expressions outside the limits are thrown away. Here many attempts grow side by
side, one generation at a time, as a branching process: only the shape, with an attempt dropped as soon as it is too
long or cannot become long enough. The first attempt that ends within the limits is the sample, so its law is that of
plain rejection. All choices are whole numbers: no rounding enters.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.listops.grammar import FIRST_OPERATOR, OPERATORS

OPERATOR_PROBABILITY = 0.25
RAREST = 1e-5
"""Least probability of the wanted lengths; at this one, an expression of 8,000 tokens takes about 0.1 s."""
_ATTEMPTS = 64  # in the first round, about what the papers' settings need; doubled in every further round
_MAX_ATTEMPTS = 4096


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


def check(task: str, limits: Limits) -> None:
    """Raise :class:`UsageError` if no expression keeps within ``limits``, or too few do to wait for one."""
    if limits.max_length - limits.min_length >= 2 and acceptance(limits) >= RAREST:
        return
    most = longest(limits.max_depth, limits.max_args)
    raise UsageError(
        f"{task}: fewer than one expression in {1 / RAREST:.0f} has more than {limits.min_length} and fewer than"
        f" {limits.max_length} tokens: widen min_length and max_length (at depth {limits.max_depth} with 2 to"
        f" {limits.max_args} arguments, lengths reach from 4 to {most if most < 1e9 else format(most, '.1e')})"
    )


def _transform_size(least: int) -> int:
    return 1 << (least - 1).bit_length()


class _Runs(NamedTuple):
    """One generation's numbers for several attempts: those of ``attempts[i]`` end at ``ends[i]``."""

    attempts: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray

    def of(self, attempt: int) -> np.ndarray:
        """The numbers of one attempt; empty if it has none."""
        place = int(np.searchsorted(self.attempts, attempt))
        if place == len(self.attempts) or self.attempts[place] != attempt:
            return self.numbers[:0]
        return self.numbers[self.ends[place - 1] if place else 0 : self.ends[place]]


def draw(rng: np.random.Generator, limits: Limits) -> np.ndarray:
    """Tokens of one random expression within ``limits``, ``(length,)`` int64."""
    from lrtasks.generators.compiling import announced
    from lrtasks.generators.listops import kernels  # imports numba

    with announced("listops"):
        generations, attempts = None, _ATTEMPTS
        while generations is None:
            generations = _grow(rng, limits, attempts)
            attempts = min(2 * attempts, _MAX_ATTEMPTS)
        flags, arguments = (np.concatenate(parts) for parts in zip(*generations, strict=True))
        tokens = rng.integers(0, 10, size=1 + int(arguments.sum(dtype=np.int64)) + len(arguments))
        kinds = FIRST_OPERATOR + rng.integers(0, len(OPERATORS), size=len(arguments))
        sizes = np.array([[len(part) for part in generation] for generation in generations])
        left = np.eye(1, len(generations) + 1, dtype=np.int64)[0]
        kernels.write(flags, arguments, kinds, np.cumsum(sizes, axis=0) - sizes, left, tokens)
    return tokens


def _grow(rng: np.random.Generator, limits: Limits, attempts: int) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """The first of ``attempts`` trees that keeps within ``limits``, or none; every root is an operator.

    For each generation that has operators: of its nodes, 0 for an operator; and the operators' numbers of arguments.
    """
    from lrtasks.generators.listops import kernels

    alive = np.arange(attempts)
    length, count = np.ones((2, attempts), dtype=np.int64)  # tokens if what is undecided were digits; operators
    nodes, arguments = [_Runs(alive.copy(), np.zeros(attempts, np.uint8), alive + 1)], []
    least, most, first, every = limits.min_length, limits.max_length, attempts, attempts
    for depth in range(2, limits.max_depth + 1):
        growth = min(longest(limits.max_depth - depth + 1, limits.max_args) - 1, most)
        drawn = rng.integers(2, limits.max_args + 1, size=every, dtype=np.uint8)
        arguments.append(_Runs(alive.copy(), drawn, np.empty_like(alive)))
        stay, every = kernels.widen(drawn, alive, length, count, arguments[-1].ends, growth, least, most)
        alive, length, count = alive[:stay], length[:stay], count[:stay]
        if not stay or depth == limits.max_depth:
            first = min(first, *alive[:1].tolist(), attempts)
            break
        drawn = rng.integers(0, 4, size=every, dtype=np.uint8)
        nodes.append(_Runs(alive.copy(), drawn, np.empty_like(alive)))
        grow, every, first = kernels.branch(drawn, alive, length, count, nodes[-1].ends, least, first)
        alive, length, count = alive[:grow], length[:grow], count[:grow]
        if not grow:
            break
    if first == attempts:
        return None
    both = [(one.of(first), two.of(first)) for one, two in zip(nodes, arguments, strict=False)]
    return [(flags, numbers) for flags, numbers in both if len(numbers)]
