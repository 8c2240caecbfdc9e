"""Cummax: running maximum of a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import noise, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("cummax")
@dataclass(frozen=True)
class Cummax(Task):
    """Give the largest value seen so far.

    ``y[t] = max(x[0], ..., x[t])``. Source: DLR paper, section 3.1.

    Example: the signal 0.5, -1, 0.7, 0.2 has the targets 0.5, 0.5, 0.7, 0.7.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
    }

    length: int = parameter(4096, "sequence length L", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        signal = noise(rng, self.length)
        return Sample(with_positions(signal), np.maximum.accumulate(signal)[:, None])
