from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, padded_sample, without_padding
from lrtasks.spec import IGNORED, Batch, Sample, Spec

# Batch size and learning rate are those of the published launch script. The script packs several samples into one
# context; here each sample has its own. The number of steps is ours: the script's 200 per epoch are not the paper's.
SMALL = budget(batch_size=64)
PAPER = {"end": True, **budget(steps=50_000, batch_size=32, lr=5e-5, eval_every=2500)}

MAX_KEYS = 2**62
"""Upper bound on the number of different keys, because each key is represented by one integer."""
MIN_STARTS = 0.1
"""Smallest expected number of keys in a string that occur once; with fewer, most strings would be drawn again."""


@registry.register("copying")
@dataclass(frozen=True)
class Copying(TokenTask):
    """Return a string: forwards, backwards, or the part that follows a given piece.

    Let A = ``letters``. Tokens: letters 0..A-1, BEGIN = A, BAR = A+1, END = A+2 and PAD = A+3. A string s has
    independent, uniform letters; its length is uniform over ``string``. The input begins with the question:

    - ``copy`` and ``reverse``: BEGIN s BAR. The answer is s, or s backwards.
    - ``suffix-lookup``: BEGIN s BAR g; ``prefix-lookup``: BEGIN g BAR s BAR. The key g is ``ngram`` letters of s. The
      answer is the ``answer_length`` letters after the first occurrence of g in s.

    The answer a₁…a_m is the label at the last token of the question and at the m - 1 tokens that follow it. These
    tokens are a₁…a_{m-1} (``feed="teacher"``) or PAD (``"blank"``). With ``end``, a_m (or PAD) follows too, and its
    label is END. Source: Jelassi et al., "Repeat After Me: Transformers are Better than State Space Models at Copying"
    (arXiv:2402.01032), section 3.

    ``law`` determines the start of the key. ``jelassi``: uniform over 0..|s| - ngram - answer_length - 3, as in the
    published code. ``clean``: uniform over the starts with room for the answer and with a key that occurs once in s, so
    the question has one answer; s is drawn again if there is no such start. Lengths of ``string`` that leave no start
    are not drawn.

    >>> Copying(letters=3, string=(3, 3)).answer([3, 2, 0, 1, 4, 2, 0]).tolist()
    [-100, -100, -100, -100, 2, 0, 1]
    >>> lookup = Copying(mode="suffix-lookup", letters=3, ngram=1, answer_length=2)
    >>> lookup.answer([3, 2, 0, 1, 2, 4, 0, 1]).tolist()
    [-100, -100, -100, -100, -100, -100, 1, 2]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        **{name: {"string": (3, 8), "feed": "blank", **SMALL} for name in ("small", "forward")},
        "small-hard": {"string": (5, 32)},
        "reverse": {"mode": "reverse", "string": (4, 12), "feed": "blank", **SMALL},
        "reverse-hard": {"mode": "reverse", "string": (5, 32), "feed": "blank"},
        "lookup": {"mode": "suffix-lookup", "string": (16, 64), "ngram": 2, "law": "clean", **SMALL},
        "paper": {"string": (20, 50), **PAPER},
        "paper-20": {"string": (5, 20), **PAPER},
        "paper-300": {"string": (50, 300), **PAPER},
        "paper-lookup": {"mode": "suffix-lookup", "string": (20, 50), **PAPER},
    }

    mode: Literal["copy", "reverse", "prefix-lookup", "suffix-lookup"] = parameter(
        "copy",
        "question: copy the string, reverse it, or return what follows a key; the key stands before or after it",
    )
    string: tuple[int, int] = parameter((5, 50), "minimum and maximum length of s", at_least=1, at_most=MAX_LENGTH // 4)
    letters: int = parameter(26, "size of the alphabet A", at_least=1, at_most=2**20)
    ngram: int = parameter(3, "number of letters in the key; lookups only", at_least=1)
    answer_length: int = parameter(4, "letters in the answer; lookups only", at_least=1, at_most=MAX_LENGTH // 8)
    feed: Literal["teacher", "blank"] = parameter("teacher", "input at the answer: its correct letters, or blanks")
    law: Literal["jelassi", "clean"] = parameter("jelassi", "distribution of the key position; lookups only")
    end: bool = parameter(False, "ask for the token END after the answer")

    def check(self) -> None:
        self.span("string")
        if not self._lookup:
            return
        if self.string[1] < self._shortest:
            needed = f"ngram {self.ngram} and answer_length {self.answer_length} need"
            self.refuse(f"{needed} strings of at least {self._shortest} letters, found string {list(self.string)}")
        if self.letters**self.ngram >= MAX_KEYS:
            self.refuse(f"letters ** ngram must be below 2^62, found letters {self.letters} and ngram {self.ngram}")
        if self.law == "clean":
            starts, length = min((self._expected_starts(length), length) for length in (self._shortest, self.string[1]))
            if starts < MIN_STARTS:
                keys = f"{self.letters} letters make {self.letters**self.ngram} keys of {self.ngram}"
                self.refuse(f"{keys}, too few for one that occurs once in {length} letters")

    def _expected_starts(self, length: int) -> float:
        """Return about how many starts in a string leave room for the answer and have a key that occurs once."""
        others = length - self.ngram
        return (others - self.answer_length + 1) * (1 - 1 / self.letters**self.ngram) ** others

    @property
    def _lookup(self) -> bool:
        return self.mode.endswith("lookup")

    @property
    def _shortest(self) -> int:
        """Smallest length of a string: a lookup needs room for key and answer."""
        room = self.ngram + self.answer_length + (3 if self.law == "jelassi" else 0)
        return max(self.string[0], room) if self._lookup else self.string[0]

    @property
    def input(self) -> Spec:
        marks_and_key = {"prefix-lookup": 3 + self.ngram, "suffix-lookup": 2 + self.ngram}.get(self.mode, 2)
        answer = self.answer_length if self._lookup else self.string[1]
        return Spec("token", marks_and_key + self.string[1] + answer - 1 + self.end, self.letters + 4)

    @property
    def pad(self) -> int:
        return self.letters + 3

    def sample(self, rng: np.random.Generator) -> Sample:
        begin, bar = self.letters, self.letters + 1
        length = rng.integers(self._shortest, self.string[1] + 1)
        string = rng.integers(self.letters, size=length)
        string, start = self._key(rng, string) if self._lookup else (string, 0)
        key = string[start : start + (self.ngram if self._lookup else 0)]
        if self.mode == "prefix-lookup":
            head = np.concatenate([[begin], key, [bar], string, [bar]])
        else:
            head = np.concatenate([[begin], string, [bar], key])
        answer = self._answer(string, key)
        fed = np.full(len(answer) - 1 + self.end, self.pad)
        if self.feed == "teacher":
            fed[:] = answer[: len(fed)]
        x = np.concatenate([head, fed])
        return padded_sample(x, self._labels(len(head), answer, len(x)), self.input.length, self.pad)

    def _key(self, rng: np.random.Generator, string: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the string, which may be drawn again, and the start of the key."""
        if self.law == "jelassi":
            last = len(string) - self.ngram - self.answer_length - 3
            return string, int(rng.integers(last + 1))
        while True:
            keys = _keys(string, self.ngram, self.letters)
            for start in rng.permutation(len(string) - self.ngram - self.answer_length + 1).tolist():
                if np.count_nonzero(keys == keys[start]) == 1:
                    return string, start
            string = rng.integers(self.letters, size=len(string))

    def _answer(self, string: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Return the letters of the answer; fewer letters if the key does not occur, or occurs too late."""
        if self._lookup:
            found = _keys(string, len(key), self.letters) == _keys(key, len(key), self.letters)
            after = found.argmax() + len(key) if found.any() else len(string)
            return string[after : after + self.answer_length]
        return string[::-1] if self.mode == "reverse" else string

    def _labels(self, head: int, answer: np.ndarray, length: int) -> np.ndarray:
        """Return the labels of an input of ``length`` tokens whose first ``head`` tokens are the question."""
        y = np.full(length, IGNORED)
        asked = np.append(answer, self.letters + 2) if self.end else answer
        asked = asked[: length - head + 1]
        y[head - 1 : head - 1 + len(asked)] = asked
        return y

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the labels, cut to the length of ``x``. The tokens after the question do not change any label."""
        string, key, head = self._question(x)
        answer = self._answer(string, key)
        if self._lookup and len(answer) < self.answer_length:
            wanted = f"the key {key.tolist()} must come in the string with {self.answer_length} letters after it"
            self.refuse(f"{wanted}, found {string.tolist()}")
        return self._labels(head, answer, len(x))

    def _question(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the string, the key and the number of tokens of the question of any input."""
        begin, bar = self.letters, self.letters + 1
        bars = np.flatnonzero(x == bar)
        needed = 2 if self.mode == "prefix-lookup" else 1
        if x[0] != begin or len(bars) < needed:
            bars_needed = f"{needed} bar{'s' * (needed > 1)} ({bar})"
            self.refuse(f"an input must begin with {begin} and have {bars_needed}, found {x[0]} and {len(bars)}")
        if self.mode == "prefix-lookup":
            key, string, head = x[1 : bars[0]], x[bars[0] + 1 : bars[1]], bars[1] + 1
        else:
            head = bars[0] + 1 + (self.ngram if self._lookup else 0)
            string, key = x[1 : bars[0]], x[bars[0] + 1 : head]
        if self._lookup and len(key) != self.ngram:
            self.refuse(f"the key must have {self.ngram} letters, found {key.tolist()}")
        for what, letters in (("string", string), ("key", key)):
            if (letters >= self.letters).any() or not len(string):
                self.refuse(f"the {what} must be letters (0..{self.letters - 1}), found {letters.tolist()}")
        return string, key, int(head)

    def tests(self) -> dict[str, Task]:
        """Return tests with strings of exactly 2, 4 and 8 times the largest length."""
        return self.further({f"{n}x": {"string": (n * self.string[1],) * 2} for n in (2, 4, 8)})

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent letter; for copies that show the answer, also lookups of its last letters in s."""
        grams = {"bigram": 1, "trigram": 2} if self.mode == "copy" and self.feed == "teacher" else {}
        rules = {name: self.rule(self._lookup_of_last, letters=n) for name, n in grams.items()}
        return {**super().baselines(), **rules}

    def _lookup_of_last(self, inputs: np.ndarray, letters: int) -> np.ndarray:
        """Return the token after the first occurrence of the last ``letters`` tokens in BEGIN s END (BAR is BEGIN)."""
        prediction = np.zeros_like(inputs)
        for row, x in enumerate(inputs):
            string, _, head = self._question(without_padding(x, self.pad))
            text = np.concatenate([x[:1], string, [self.letters + 2]])
            for size in range(1, letters + 1):  # the first token has one token before it
                keys = _keys(text, size, self.letters + 3)
                _, first, number = np.unique(keys, return_index=True, return_inverse=True)
                follow = text[first[number[: len(text) - size]] + size]
                place = head - 2 + size
                prediction[row, place : place + len(follow)] = follow[: len(x) - place]
        return prediction

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by position in the answer, from 1, and by length of the string, both in octaves."""
        bars = (batch.x == self.letters + 1).cumsum(axis=1)
        last = 2 if self.mode == "prefix-lookup" else 1
        length = (bars < last).sum(axis=1) - (2 + self.ngram if last == 2 else 1)
        return {"position": octave((batch.y >= 0).cumsum(axis=1)), "string": octave(length)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """Return the question, an arrow and the answer: a, b, c, ... for letters, or numbers beyond 26 letters."""
        string, key, _ = self._question(without_padding(batch.x[index], self.pad))
        y = batch.y[index]
        answer = y[(y >= 0) & (y < self.letters)]
        parts = {"prefix-lookup": [key, string], "suffix-lookup": [string, key]}.get(self.mode, [string])
        return " | ".join(_spelt(part) for part in parts) + f" -> {_spelt(answer)}"


def _keys(string: np.ndarray, size: int, letters: int) -> np.ndarray:
    """Return each ``size`` adjacent letters as one integer in base ``letters``, ``(max(len - size + 1, 0),)``."""
    count = max(len(string) - size + 1, 0)
    keys = np.zeros(count, dtype=np.int64)
    for place in range(size):
        keys = keys * letters + string[place : place + count]
    return keys


def _spelt(letters: np.ndarray) -> str:
    if (letters < 26).all():
        return "".join(chr(ord("a") + letter) for letter in letters)
    return " ".join(map(str, letters))
