from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline
from lrtasks.generators.tokens import MAD_PROTOCOL, Uniforms, UniformTask, placed
from lrtasks.spec import IGNORED, Batch, Spec

Tokens = tuple[int, ...]

GRID = {"law": "grid", "value_tokens": 2, "letters": 8}


@registry.register("fuzzy-recall")
@dataclass(frozen=True)
class FuzzyRecall(UniformTask):
    """At every key that occurred before, return its value; keys and values are several adjacent tokens.

    As ``noisy-recall``, but without noise and with longer keys and values. Keys and values are made of different
    tokens. A key keeps its value in the sample. If a key occurred before, the label at its last token is the first
    token of its value. Each further token of the value is the label at the value token before it.

    ``law="mad"``: let n = ``vocab`` - 1, K = ``key_tokens``, W = ``value_tokens`` and L = ``length``. Keys are ordered
    tuples of distinct tokens of 0..n//2-1, values of n//2..n-1, and n is padding. In training every pair has a key of
    1..K and a value of 1..W tokens, uniformly; in validation and test all keys have K tokens. First a probe pair of k +
    v tokens is drawn, and a position p, uniform over 0..L-2(k+v)-1. Then pairs are appended while there are fewer than
    L-(k+v)-(K+W) tokens. The probe is inserted as soon as there are p tokens, unless its key has already occurred. At
    the end the probe is appended once more, padding on the left fills up to L + 1 tokens, and the last token is cut
    off. In training the next token is the label everywhere. Source: Poli et al., "Mechanistic Design and Scaling of
    Hybrid Architectures" (MAD, arXiv:2403.17844), section 3.

    ``law="mad"`` has two flaws. A complete key may also be the beginning of a longer key, so a model cannot know in
    training where a key ends; ``answer`` therefore looks one token ahead. In 2 % of the test samples the probe occurs
    at the end only, so its question has no answer. The source labels this question; here it has no label.

    ``law="grid"``, ours: for each of the K places of a key, two distinct letters of ``letters`` are drawn. All 2^K
    combinations are keys; each key has W uniform letters as its value. A sample is L/(K + W) pairs, their keys uniform
    with replacement. In training, only the questions have labels. No proper part of a key distinguishes it from all
    other keys. With random keys in place of the grid, the last two letters are enough for 96 % of the answers.

    >>> task = FuzzyRecall(law="grid", length=10, value_tokens=2)
    >>> task.answer([1, 4, 2, 9, 13, 1, 4, 2, 9, 13]).tolist()
    [-100, -100, -100, -100, -100, -100, -100, 9, 13, -100]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    presets: ClassVar[Presets] = {
        "small": {**GRID, "length": 124, "key_tokens": 2, **budget(batch_size=32)},
        "small-hard": {**GRID, "length": 125, "key_tokens": 3, **budget(batch_size=32)},
        "paper": {"length": 128, "vocab": 16, "key_tokens": 3, "value_tokens": 3, **MAD_PROTOCOL},
    }

    law: Literal["mad", "grid"] = parameter("mad", "rule for drawing the pairs")
    length: int = parameter(128, "length; grid: divisible by key_tokens + value_tokens", at_least=2, at_most=MAX_LENGTH)
    vocab: int = parameter(16, "mad: vocabulary size (tokens of keys and values, padding)", at_least=3, at_most=2**20)
    key_tokens: int = parameter(3, "number of tokens per key; mad: the maximum in training", at_least=1, at_most=8)
    value_tokens: int = parameter(3, "number of tokens per value; mad: the maximum", at_least=1, at_most=8)
    letters: int = parameter(8, "grid: number of letters for keys, and also for values", at_least=2, at_most=2**16)

    def check(self) -> None:
        if self.law == "grid":
            if self.length % self.pair or self.length == self.pair:
                allowed = f"at least {2 * self.pair} and divisible by key_tokens + value_tokens = {self.pair}"
                self.refuse(f"length must be {allowed}, found {self.length}")
            return
        needed = {"keys": (self.first_value, self.key_tokens), "values": (self._letters_of_values, self.value_tokens)}
        for what, (count, most) in needed.items():
            if count < most:
                self.refuse(f"vocab {self.vocab} has {count} tokens for {what}, too few for {most} distinct ones")
        if self.length <= 2 * self.pair:
            self.refuse(f"length must be above 2(key_tokens + value_tokens) = {2 * self.pair}, found {self.length}")

    @property
    def pair(self) -> int:
        """Largest number of tokens of a pair."""
        return self.key_tokens + self.value_tokens

    @property
    def first_value(self) -> int:
        """The first value token; the tokens below are key tokens."""
        return self.letters if self.law == "grid" else (self.vocab - 1) // 2

    @property
    def _letters_of_values(self) -> int:
        return self.letters if self.law == "grid" else self.vocab - 1 - self.first_value

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, 2 * self.letters if self.law == "grid" else self.vocab)

    def made(self, u: Uniforms) -> Batch:
        if self.law == "grid":
            x = self._grid(u)
            return Batch(x, self.label_all(x))
        shown = self._mad(u)
        x = shown[:, :-1].copy()
        return Batch(x, self.label_all(x) if self.testing else shown[:, 1:].copy())

    def _grid(self, u: Uniforms) -> np.ndarray:
        rows, places, slots = len(u), np.arange(self.key_tokens), self.length // self.pair
        one = u.whole(self.letters, self.key_tokens)
        two = (one + 1 + u.whole(self.letters - 1, self.key_tokens)) % self.letters
        letters = np.stack([one, two], axis=-1)  # (rows, places, choice)
        shape = rows, 2**self.key_tokens, self.value_tokens
        values = self.letters + u.whole(self.letters, shape[1] * shape[2]).reshape(shape)
        which = u.whole(2**self.key_tokens, slots)
        row = np.arange(rows)[:, None]
        key = letters[row[..., None], places, which[..., None] >> places & 1]
        return np.concatenate([key, values[row, which]], axis=-1).reshape(rows, self.length)

    def _mad(self, u: Uniforms) -> np.ndarray:
        """Return the tokens with padding and with the last token, which inputs lack, ``(batch, length + 1)``."""
        count = self.length // 2 + 2  # more pairs than a sample can hold
        keys = _distinct(u, self.first_value, count, self.key_tokens)
        values = self.first_value + _distinct(u, self._letters_of_values, count, self.value_tokens)
        sizes = 1 + u.whole(self.key_tokens, count)
        if self.testing:
            sizes[:] = self.key_tokens
        places, columns = u.take(1)[:, 0], (keys, sizes, values, 1 + u.whole(self.value_tokens, count))
        rows = zip(places.tolist(), *(column.tolist() for column in columns), strict=True)
        return np.array([self._text(*row) for row in rows])

    def _text(
        self, place: float, keys: list[list[int]], k: list[int], values: list[list[int]], v: list[int]
    ) -> list[int]:
        """Return the tokens of one sample from its pairs; the first pair is the probe."""
        key, value = tuple(keys[0][: k[0]]), values[0][: v[0]]
        probe = len(key) + len(value)
        first = int(place * (self.length - 2 * probe))
        limit = self.length - probe - self.pair
        table = {key: value}
        tokens: list[int] = []
        shown = False
        number = 1
        while len(tokens) < limit:
            if not shown and len(tokens) >= first:
                tokens += [*key, *value]
                shown = True
                continue
            other = tuple(keys[number][: k[number]])
            tokens += other
            tokens += table.setdefault(other, values[number][: v[number]])
            shown = shown or other == key
            number += 1
        tokens += [*key, *value]
        return [self.vocab - 1] * (self.length + 1 - len(tokens)) + tokens

    def _showings(self, tokens: list[int]) -> list[tuple[Tokens, Tokens, int]]:
        """Return each occurrence of a pair: key, value, and position of the value's first token."""
        first_value = self.first_value
        runs = [tuple(run) for _, run in itertools.groupby(tokens, lambda token: token < first_value)]
        at = len(runs.pop(0)) if tokens[0] >= first_value else 0  # padding
        found = []
        for key, value in itertools.zip_longest(runs[::2], runs[1::2], fillvalue=()):
            at += len(key)
            found.append((key, value, at))
            at += len(value)
        return found

    def _questions(self, tokens: list[int]) -> list[tuple[int, Tokens, int]]:
        """Return each repeated key: position of its last token, its value, number of earlier occurrences."""
        table: dict[Tokens, list[tuple[Tokens, int]]] = {}
        found = []
        for key, value, middle in self._showings(tokens):
            before = table.setdefault(key, [])
            if before:
                found.append((middle - 1, before[0][0], len(before)))
            before.append((value, middle))
        return found

    def label_all(self, x: np.ndarray) -> np.ndarray:
        questions = (self._questions(tokens) for tokens in x.tolist())
        return placed(x.shape, ([(at, value) for at, value, _ in row] for row in questions), IGNORED)

    def verify(self, tokens: np.ndarray) -> None:
        """Check for adjacent pairs, with padding only before the first pair; the last pair may be cut."""
        listed = tokens.tolist()
        padding = self.input.width if self.law == "grid" else self.vocab - 1
        begin = next((at for at, token in enumerate(listed) if token != padding), len(listed))
        self.allow(tokens[begin:], 0, padding, "tokens after the padding", begin)
        showings = self._showings(listed)
        if listed[begin:] and (not showings or showings[0][2] - len(showings[0][0]) != begin):
            self.refuse(f"a key must come first, found value token {listed[begin]} at position {begin}")
        table: dict[Tokens, Tokens] = {}
        for key, value, middle in showings:
            last = middle + len(value) == len(listed)
            exact = self.law == "grid" and not last
            for what, part, most in (("key", key, self.key_tokens), ("value", value, self.value_tokens)):
                if len(part) > most or (exact and len(part) < most):
                    bound = "exactly" if self.law == "grid" else "at most"
                    self.refuse(f"a {what} has {bound} {most} tokens, found {len(part)} before position {middle}")
            given = table.setdefault(key, value)
            if value != (given[: len(value)] if last else given):
                self.refuse(f"key {list(key)} has two values, {list(given)} and {list(value)}")

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent token; with ``law="grid"`` also a value of a key with the same last 1 or 2
        letters."""
        known = {"last-letter": 1, "last-two": 2} if self.law == "grid" else {}
        shorter = {name: letters for name, letters in known.items() if letters < self.key_tokens}
        rules = {name: self.rule(self._alike, letters=n) for name, n in shorter.items()}
        return {"majority": self.majority(), **rules}

    def _alike(self, x: np.ndarray, letters: int) -> np.ndarray:
        """Return the value of a random key among the earlier keys with the same last ``letters`` letters."""
        random = np.random.default_rng(0)

        def guesses(tokens: list[int]) -> Iterator[tuple[int, Tokens]]:
            seen: dict[Tokens, dict[Tokens, Tokens]] = {}
            for key, value, middle in self._showings(tokens):
                alike = seen.setdefault(key[-letters:], {})
                if alike:
                    yield middle - 1, list(alike.values())[int(random.random() * len(alike))]
                alike.setdefault(key, value)

        return placed(x.shape, map(guesses, x.tolist()))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by earlier occurrences of the key, and by place of the token in the value, from 0."""
        found = [self._questions(tokens) for tokens in batch.x.tolist()]
        occurrences = placed(batch.y.shape, ([(at, len(value) * [count]) for at, value, count in row] for row in found))
        place = placed(batch.y.shape, ([(at, range(len(value))) for at, value, _ in row] for row in found))
        return {"occurrences": occurrences, "place": place}

    def text(self, batch: Batch, index: int) -> str:
        """Return the pairs as ``key:value``, tokens joined by commas; ``*`` marks the pairs that are asked."""
        tokens = batch.x[index].tolist()
        asked = {at + 1 for at, _, _ in self._questions(tokens)}
        pairs = ((map(str, key), map(str, value), "*" * (at in asked)) for key, value, at in self._showings(tokens))
        return " ".join(f"{','.join(key)}:{','.join(value)}{mark}" for key, value, mark in pairs)


def _distinct(u: Uniforms, limit: int, count: int, size: int) -> np.ndarray:
    """Draw ``count`` ordered tuples of ``size`` distinct numbers of 0..limit-1, ``(batch, count, size)``."""
    found = np.empty((len(u), count, size), dtype=np.int64)
    for taken in range(size):
        token = u.whole(limit - taken, count)
        before = np.sort(found[..., :taken], axis=-1)
        for other in range(taken):  # skip the taken numbers, from the smallest
            token += token >= before[..., other]
        found[..., taken] = token
    return found
