"""Compiled loops of ListOps, from tree shapes to tokens and values. ``NUMBA_DISABLE_JIT=1`` runs them as Python."""

from __future__ import annotations

import numpy as np

from lrtasks.compiling import compiled, compiled_inner
from lrtasks.generators.listops import CLOSE, FIRST_OPERATOR, PAD


@compiled
def draw(
    words: np.ndarray,
    octets: np.ndarray,
    attempts: int,
    growth: np.ndarray,
    limits: tuple[int, int, int],
    trees: np.ndarray,
    slots: np.ndarray,
    drawn: np.ndarray,
    open_: np.ndarray,
    tokens: np.ndarray,
) -> int:
    """Draw one expression within limits, from random words.

    Args:
        words: ``(words,)`` uint32 random words. Numbers are made from words as in NumPy's ``Generator.integers``.
        octets: ``(4 words,)`` uint8, the bytes of the words, lowest byte first.
        attempts: number of trees in the first round. It doubles in each further round, up to
            ``trees.shape[1]``, called M here.
        growth: ``(generations,)``, by how many tokens each argument of an operator can still grow.
        limits: exclusive lower and exclusive upper bound of the number of tokens; largest number of arguments.
        trees: ``(3, M)``, work space for the trees that still grow: number of the tree, number of tokens if
            all open nodes become digits, number of open nodes.
        slots: ``(3, M (2 generations - 1))``, work space for the random numbers of each tree in each step:
            the tree, and begin and end of its numbers in ``drawn``.
        drawn: ``(8 words + M,)`` uint8, work space for the random numbers of one round. A number of
            arguments that can only be 2 uses no byte of ``octets``.
        open_: ``(generations + 1, 4)``, work space of :func:`_write`.
        tokens: ``(most tokens,)``, receives the expression.

    Returns:
        The number of tokens, or -1 if there are too few words.
    """
    lower, upper, max_arguments = limits
    alive, length, count = trees
    place, first, used, taken = 0, attempts, 0, 0
    while first == attempts:
        growing, used, taken = attempts, 0, 0
        for index in range(attempts):
            alive[index], length[index], count[index] = index, 1, 1
        for step in range(2 * len(growth) - 1):
            # even steps draw the number of arguments of each operator; odd steps draw 0 if a node is an operator
            span = 4 if step % 2 else max_arguments - 1
            rejected = (256 - span) % span
            place += -place % 4
            stay = 0
            for index in range(growing):
                tree, size, found = alive[index], length[index], 0
                slots[0, taken], slots[1, taken] = tree, used
                for _ in range(count[index]):
                    place, number = _byte(octets, place, span, rejected)
                    if place < 0:
                        return -1
                    drawn[used] = number
                    used += 1
                    found += int(number == 0) if step % 2 else number + 2
                slots[2, taken] = used
                taken += 1
                goes_on = found > 0
                if step % 2 == 0:
                    size += count[index] + found
                    goes_on = size < upper and size + growth[step // 2] * found > lower
                elif not goes_on and size > lower:
                    first = min(first, tree)
                if goes_on:
                    alive[stay], length[stay], count[stay] = tree, size, found
                    stay += 1
            growing = stay
        if growing:
            first = min(first, alive[0])
        if first == attempts:
            attempts = first = min(2 * attempts, trees.shape[1])
    generations, size, operators = 0, 1, 0
    step = 0
    for slot in range(taken):
        if slots[0, slot] == first:
            begin, end = slots[1, slot], slots[2, slot]
            if step % 2:
                open_[generations, 1] = begin
            else:
                open_[generations, 2], open_[generations, 3] = begin, used + operators
                for at in range(begin, end):
                    size += 3 + int(drawn[at])
                operators += end - begin
                generations += 1
            step += 1
    place += -place % 4
    for at in range(size + operators):
        place, number = _word(words, place, 10 if at < size else 4)
        if place < 0:
            return -1
        if at < size:
            tokens[at] = number
        else:
            drawn[used + at - size] = FIRST_OPERATOR + number
    _write(drawn, open_[: generations + 1], tokens)
    return int(size)


@compiled_inner
def _byte(octets: np.ndarray, place: int, span: int, rejected: int) -> tuple[int, int]:
    """Draw a number below ``span`` from the bytes at ``place``; return the next place (-1: no byte left) and number.

    Lemire's method: if the low byte of the product of byte and span is less than ``rejected``, draw again.
    """
    if span == 1:
        return place, 0
    while place < len(octets):
        product = np.int64(octets[place]) * span
        place += 1
        if product & 255 >= rejected:
            return place, int(product >> 8)
    return -1, 0


@compiled_inner
def _word(words: np.ndarray, place: int, span: int) -> tuple[int, int]:
    """Draw a number as :func:`_byte` does, but from whole words; ``place`` counts bytes."""
    while place < 4 * len(words):
        product = np.int64(words[place >> 2]) * span
        place += 4
        if product & 0xFFFFFFFF >= (2**32 - span) % span:
            return place, int(product >> 32)
    return -1, 0


@compiled_inner
def _write(drawn: np.ndarray, open_: np.ndarray, tokens: np.ndarray) -> None:
    """Write the brackets of a tree into ``tokens``, ``(length,)``, which holds a digit at every position.

    ``drawn`` holds flags of nodes (0 for an operator), numbers of arguments minus 2, and opening tokens of operators.
    ``open_``, ``(generations + 1, 4)``, has for each depth the number of nodes still to come (set here), and the places
    in ``drawn`` of the next flag, the next number of arguments and the next opening token.
    """
    open_[:, 0] = 0
    open_[0, 0], depth, place = 1, 0, 0
    while depth > 0 or open_[0, 0] > 0:
        if open_[depth, 0] == 0:
            depth -= 1
            tokens[place] = CLOSE
        else:
            open_[depth, 0] -= 1
            if depth < len(open_) - 1:
                _, flag, arguments, kind = open_[depth]
                open_[depth, 1] += depth > 0
                if depth == 0 or drawn[flag] == 0:
                    open_[depth, 2] += 1
                    open_[depth, 3] += 1
                    tokens[place] = drawn[kind]
                    depth += 1
                    open_[depth, 0] = drawn[arguments] + 2
        place += 1


@compiled
def evaluate(tokens: np.ndarray, counts: np.ndarray, frames: np.ndarray, found: np.ndarray) -> None:
    """Find and evaluate every operator of well-formed expressions.

    Args:
        tokens: ``(batch, length)``, padded on the right.
        counts: ``(length, 10)``, work space: how many arguments of each open operator have each value.
        frames: ``(length, 3)``, work space: position, kind and height of each open operator.
        found: ``(6, nodes)``, receives the fields of :class:`lrtasks.generators.listops.Operators`.
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


@compiled_inner
def _value(kind: int, counts: np.ndarray) -> int:
    """Return the value of an operator; ``counts`` holds the number of arguments with each value 0..9."""
    number, total = 0, 0
    for value in range(10):
        number += counts[value]
        total += value * counts[value]
    if kind == 3:
        return total % 10
    # places of the wanted arguments in sorted order: the smallest, the largest, or the two in the middle
    low, high = (0, 0) if kind == 0 else (number - 1, number - 1) if kind == 1 else ((number - 1) // 2, number // 2)
    middle, seen = 0, 0
    for value in range(10):
        if seen <= low < seen + counts[value]:
            middle += value
        if seen <= high < seen + counts[value]:
            middle += value
        seen += counts[value]
    return middle // 2
