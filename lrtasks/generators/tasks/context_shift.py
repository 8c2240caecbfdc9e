"""Context-shift: delay a signal by a lag that its first two values encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import bin_starts, delayed, noise, with_positions
from lrtasks.spec import Batch, Sample, Spec


@registry.register("context-shift")
@dataclass(frozen=True)
class ContextShift(Task):
    """Delay the whole sequence by s positions, where its first two values are cos(2πs/L) and sin(2πs/L).

    s is uniform in ``0..L-3``; the other L - 2 values are noise; ``y[t] = x[t - s]`` if ``t >= s`` else 0.
    Source: DLR paper, section 3.1.

    Example: with L = 4 and s = 1 the signal 0, 1, 0.5, -1 has the targets 0, 0, 1, 0.5.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
    }

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        lag = int(rng.integers(self.length - 2))
        angle = 2 * np.pi * lag / self.length
        signal = np.empty(self.length, np.float32)
        signal[:2] = np.cos(angle), np.sin(angle)
        signal[2:] = noise(rng, self.length - 2)
        return Sample(with_positions(signal), delayed(signal, lag)[:, None], meta={"shift": lag})

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        lags = bin_starts(batch.meta["shift"], self.length - 2)
        return {**super().slices(batch), "shift": lags[:, None, None]}
