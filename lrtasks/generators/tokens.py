"""Shared parts of token tasks: checks of inputs, samples made from uniform numbers, search for earlier keys."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.generators.base import Split, Task, budget
from lrtasks.generators.baselines import MajorityClass, Rule
from lrtasks.spec import IGNORED, Batch, Sample, Spec

MAD_PROTOCOL = budget(steps=20_000, batch_size=128, lr=5e-4, schedule="cosine", train_samples=12_800)
MAD_PROTOCOL |= budget(eval_every=1_000, val_batches=10, test_batches=10)
"""One run of the MAD protocol (Poli et al., arXiv:2403.17844; mad/configs.py): 200 epochs of 12,800 samples, and
1,280 test samples. MAD selects the best of three learning rates (1e-4, 5e-4, 1e-3) and two weight decays (0, 0.1)."""


@dataclass(frozen=True)
class TokenTask(Task):
    """Base of token tasks that can also answer a user's input; a subclass writes :meth:`label` or :meth:`label_all`.

    Class attributes:
        testing: True while validation or test samples are drawn; some tasks then use another distribution or other
            labels.
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"
    any_length: ClassVar[bool] = True
    testing: ClassVar[bool] = False

    @property
    def target(self) -> Spec:
        """Spec of the output; by default a token of the input's vocabulary at each position."""
        return self.input

    def batch(
        self, indices: Sequence[int] | np.ndarray, seed: int = 0, split: Split = "train", *, attempt: int = 0
    ) -> Batch:
        return Task.batch(self if split == "train" else self._tested, indices, seed, split, attempt=attempt)

    @functools.cached_property
    def _tested(self) -> Task:
        task = copy.copy(self)
        object.__setattr__(task, "testing", True)
        return task

    def answer(self, x: np.ndarray) -> np.ndarray:
        """Return the labels of the questions in one input ``(length,)``; each length that fits the task is allowed.

        Raises:
            UsageError: for another shape, a token outside the vocabulary, or tokens that are not an input of the task.
        """
        tokens = self.checked_input(x)
        self.verify(tokens)
        return self.label(tokens)

    def verify(self, tokens: np.ndarray) -> None:
        """Raise :class:`UsageError` unless ``tokens``, all in the vocabulary, form an input of the task."""

    def label_all(self, x: np.ndarray) -> np.ndarray:
        """Return the labels of the questions in inputs ``(batch, length)`` without checking the inputs."""
        return np.stack([self.label(row) for row in x])

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the labels of the questions in one unchecked input; refuse the input if no labels can be found."""
        return self.label_all(x[None])[0]

    def rule(self, guess: Callable[..., np.ndarray], **options: Any) -> Rule:
        """Return a baseline that predicts ``guess(x, **options)`` among the classes of this task."""
        return Rule(functools.partial(guess, **options), self.target.width)

    def majority(self) -> MajorityClass:
        """Return a baseline that predicts the most frequent answer; it ignores all other labels used in training."""
        return MajorityClass(self.target.width, self.label_all)

    def span(self, name: str) -> tuple[int, int]:
        """Return the minimum and maximum of a parameter that is one number or a pair; refuse a descending pair."""
        given = getattr(self, name)
        low, high = given if isinstance(given, tuple) else (given, given)
        if low > high:
            self.refuse(f"{name} must be a minimum and a maximum in this order, found [{low}, {high}]")
        return low, high

    def divide(self, tokens: np.ndarray, size: int) -> None:
        """Raise :class:`UsageError` unless ``tokens`` can be divided into groups of ``size`` tokens."""
        if len(tokens) % size:
            self.refuse(f"the length of an input is a multiple of {size}, found {len(tokens)} tokens")

    def allow(self, tokens: np.ndarray, low: int, high: int, what: str, first: int = 0, step: int = 1) -> None:
        """Raise :class:`UsageError` unless ``tokens`` (input positions first, first + step, ...) are in low..high-1."""
        outside = (tokens < low) | (tokens >= high)
        if outside.any():
            at = int(outside.argmax())
            self.refuse(f"{what} must be in {low}..{high - 1}, found {tokens[at]} at position {first + step * at}")


@dataclass(frozen=True)
class UniformTask(TokenTask):
    """Base of tasks that compute a whole batch at once; each sample is a function of ``draws`` uniform numbers."""

    @functools.cached_property
    def draws(self) -> int:
        """Number of uniform numbers in [0, 1) that make one sample, counted while a sample is made of zeros."""
        zeros = Uniforms(np.broadcast_to(0.0, (1, 2**40)))
        self.made(zeros)
        return zeros.used

    def made(self, u: Uniforms) -> Batch:
        """Return the samples made from the numbers ``u``; each sample depends only on its own row of ``u``."""
        raise NotImplementedError

    def samples(self, rngs: Iterable[np.random.Generator]) -> Batch:
        return self.made(Uniforms(np.stack([rng.random(self.draws) for rng in rngs])))


class Uniforms:
    """Uniform numbers in [0, 1), ``(batch, draws)``; each method uses the next columns; ``used`` counts them."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers, self.used = numbers, 0

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, count: int) -> np.ndarray:
        """Return the next ``count`` numbers of each sample, ``(batch, count)``."""
        self.used += count
        return self._numbers[:, self.used - count : self.used]

    def whole(self, limit: int | np.ndarray, count: int) -> np.ndarray:
        """Return ``count`` whole numbers per sample, uniform over 0..limit-1; ``(batch, count)``."""
        return (self.take(count) * limit).astype(np.int64)

    def order(self, count: int) -> np.ndarray:
        """Return the numbers 0..count-1 in random order, ``(batch, count)``."""
        return np.argsort(self.take(count), axis=1, kind="stable")

    def distinct(self, limit: int, count: int) -> np.ndarray:
        """Return ``count`` distinct random numbers of 0..limit-1, ``(batch, count)``, by a shuffle that stops early."""
        rows, pool = np.arange(len(self)), np.tile(np.arange(limit), (len(self), 1))
        place = np.arange(count) + self.whole(limit - np.arange(count), count)
        found = np.empty(place.shape, dtype=np.int64)
        for step in range(count):
            found[:, step] = pool[rows, place[:, step]]
            pool[rows, place[:, step]] = pool[:, step]
        return found


def earlier(
    keys: np.ndarray, writes: np.ndarray | None = None, back: int | np.ndarray = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Find, for each position, an earlier write of the key at that position.

    Args:
        keys: ``(batch, n)`` whole numbers of at least 0.
        writes: bool, ``(batch, n)``: True where the key is written; ``None``: at every position.
        back: 1 for the last write, 2 for the last but one, ...; a number, or ``(batch, n)``.

    Returns:
        Two arrays ``(batch, n)``: the position of the ``back``-th last write of the same key before each position, or
        -1 if there is none; and the number of writes of the same key before each position.
    """
    rows, n = keys.shape
    marks = np.ones(keys.shape, dtype=bool) if writes is None else np.broadcast_to(writes, keys.shape)
    flat = (keys + (int(keys.max()) + 1) * np.arange(rows)[:, None]).ravel()
    order = np.argsort(flat, kind="stable")  # groups equal keys of one row; each group is ordered by position
    group, marked = flat[order], marks.ravel()[order]
    before = np.cumsum(marked) - marked
    begins = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    count = before - np.repeat(before[begins], np.diff(np.r_[begins, len(group)]))
    wanted = np.broadcast_to(back, keys.shape).ravel()[order]
    there = (count >= wanted) & (wanted > 0)
    found = np.full(len(group), -1)
    found[there] = order[np.flatnonzero(marked)[(before - wanted)[there]]] % n
    last, counts = np.empty_like(found), np.empty_like(count)
    last[order], counts[order] = found, count
    return last.reshape(rows, n), counts.reshape(rows, n)


def gathered(values: np.ndarray, index: np.ndarray, otherwise: int = IGNORED) -> np.ndarray:
    """Return ``values[row, index]`` for each row, and ``otherwise`` where ``index`` is negative."""
    return np.where(index >= 0, np.take_along_axis(values, np.maximum(index, 0), axis=1), otherwise)


def spread(values: np.ndarray, shape: tuple[int, ...], positions: slice) -> np.ndarray:
    """Return int64 labels for a slice: zeros of ``shape`` with ``values`` at ``positions`` of the second axis."""
    labels = np.zeros(shape, dtype=np.int64)
    labels[:, positions] = values
    return labels


Words = Iterable[tuple[int, Sequence[int] | np.ndarray]]
"""Runs of tokens of one row, each with the position of its first token."""


def placed(shape: tuple[int, ...], rows: Iterable[Words], fill: int = 0) -> np.ndarray:
    """Return an int64 array of ``shape``: in each row the given words from their positions on, ``fill`` elsewhere.

    A word that is too long for the row is cut.

    >>> placed((1, 6), [[(1, (7, 8)), (5, (9, 9))]]).tolist()
    [[0, 7, 8, 0, 0, 9]]
    """
    found = np.full(shape, fill)
    for row, words in zip(found, rows, strict=True):
        for at, word in words:
            row[at : at + len(word)] = word[: len(row) - at]
    return found


def without_padding(tokens: np.ndarray, pad: int) -> np.ndarray:
    """Return ``tokens`` up to the last token that is not ``pad``."""
    valid = np.flatnonzero(tokens != pad)
    return tokens[: valid[-1] + 1] if len(valid) else tokens[:0]


def padded_sample(x: Sequence[int] | np.ndarray, y: Sequence[int] | np.ndarray, length: int, pad: int) -> Sample:
    """Return a sample of ``length`` positions: ``x`` with labels ``y``, then padding ``pad`` with mask False."""
    tokens, labels, mask = np.full(length, pad), np.full(length, IGNORED), np.zeros(length, dtype=bool)
    tokens[: len(x)], labels[: len(y)], mask[: len(x)] = x, y, True
    return Sample(tokens, labels, mask)


def last_where(condition: np.ndarray) -> np.ndarray:
    """Return, for each position p of the last axis, the last position up to p where ``condition`` holds; else -1.

    >>> last_where(np.array([False, True, False, False, True])).tolist()
    [-1, 1, 1, 1, 4]
    """
    positions = np.where(condition, np.arange(condition.shape[-1]), -1)
    return np.maximum.accumulate(positions, axis=-1)


def letter(number: int) -> str:
    """Name a token in texts: a, b, ..., z, #26, #27, ..."""
    return chr(ord("a") + number) if number < 26 else f"#{number}"
