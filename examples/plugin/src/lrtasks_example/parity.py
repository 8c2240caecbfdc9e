"""Parity: whether the number of ones so far is even or odd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators import Batch, Sample, Spec, Task
from lrtasks.generators.baselines import Baseline


@dataclass(frozen=True)
class Parity(Task):
    """Say at every position whether the number of ones up to it is odd.

    ``y[t] = (x[0] + ... + x[t]) mod 2`` for bits ``x[t]`` that are 1 with probability ``density``. One bit of memory
    solves it, but every one flips that bit, so that a mistake anywhere spoils all that follows. A model without
    recurrence must count instead, ever further.

    Example: the bits 0 1 1 0 1 have the targets 0 1 0 0 1.

    >>> batch = Parity(length=5).batch([0])
    >>> bool((batch.y == batch.x.cumsum(axis=1) % 2).all())
    True
    """

    # what the evaluation loop reads
    name: ClassVar[str] = "parity"
    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"
    version: ClassVar[int] = 1  # raise it whenever the samples of the same parameters and seed change
    group: ClassVar[str] = "state"  # the capability that it tests

    # what a user can set: lrtasks eval --task parity --length 128 --density 0.1
    presets: ClassVar[Presets] = {
        # `lrtasks eval` takes `small`; `--preset paper` holds the settings of a paper. A bare name is a parameter of
        # the task, `budget.NAME` a field of the training budget (docs/protocol.md lists them).
        "small": {"length": 64, "budget.steps": 600, "budget.eval_every": 100},
        "paper": {"length": 1024},
    }

    length: int = parameter(1024, "sequence length L", at_least=2, at_most=2**20)
    density: float = parameter(0.5, "probability of a one, below 1", above=0, at_most=0.99)

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, width=2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, width=2)

    def sample(self, rng: np.random.Generator) -> Sample:
        """One sample; all that is random comes from ``rng``."""
        bits = (rng.random(self.length) < self.density).astype(np.int64)
        return Sample(x=bits, y=np.cumsum(bits) % 2)

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent answer, and the last bit: neither needs memory."""
        return {**super().baselines(), "last-bit": LastBit()}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By the number of ones so far, in bins that begin at 0, 1, 2, 4, 8, ...: each one flips the answer."""
        ones = np.cumsum(batch.x, axis=1)
        return {"ones": np.where(ones == 0, 0, 2 ** np.log2(np.maximum(ones, 1)).astype(np.int64))}

    def tests(self) -> Mapping[str, Task]:
        """Longer strings."""
        return self.longer()

    def text(self, batch: Batch, index: int) -> str:
        """Bits above targets, for ``lrtasks preview``."""
        return "\n".join(" ".join(map(str, row)) for row in (batch.x[index], batch.y[index]))


class LastBit:
    """Predicts the bit at the same position."""

    def fit(self, batches: Iterable[Batch]) -> None:
        """Nothing to estimate."""

    def predict(self, batch: Batch) -> np.ndarray:
        return batch.x
