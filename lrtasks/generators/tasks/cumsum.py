"""Cumsum: running sums of a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import noise, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("cumsum")
@dataclass(frozen=True)
class Cumsum(Task):
    """Sum everything seen so far, scaled to the same variance at every position.

    ``y[t] = (x[0] + ... + x[t]) / sqrt(t + 1)``. Source: DLR paper, section 3.1.

    Example: the signal 0.5, -1, 0.2 has the targets 0.5, -0.5/√2, -0.3/√3.
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
        # sums of up to millions of terms: accumulated in float64, rounded once
        sums = np.cumsum(signal, dtype=np.float64) / np.sqrt(np.arange(1, self.length + 1))
        return Sample(with_positions(signal), sums[:, None].astype(np.float32))
