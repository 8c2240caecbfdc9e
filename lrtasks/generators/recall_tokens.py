"""What the tasks on lookups share: samples made from uniform draws, earlier occurrences of a key, checked inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.base import Split, Task
from lrtasks.generators.baselines import MajorityClass
from lrtasks.generators.octaves import octave
from lrtasks.spec import IGNORED, Batch, Sample

MAD_BUDGET: dict[str, Any] = {
    "budget.steps": 20_000,
    "budget.batch_size": 128,
    "budget.lr": 5e-4,
    "budget.schedule": "cosine",
    "budget.train_samples": 12_800,
    "budget.eval_every": 1_000,
    "budget.val_batches": 10,
    "budget.test_batches": 10,
}
"""One setting of the MAD protocol (mad/configs.py): 200 epochs of 12,800 samples, 1,280 test samples. MAD takes the
best of three learning rates (1e-4, 5e-4, 1e-3) and two weight decays (0, 0.1)."""


@dataclass(frozen=True)
class TokenTask(Task):
    """A task on tokens that answers inputs of the user's.

    Class attributes:
        testing: True while validation or test samples are drawn, whose law differs in some published tasks.
    """

    testing: ClassVar[bool] = False

    def batch(
        self, indices: Sequence[int] | np.ndarray, seed: int = 0, split: Split = "train", *, attempt: int = 0
    ) -> Batch:
        task = self
        if split != "train":
            task = copy.copy(self)
            object.__setattr__(task, "testing", True)
        return Task.batch(task, indices, seed, split, attempt=attempt)

    def labels(self, x: np.ndarray) -> np.ndarray:
        """The targets of inputs ``(batch, ...)``, which are not checked."""
        raise NotImplementedError

    def label(self, x: np.ndarray) -> np.ndarray:
        """The target of one input, which is not checked."""
        y: np.ndarray = self.labels(x[None])[0]
        return y

    def refuse(self, what: str) -> NoReturn:
        """Raise a :class:`UsageError` about an input or a parameter of the user's."""
        raise UsageError(f"{self.name}: {what}")

    def tokens(self, x: np.ndarray, multiple: int = 1) -> np.ndarray:
        """``x`` as one sequence ``(length,)`` of int64 tokens of any length.

        Raises:
            UsageError: for another shape, a length that is not a multiple of ``multiple``, or a token outside the
                vocabulary.
        """
        try:
            found = np.asarray(x)
        except ValueError:
            self.refuse("an input is one sequence of tokens, found a ragged list")
        if found.ndim != 1 or found.size == 0 or found.size % multiple:
            of = f", a multiple of {multiple}" if multiple > 1 else ""
            self.refuse(f"an input is one sequence of tokens, of shape (length,){of}, found shape {found.shape}")
        if found.dtype.kind not in "iu":
            self.refuse(f"an input holds whole numbers, found {found.dtype}")
        self.allow(found, 0, self.input.width, "tokens")
        return found.astype(np.int64)

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


def octave_or_zero(values: np.ndarray) -> np.ndarray:
    """:func:`octave` of positive numbers, 0 of others."""
    return np.where(values > 0, octave(np.maximum(values, 1)), 0)


class Guess:
    """A predictor without parameters: ``guess(x)`` gives its predictions for inputs ``(batch, length)``.

    Predictions outside ``0..classes-1`` (where it has none) become 0.
    """

    def __init__(self, guess: Callable[[np.ndarray], np.ndarray], classes: int) -> None:
        self._guess, self._classes = guess, classes

    def fit(self, batches: Iterable[Batch]) -> None:
        """Nothing to estimate."""

    def predict(self, batch: Batch) -> np.ndarray:
        guess = np.broadcast_to(self._guess(batch.x), batch.y.shape)
        return np.where((guess >= 0) & (guess < self._classes), guess, 0)


class MajorityAnswer(MajorityClass):
    """The most frequent answer: the class that stands most often in ``labels(x)``, whatever else training labels.

    Args:
        labels: the labels of the questions in inputs ``(batch, length)``.
        classes: number of classes.
    """

    def __init__(self, labels: Callable[[np.ndarray], np.ndarray], classes: int) -> None:
        super().__init__(classes)
        self._labels = labels

    def fit(self, batches: Iterable[Batch]) -> None:
        super().fit(batch._replace(y=self._labels(batch.x)) for batch in batches)
