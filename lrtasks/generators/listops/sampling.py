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
from lrtasks.generators.listops.grammar import CLOSE, FIRST_OPERATOR, OPERATORS

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
    """One generation's numbers for several attempts: a run for each of ``attempts`` (ascending)."""

    attempts: np.ndarray
    starts: np.ndarray
    numbers: np.ndarray

    def of(self, attempt: int) -> np.ndarray:
        """The run of one attempt; empty if it has none."""
        place = int(np.searchsorted(self.attempts, attempt))
        if place == len(self.attempts) or self.attempts[place] != attempt:
            return self.numbers[:0]
        end = self.starts[place + 1] if place + 1 < len(self.starts) else len(self.numbers)
        return self.numbers[self.starts[place] : end]


class Generation(NamedTuple):
    """All nodes of one depth, from left to right.

    Attributes:
        operator: which nodes are operators, ``(nodes,)`` bool.
        arguments: number of arguments of each operator, ``(operators,)``.
    """

    operator: np.ndarray
    arguments: np.ndarray


def draw(rng: np.random.Generator, limits: Limits) -> np.ndarray:
    """Tokens of one random expression within ``limits``, ``(length,)`` int64."""
    length, opens, closes = _lay_out(_shape(rng, limits))
    tokens = rng.integers(0, 10, size=length)
    tokens[closes] = CLOSE
    tokens[opens] = FIRST_OPERATOR + rng.integers(0, len(OPERATORS), size=len(opens))
    return tokens


def _shape(rng: np.random.Generator, limits: Limits) -> list[Generation]:
    attempts = _ATTEMPTS
    while True:
        shape = _grow(rng, limits, attempts)
        if shape is not None:
            return shape
        attempts = min(2 * attempts, _MAX_ATTEMPTS)


def _grow(rng: np.random.Generator, limits: Limits, attempts: int) -> list[Generation] | None:
    """The first of ``attempts`` trees that keeps within ``limits``, or none; every root is an operator."""
    alive = np.arange(attempts)
    length = np.ones(attempts, dtype=np.int64)  # tokens if all nodes that are not decided yet were digits
    count = np.ones(attempts, dtype=np.int64)  # operators of the newest generation
    kinds, arguments = [_Runs(alive, alive, np.ones(attempts, dtype=bool))], []
    finished = []
    for depth in range(2, limits.max_depth + 1):
        starts = np.cumsum(count) - count
        drawn = rng.integers(2, limits.max_args + 1, size=int(count.sum()), dtype=np.uint8)
        arguments.append(_Runs(alive, starts, drawn))
        nodes = np.add.reduceat(drawn, starts, dtype=np.int64)
        length = length + count + nodes
        growth = min(longest(limits.max_depth - depth + 1, limits.max_args) - 1, limits.max_length)
        keep = (length < limits.max_length) & (length + growth * nodes > limits.min_length)
        alive, length, nodes = alive[keep], length[keep], nodes[keep]
        if depth == limits.max_depth or not alive.size:
            finished.append(alive)
            break
        starts = np.cumsum(nodes) - nodes
        operator = rng.integers(0, 4, size=int(nodes.sum()), dtype=np.uint8) == 0
        kinds.append(_Runs(alive, starts, operator))
        count = np.add.reduceat(operator, starts, dtype=np.int64)
        grows = count > 0
        finished.append(alive[~grows & (length > limits.min_length)])
        alive, length, count = alive[grows], length[grows], count[grows]
        if not alive.size:
            break
    accepted = np.concatenate(finished)
    if not accepted.size:
        return None
    first = int(accepted.min())
    shape = [Generation(*(runs.of(first) for runs in both)) for both in zip(kinds, arguments, strict=False)]
    return [generation for generation in shape if generation.arguments.size]


def _lay_out(shape: list[Generation]) -> tuple[int, np.ndarray, np.ndarray]:
    """Length of the expression and the positions of its opening tokens and closing brackets, in one common order."""
    first = [np.cumsum(generation.arguments, dtype=np.int64) - generation.arguments for generation in shape]
    # sizes[d]: tokens of the sub-expression of each node at depth d, from the deepest up
    sizes = [np.ones(int(shape[-1].arguments.sum()), dtype=np.int64)]
    for generation, starts in zip(reversed(shape), reversed(first), strict=True):
        size = np.ones(len(generation.operator), dtype=np.int64)
        size[generation.operator] = 2 + np.add.reduceat(sizes[-1], starts)
        sizes.append(size)
    sizes.reverse()

    opens, closes = [], []
    position = np.zeros(1, dtype=np.int64)
    for generation, starts, size, below in zip(shape, first, sizes, sizes[1:], strict=False):
        opening = position[generation.operator]
        opens.append(opening)
        closes.append(opening + size[generation.operator] - 1)
        before = np.cumsum(below) - below
        position = np.repeat(opening + 1 - before[starts], generation.arguments) + before
    return int(sizes[0][0]), np.concatenate(opens), np.concatenate(closes)
