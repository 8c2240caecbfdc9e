"""Capacity and recall as in MAD (Poli et al., arXiv:2403.17844): compression, memorization, noisy and fuzzy recall."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, MajorityClass, bin_starts, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, earlier, gathered, spread
from lrtasks.spec import IGNORED, Batch, Spec

PROTOCOL = budget(
    steps=20_000,
    batch_size=128,
    lr=5e-4,
    schedule="cosine",
    train_samples=12_800,
    eval_every=1_000,
    val_batches=10,
    test_batches=10,
)
"""One setting of the MAD protocol (mad/configs.py): 200 epochs of 12,800 samples, 1,280 test samples. MAD takes the
best of three learning rates (1e-4, 5e-4, 1e-3) and two weight decays (0, 0.1)."""

RECENT = 8


@registry.register("compression")
@dataclass(frozen=True)
class Compression(UniformTask):
    """From the last position alone, give every token of the sequence.

    With V = ``vocab``: ``length`` - 1 tokens, independent and uniform over 0..V-2, then the mark V-1. The target is the
    tokens in their order; the decoder makes all of them from one vector, the last position's (causal) or the mean of
    all positions (bidirectional). Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD,
    arXiv:2403.17844), section 3. MAD scores the constant mark, too, and decodes by an MLP that is given the vector and
    a position; here the decoder is linear, so compare ranks, not numbers.

    >>> Compression(length=4, vocab=4).answer([2, 0, 1, 3]).tolist()
    [2, 0, 1]
    """

    group: ClassVar[str] = "capacity"
    presets: ClassVar[Presets] = {
        "small": {"length": 16, "vocab": 8, **budget(batch_size=64, lr=3e-3, steps=3000)},
        "small-hard": {"length": 32, "vocab": 16, **budget(batch_size=64)},
        "paper": {"length": 32, "vocab": 16, **PROTOCOL},
    }

    length: int = parameter(32, "sequence length, mark included", at_least=2, at_most=2**16)
    vocab: int = parameter(16, "vocabulary size V, mark included", at_least=3, at_most=2**16)

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.vocab)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length - 1, self.vocab - 1, pooled=True)

    @property
    def draws(self) -> int:
        return self.length - 1

    def made(self, u: Uniforms) -> Batch:
        x = np.full((len(u), self.length), self.vocab - 1)
        x[:, :-1] = u.whole(self.vocab - 1, self.length - 1)
        return Batch(x, self.label_all(x))

    def label_all(self, x: np.ndarray) -> np.ndarray:
        return x[:, :-1].copy()

    def verify(self, tokens: np.ndarray) -> None:
        if len(tokens) < 2:
            self.refuse(f"an input is at least one token and the mark, found {len(tokens)} token")
        self.allow(tokens[:-1], 0, self.vocab - 1, "tokens before the mark")
        self.allow(tokens[-1:], self.vocab - 1, self.vocab, "the last token is the mark and", len(tokens) - 1)

    def bits(self, accuracy: Sequence[float] | np.ndarray) -> float:
        """What one vector held, in bits: the sum over positions of log2(V-1) times the scaled accuracy, at least 0.

        Args:
            accuracy: per position ``(length - 1,)``, or one for all.
        """
        chance = 1 / (self.vocab - 1)
        scaled = (np.broadcast_to(accuracy, self.length - 1) - chance) / (1 - chance)
        return float(math.log2(self.vocab - 1) * np.maximum(scaled, 0).sum())

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent token; the last eight tokens, and the most frequent one before them."""
        recent = {f"recent-{RECENT}": _Recent(self.target.width)} if self.length > 2 * RECENT else {}
        return {**super().baselines(), **recent}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By position: eight equal parts, each labelled with its first position."""
        return {"position": bin_starts(np.arange(self.length - 1), self.length - 1)}

    def text(self, batch: Batch, index: int) -> str:
        """The tokens, the mark as ``?``."""
        return " ".join(map(str, batch.y[index].tolist())) + " ? => all of them"


class _Recent(MajorityClass):
    """The last eight tokens as they are, the most frequent class for those before."""

    def predict(self, batch: Batch) -> np.ndarray:
        guess = super().predict(batch)
        guess[:, -RECENT:] = batch.x[:, -1 - RECENT : -1]
        return guess


CLASSES = 64


@registry.register("memorization")
@dataclass(frozen=True)
class Memorization(UniformTask):
    """Give the value of a pair of tokens under one fixed map that all samples share.

    ``law="pair"``, with s = √``facts``: first tokens are 0..s-1, second ones s..2s-1, the mark is 2s. A sample is
    ``pairs`` times first, second, mark, each pair uniform with replacement; at the mark stands the label, map[first,
    second], one of 64 classes. The map is uniform and fixed by ``facts`` alone: training, validation and test ask the
    same facts under every seed.

    ``law="mad"``, with F = ``facts``: keys are 0..F-1, their values a permutation of tokens F..2F (one stays over), the
    mark is 2F + 1; a sample is ``pairs`` times key, mark. One-token keys are a weaker test: the embedding can hold the
    map, and the layers only pass it on. Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures"
    (MAD, arXiv:2403.17844), section 3, where the vocabulary is 2F + 2.

    >>> task = Memorization(facts=4096)
    >>> y = task.answer([5, 70, 128])
    >>> y[:2].tolist(), bool(y[2] == task.table()[5, 70 - 64])
    ([-100, -100], True)
    """

    group: ClassVar[str] = "capacity"
    presets: ClassVar[Presets] = {
        "small": {"facts": 4096, "pairs": 32},
        "small-hard": {"facts": 16_384, "pairs": 32},
        # vocabulary 256; 256 samples in batches of 128, 200 epochs
        "paper": {"law": "mad", "facts": 127, "pairs": 16}
        | PROTOCOL
        | budget(steps=400, train_samples=256, eval_every=50),
    }

    pairs: int = parameter(32, "facts asked in a sample, with replacement", at_least=1, at_most=MAX_LENGTH // 3)
    facts: int = parameter(4096, "number of facts of the map; pair: a square number", at_least=2, at_most=2**22)
    law: Literal["pair", "mad"] = parameter("pair", "keys of two tokens, or of one")

    def check(self) -> None:
        if self.law == "pair" and self._side**2 != self.facts:
            self.refuse(
                f"facts must be a square number with law 'pair', such as {self._side**2} or {(self._side + 1) ** 2},"
                f" found {self.facts}"
            )

    @property
    def _side(self) -> int:
        return math.isqrt(self.facts)

    @property
    def _mark(self) -> int:
        return 2 * self._side if self.law == "pair" else 2 * self.facts + 1

    @property
    def _slot(self) -> int:
        """Tokens of a slot, with the mark."""
        return 3 if self.law == "pair" else 2

    @property
    def input(self) -> Spec:
        return Spec("token", self._slot * self.pairs, self._mark + 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, CLASSES if self.law == "pair" else self.input.width)

    def table(self) -> np.ndarray:
        """The map, read-only int64: ``(s, s)`` classes by first and second token, or ``(F,)`` values by key."""
        return _table(self)

    @property
    def draws(self) -> int:
        return self.pairs * (self._slot - 1)

    def made(self, u: Uniforms) -> Batch:
        x = np.full((len(u), self.pairs, self._slot), self._mark)
        if self.law == "pair":
            x[..., 0] = u.whole(self._side, self.pairs)
            x[..., 1] = self._side + u.whole(self._side, self.pairs)
        else:
            x[..., 0] = u.whole(self.facts, self.pairs)
        tokens = x.reshape(len(u), -1)
        return Batch(tokens, self.label_all(tokens))

    def label_all(self, x: np.ndarray, table: np.ndarray | None = None) -> np.ndarray:
        values = self.table() if table is None else table
        y = np.full(x.shape, IGNORED)
        if self.law == "pair":
            y[:, 2::3] = values[x[:, ::3], x[:, 1::3] - self._side]
        else:
            y[:, 1::2] = values[x[:, ::2]]
        return y

    def verify(self, tokens: np.ndarray) -> None:
        self.divide(tokens, self._slot)
        if self.law == "pair":
            self.allow(tokens[::3], 0, self._side, "first tokens", 0, 3)
            self.allow(tokens[1::3], self._side, 2 * self._side, "second tokens", 1, 3)
        else:
            self.allow(tokens[::2], 0, self.facts, "keys", 0, 2)
        last = self._slot - 1
        self.allow(tokens[last :: self._slot], self._mark, self._mark + 1, "marks", last, self._slot)

    def answer(self, x: np.ndarray, table: np.ndarray | None = None) -> np.ndarray:
        """As the base class says.

        Args:
            x: tokens, any number of slots.
            table: another map in the form of :meth:`table`, such as one of the source's; the task's own by default.
        """
        y = super().answer(x)
        if table is None:
            return y
        if np.shape(table) != self.table().shape:
            self.refuse(f"a map must have shape {self.table().shape}, found {np.shape(table)}")
        return np.asarray(self.label_all(np.asarray(x)[None], np.asarray(table))[0])

    def text(self, batch: Batch, index: int) -> str:
        """The facts as ``key=value``, the tokens of a key joined by a comma."""
        slots = batch.x[index].reshape(-1, self._slot).tolist()
        values = batch.y[index, self._slot - 1 :: self._slot].tolist()
        return " ".join(f"{','.join(map(str, slot[:-1]))}={v}" for slot, v in zip(slots, values, strict=True))


@functools.lru_cache(maxsize=16)
def _table(task: Memorization) -> np.ndarray:
    rng = task.layout_rng(law=task.law, facts=task.facts)
    if task.law == "pair":
        table = rng.integers(CLASSES, size=(task._side, task._side))
    else:
        table = task.facts + rng.permutation(task.facts + 1)[: task.facts]
    table.setflags(write=False)
    return table


WINDOWS = (16, 32)
NOISE_TESTS = (0.0, 0.4, 0.6, 0.8)


@registry.register("noisy-recall")
@dataclass(frozen=True)
class NoisyRecall(UniformTask):
    """At every key that occurred before, return its value; noise tokens lie between the pairs.

    With n = ``vocab`` - ``noise_vocab``: keys are tokens 0..n/2-1, values n/2..n-1, noise n..``vocab``-1. A sample is
    ``length``/2 slots of two tokens. One slot, drawn uniformly, is never noise; each other one is noise with
    probability ``noise``: two noise tokens, drawn independently. The rest are pairs: a key, uniform with replacement,
    and its value, which is uniform for each key and stays the same in the sample. The last slot is a key drawn
    uniformly among those that occurred; its value is cut off, so the input has ``length`` - 1 tokens. Labelled: every
    key that occurred before. Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD,
    arXiv:2403.17844), section 3; with ``noise=0`` it is MAD's in-context recall.

    How local it is: at the published sizes half of the labels have their key within 10 tokens and 99 % within 60,
    whatever the length. ``distance`` asks one question per sample, at the end, whose key occurs once before, that far
    away.

    >>> NoisyRecall().answer([2, 10, 20, 17, 5, 9, 2, 10, 5]).tolist()
    [-100, -100, -100, -100, -100, -100, 10, -100, 9]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"length": 128, "vocab": 64, "noise": 0.4, **budget(batch_size=32, steps=1500)},
        "paper": {"length": 128, "vocab": 32, "noise": 0.2, "supervise": "all", **PROTOCOL},
    }

    length: int = parameter(128, "tokens with the last value, even; the input lacks it", at_least=4, at_most=MAX_LENGTH)
    vocab: int = parameter(32, "vocabulary size, noise included", at_least=2, at_most=2**20)
    noise_vocab: int = parameter(16, "number of noise tokens", at_least=0, at_most=2**20)
    noise: float = parameter(0.2, "share of the slots that are noise, below 1", at_least=0, at_most=0.99)
    supervise: Literal["queries", "all"] = parameter(
        "queries", "training labels: the questions, or the next token at every position; val and test: the questions"
    )
    distance: tuple[int, int] | None = parameter(
        None, "one question, whose key occurs once, this many tokens before (log-uniform); none: as published"
    )

    def check(self) -> None:
        if self.length % 2:
            self.refuse(f"length must be even, found {self.length}")
        least = 4 if self.distance else 2
        if self.vocab - self.noise_vocab < least:
            self.refuse(
                f"vocab must leave {least} tokens for keys and values beside noise_vocab={self.noise_vocab},"
                f" found {self.vocab}"
            )
        if self.noise > 0 and self.noise_vocab == 0:
            self.refuse(f"noise {self.noise} needs noise tokens, found noise_vocab=0")
        if self.distance is not None:
            low, high = self._pairs_back(self.distance)
            if not 1 <= low <= high <= self.length // 2 - 1 or self.distance[0] > self.distance[1]:
                self.refuse(
                    "distance must be two numbers, the first not above the second, that hold an even one and lie in"
                    f" 2..{self.length - 2}, found {list(self.distance)}"
                )

    @staticmethod
    def _pairs_back(distance: tuple[int, int]) -> tuple[int, int]:
        return (distance[0] + 1) // 2, distance[1] // 2

    @property
    def keys(self) -> int:
        """Number of different keys; the values begin with this token."""
        return (self.vocab - self.noise_vocab) // 2

    @property
    def plain(self) -> int:
        """Number of keys and values together; the noise begins with this token."""
        return self.vocab - self.noise_vocab

    @property
    def input(self) -> Spec:
        return Spec("token", self.length - 1, self.vocab)

    @property
    def draws(self) -> int:
        slots = self.length // 2 - 1
        return 2 + 4 * slots + self.keys

    def made(self, u: Uniforms) -> Batch:
        slots, rows = self.length // 2 - 1, np.arange(len(u))
        values = self.keys + u.whole(self.plain - self.keys, self.keys)
        noisy = u.take(slots) < self.noise
        key = u.whole(self.keys if self.distance is None else self.keys - 1, slots)
        noise = self.plain + u.whole(self.noise_vocab, 2 * slots)
        spared, chosen = u.take(1)[:, 0], u.take(1)
        if self.distance is None:
            spare = (spared * (slots + 1)).astype(np.int64)
            inside = spare < slots
            noisy[rows[inside], spare[inside]] = False
            query = _one_of(key, ~noisy, self.keys, chosen)
        else:
            low, high = self._pairs_back(self.distance)
            back = np.minimum((low * ((high + 1) / low) ** spared).astype(np.int64), high)
            query = (chosen[:, 0] * self.keys).astype(np.int64)
            key += key >= query[:, None]
            key[rows, slots - back] = query
            noisy[rows, slots - back] = False
        x = np.empty((len(u), self.length - 1), dtype=np.int64)
        x[:, 0:-1:2] = np.where(noisy, noise[:, ::2], key)
        x[:, 1::2] = np.where(noisy, noise[:, 1::2], np.take_along_axis(values, key, axis=1))
        x[:, -1] = query
        y = self.label_all(x)
        if self.supervise == "all" and not self.testing:
            y[:, :-1] = x[:, 1:]
        return Batch(x, y)

    def _last(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each slot, the slot where its key stood last, or -1, and how often it stood before."""
        key = x[:, ::2]
        return earlier(key, key < self.keys)

    def label_all(self, x: np.ndarray) -> np.ndarray:
        y = np.full(x.shape, IGNORED)
        y[:, ::2] = gathered(x[:, 1::2], self._last(x)[0])
        if self.distance is not None:
            y[:, :-1] = IGNORED
        return y

    def verify(self, tokens: np.ndarray) -> None:
        if len(tokens) % 2 == 0:
            self.refuse(f"an input is slots of two tokens and a last key, an odd length, found {len(tokens)}")
        first, second = tokens[:-1:2], tokens[1::2]
        pair, noise = first < self.keys, first >= self.plain
        fits = (pair & (second >= self.keys) & (second < self.plain)) | (noise & (second >= self.plain))
        if not fits.all():
            slot = int(fits.argmin())
            self.refuse(
                f"a slot holds a key (0..{self.keys - 1}) and a value ({self.keys}..{self.plain - 1}), or two noise"
                f" tokens; found {first[slot]} {second[slot]} at position {2 * slot}"
            )
        self.allow(tokens[-1:], 0, self.keys, "the last token is a key and", len(tokens) - 1)
        before, _ = self._last(tokens[None])
        changed = (before[0, :-1] >= 0) & (second[before[0, :-1]] != second)
        if changed.any():
            slot = int(changed.argmax())
            self.refuse(f"key {first[slot]} has two values, {second[before[0, slot]]} and {second[slot]}")

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value; the value beside the key's last occurrence, if that is at most 16 or 32 tokens back.

        The latter say how local the samples are; further back they give no answer.
        """
        windows = {f"window-{w}": self.rule(functools.partial(self._window, window=w)) for w in WINDOWS}
        return {"majority": self.majority(), **windows}

    def _window(self, x: np.ndarray, window: int) -> np.ndarray:
        last, _ = self._last(x)
        near = 2 * (np.arange(last.shape[1]) - last) <= window
        return spread(gathered(x[:, 1::2], np.where(near, last, -1)), x.shape, slice(0, None, 2))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance back to the key's last occurrence, and by its occurrences so far, both in octaves."""
        last, count = self._last(batch.x)
        distance = np.where(last >= 0, 2 * (np.arange(last.shape[1]) - last), 0)
        even = slice(0, None, 2)
        return {
            "distance": spread(octave(distance), batch.y.shape, even),
            "occurrences": spread(octave(count), batch.y.shape, even),
        }

    def tests(self) -> Mapping[str, Task]:
        """2, 4 and 8 times the length; other shares of noise."""
        shares = {f"noise-{share:g}": {"noise": share} for share in NOISE_TESTS if share != self.noise}
        return {**self.scaled("length"), **self.further(shares)}

    def text(self, batch: Batch, index: int) -> str:
        """Pairs as ``key:value``, noise as dots, the last key with its answer; ``*`` marks what is asked before it."""
        x = batch.x[index].tolist()
        y = self.label_all(batch.x[index : index + 1])[0]
        slots = (
            f"{x[t]}:{x[t + 1]}{'*' if y[t] >= 0 else ''}" if x[t] < self.keys else ". ."
            for t in range(0, len(x) - 1, 2)
        )
        return f"{' '.join(slots)} => {x[-1]}={y[-1]}"


def _one_of(key: np.ndarray, there: np.ndarray, keys: int, u: np.ndarray) -> np.ndarray:
    """A key uniform among those of ``key`` where ``there`` is True, of all if it is True nowhere; ``(batch,)``."""
    present = np.zeros((len(key), keys), dtype=bool)
    row, slot = np.nonzero(there)
    present[row, key[row, slot]] = True
    present |= ~present.any(axis=1, keepdims=True)
    rank = np.cumsum(present, axis=1)
    chosen: np.ndarray = (rank > (u * rank[:, -1:]).astype(np.int64)).argmax(axis=1)
    return chosen


Tokens = tuple[int, ...]


@registry.register("fuzzy-recall")
@dataclass(frozen=True)
class FuzzyRecall(UniformTask):
    """As ``noisy-recall``, without noise, with keys and values of several adjacent tokens.

    Keys and values are made of different tokens. A key keeps its value in the sample. Labelled are the values of keys
    seen before: their first token at the key's last token, each further one at the value's token before it.

    ``law="mad"``: with n = ``vocab`` - 1, K = ``key_tokens``, W = ``value_tokens`` and L = ``length``, keys are ordered
    tuples of distinct tokens of 0..n//2-1, values of n//2..n-1, and n is padding. In training every pair has a key of
    1..K and a value of 1..W tokens, uniformly; in validation and test all keys have K tokens. A probe pair of k + v
    tokens is drawn first, and a place p, uniform over 0..L-2(k+v)-1. Pairs are appended while fewer than
    L-(k+v)-(K+W) tokens stand; the probe goes in as soon as p tokens stand, unless its key came by itself. Then the
    probe stands once more, padding on the left fills up to L + 1, and the last token is cut off. In training the next
    token is the label everywhere. Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures" (MAD,
    arXiv:2403.17844), section 3. Two flaws: in training the end of a key cannot be known, as a pair may be a key and
    the beginning of a key, so ``answer`` looks one token ahead there; and in 2 % of the test samples the probe stands
    at the end only, which has no answer: no label here, a label in the source.

    ``law="grid"``, ours: two distinct letters of ``letters`` are drawn for each of the K places of a key; all 2^K
    combinations are keys, each with W letters of its own, uniform. L/(K + W) pairs, their keys uniform with
    replacement. Training labels the questions alone. No proper part of a key tells it from all others: with random
    keys in place of the grid the last two letters answer 96 %.

    >>> task = FuzzyRecall(law="grid", length=10, value_tokens=2)
    >>> task.answer([1, 4, 2, 9, 13, 1, 4, 2, 9, 13]).tolist()
    [-100, -100, -100, -100, -100, -100, -100, 9, 13, -100]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    presets: ClassVar[Presets] = {
        "small": {"law": "grid", "length": 125, "key_tokens": 3, "value_tokens": 2, "letters": 8},
        "paper": {"length": 128, "vocab": 16, "key_tokens": 3, "value_tokens": 3, **PROTOCOL},
    }

    law: Literal["mad", "grid"] = parameter("mad", "how pairs are drawn")
    length: int = parameter(
        128, "sequence length; grid: a multiple of key_tokens + value_tokens", at_least=2, at_most=MAX_LENGTH
    )
    vocab: int = parameter(16, "mad: tokens of keys and values, and padding", at_least=3, at_most=2**20)
    key_tokens: int = parameter(3, "tokens of a key; mad, in training: at most", at_least=1, at_most=8)
    value_tokens: int = parameter(3, "tokens of a value; mad: at most", at_least=1, at_most=8)
    letters: int = parameter(8, "grid: letters of keys, and as many of values", at_least=2, at_most=2**16)

    def check(self) -> None:
        if self.law == "grid":
            if self.length % self.pair:
                self.refuse(
                    f"length must be a multiple of key_tokens + value_tokens ({self.pair}) with law 'grid',"
                    f" found {self.length}"
                )
            return
        for what, count, most in (
            ("keys", self.first_value, self.key_tokens),
            ("values", self._letters_of_values, self.value_tokens),
        ):
            if count < most:
                self.refuse(f"vocab {self.vocab} has {count} tokens for {what}, too few for {most} distinct ones")
        if self.length <= 2 * self.pair:
            self.refuse(f"length must be above 2(key_tokens + value_tokens) = {2 * self.pair}, found {self.length}")

    @property
    def pair(self) -> int:
        """Most tokens of a pair."""
        return self.key_tokens + self.value_tokens

    @property
    def first_value(self) -> int:
        """The first token of values; keys have those below."""
        return self.letters if self.law == "grid" else (self.vocab - 1) // 2

    @property
    def _letters_of_values(self) -> int:
        return self.letters if self.law == "grid" else self.vocab - 1 - self.first_value

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, 2 * self.letters if self.law == "grid" else self.vocab)

    @property
    def draws(self) -> int:
        if self.law == "grid":
            return 2 * self.key_tokens + (1 << self.key_tokens) * self.value_tokens + self.length // self.pair
        return 1 + (2 + self.pair) * self._most_pairs

    @property
    def _most_pairs(self) -> int:
        """More pairs than a sample of law ``mad`` can hold."""
        return self.length // 2 + 2

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
        values = self.letters + u.whole(self.letters, 2**self.key_tokens * self.value_tokens).reshape(
            rows, 2**self.key_tokens, self.value_tokens
        )
        which = u.whole(2**self.key_tokens, slots)
        row = np.arange(rows)[:, None]
        key = letters[row[..., None], places, which[..., None] >> places & 1]
        return np.concatenate([key, values[row, which]], axis=-1).reshape(rows, self.length)

    def _mad(self, u: Uniforms) -> np.ndarray:
        """Tokens with padding and with the last one, ``(batch, length + 1)``."""
        count = self._most_pairs
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
        """One sample from its pairs, of which the first is the probe."""
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
        """Each showing of a pair: key, value, and the position of the value's first token."""
        found = []
        at = 0
        while at < len(tokens) and tokens[at] >= self.first_value:  # padding
            at += 1
        while at < len(tokens):
            begin = at
            while at < len(tokens) and tokens[at] < self.first_value:
                at += 1
            middle = at
            while at < len(tokens) and tokens[at] >= self.first_value:
                at += 1
            found.append((tuple(tokens[begin:middle]), tuple(tokens[middle:at]), middle))
        return found

    def _questions(self, tokens: list[int]) -> list[tuple[int, Tokens, int]]:
        """Each showing of a key that stood before: position of its last token, its value, how often it stood."""
        table: dict[Tokens, list[tuple[Tokens, int]]] = {}
        found = []
        for key, value, middle in self._showings(tokens):
            before = table.setdefault(key, [])
            if before:
                found.append((middle - 1, before[0][0], len(before)))
            before.append((value, middle))
        return found

    def label(self, x: np.ndarray) -> np.ndarray:
        y = np.full(x.shape, IGNORED)
        for at, value, _ in self._questions(x.tolist()):
            y[at : at + len(value)] = value[: len(y) - at]
        return y

    def verify(self, tokens: np.ndarray) -> None:
        """Pairs one after the other, padding only before the first, the last one possibly cut."""
        listed = tokens.tolist()
        padding = self.input.width if self.law == "grid" else self.vocab - 1
        begin = next((at for at, token in enumerate(listed) if token != padding), len(listed))
        self.allow(tokens[begin:], 0, padding, "tokens after the padding", begin)
        showings = self._showings(listed)
        if listed[begin:] and (not showings or showings[0][2] - len(showings[0][0]) != begin):
            self.refuse(f"a key must come first, found the value's token {listed[begin]} at position {begin}")
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

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent token; with law ``grid`` the value of a key that ends in the same one or two letters."""
        found: dict[str, Baseline] = {"majority": self.majority()}
        if self.law == "grid":
            for name, letters in (("last-letter", 1), ("last-two", 2)):
                if letters < self.key_tokens:
                    found[name] = self.rule(functools.partial(self._alike, letters=letters))
        return found

    def _alike(self, x: np.ndarray, letters: int) -> np.ndarray:
        """The value of a key drawn at random among those seen that end in the same letters."""
        random = np.random.default_rng(0)
        guess = np.zeros(x.shape, dtype=np.int64)
        for row, tokens in zip(guess, x.tolist(), strict=True):
            seen: dict[Tokens, dict[Tokens, Tokens]] = {}
            for key, value, middle in self._showings(tokens):
                alike = seen.setdefault(key[-letters:], {})
                if alike:
                    chosen = list(alike.values())[int(random.random() * len(alike))]
                    row[middle - 1 : middle - 1 + len(chosen)] = chosen[: len(row) - middle + 1]
                alike.setdefault(key, value)
        return guess

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By how often the key stood before, and by the place of the token in the value, from 0."""
        occurrences, place = np.zeros_like(batch.y), np.zeros_like(batch.y)
        for row, tokens in enumerate(batch.x.tolist()):
            for at, value, count in self._questions(tokens):
                occurrences[row, at : at + len(value)] = count
                place[row, at : at + len(value)] = np.arange(len(value))[: batch.y.shape[1] - at]
        return {"occurrences": occurrences, "place": place}

    def text(self, batch: Batch, index: int) -> str:
        """The pairs as ``key:value``, tokens joined by commas; ``*`` marks the ones that are asked."""
        tokens = batch.x[index].tolist()
        asked = {at + 1 for at, _, _ in self._questions(tokens)}

        def joined(part: Tokens) -> str:
            return ",".join(map(str, part))

        return " ".join(
            f"{joined(key)}:{joined(value)}{'*' if middle in asked else ''}"
            for key, value, middle in self._showings(tokens)
        )


def _distinct(u: Uniforms, limit: int, count: int, size: int) -> np.ndarray:
    """``count`` ordered choices of ``size`` distinct numbers of 0..limit-1, ``(batch, count, size)``."""
    found = np.empty((len(u), count, size), dtype=np.int64)
    for taken in range(size):
        token = u.whole(limit - taken, count)
        before = np.sort(found[..., :taken], axis=-1)
        for other in range(taken):  # skip the numbers that are taken, from the least
            token += token >= before[..., other]
        found[..., taken] = token
    return found
