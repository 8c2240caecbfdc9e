"""Compiled loops of ListOps, from shapes of trees to tokens and values. ``NUMBA_DISABLE_JIT=1`` runs them as Python."""

from __future__ import annotations

import numpy as np

from lrtasks.generators.compiling import compiled
from lrtasks.generators.listops.grammar import CLOSE, FIRST_OPERATOR, PAD


@compiled
def widen(
    drawn: np.ndarray,
    alive: np.ndarray,
    length: np.ndarray,
    count: np.ndarray,
    ends: np.ndarray,
    growth: int,
    least: int,
    most: int,
) -> tuple[int, int]:
    """Give the operators of the newest generation their numbers of arguments ``drawn``.

    An attempt stays if it has fewer than ``most`` tokens and can get more than ``least``, when each of its new nodes
    brings at most ``growth`` tokens more. Those that stay move to the front of ``alive`` (their numbers), ``length``
    (tokens) and ``count`` (operators before, nodes after). ``ends`` receives where the numbers of each attempt end.

    Returns:
        How many attempts stay, and their nodes.
    """
    stay, at, every = 0, 0, 0
    for index in range(len(alive)):
        nodes = 0
        for place in range(at, at + count[index]):
            nodes += int(drawn[place])
        at += count[index]
        ends[index] = at
        tokens = length[index] + count[index] + nodes
        if tokens < most and tokens + growth * nodes > least:
            alive[stay], length[stay], count[stay] = alive[index], tokens, nodes
            stay += 1
            every += nodes
    return stay, every


@compiled
def branch(
    drawn: np.ndarray,
    alive: np.ndarray,
    length: np.ndarray,
    count: np.ndarray,
    ends: np.ndarray,
    least: int,
    first: int,
) -> tuple[int, int, int]:
    """Make operators of the nodes whose number ``drawn`` is 0; arrays as for :func:`widen`.

    Returns:
        How many attempts have operators; these operators; and the first of ``first`` and the attempts that have none
        and more than ``least`` tokens.
    """
    grow, at, every = 0, 0, 0
    for index in range(len(alive)):
        operators = 0
        for place in range(at, at + count[index]):
            operators += drawn[place] == 0
        at += count[index]
        ends[index] = at
        if operators > 0:
            alive[grow], length[grow], count[grow] = alive[index], length[index], operators
            grow += 1
            every += operators
        elif length[index] > least:
            first = min(first, alive[index])
    return grow, every, first


@compiled
def write(
    flags: np.ndarray, arguments: np.ndarray, kinds: np.ndarray, at: np.ndarray, left: np.ndarray, tokens: np.ndarray
) -> None:
    """Put the brackets of a tree into ``tokens``, which hold digits.

    Args:
        flags: of the nodes of each generation that has operators, one generation after another: 0 for an operator.
        arguments: number of arguments of each operator, in the same order.
        kinds: opening token of each operator.
        at: ``(generations, 2)``, where each generation begins in ``flags`` and in ``arguments``; moved on.
        left: ``(generations + 1,)``, how many nodes are still to come at each depth: one root, for the start.
        tokens: ``(length,)``.
    """
    depth, place = 0, 0
    while depth > 0 or left[0] > 0:
        if left[depth] == 0:
            depth -= 1
            tokens[place] = CLOSE
        else:
            left[depth] -= 1
            if depth < len(at):
                node, operator = at[depth]
                at[depth, 0] += 1
                if flags[node] == 0:
                    at[depth, 1] += 1
                    depth += 1
                    left[depth] = arguments[operator]
                    tokens[place] = kinds[operator]
        place += 1


@compiled
def evaluate(tokens: np.ndarray, counts: np.ndarray, frames: np.ndarray, found: np.ndarray) -> None:
    """Find and evaluate every operator of well-formed expressions.

    Args:
        tokens: ``(batch, length)``, padded on the right.
        counts: ``(length, 10)``, room for how often each value stands among the arguments of each open operator.
        frames: ``(length, 3)``, room for position, kind and height of each open operator.
        found: ``(6, nodes)``, receives the fields of :class:`lrtasks.generators.listops.grammar.Operators`.
    """
    node = 0
    for row in range(tokens.shape[0]):
        depth = -1
        for place in range(tokens.shape[1]):
            token = tokens[row, place]
            if token == PAD:
                break
            value, height = token, 0
            if token == CLOSE:
                start, kind, height = frames[depth]
                value = _value(kind, counts[depth])
                found[0, node], found[1, node], found[2, node] = row, place, kind
                found[3, node], found[4, node], found[5, node] = place - start + 1, height, value
                node += 1
                depth -= 1
            elif token >= FIRST_OPERATOR:
                depth += 1
                frames[depth, 0], frames[depth, 1], frames[depth, 2] = place, token - FIRST_OPERATOR, 1
                counts[depth] = 0
                continue
            if depth >= 0:
                counts[depth, value] += 1
                frames[depth, 2] = max(frames[depth, 2], height + 1)


@compiled
def _value(kind: int, counts: np.ndarray) -> int:
    """Value of an operator of which ``counts`` arguments have the values 0..9."""
    number, total = 0, 0
    for value in range(10):
        number += counts[value]
        total += value * counts[value]
    if kind == 3:
        return total % 10
    # of the sorted arguments: the least, the greatest, or the two in the middle
    low, high = (0, 0) if kind == 0 else (number - 1, number - 1) if kind == 1 else ((number - 1) // 2, number // 2)
    middle, seen = 0, 0
    for value in range(10):
        if seen <= low < seen + counts[value]:
            middle += value
        if seen <= high < seen + counts[value]:
            middle += value
        seen += counts[value]
    return middle // 2
