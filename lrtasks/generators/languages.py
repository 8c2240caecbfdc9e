"""The fifteen formal languages of the task ``chomsky``: tokens, random strings and their answers.

Source: Delétang et al., "Neural Networks and the Chomsky Hierarchy" (arXiv:2207.02098), section 4 and appendix A. The
tokens have the same numbers as in the published code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.spec import IGNORED

END = 2
"""Class that marks the end of an answer of variable length."""
Partial = np.ndarray | list[int] | None
"""For each token, the answer for the prefix that ends there, or IGNORED; ``None``: the language has no such answers."""


class Language:
    """Base of the languages.

    Class attributes:
        name: name of the language in messages.
        symbols: tokens in readable form; if ``modular`` is true, the digits 0..modulus-1 come before these tokens.
        modular: whether digits 0..modulus-1 are tokens of the language.
        classes: number of classes of the answer; 0 means ``modulus`` classes.

    Args:
        modulus: number of digits, or number of places of the cycle.
        times: whether the operator ``*`` is drawn in expressions with brackets.
    """

    name: ClassVar[str]
    symbols: ClassVar[tuple[str, ...]] = ("0", "1")
    modular: ClassVar[bool] = False
    classes: ClassVar[int] = 2

    def __init__(self, modulus: int, times: bool = True) -> None:
        self.modulus, self.times = modulus, times

    @property
    def tokens(self) -> list[str]:
        """All tokens in readable form; the index is the token number."""
        digits = [str(digit) for digit in range(self.modulus)] if self.modular else []
        return [*digits, *self.symbols]

    def size(self, n: int) -> int:
        """Return the number of tokens of a string that is drawn at length ``n``; it can be less than ``n``."""
        return n

    def outputs(self, size: int) -> int:
        """Return the number of outputs that a string of ``size`` tokens asks for."""
        return 1

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Draw a string of :meth:`size` tokens."""
        raise NotImplementedError

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        """Return the scored outputs (fewer than :meth:`outputs` if the answer is short), and the answers for prefixes.

        Raises:
            UsageError: for a string that is not in the language.
        """
        raise NotImplementedError

    def drawn(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, Partial]:
        """Draw a string; return the string, its answer, and the answers for its prefixes."""
        string = self.draw(rng, n)
        return string, *self.read(string)

    def impossible(self, why: str) -> UsageError:
        return UsageError(f"chomsky: impossible string of {self.name}: {why}")


def _plain(
    name: str,
    answer: Callable[[np.ndarray, int], np.ndarray],
    *,
    prefixes: bool = False,
    outputs: Callable[[int], int] = lambda _: 1,
    draw: Callable[[np.random.Generator, int, int], np.ndarray] = lambda rng, n, _: rng.integers(2, size=n),
    **attributes: Any,
) -> type[Language]:
    """Make a language of all strings over its alphabet from functions of a string (or a size) and the modulus.

    With ``prefixes``, ``answer`` returns the answer for each prefix; the last prefix is the string itself.
    """

    class Plain(Language):
        def outputs(self, size: int) -> int:
            return outputs(size)

        def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
            return draw(rng, n, self.modulus)

        def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
            found = np.asarray(answer(string, self.modulus))
            return (found[-1:], found) if prefixes else (found, None)

    for attribute, value in {"name": name, **attributes}.items():
        setattr(Plain, attribute, value)
    return Plain


class ModularArithmetic(Language):
    """Digits alternate with operators + - *; products are computed first."""

    name = "modular-arithmetic"
    symbols = ("+", "-", "*", "_")  # the last one is in the published vocabulary and never used
    modular = True
    classes = 0

    def size(self, n: int) -> int:
        return n - 1 + n % 2

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        string = np.empty(self.size(n), dtype=np.int64)
        string[::2] = rng.integers(self.modulus, size=len(string) // 2 + 1)
        string[1::2] = self.modulus + rng.integers(3, size=len(string) // 2)
        return string

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        m, digits, operators = self.modulus, string[::2].tolist(), string[1::2].tolist()
        if len(string) % 2 == 0 or max(digits) >= m or not {m, m + 1, m + 2}.issuperset(operators):
            raise self.impossible("digits and operators must alternate, a digit first and last")
        done, product = 0, digits[0]  # the value so far is done + product
        labels = [product]
        for operator, digit in zip(operators, digits[1:], strict=True):
            if operator == m + 2:
                product = product * digit % m
            else:
                done += product
                product = digit if operator == m else -digit
            labels += [IGNORED, (done + product) % m]
        return np.array(labels[-1:]), labels


class _Brackets(Language):
    """Base of the two languages with brackets: expressions that put each operation in brackets.

    Expressions of 1 to 4 tokens: d, -d, (d), (-d). Expressions of n > 4 tokens: ``( E op E )``, where the length of the
    first E is uniform over 1..n-4.
    """

    modular = True
    classes = 0
    operators: ClassVar[int]
    """Number of operators, 2 (+ -) or 3 (+ - *): tokens from ``modulus`` on. The next two tokens are the brackets."""

    def _expression(self, rng: np.random.Generator, n: int, operators: int) -> list[int]:
        """Draw an expression of ``n`` tokens. Each position has one random number, used for the choice made there."""
        m = self.modulus
        begin, end = m + self.operators, m + self.operators + 1
        chance = rng.random(n).tolist()
        string: list[int] = []
        todo = [n]  # what is still to write: sizes of expressions, and tokens as -1 - token
        while todo:
            size, place = todo.pop(), len(string)
            if size > 4:
                left = 1 + int((size - 4) * chance[place])
                string.append(begin)
                operator = m + int(operators * chance[place + 1 + left])
                todo += (-1 - end, size - 3 - left, -1 - operator, left)
            elif size > 0:
                digit = int(m * chance[place])
                string += ((digit,), (m + 1, digit), (begin, digit, end), (begin, m + 1, digit, end))[size - 1]
            else:
                string.append(-1 - size)
        return string

    def _result(self, left: int, operator: int, right: int) -> int:
        m = self.modulus
        return (left + right if operator == m else left - right if operator == m + 1 else left * right) % m

    def _evaluated(self, string: list[int]) -> tuple[int, list[int]]:
        """Return the value of an expression, and for each token the value inside the bracket that it closes or IGNORED.

        Raises:
            UsageError: if ``string`` is not an expression.
        """
        m = self.modulus
        begin = m + self.operators
        labels = [IGNORED] * len(string)
        outer: list[tuple[int | None, int]] = []
        left: int | None = None  # value before the operator of this bracket
        value: int | None = None  # value of the operand that ends here
        operator, negative = -1, False
        for place, token in enumerate(string):
            if token < m and value is None:
                value = -token if negative else token
                negative = False
            elif token == begin and value is None and not negative:
                outer.append((left, operator))
                left, operator = None, -1
            elif token == begin + 1 and value is not None and outer:
                value = labels[place] = value % m if left is None else self._result(left, operator, value)
                left, operator = outer.pop()
            elif m <= token < m + self.operators and value is not None and left is None and outer:
                left, operator, value = value, token, None
            elif token == m + 1 and value is None and not negative:
                negative = True
            else:
                raise self.impossible(f"{self.tokens[token]!r} cannot stand at position {place}")
        if value is None or outer:
            raise self.impossible("it ends before the expression does")
        return value % m, labels


class ModularArithmeticBrackets(_Brackets):
    name = "modular-arithmetic-brackets"
    symbols = ("+", "-", "*", "(", ")", "_")
    operators = 3

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.array(self._expression(rng, n, 3 if self.times else 2))

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        value, labels = self._evaluated(string.tolist())
        return np.array([value]), labels


class SolveEquation(_Brackets):
    """``E = value`` with one digit of E replaced by x; answer: the digit. 1 or 2 tokens are zeros, with answer 0."""

    name = "solve-equation"
    symbols = ("+", "-", "(", ")", "x", "=")
    operators = 2

    def drawn(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, Partial]:
        if n < 3:
            return np.zeros(n, dtype=np.int64), np.zeros(1, dtype=np.int64), None
        string = self._expression(rng, n - 2, 2)
        value, _ = self._evaluated(string)
        place = int(rng.integers(n - 2))
        while string[place] >= self.modulus:
            place = (place + 1) % (n - 2)
        solution = string[place]
        string[place] = self.modulus + 4
        return np.array([*string, self.modulus + 5, value]), np.array([solution]), None

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        unknown, equals = self.modulus + 4, self.modulus + 5
        if len(string) < 3:
            if string.any():
                raise self.impossible("one or two tokens must be zeros")
            return np.zeros(1, dtype=np.int64), None
        left, value = string[:-2], int(string[-1])
        if string[-2] != equals or value >= self.modulus or (left == equals).any() or (left == unknown).sum() != 1:
            raise self.impossible("it must be an expression with one x, '=' and a digit")
        zero, one = (self._evaluated(np.where(left == unknown, digit, left).tolist())[0] for digit in (0, 1))
        # the value is zero + (one - zero) x, where one - zero is 1 or -1 and so its own inverse
        return np.array([(value - zero) * (one - zero) % self.modulus]), None


class StackManipulation(Language):
    """A stack, bottom first, followed by actions on it; answer: the final stack, top first, then END."""

    name = "stack-manipulation"
    symbols = ("0", "1", "pop", "push0", "push1")
    classes = 3

    def outputs(self, size: int) -> int:
        return size + 1

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        bits = int(rng.integers(1, n)) if n > 1 else 1
        return np.concatenate([rng.integers(2, size=bits), rng.integers(2, 5, size=n - bits)])

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        bits = int(np.append(string < 2, False).argmin())
        actions = string[bits:]
        if not bits or (actions < 2).any():
            raise self.impossible("it must be bits (0, 1), at least one, and then actions (2, 3, 4)")
        stack = string[:bits].tolist()
        for action in actions.tolist():
            if action > 2:
                stack.append(action - 3)
            elif stack:
                stack.pop()
        return np.array([*stack[::-1], END]), None


class MissingDuplicate(Language):
    """A bit string twice, with one bit replaced by a blank (2); answer: this bit. A 3 is added if the length is odd."""

    name = "missing-duplicate"
    symbols = ("0", "1", "_", "#")

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        if n == 1:
            return np.ones(1, dtype=np.int64)
        bits = rng.integers(2, size=n // 2)
        string = np.full(n, 3)
        string[: n // 2 * 2] = np.concatenate([bits, bits])
        string[rng.integers(n // 2 * 2)] = 2
        return string

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        half = len(string) // 2
        if not half:
            if string[0] != 1:
                raise self.impossible("a string of one token is 1")
            return string.copy(), None
        first, second = string[:half], string[half : 2 * half]
        blank = (first == 2) != (second == 2)
        if blank.sum() != 1 or not np.array_equal(first[~blank], second[~blank]) or string[: 2 * half].max() > 2:
            raise self.impossible("it must be bits twice, with one of them replaced by a blank (2)")
        if len(string) % 2 and string[-1] != 3:
            raise self.impossible("one of odd length ends with 3")
        return np.minimum(first[blank], second[blank]), None


class _Binary(Language):
    """Two binary numbers, least significant digit first, with an operator between.

    A string of 1 or 2 tokens is one number.
    """

    classes = 3

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        if n < 3:
            return _bits(int(rng.integers(2**n - 1)), n)
        first = int(rng.integers(1, n - 1))
        return np.concatenate([_positive(rng, first), [2], _positive(rng, n - 1 - first)])

    def _numbers(self, string: np.ndarray) -> list[int]:
        operators = np.flatnonzero(string == 2)
        if len(string) < 3 and not len(operators):
            return [_number(string)]
        if len(operators) != 1 or operators[0] in (0, len(string) - 1):
            raise self.impossible(f"it must be two binary numbers with one {self.symbols[2]!r} between them")
        return [_number(string[: operators[0]]), _number(string[operators[0] + 1 :])]


class BinaryAddition(_Binary):
    name = "binary-addition"
    symbols = ("0", "1", "+")

    def outputs(self, size: int) -> int:
        return size + 1

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        return np.append(_bits(sum(self._numbers(string))), END), None


class BinaryMultiplication(_Binary):
    name = "binary-multiplication"
    symbols = ("0", "1", "*")

    def outputs(self, size: int) -> int:
        return size

    def read(self, string: np.ndarray) -> tuple[np.ndarray, Partial]:
        first, *second = self._numbers(string)
        product = _bits(first * second[0]) if second else np.zeros(len(string) - 1, dtype=np.int64)
        return np.append(product, END), None


LANGUAGES: dict[str, type[Language]] = {
    language.name: language
    for language in (
        _plain("even-pairs", lambda s, _: s[0] ^ s, prefixes=True),
        _plain("parity-check", lambda s, _: np.cumsum(s) % 2, prefixes=True),
        _plain(  # tokens 0, 1, 2: move one place back, stay, move one place on
            "cycle-navigation",
            lambda s, modulus: np.cumsum(s - 1) % modulus,
            prefixes=True,
            draw=lambda rng, n, _: rng.integers(3, size=n),
            symbols=("<", "=", ">"),
            classes=0,
        ),
        *(ModularArithmetic, ModularArithmeticBrackets, SolveEquation, StackManipulation),
        _plain("reverse-string", lambda s, _: s[::-1], outputs=lambda size: size),
        _plain("duplicate-string", lambda s, _: np.concatenate([s, s]), outputs=lambda size: 2 * size),
        MissingDuplicate,
        _plain("odds-first", lambda s, _: np.concatenate([s[1::2], s[::2]]), outputs=lambda size: size),
        *(BinaryAddition, BinaryMultiplication),
        # a binary number, most significant digit first; answer: the floor of its square root in half as many digits
        _plain(
            "compute-sqrt",
            lambda s, _: _bits(math.isqrt(_number(s[::-1])), (len(s) + 1) // 2)[::-1],
            outputs=lambda size: (size + 1) // 2,
            draw=lambda rng, n, _: _positive(rng, n),
        ),
        _plain(
            "bucket-sort",
            lambda s, _: np.sort(s),
            outputs=lambda size: size,
            draw=lambda rng, n, modulus: rng.integers(modulus, size=n),
            symbols=(),
            modular=True,
            classes=0,
        ),
    )
}
"""Languages by name: four regular, four deterministic context-free, seven context-sensitive."""


def _positive(rng: np.random.Generator, digits: int) -> np.ndarray:
    """Draw a number uniformly from 1..2^digits-1; return its bits."""
    while True:
        bits = rng.integers(2, size=digits)
        if bits.any():
            return bits


def _number(bits: np.ndarray) -> int:
    """Return the number with these bits, least significant digit first."""
    return int.from_bytes(np.packbits(bits.astype(np.uint8), bitorder="little").tobytes(), "little")


def _bits(number: int, digits: int | None = None) -> np.ndarray:
    """Return ``digits`` bits of a number, least significant digit first; ``None``: as many as needed, at least one."""
    digits = max(number.bit_length(), 1) if digits is None else digits
    stored = np.frombuffer(number.to_bytes(-(-digits // 8), "little"), dtype=np.uint8)
    return np.unpackbits(stored, bitorder="little")[:digits].astype(np.int64)
