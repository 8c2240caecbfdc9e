"""Reverse: repeat a signal backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import noise, padded, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("reverse")
@dataclass(frozen=True)
class Reverse(Task):
    """Read L values, then, over L further positions that hold zeros, give them back in reverse order.

    ``y[t] = x[L - 1 - t]`` for t = 0..L-1, at input positions L..2L-1. Source: DLR paper, section 3.1.

    Example: the signal 0.5, -1, 0.2 (then 0, 0, 0) has the targets 0.2, -1, 0.5.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
    }

    length: int = parameter(4096, "number of values L; the input has 2L positions", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", 2 * self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        values = noise(rng, self.length)
        return Sample(with_positions(padded(values, 2 * self.length)), values[::-1, None])
