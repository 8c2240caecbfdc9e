"""What tasks of tokens share: checked inputs, samples made from uniform draws, earlier occurrences of a key."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.generators.base import Split, Task, budget
from lrtasks.generators.baselines import MajorityClass, Rule
from lrtasks.spec import IGNORED, Batch, Sample, Spec

MAD_PROTOCOL = budget(
    steps=20_000,
    batch_size=128,
    lr=5e-4,
    schedule="cosine",
    train_samples=12_800,
    eval_every=1_000,
    val_batches=10,
    test_batches=10,
)
"""One setting of the protocol of MAD (Poli et al., arXiv:2403.17844; mad/configs.py): 200 epochs of 12,800 samples and
1,280 test samples. MAD takes the best of three learning rates (1e-4, 5e-4, 1e-3) and two weight decays (0, 0.1)."""


@dataclass(frozen=True)
class TokenTask(Task):
    """A task on tokens that answers inputs of the user's; a subclass writes :meth:`label` or :meth:`label_all`.

    Class attributes:
        grows: parameters that the further tests take 2, 4 and 8 times; none: there are no such tests.
        testing: True while validation or test samples are drawn, whose law or labels differ in some tasks.
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"
    grows: ClassVar[tuple[str, ...]] = ()
    testing: ClassVar[bool] = False

    @property
    def target(self) -> Spec:
        """By default a token of the input's vocabulary at each position."""
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
        """The labels of the questions in one input ``(length,)``, of any length that the task's form allows.

        Raises:
            UsageError: for another shape, a token outside the vocabulary, or tokens that are not an input of the task.
        """
        tokens = self.sequence(x)
        self.verify(tokens)
        return self.label(tokens)

    def verify(self, tokens: np.ndarray) -> None:
        """Raise :class:`UsageError` unless ``tokens``, all in the vocabulary, are an input of the task."""

    def label_all(self, x: np.ndarray) -> np.ndarray:
        """The labels of the questions in inputs ``(batch, length)``, which are not checked."""
        return np.stack([self.label(row) for row in x])

    def label(self, x: np.ndarray) -> np.ndarray:
        """The labels of the questions in one input, which is not checked, except where finding the labels checks it."""
        y: np.ndarray = self.label_all(x[None])[0]
        return y

    def rule(self, guess: Callable[[np.ndarray], np.ndarray]) -> Rule:
        """The predictor ``guess`` of this task's classes."""
        return Rule(guess, self.target.width)

    def majority(self) -> MajorityClass:
        """The most frequent answer, whatever else training labels."""
        return MajorityClass(self.target.width, self.label_all)

    def tests(self) -> Mapping[str, Task]:
        return self.scaled(*self.grows) if self.grows else {}

    def span(self, name: str) -> tuple[int, int]:
        """Least and greatest of a parameter that is one number or two; a :class:`UsageError` if they do not rise."""
        given = getattr(self, name)
        low, high = given if isinstance(given, tuple) else (given, given)
        if low > high:
            self.refuse(f"{name} must not begin above its end, found [{low}, {high}]")
        return low, high

    def sequence(self, x: Any) -> np.ndarray:
        """``x`` as one sequence ``(length,)`` of int64 tokens; :class:`UsageError` for anything else."""
        try:
            found = np.asarray(x)
        except ValueError:
            self.refuse("an input is one sequence of tokens, found a ragged list")
        if found.ndim != 1 or found.size == 0:
            self.refuse(f"an input is one sequence of tokens, of shape (length,), found shape {found.shape}")
        if found.dtype.kind not in "iu":
            self.refuse(f"tokens must be whole numbers, found {found.dtype}")
        self.allow(found, 0, self.input.width, "tokens")
        return found.astype(np.int64)

    def divide(self, tokens: np.ndarray, size: int) -> None:
        """Raise :class:`UsageError` unless ``tokens`` are groups of ``size``."""
        if len(tokens) % size:
            self.refuse(f"the length of an input is a multiple of {size}, found {len(tokens)} tokens")

    def allow(self, tokens: np.ndarray, low: int, high: int, what: str, first: int = 0, step: int = 1) -> None:
        """Raise :class:`UsageError` unless ``tokens``, the input from ``first`` by ``step``, lie in low..high-1."""
        outside = (tokens < low) | (tokens >= high)
        if outside.any():
            at = int(outside.argmax())
            self.refuse(f"{what} must be in {low}..{high - 1}, found {tokens[at]} at position {first + step * at}")


@dataclass(frozen=True)
class UniformTask(TokenTask):
    """A task whose sample is a function of ``draws`` uniform numbers, computed for a whole batch at once."""

    @property
    def draws(self) -> int:
        """How many uniform numbers of [0, 1) make one sample."""
        raise NotImplementedError

    def made(self, u: Uniforms) -> Batch:
        """The samples that the numbers ``u`` make, each from its own row alone."""
        raise NotImplementedError

    def samples(self, rngs: Iterable[np.random.Generator]) -> Batch:
        return self.made(Uniforms(np.stack([rng.random(self.draws) for rng in rngs])))

    def sample(self, rng: np.random.Generator) -> Sample:
        batch = self.samples([rng])
        return Sample(batch.x[0], batch.y[0], None if batch.mask is None else batch.mask[0])


class Uniforms:
    """Uniform numbers of [0, 1), ``(batch, draws)``, taken from left to right."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers, self._used = numbers, 0

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, count: int) -> np.ndarray:
        """The next ``count`` numbers of each sample, ``(batch, count)``."""
        self._used += count
        return self._numbers[:, self._used - count : self._used]

    def whole(self, limit: int | np.ndarray, count: int) -> np.ndarray:
        """``count`` whole numbers, uniform over 0..limit-1; ``(batch, count)``."""
        return (self.take(count) * limit).astype(np.int64)

    def order(self, count: int) -> np.ndarray:
        """The numbers 0..count-1 in random order, ``(batch, count)``."""
        return np.argsort(self.take(count), axis=1, kind="stable")

    def distinct(self, limit: int, count: int) -> np.ndarray:
        """``count`` distinct numbers of 0..limit-1 in random order, ``(batch, count)``: a shuffle that stops early."""
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
    """Where each key was written before.

    Args:
        keys: ``(batch, n)`` whole numbers of at least 0.
        writes: bool, ``(batch, n)``: where the key is written; everywhere by default.
        back: 1 for the last write, 2 for the one before it, ...; a number, or ``(batch, n)``.

    Returns:
        Two arrays ``(batch, n)``: the position of the ``back``-th last write of the same key before each position, or
        -1 if there is none; and how many writes of the same key stand before each position.
    """
    rows, n = keys.shape
    marks = np.ones(keys.shape, dtype=bool) if writes is None else np.broadcast_to(writes, keys.shape)
    flat = (keys + (int(keys.max()) + 1) * np.arange(rows)[:, None]).ravel()
    order = np.argsort(flat, kind="stable")  # groups of equal keys of one row, each in order of position
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
    """``values[row, index]`` of each row; ``otherwise`` where ``index`` is negative."""
    return np.where(index >= 0, np.take_along_axis(values, np.maximum(index, 0), axis=1), otherwise)


def spread(values: np.ndarray, shape: tuple[int, ...], positions: slice) -> np.ndarray:
    """Zeros of ``shape`` with ``values`` at ``positions`` of the last axis: labels of slices; int64."""
    labels = np.zeros(shape, dtype=np.int64)
    labels[:, positions] = values
    return labels


def without_padding(tokens: np.ndarray, pad: int) -> np.ndarray:
    """``tokens`` up to the last one that is not ``pad``."""
    valid = np.flatnonzero(tokens != pad)
    return tokens[: valid[-1] + 1] if len(valid) else tokens[:0]


def padded_sample(x: Sequence[int] | np.ndarray, y: np.ndarray, length: int, pad: int) -> Sample:
    """A sample of ``length`` positions: ``x`` and its labels ``y``, then the token ``pad``, where the mask is False."""
    tokens, labels, mask = np.full(length, pad), np.full(length, IGNORED), np.zeros(length, dtype=bool)
    tokens[: len(x)], labels[: len(y)], mask[: len(x)] = x, y, True
    return Sample(tokens, labels, mask)


def last_where(condition: np.ndarray) -> np.ndarray:
    """For each position of the last axis, the last position up to it where ``condition`` holds; -1 if there is none.

    >>> last_where(np.array([False, True, False, False, True])).tolist()
    [-1, 1, 1, 1, 4]
    """
    positions = np.where(condition, np.arange(condition.shape[-1]), -1)
    return np.maximum.accumulate(positions, axis=-1)
