"""Copying: copying, selective-copying and induction-heads give back what stood in the input."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, padded_sample, without_padding
from lrtasks.spec import IGNORED, Batch, Sample, Spec

# Batch size and learning rate as the published launch script has them. It packs several samples into one context; here
# each sample stands alone. Steps: ours, as the script's 200 per epoch are no setting of the paper.
PAPER = {"end": True, **budget(steps=50_000, batch_size=32, lr=5e-5, eval_every=2500)}

MAX_KEYS = 2**62
"""Bound on the number of different keys, which are told apart by one whole number each."""


@registry.register("copying")
@dataclass(frozen=True)
class Copying(TokenTask):
    """Return a string: forwards, backwards, or the part that follows a given piece.

    With A = ``letters``, BEGIN = A, BAR = A+1, END = A+2 and PAD = A+3: a string s of letters 0..A-1, independent and
    uniform, of a length drawn uniformly from ``string``, is given as

    - ``copy`` and ``reverse``: BEGIN s BAR; the answer is s, or s backwards;
    - ``suffix-lookup``: BEGIN s BAR g; ``prefix-lookup``: BEGIN g BAR s BAR. The key g is ``ngram`` letters of s; the
      answer is the ``answer_length`` letters after its first occurrence in s.

    The answer a₁…a_m is asked at the last token of this and at the m - 1 tokens that follow it, which are a₁…a_{m-1}
    (``feed="teacher"``) or PAD (``"blank"``). With ``end`` a_m follows, too, and END is asked there. Source: Jelassi et
    al., "Repeat After Me: Transformers are Better than State Space Models at Copying" (arXiv:2402.01032), section 3.

    Law of the key's start: ``jelassi``, uniform over 0..|s| - ngram - answer_length - 3, as the published code draws;
    ``clean``, uniform over the starts with room for the answer whose key comes once in s, so that the question has one
    answer (s is drawn again if there is none). Lengths of ``string`` that leave no start are not drawn.

    >>> Copying(letters=3, string=(3, 3)).answer([3, 2, 0, 1, 4, 2, 0]).tolist()
    [-100, -100, -100, -100, 2, 0, 1]
    >>> lookup = Copying(mode="suffix-lookup", letters=3, ngram=1, answer_length=2)
    >>> lookup.answer([3, 2, 0, 1, 2, 4, 0, 1]).tolist()
    [-100, -100, -100, -100, -100, -100, 1, 2]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        "small": {"string": (5, 32)},
        "forward": {"string": (5, 32)},
        "reverse": {"mode": "reverse", "string": (5, 32), "feed": "blank"},
        "lookup": {"mode": "suffix-lookup", "string": (16, 64), "ngram": 2, "law": "clean"},
        "paper": {"string": (20, 50), **PAPER},
        "paper-20": {"string": (5, 20), **PAPER},
        "paper-300": {"string": (50, 300), **PAPER},
        "paper-lookup": {"mode": "suffix-lookup", "string": (20, 50), **PAPER},
    }

    mode: Literal["copy", "reverse", "prefix-lookup", "suffix-lookup"] = parameter(
        "copy", "what is asked of the string"
    )
    string: tuple[int, int] = parameter(
        (5, 50), "least and greatest length of the string", at_least=1, at_most=MAX_LENGTH // 4
    )
    letters: int = parameter(26, "size of the alphabet A", at_least=1, at_most=2**20)
    ngram: int = parameter(3, "letters of the key; lookups only", at_least=1)
    answer_length: int = parameter(4, "letters of the answer; lookups only", at_least=1, at_most=MAX_LENGTH // 8)
    feed: Literal["teacher", "blank"] = parameter("teacher", "input while answering: the answer so far, or blanks")
    law: Literal["jelassi", "clean"] = parameter("jelassi", "law of the key; lookups only")
    end: bool = parameter(False, "ask for the token END after the answer")

    def check(self) -> None:
        self.span("string")
        if not self._lookup:
            return
        if self.string[1] < self._shortest:
            self.refuse(
                f"a lookup with ngram {self.ngram} and answer_length {self.answer_length} needs strings of at"
                f" least {self._shortest} letters, found string {list(self.string)}"
            )
        if self.letters**self.ngram >= MAX_KEYS:
            self.refuse(f"letters ** ngram must be below 2^62, found letters {self.letters} and ngram {self.ngram}")
        if self.law == "clean" and self.letters**self.ngram < self.string[1]:
            self.refuse(
                f"{self.letters} letters make {self.letters**self.ngram} keys of {self.ngram}, too few for one"
                f" that comes once in {self.string[1]} letters"
            )

    @property
    def _lookup(self) -> bool:
        return self.mode.endswith("lookup")

    @property
    def _shortest(self) -> int:
        """Least length of a string: a lookup needs room for key and answer."""
        room = self.ngram + self.answer_length + (3 if self.law == "jelassi" else 0)
        return max(self.string[0], room) if self._lookup else self.string[0]

    @property
    def _around(self) -> int:
        """Tokens before the answer beside the string: marks and key."""
        return {"prefix-lookup": 3 + self.ngram, "suffix-lookup": 2 + self.ngram}.get(self.mode, 2)

    @property
    def input(self) -> Spec:
        answer = self.answer_length if self._lookup else self.string[1]
        return Spec("token", self._around + self.string[1] + answer - 1 + self.end, self.letters + 4)

    def sample(self, rng: np.random.Generator) -> Sample:
        begin, bar, _, pad = range(self.letters, self.letters + 4)
        length = rng.integers(self._shortest, self.string[1] + 1)
        string = rng.integers(self.letters, size=length)
        if self._lookup:
            string, start = self._key(rng, string)
            key = string[start : start + self.ngram]
        else:
            key = string[:0]
        if self.mode == "prefix-lookup":
            head = np.concatenate([[begin], key, [bar], string, [bar]])
        else:
            head = np.concatenate([[begin], string, [bar], key])
        answer = self._answer(string, key)
        fed = np.full(len(answer) - 1 + self.end, pad)
        if self.feed == "teacher":
            fed[:] = answer[: len(fed)]
        x = np.concatenate([head, fed])
        return padded_sample(x, self._labels(len(head), answer, len(x)), self.input.length, pad)

    def _key(self, rng: np.random.Generator, string: np.ndarray) -> tuple[np.ndarray, int]:
        """The string, drawn again if need be, and the start of the key."""
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
        """The letters that are asked; fewer than they should be if the key does not come, or comes too late."""
        if self._lookup:
            found = _keys(string, len(key), self.letters) == _keys(key, len(key), self.letters)
            after = found.argmax() + len(key) if found.any() else len(string)
            return string[after : after + self.answer_length]
        return string[::-1] if self.mode == "reverse" else string

    def _labels(self, head: int, answer: np.ndarray, length: int) -> np.ndarray:
        """Labels of an input of ``length`` tokens whose first ``head`` stand before the answer."""
        y = np.full(length, IGNORED)
        asked = np.append(answer, self.letters + 2) if self.end else answer
        asked = asked[: length - head + 1]
        y[head - 1 : head - 1 + len(asked)] = asked
        return y

    def label(self, x: np.ndarray) -> np.ndarray:
        """Labels as far as ``x`` has positions for them; the tokens after the question change none of them."""
        string, key, head = self._question(x)
        answer = self._answer(string, key)
        if self._lookup and len(answer) < self.answer_length:
            self.refuse(
                f"the key {key.tolist()} must come in the string with {self.answer_length} letters after it,"
                f" found {string.tolist()}"
            )
        return self._labels(head, answer, len(x))

    def _question(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """String, key and number of tokens before the answer of any input."""
        begin, bar = self.letters, self.letters + 1
        bars = np.flatnonzero(x == bar)
        needed = 2 if self.mode == "prefix-lookup" else 1
        if x[0] != begin or len(bars) < needed:
            self.refuse(
                f"an input must begin with {begin} and have {needed} bar{'s' * (needed > 1)} ({bar}), found"
                f" {x[0]} and {len(bars)}"
            )
        if self.mode == "prefix-lookup":
            key, string, head = x[1 : bars[0]], x[bars[0] + 1 : bars[1]], bars[1] + 1
        else:
            head = bars[0] + 1 + (self.ngram if self._lookup else 0)
            string, key = x[1 : bars[0]], x[bars[0] + 1 : head]
        if self._lookup and len(key) != self.ngram:
            self.refuse(f"the key must have {self.ngram} letters, found {key.tolist()}")
        for what, letters in (("string", string), ("key", key)):
            if (letters >= self.letters).any() or (what == "string" and not len(string)):
                self.refuse(f"the {what} must be letters (0..{self.letters - 1}), found {letters.tolist()}")
        return string, key, int(head)

    def tests(self) -> Mapping[str, Task]:
        """Strings of exactly 2, 4 and 8 times the greatest length."""
        lengths = {f"{factor}x": factor * self.string[1] for factor in (2, 4, 8)}
        return {
            name: dataclasses.replace(self, string=(length, length))
            for name, length in lengths.items()
            if length <= MAX_LENGTH // 4 and (self.law != "clean" or self.letters**self.ngram >= length)
        }

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent letter and, where the answer so far can be read, what follows its last letters in s."""
        if self.mode != "copy" or self.feed == "blank":
            return super().baselines()
        grams = {"bigram": 1, "trigram": 2}
        rules = {name: self.rule(functools.partial(self._lookup_of_last, letters=n)) for name, n in grams.items()}
        return {**super().baselines(), **rules}

    def _lookup_of_last(self, inputs: np.ndarray, letters: int) -> np.ndarray:
        """The token after the first occurrence, in BEGIN s END, of the last ``letters`` tokens; BAR counts as BEGIN."""
        prediction = np.zeros_like(inputs)
        for row, x in enumerate(inputs):
            string, _, head = self._question(without_padding(x, self.letters + 3))
            text = np.concatenate([x[:1], string, [self.letters + 2]])
            for size in range(1, letters + 1):  # the first token has one token before it
                _, first, number = np.unique(
                    _keys(text, size, self.letters + 3), return_index=True, return_inverse=True
                )
                follow = text[first[number[: len(text) - size]] + size]
                place = head - 2 + size
                prediction[row, place : place + len(follow)] = follow[: len(x) - place]
        return prediction

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By position in the answer, counted from 1, and by length of the string, both in octaves."""
        bars = (batch.x == self.letters + 1).cumsum(axis=1)
        last = 2 if self.mode == "prefix-lookup" else 1
        length = (bars < last).sum(axis=1) - (2 + self.ngram if last == 2 else 1)
        return {"position": octave((batch.y >= 0).cumsum(axis=1)), "string": octave(length)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """The question, letters as a, b, c, ... (numbers from 27 on), and the answer after an arrow."""
        string, key, _ = self._question(without_padding(batch.x[index], self.letters + 3))
        y = batch.y[index]
        answer = y[(y >= 0) & (y < self.letters)]
        parts = {"prefix-lookup": [key, string], "suffix-lookup": [string, key]}.get(self.mode, [string])
        return " | ".join(_spelt(part) for part in parts) + f" -> {_spelt(answer)}"


def _keys(string: np.ndarray, size: int, letters: int) -> np.ndarray:
    """Every ``size`` neighbouring letters as one whole number, in base ``letters``; ``(max(len - size + 1, 0),)``."""
    count = max(len(string) - size + 1, 0)
    keys = np.zeros(count, dtype=np.int64)
    for place in range(size):
        keys = keys * letters + string[place : place + count]
    return keys


def _spelt(letters: np.ndarray) -> str:
    if (letters < 26).all():
        return "".join(chr(ord("a") + letter) for letter in letters)
    return " ".join(map(str, letters))


NOISE = 0
NOISE_WINDOW = 16


@registry.register("selective-copying")
@dataclass(frozen=True)
class SelectiveCopying(TokenTask):
    """Return, in order, the tokens that are not noise.

    With M = ``memorise`` and A = ``alphabet``: M data tokens, independent and uniform over 1..A-2, stand at M of the
    first ``noise`` + M positions, drawn without repetition; the others hold the noise, token 0. Then M marks, token
    A-1, follow, where the data are asked in their order. With ``spread=False`` the data stand at the first M positions
    (copy memory). Source: Gu and Dao, "Mamba" (arXiv:2312.00752), section 4.1.1; Arjovsky et al., "Unitary Evolution
    Recurrent Neural Networks" (arXiv:1511.06464), section 4.1, for copy memory.

    ``law="mad"`` is that of Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (arXiv:2403.17844):
    ``noise`` - 1 noise tokens are dealt to the gaps before the data, each independently and uniformly, none after the
    last; then one mark and M noise tokens. There the last data token always stands directly before the mark.

    >>> task = SelectiveCopying(noise=4, memorise=3, alphabet=9)
    >>> task.answer([0, 3, 0, 0, 7, 1, 0, 8, 8, 8]).tolist()
    [3, 7, 1]
    """

    group: ClassVar[str] = "copying"
    grows: ClassVar[tuple[str, ...]] = ("noise",)
    presets: ClassVar[Presets] = {
        **{name: {"noise": 56, "memorise": 4, "alphabet": 8, **budget(lr=3e-3)} for name in ("small", "spread")},
        "small-hard": {"noise": 112, "memorise": 8, "alphabet": 16, **budget(lr=3e-3)},
        "delay": {"noise": 44, "memorise": 10, "alphabet": 10, "spread": False, **budget(lr=3e-3)},
        # Mamba paper: 400,000 steps of 64 samples at a constant learning rate.
        "paper": budget(steps=400_000, batch_size=64, lr=1e-4, eval_every=8000, val_batches=10, test_batches=50),
        # Copy memory as of uRNN and TCN.
        "paper-delay": {"noise": 1000, "memorise": 10, "alphabet": 10, "spread": False}
        | budget(steps=400_000, batch_size=64, lr=1e-4, eval_every=8000),
        # One of MAD's settings; the paper averages over several.
        "mad": {"noise": 224, "memorise": 16, "alphabet": 16, "law": "mad"}
        | budget(steps=20_000, batch_size=128, lr=5e-4),
    }

    noise: int = parameter(4096, "number of noise tokens", at_least=1, at_most=MAX_LENGTH)
    memorise: int = parameter(16, "number of data tokens M", at_least=1, at_most=MAX_LENGTH // 2)
    alphabet: int = parameter(16, "alphabet size A: noise, A - 2 data tokens, mark", at_least=3, at_most=2**20)
    spread: bool = parameter(True, "data anywhere among the noise; false: at the beginning")
    law: Literal["uniform", "mad"] = parameter("uniform", "where the data stand: uniform, or as MAD's code draws")

    def check(self) -> None:
        if self.noise + 2 * self.memorise > MAX_LENGTH:
            self.refuse(f"noise + 2 memorise must be at most {MAX_LENGTH}, found {self.noise + 2 * self.memorise}")
        if self.law == "mad" and not self.spread:
            self.refuse("spread=false goes with law 'uniform' only")

    @property
    def input(self) -> Spec:
        return Spec("token", self.noise + 2 * self.memorise, self.alphabet)

    @property
    def target(self) -> Spec:
        return Spec("token", self.memorise, self.alphabet)

    def sample(self, rng: np.random.Generator) -> Sample:
        count = self.memorise
        y = rng.integers(1, self.alphabet - 1, size=count)
        x = np.zeros(self.input.length, dtype=np.int64)
        if self.law == "mad":
            gaps = np.bincount(rng.integers(count, size=self.noise - 1), minlength=count)
            x[np.cumsum(gaps + 1) - 1] = y
            x[-count - 1] = self.alphabet - 1
        else:
            places = np.sort(rng.choice(self.noise + count, count, replace=False)) if self.spread else np.arange(count)
            x[places] = y
            x[-count:] = self.alphabet - 1
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """The data tokens in order, ``(memorise,)``; marks may stand anywhere, and need not stand at all."""
        data = np.flatnonzero((x != NOISE) & (x != self.alphabet - 1))
        if len(data) != self.memorise:
            self.refuse(f"an input must hold {self.memorise} data tokens (1..{self.alphabet - 2}), found {len(data)}")
        if data[-1] >= len(x) - self.memorise:
            self.refuse(
                f"the last {self.memorise} positions are for the answer, found a data token at"
                f" position {data[-1]} of {len(x)}"
            )
        return x[data]

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent token, and the data among the last 16 positions of the text."""
        return {**super().baselines(), f"window-{NOISE_WINDOW}": self.rule(self._window)}

    def _window(self, x: np.ndarray) -> np.ndarray:
        prediction = np.ones((len(x), self.memorise), dtype=np.int64)
        text = x[:, : -self.memorise - (self.law == "mad")]
        for row, seen in enumerate(text[:, -NOISE_WINDOW:]):
            data = seen[seen != NOISE][-self.memorise :]
            prediction[row, self.memorise - len(data) :] = data
        return prediction

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By number of the token, from 1, and by distance from where it stands to where it is asked, in octaves."""
        data = (batch.x != NOISE) & (batch.x != self.alphabet - 1)
        places = np.nonzero(data)[1].reshape(len(batch.x), self.memorise)
        asked = np.arange(batch.x.shape[1] - self.memorise, batch.x.shape[1])
        return {"ordinal": np.arange(1, self.memorise + 1), "distance": octave(asked - places)}

    def text(self, batch: Batch, index: int) -> str:
        """The tokens, noise as dots and marks as question marks, then the answer."""
        signs = {NOISE: ".", self.alphabet - 1: "?"}
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        return f"{' '.join(signs.get(token, str(token)) for token in x)} | {' '.join(map(str, y))}"


WINDOW = 32


@registry.register("induction-heads")
@dataclass(frozen=True)
class InductionHeads(TokenTask):
    """A mark occurs once in the text and again at the end: return the token that followed it.

    With V = ``vocab``: ``length`` tokens are drawn independently and uniformly from 0..V-3; position p, uniform over
    0..length-3, is replaced by the mark V-1; the mark follows once more at the end. Label, at the last position:
    x[p+1]. Token V-2 is not used, as in the published code. Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling
    with Selective State Spaces" (arXiv:2312.00752), section 4.1.2; Dao et al., "Hungry Hungry Hippos"
    (arXiv:2212.14052), section 3.1.

    >>> InductionHeads(length=5).answer([4, 9, 15, 3, 8, 15]).tolist()
    [-100, -100, -100, -100, -100, 3]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        "small": {"length": 64, **budget(batch_size=64, steps=1500)},
        # Mamba paper: trained at 256 in batches of 8 for at most 409,600 steps, tested at 2^6 to 2^20.
        "paper": {"length": 256, "tested": "far"}
        | budget(steps=409_600, batch_size=8, lr=1e-3, eval_every=8192, val_batches=64, test_batches=512),
    }

    length: int = parameter(256, "tokens before the final mark", at_least=3, at_most=MAX_LENGTH - 1)
    vocab: int = parameter(
        16, "vocabulary size V: V - 2 symbols, one unused token, the mark", at_least=3, at_most=2**20
    )
    supervise: Literal["answer", "all"] = parameter(
        "answer", "training labels: the answer alone, or the next token at every position; val and test: the answer"
    )
    tested: Literal["near", "far"] = parameter(
        "near", "lengths of the further tests: 2, 4, 8, 16 times the length, or the powers of two from 64 to 2^20"
    )

    @property
    def input(self) -> Spec:
        return Spec("token", self.length + 1, self.vocab)

    def sample(self, rng: np.random.Generator) -> Sample:
        mark = self.vocab - 1
        x = rng.integers(self.vocab - 2, size=self.length + 1)
        place = rng.integers(self.length - 2)
        x[place] = x[-1] = mark
        y = np.full(self.length + 1, IGNORED)
        if self.supervise == "all" and not self.testing:
            y[:-1] = x[1:]
        y[-1] = x[place + 1]
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """The label at the last position, whatever ``supervise`` adds in training; the mark that came first counts."""
        marks = np.flatnonzero(x == self.vocab - 1)
        if len(marks) < 2 or marks[-1] != len(x) - 1:
            self.refuse(
                f"the mark ({self.vocab - 1}) must stand at the last position and once before it,"
                f" found it at {marks.tolist()} of {len(x)} positions"
            )
        y = np.full(len(x), IGNORED)
        y[-1] = x[marks[0] + 1]
        return y

    def tests(self) -> Mapping[str, Task]:
        """Other lengths, named by their factor or, with ``tested="far"``, by themselves."""
        if self.tested == "near":
            return self.scaled("length", by=(2, 4, 8, 16))
        lengths = [2**power for power in range(6, 21)]
        return {str(length): dataclasses.replace(self, length=length) for length in lengths if length != self.length}

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent answer, and the answer if the mark is among the last 32 tokens of the text."""
        return {"majority": self.majority(), f"window-{WINDOW}": self.rule(self._window)}

    def _window(self, x: np.ndarray) -> np.ndarray:
        text = x[:, -1 - WINDOW : -1]
        marks = text == self.vocab - 1
        place = np.minimum(marks.argmax(axis=1), text.shape[1] - 2)
        following = np.take_along_axis(text, place[:, None] + 1, axis=1)
        return np.where(marks.any(axis=1)[:, None], following, 0)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance from the end back to the mark, in octaves."""
        place = (batch.x == self.vocab - 1).argmax(axis=1)
        return {"distance": octave(batch.x.shape[1] - 1 - place)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """The tokens, the mark as ``=>``, then the answer after a colon."""
        x, answer = batch.x[index], batch.y[index, -1]
        return " ".join("=>" if token == self.vocab - 1 else str(token) for token in x) + f" : {answer}"
