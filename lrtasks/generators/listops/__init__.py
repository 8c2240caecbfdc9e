"""ListOps expressions: tokens and text, the values of all sub-expressions, and random expressions.

An expression is a digit, or an opening token with the operator's name, at least one argument and a closing bracket:
``[MAX 2 6 [MIN 4 7 ] 0 ]``. The operators are MIN, MAX, SM (sum modulo 10) and MED (median; for an even number of
arguments, the mean of the two middle values, rounded down).

Random expressions are drawn within limits of their length, in 1 ms or less. The distribution (Nangia and Bowman,
"ListOps: A Diagnostic Dataset for Latent Tree Learning", arXiv:1804.06028; Long Range Arena): a node above the depth
limit is an operator with probability 1/4, otherwise a digit; an operator has 2..A arguments; every choice is uniform;
expressions outside the limits are rejected. Here, many attempts grow in parallel, one generation at a time, as a
branching process. At first only their shapes are drawn, and an attempt is dropped as soon as it is too long or cannot
become long enough. The sample is the first attempt that ends within the limits, so its distribution equals that of
plain rejection. All choices use whole numbers, so there are no rounding errors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from lrtasks.errors import UsageError, unknown
from lrtasks.generators.tables import join

OPERATORS = ("MIN", "MAX", "MED", "SM")
FIRST_OPERATOR = 10
CLOSE = 14
PAD = 15
VOCABULARY = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]", "<pad>")
_IDS = {token: number for number, token in enumerate(VOCABULARY[:PAD])}

OPERATOR_PROBABILITY = 0.25
RAREST = 1e-5
"""Smallest allowed probability of the wanted lengths; with it, an expression of 8,000 tokens takes about 0.1 s."""
MAX_DEPTH = 64
"""Largest depth limit."""
_ATTEMPTS = 64  # in the first round: about as many as the papers' settings need; doubled in each further round
_MAX_ATTEMPTS = 4096
_WORDS = 8  # random words drawn first, per token of the longest expression; doubled if there are too few


# Tokens, and their conversion from and to text


def parse(text: str) -> np.ndarray:
    """Return the token ids, ``(length,)`` int64, of one expression whose tokens are separated by blanks.

    Round brackets, which show binary branching in the original data sets, are skipped.

    >>> parse("[MAX 2 [SM 3 9 ] ]").tolist()
    [11, 2, 13, 3, 9, 14, 14]

    Raises:
        UsageError: for an unknown token, an operator without arguments, or brackets that do not pair up.
    """
    words = [word for word in text.split() if word not in "()"]
    for word in words:
        if word not in _IDS:
            raise unknown("ListOps token", word, _IDS)
    tokens = np.array([_IDS[word] for word in words], dtype=np.int64)
    check(tokens)
    return tokens


def check(tokens: np.ndarray) -> None:
    """Raise :class:`UsageError` unless ``tokens``, ``(length,)`` without padding, are one expression."""
    depth = np.cumsum(_is_open(tokens).astype(np.int64) - (tokens == CLOSE))
    if not tokens.size or depth[-1] != 0 or (depth[:-1] < 1).any():
        raise UsageError(f"not one ListOps expression with paired brackets; it begins with {render(tokens)[:60]!r}")
    if (_is_open(tokens[:-1]) & (tokens[1:] == CLOSE)).any():
        raise UsageError(f"an operator without arguments in an expression that begins with {render(tokens)[:60]!r}")


def render(tokens: np.ndarray) -> str:
    """Return the expression ``tokens``, ``(length,)``, as text: tokens separated by blanks, without padding."""
    return " ".join(VOCABULARY[token] for token in tokens[tokens != PAD])


def template(tokens: np.ndarray) -> bytes:
    """Return the operators and brackets of an expression: expressions that differ only in digits have equal templates.

    >>> template(parse("[MAX 2 [SM 3 9 ] ]")) == template(parse("[MAX [SM 1 ] 4 5 ]"))
    True
    """
    return tokens[(tokens >= FIRST_OPERATOR) & (tokens < PAD)].astype(np.uint8).tobytes()


def _is_open(tokens: np.ndarray) -> np.ndarray:
    return (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)


# Values of sub-expressions


class Operators(NamedTuple):
    """All operator nodes of a batch of expressions, row after row, each row in post-order (root last).

    Attributes, each ``(nodes,)`` int64:
        row: row of the batch.
        close: position of the node's closing bracket.
        kind: index into :data:`OPERATORS`.
        length: number of tokens of the sub-expression, including brackets.
        height: 1 for an operator whose arguments are all digits, otherwise 1 + the largest height among them.
        value: value of the sub-expression, 0..9.
    """

    row: np.ndarray
    close: np.ndarray
    kind: np.ndarray
    length: np.ndarray
    height: np.ndarray
    value: np.ndarray


def operators(tokens: np.ndarray) -> Operators:
    """Find and evaluate every operator of a batch of well-formed expressions.

    Args:
        tokens: ``(batch, length)`` ids, padded on the right with PAD.
    """
    from lrtasks.generators.listops import kernels  # imports numba

    tokens = np.require(tokens, np.int64, ("C", "W"))
    found = np.empty((6, int((tokens == CLOSE).sum())), dtype=np.int64)
    room = tokens.shape[1]
    kernels.evaluate(tokens, np.empty((room, 10), np.int64), np.empty((room, 3), np.int64), found)
    return Operators(*found)


def subtree_columns(tokens: np.ndarray) -> dict[str, str]:
    """Return the columns of a ListOps-SubTrees table for one expression; lists are in post-order, separated by blanks.

    >>> columns = subtree_columns(parse("[MAX 2 [SM 3 9 ] ]"))
    >>> [columns[name] for name in ("Target", "SubTreeEvals", "SubTreeLengths", "SubTreeHeights", "SubTreeInds")]
    ['2', '2 2', '4 7', '1 2', '5 6']
    """
    found = operators(tokens[None])
    return {
        "Source": render(tokens),
        "Target": str(found.value[-1]),
        "SubTreeEvals": join(found.value),
        "SubTreeLengths": join(found.length),
        "SubTreeHeights": join(found.height),
        "SubTreeOps": " ".join(VOCABULARY[FIRST_OPERATOR + kind] for kind in found.kind),
        "SubTreeInds": join(found.close),
    }


# Random expressions


class Limits(NamedTuple):
    """Limits of the wanted expressions.

    Attributes:
        min_length: bound that the number of tokens must exceed (exclusive), at least 1.
        max_length: bound that the number of tokens must stay below (exclusive).
        max_depth: depth of the deepest nodes, the root having depth 1; at that depth every node is a digit.
        max_args: largest number of arguments of an operator (the smallest is 2).
    """

    min_length: int
    max_length: int
    max_depth: int
    max_args: int


def length_distributions(limit: int, max_args: int) -> Iterator[np.ndarray]:
    """Yield, for ``max_depth`` = 1, 2, ..., the probability of each length 0..``limit`` of a random expression.

    Let G_d(z) be the generating function of the length of a tree with d levels left. Then G_1 = z and
    G_{d+1}(z) = 3/4 z + 1/4 z² (G_d² + ... + G_d^A) / (A - 1), A = ``max_args``. The powers are convolutions, computed
    by FFT. Lengths above ``limit`` are left out: a tree is at least as long as each of its subtrees. Each array is
    ``(limit + 1,)`` float64, and the absolute error of each entry is about 1e-15.
    """
    leaf = np.zeros(limit + 1)
    leaf[1] = 1.0
    distribution = leaf
    size = 1 << (max_args * limit).bit_length()
    while True:
        yield distribution
        spectrum = np.fft.rfft(distribution, size)
        powers = spectrum
        for _ in range(max_args - 2):
            powers = spectrum * (1 + powers)
        arguments = np.fft.irfft(spectrum * powers, size)[: limit - 1] / (max_args - 1)
        distribution = (1 - OPERATOR_PROBABILITY) * leaf
        distribution[2:] += OPERATOR_PROBABILITY * arguments


@functools.lru_cache(maxsize=32)
def acceptance(limits: Limits) -> float:
    """Return the probability that a random expression is within ``limits``."""
    distributions = length_distributions(limits.max_length - 1, limits.max_args)
    *_, distribution = itertools.islice(distributions, limits.max_depth)
    return float(distribution[limits.min_length + 1 :].sum())


def longest(max_depth: int, max_args: int) -> int:
    """Return the number of tokens of the longest expression: at every depth, operators with ``max_args`` arguments."""
    length = 1
    for _ in range(max_depth - 1):
        length = 2 + max_args * length
    return length


def deep_enough(limits: Limits) -> Limits:
    """Return ``limits`` with the smallest depth, not below its own, that :func:`check_limits` accepts, or unchanged."""
    distributions = length_distributions(limits.max_length - 1, limits.max_args)
    for depth, distribution in zip(range(1, MAX_DEPTH + 1), distributions, strict=False):
        if depth >= limits.max_depth and distribution[limits.min_length + 1 :].sum() >= RAREST:
            return limits._replace(max_depth=depth)
    return limits


def check_limits(task: str, limits: Limits) -> None:
    """Raise :class:`UsageError` if expressions within ``limits`` are impossible, or rarer than :data:`RAREST`."""
    if limits.max_length - limits.min_length >= 2 and acceptance(limits) >= RAREST:
        return
    lower, upper, depth, arguments = limits
    top = longest(depth, arguments)
    reach = f"lengths reach from 4 to {top if top < 1e9 else format(top, '.1e')}"
    rare = f"fewer than one expression in {1 / RAREST:.0f} has more than {lower} and fewer than {upper} tokens"
    advice = f"widen min_length and max_length (at depth {depth} with 2 to {arguments} arguments, {reach})"
    raise UsageError(f"{task}: {rare}: {advice}")


def draw(rngs: Iterable[np.random.Generator], limits: Limits) -> Iterator[np.ndarray]:
    """Draw one random expression within ``limits`` from each of ``rngs``; yield its tokens, ``(length,)`` int64.

    Random words are taken in blocks, so the state of a generator afterwards does not show how many a sample used.
    """
    from lrtasks.generators.listops import kernels  # imports numba

    lower, upper, depth, arguments = limits
    growth = np.array([min(longest(left, arguments) - 1, upper) for left in range(depth - 1, 0, -1)])
    # work space for all expressions: new memory for each expression would cost as much as drawing it
    trees = np.empty((3, _MAX_ATTEMPTS), np.int64)
    slots = np.empty((3, _MAX_ATTEMPTS * (2 * depth - 3)), np.int64)
    open_ = np.empty((depth, 4), np.int64)
    drawn = np.empty(8 * _WORDS * upper + _MAX_ATTEMPTS, np.uint8)
    for rng in rngs:
        tokens = np.empty(upper, np.int64)
        words, size = rng.integers(0, 2**32, size=_WORDS * upper, dtype=np.uint32), -1
        while size < 0:
            octets = words.astype("<u4", copy=False).view(np.uint8)
            if len(drawn) < 2 * len(octets) + _MAX_ATTEMPTS:
                drawn = np.empty(2 * len(octets) + _MAX_ATTEMPTS, np.uint8)
            room = trees, slots, drawn, open_
            size = kernels.draw(words, octets, _ATTEMPTS, growth, (lower, upper, arguments), *room, tokens)
            if size < 0:
                words = np.concatenate([words, rng.integers(0, 2**32, size=len(words), dtype=np.uint32)])
        yield tokens[:size]
