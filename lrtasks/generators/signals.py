"""Base of the atomic tasks of the DLR paper (arXiv:2212.00768, section 3.1): noise with positional channels."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Rngs, Task, budget
from lrtasks.spec import Batch, Spec

# at small-hard, no Transformer solves these tasks in 2,000 steps of 16 samples
HARD: dict[str, dict[str, Any]] = {"small-hard": {"length": 256}, "paper": {"length": 4096}}

EASY = budget(batch_size=64, steps=3000, lr=3e-3)


@dataclass(frozen=True)
class SignalTask(Task):
    """Base of the atomic tasks: the input has L noise values, and the target is a function of the input.

    The last two channels of an input of T positions hold cos(2πt/T) and sin(2πt/T). A subclass writes :meth:`respond`.
    If its signal is not just one channel of noise, it also overrides :meth:`draw`.
    """

    presets: ClassVar[Presets] = {"small": {"length": 256}, "paper": {"length": 4096}}

    length: int = parameter(4096, "sequence length L", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, 1)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write the target of one input ``x`` into ``y``, which is all zeros; both are float32 without batch axis."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any] | None:
        """Write one sample into ``x`` and ``y``, and return its details (``meta``) or ``None``.

        Both arrays are zero, except for the positional channels of ``x``. By default, channel 0 receives noise at its
        first L positions.
        """
        x[: self.length, 0] = noise(rng, self.length)
        self.respond(x, y)
        return None

    def samples(self, rngs: Rngs) -> Batch:
        x, y = (np.zeros(spec.shape(len(rngs)), np.float32) for spec in (self.input, self.target))
        details: list[dict[str, Any]] = []
        for rng, one_x, one_y in zip(rngs, x, y, strict=True):
            # two assignments are six times as fast as one for both columns
            one_x[:, -2], one_x[:, -1] = _positions(len(one_x))
            details.append(self.draw(rng, one_x, one_y) or {})
        meta = {name: np.array([detail[name] for detail in details]) for name in details[0]}
        return Batch(x, y, meta=meta or None)

    def answer(self, x: np.ndarray) -> np.ndarray:
        y = np.zeros(self.target.shape(1)[1:], np.float32)
        self.respond(self.checked_input(x), y)
        return y

    def tests(self) -> dict[str, Task]:
        return self.longer()


def noise(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw white Gaussian noise and divide it by its largest absolute value; ``(length,)`` float32."""
    signal = rng.standard_normal(length)
    signal /= max(signal.max(), -signal.min())
    return signal.astype(np.float32)


def unit_vectors(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Draw vectors uniformly from the unit sphere, with components along the last axis; float64."""
    vectors = rng.standard_normal(shape)
    vectors /= np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    return vectors


@functools.lru_cache(maxsize=8)
def _positions(length: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / length
    return np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)


class Lagged(SignalTask):
    """Base of tasks that keep the lags of the trained length, ``coded``, at every other length."""

    lags_of: int | None

    def check(self) -> None:
        if self.lags_of == self.length:
            object.__setattr__(self, "lags_of", None)

    @property
    def coded(self) -> int:
        return self.lags_of or self.length

    def at_length(self, length: int) -> Task:
        return self.make(**{**self.parameters(), "length": length, "lags_of": self.coded})
