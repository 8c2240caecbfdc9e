"""Tokens of ListOps expressions, reading and writing them as text, and the value of every sub-expression.

An expression is a digit, or an opening token with the operator's name, at least one argument and a closing bracket:
``[MAX 2 6 [MIN 4 7 ] 0 ]``. MIN, MAX and SM (sum modulo 10) speak for themselves; MED is the median, for an even
number of arguments the mean of the two middle values rounded down.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lrtasks.errors import UsageError, unknown

OPERATORS = ("MIN", "MAX", "MED", "SM")
FIRST_OPERATOR = 10
CLOSE = 14
PAD = 15
VOCABULARY = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]", "<pad>")
_IDS = {token: number for number, token in enumerate(VOCABULARY[:PAD])}


class Operators(NamedTuple):
    """All operator nodes of a batch of expressions, row after row, each row in post-order (root last).

    Attributes, each ``(nodes,)`` int64:
        row: row of the batch.
        close: position of the node's closing bracket.
        kind: index into :data:`OPERATORS`.
        length: tokens of the sub-expression, brackets included.
        height: 1 for an operator whose arguments are all digits, otherwise 1 + the greatest height among them.
        value: value of the sub-expression, 0..9.
    """

    row: np.ndarray
    close: np.ndarray
    kind: np.ndarray
    length: np.ndarray
    height: np.ndarray
    value: np.ndarray


def parse(text: str) -> np.ndarray:
    """Token ids, ``(length,)`` int64, of one expression whose tokens are separated by blanks.

    Round brackets, which the original data sets use to show binary branching, are skipped.

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
        raise UsageError(f"not one ListOps expression with paired brackets: {_shortened(render(tokens))!r}")
    if (_is_open(tokens[:-1]) & (tokens[1:] == CLOSE)).any():
        raise UsageError(f"an operator without arguments in the ListOps expression {_shortened(render(tokens))!r}")


def render(tokens: np.ndarray) -> str:
    """The expression as text, tokens separated by blanks, padding left out; ``tokens`` is ``(length,)``."""
    return " ".join(VOCABULARY[token] for token in tokens[tokens != PAD])


def template(tokens: np.ndarray) -> bytes:
    """The expression without its digits: equal for two expressions that differ in digits alone.

    >>> template(parse("[MAX 2 [SM 3 9 ] ]")) == template(parse("[MAX [SM 1 ] 4 5 ]"))
    True
    """
    return tokens[(tokens >= FIRST_OPERATOR) & (tokens < PAD)].astype(np.uint8).tobytes()


def operators(tokens: np.ndarray) -> Operators:
    """Find and evaluate every operator of a batch of well-formed expressions.

    All nodes of one depth are evaluated at once, the deepest first, so the cost is a few array operations per depth.

    Args:
        tokens: ``(batch, length)`` ids, padded with :data:`PAD`.
    """
    width = tokens.shape[1]
    place = np.flatnonzero(tokens.ravel() != PAD)
    token = tokens.ravel()[place]
    opens, closes = _is_open(token), token == CLOSE
    # depth of the node that a token stands for: both brackets of an operator have the operator's own, the root has 1
    depth = np.cumsum(opens.astype(np.int64) - closes) + ~opens
    by_depth = np.argsort(depth.astype(np.uint16), kind="stable")
    levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])

    value, height = token.copy(), np.zeros_like(token)  # of digits; filled in at opening tokens
    partner = np.zeros_like(token)  # at closing brackets: where the operator opens
    for parents, children in zip(levels[-2:0:-1], levels[:1:-1], strict=True):
        first = parents[opens[parents]]
        partner[parents[closes[parents]]] = first
        nodes = children[~closes[children]]
        starts = np.searchsorted(nodes, first)
        value[first] = _apply(token[first] - FIRST_OPERATOR, value[nodes], starts)
        height[first] = np.maximum.reduceat(height[nodes], starts) + 1

    end = np.flatnonzero(closes)
    start = partner[end]
    row, close = np.divmod(place[end], width)
    return Operators(row, close, token[start] - FIRST_OPERATOR, end - start + 1, height[start], value[start])


def subtree_columns(tokens: np.ndarray) -> dict[str, str]:
    """The columns of a ListOps-SubTrees table for one expression; lists are separated by blanks, in post-order.

    >>> columns = subtree_columns(parse("[MAX 2 [SM 3 9 ] ]"))
    >>> [columns[name] for name in ("Target", "SubTreeEvals", "SubTreeLengths", "SubTreeHeights", "SubTreeInds")]
    ['2', '2 2', '4 7', '1 2', '5 6']
    """
    found = operators(tokens[None])
    return {
        "Source": render(tokens),
        "Target": str(found.value[-1]),
        "SubTreeEvals": _joined(found.value),
        "SubTreeLengths": _joined(found.length),
        "SubTreeHeights": _joined(found.height),
        "SubTreeOps": " ".join(VOCABULARY[FIRST_OPERATOR + kind] for kind in found.kind),
        "SubTreeInds": _joined(found.close),
    }


def _apply(kind: np.ndarray, values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Apply operators to consecutive runs of ``values``, the i-th beginning at ``starts[i]``."""
    counts = np.diff(starts, append=len(values))
    run = np.repeat(np.arange(len(starts)), counts)
    ordered = np.sort(run * 16 + values) % 16
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2
    total = np.add.reduceat(values, starts) % 10
    return np.choose(kind, [ordered[starts], ordered[starts + counts - 1], median, total])


def _is_open(tokens: np.ndarray) -> np.ndarray:
    return (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)


def _joined(numbers: np.ndarray) -> str:
    return " ".join(map(str, numbers.tolist()))


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
