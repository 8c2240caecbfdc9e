"""Tokens of ListOps expressions, and their conversion from and to text.

An expression is a digit, or an opening token with the operator's name, at least one argument and a closing bracket:
``[MAX 2 6 [MIN 4 7 ] 0 ]``. The operators are MIN, MAX, SM (sum modulo 10) and MED (median; for an even number of
arguments, the mean of the two middle values, rounded down).
"""

from __future__ import annotations

import numpy as np

from lrtasks.errors import UsageError, unknown

OPERATORS = ("MIN", "MAX", "MED", "SM")
FIRST_OPERATOR = 10
CLOSE = 14
PAD = 15
VOCABULARY = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]", "<pad>")
_IDS = {token: number for number, token in enumerate(VOCABULARY[:PAD])}


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
