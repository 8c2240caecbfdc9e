"""Shift: delay a signal by several lags at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.base import MAX_LENGTH, Batch, Sample, Task, registry
from lrtasks.generators.floors import Floor, InputCopy
from lrtasks.generators.signals import delayed, noise, with_positions
from lrtasks.parameters import parameter
from lrtasks.specs import Spec


@registry.register("shift")
@dataclass(frozen=True)
class Shift(Task):
    """Copy the input to ``shifts`` outputs, each delayed by another lag between 0 and L - L/C.

    With C = ``shifts``: ``y[t, c] = x[t - s_c]`` if ``t >= s_c`` else 0, where ``s_c = floor(c (L - L/C) / (C - 1))``.
    Source: DLR paper, section 3.1.

    >>> Shift(length=8, shifts=4).lags().tolist()
    [0, 2, 4, 6]
    """

    length: int = parameter(4096, "sequence length L", at_least=2, at_most=MAX_LENGTH)
    shifts: int = parameter(8, "number of delayed copies C", at_least=1)

    def check(self) -> None:
        if self.shifts > self.length:
            raise UsageError(f"shift: shifts must be at most length ({self.length}), found {self.shifts}")

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.shifts)

    def lags(self) -> np.ndarray:
        """The delays s_c in positions, ``(shifts,)``: the formula above is cL/C, taken in whole numbers."""
        return np.arange(self.shifts) * self.length // self.shifts

    def sample(self, rng: np.random.Generator) -> Sample:
        signal = noise(rng, self.length)
        return Sample(with_positions(signal), np.column_stack([delayed(signal, lag) for lag in self.lags()]))

    def floors(self) -> Mapping[str, Floor]:
        return {**super().floors(), "copy": InputCopy([0] + [None] * (self.shifts - 1))}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        return {**super().slices(batch), "shift": self.lags()}
