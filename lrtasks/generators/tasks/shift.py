"""Shift: delay a signal by several lags at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.baselines import Baseline, InputCopy
from lrtasks.generators.signals import delayed, noise, with_positions
from lrtasks.spec import Batch, Sample, Spec


@registry.register("shift")
@dataclass(frozen=True)
class Shift(Task):
    """Copy the input to ``shifts`` outputs, each delayed by another lag between 0 and L - L/C.

    With C = ``shifts``: ``y[t, c] = x[t - s_c]`` if ``t >= s_c`` else 0, where ``s_c = floor(c (L - L/C) / (C - 1))``.
    Source: DLR paper, section 3.1.

    >>> Shift(length=8, shifts=4).lags().tolist()
    [0, 2, 4, 6]
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
        # DLR paper, Table 2: lengths 2^14 to 2^20.
        "long": {
            "length": 16384,
            "budget.steps": 86400,
            "budget.batch_size": 4,
            "budget.eval_every": 7200,
            "budget.val_batches": 80,
            "budget.test_batches": 800,
        },
        # The trend of Table 2 on a CPU: lengths 2^10 to 2^14.
        "trend": {"length": 1024, "budget.steps": 400, "budget.batch_size": 4, "budget.eval_every": 100},
    }

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

    def baselines(self) -> Mapping[str, Baseline]:
        return {**super().baselines(), "copy": InputCopy([0] + [None] * (self.shifts - 1))}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        return {**super().slices(batch), "shift": self.lags()}
