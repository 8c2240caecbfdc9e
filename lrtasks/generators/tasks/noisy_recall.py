from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import MAD_PROTOCOL, Uniforms, UniformTask, earlier, gathered, spread
from lrtasks.spec import IGNORED, Batch, Spec

WINDOWS = (16, 32)
NOISE_TESTS = (0.0, 0.4, 0.6, 0.8)


@registry.register("noisy-recall")
@dataclass(frozen=True)
class NoisyRecall(UniformTask):
    """At every key that occurred before, return its value; noise tokens lie between the pairs.

    Let n = ``vocab`` - ``noise_vocab``. Keys are tokens 0..n/2-1, values n/2..n-1, noise n..``vocab``-1. A sample is
    ``length``/2 slots of two tokens. One slot, drawn uniformly, is never noise. Each other slot is noise with
    probability ``noise``: two noise tokens, drawn independently. The remaining slots are pairs: a key, uniform with
    replacement, and its value, which is uniform for each key and stays the same in the sample. The last slot is a key
    drawn uniformly among the keys that occurred; its value is cut off, so the input has ``length`` - 1 tokens. Every
    key that occurred before is labelled. Source: Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures"
    (MAD, arXiv:2403.17844), section 3; with ``noise=0`` this is MAD's in-context recall.

    The task is local. At the published noise and vocabulary, and at any length, half of the labels have their key
    within 14 tokens and 99 % within 90 tokens. With ``distance`` a sample has one query, at the end; its key occurs
    once before, at that distance.

    >>> NoisyRecall().answer([2, 10, 20, 17, 5, 9, 2, 10, 5]).tolist()
    [-100, -100, -100, -100, -100, -100, 10, -100, 9]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"length": 128, "vocab": 64, "noise": 0.4, **budget(batch_size=32, steps=1500)},
        "small-hard": {"length": 128, "vocab": 32, "noise": 0.4, **budget(batch_size=32)},
        "paper": {"length": 128, "vocab": 32, "noise": 0.2, "supervise": "all", **MAD_PROTOCOL},
    }

    length: int = parameter(
        128, "even length; it counts the last value, which is not in the input", at_least=4, at_most=MAX_LENGTH
    )
    vocab: int = parameter(32, "vocabulary size, noise included", at_least=2, at_most=2**20)
    noise_vocab: int = parameter(16, "number of noise tokens", at_least=0, at_most=2**20)
    noise: float = parameter(0.2, "probability that a slot is noise, below 1", at_least=0, at_most=0.99)
    supervise: Literal["queries", "all"] = parameter(
        "queries", "training labels: the queries, or the next token at every position; val and test: the queries"
    )
    distance: tuple[int, int] | None = parameter(
        None, "one query; its key occurs once, this many tokens earlier (log-uniform); none: as published"
    )

    def check(self) -> None:
        if self.length % 2:
            self.refuse(f"length must be even, found {self.length}")
        smallest = 4 if self.distance else 2
        if self.vocab - self.noise_vocab < smallest:
            self.refuse(f"vocab must be at least noise_vocab ({self.noise_vocab}) + {smallest}, found {self.vocab}")
        if self.noise > 0 and self.noise_vocab == 0:
            self.refuse(f"noise {self.noise} needs noise tokens, found noise_vocab=0")
        if self.distance is not None:
            low, high = self._pairs_back(self.distance)
            if not 1 <= low <= high <= self.length // 2 - 1 or self.distance[0] > self.distance[1]:
                limits = f"1..{self.length - 1}, in ascending order, with an even number in their range"
                self.refuse(f"distance must be two numbers in {limits}, found {list(self.distance)}")

    @staticmethod
    def _pairs_back(distance: tuple[int, int]) -> tuple[int, int]:
        return (distance[0] + 1) // 2, distance[1] // 2

    @property
    def keys(self) -> int:
        """Number of different keys, which is also the first value token."""
        return (self.vocab - self.noise_vocab) // 2

    @property
    def plain(self) -> int:
        """Number of keys and values together, which is also the first noise token."""
        return self.vocab - self.noise_vocab

    @property
    def input(self) -> Spec:
        return Spec("token", self.length - 1, self.vocab)

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
        """Return for each slot the previous slot of its key, or -1, and the number of earlier occurrences."""
        key = x[:, ::2]
        return earlier(key, key < self.keys)

    def label_all(self, x: np.ndarray) -> np.ndarray:
        y = np.full(x.shape, IGNORED)
        y[:, ::2] = gathered(x, 2 * self._last(x)[0] + 1)
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
            allowed = f"a key (0..{self.keys - 1}) and a value ({self.keys}..{self.plain - 1})"
            shown = f"{first[slot]} {second[slot]} at position {2 * slot}"
            self.refuse(f"a slot holds {allowed}, or two noise tokens; found {shown}")
        self.allow(tokens[-1:], 0, self.keys, "the last token is a key and", len(tokens) - 1)
        before, _ = self._last(tokens[None])
        changed = (before[0, :-1] >= 0) & (second[before[0, :-1]] != second)
        if changed.any():
            slot = int(changed.argmax())
            self.refuse(f"key {first[slot]} has two values, {second[before[0, slot]]} and {second[slot]}")

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent value, and the value at the key's last occurrence, at most 16 or 32 tokens back.

        The window baselines show how local the samples are; they predict class 0 if the key was only farther back. A
        window of more than half the sequence is left out.
        """
        windows = {f"window-{w}": self.rule(self._window, window=w) for w in WINDOWS if 2 * w <= self.length}
        return {"majority": self.majority(), **windows}

    def _window(self, x: np.ndarray, window: int) -> np.ndarray:
        last, _ = self._last(x)
        near = 2 * (np.arange(last.shape[1]) - last) <= window
        return spread(gathered(x[:, 1::2], np.where(near, last, -1)), x.shape, slice(0, None, 2))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance to the key's last occurrence and by its earlier occurrences, in octaves."""
        last, count = self._last(batch.x)
        distance = np.where(last >= 0, 2 * (np.arange(last.shape[1]) - last), 0)
        labels = {"distance": octave(distance), "occurrences": octave(count)}
        return {name: spread(values, batch.y.shape, slice(0, None, 2)) for name, values in labels.items()}

    def tests(self) -> dict[str, Task]:
        """Return tests at 2, 4 and 8 times the length, and with other shares of noise."""
        shares = {f"noise-{share:g}": {"noise": share} for share in NOISE_TESTS if share != self.noise}
        return {**self.scaled("length"), **self.further(shares)}

    def text(self, batch: Batch, index: int) -> str:
        """Return pairs as ``key:value``, noise as dots, the last key with its answer, or ``?`` if there is none.

        ``*`` marks earlier queries.
        """
        x = batch.x[index].tolist()
        y = self.label_all(batch.x[index : index + 1])[0].tolist()
        pairs = [f"{x[t]}:{x[t + 1]}{'*' * (y[t] >= 0)}" for t in range(0, len(x) - 1, 2)]
        slots = (pair if key < self.keys else ". ." for pair, key in zip(pairs, x[::2], strict=False))
        return f"{' '.join(slots)} => {x[-1]}={y[-1] if y[-1] >= 0 else '?'}"


def _one_of(key: np.ndarray, there: np.ndarray, keys: int, u: np.ndarray) -> np.ndarray:
    """Draw a key uniformly from ``key`` where ``there`` is True, or from all keys if it never is; ``(batch,)``."""
    present = np.zeros((len(key), keys), dtype=bool)
    row, slot = np.nonzero(there)
    present[row, key[row, slot]] = True
    present |= ~present.any(axis=1, keepdims=True)
    rank = np.cumsum(present, axis=1)
    return (rank > (u * rank[:, -1:]).astype(np.int64)).argmax(axis=1)
