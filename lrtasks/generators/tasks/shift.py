from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, Rule
from lrtasks.generators.signals import Lagged
from lrtasks.spec import Batch, Spec

BLOCK = 4096
"""Number of positions whose targets ``shift`` writes together, so that they stay in the cache of one core."""


@registry.register("shift")
@dataclass(frozen=True)
class Shift(Lagged):
    """Copy the input to ``shifts`` outputs, each delayed by a different lag between 0 and L - L/C.

    Let L = ``length`` and C = ``shifts``: ``y[t, c] = x[t - s_c]`` if ``t >= s_c`` else 0, where
    ``s_c = floor(c (L - L/C) / (C - 1))``. The further tests have other lengths but keep the lags of the trained
    length, because other lags would be another map. Source: Gupta, Mehta and Berant, "Simplifying and Understanding
    State Space Models with Diagonal Linear RNNs" (DLR paper, arXiv:2212.00768), section 3.1.

    >>> task = Shift(length=4, shifts=2)
    >>> task.lags().tolist()
    [0, 2]
    >>> batch = task.batch([0])
    >>> a, b, c, d = batch.x[0, :, 0].tolist()
    >>> batch.y[0].tolist() == [[a, 0], [b, 0], [c, a], [d, b]]
    True
    >>> task.at_length(8).lags().tolist()
    [0, 2]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        **Lagged.presets,
        # DLR paper, Table 2: lengths 2^14 to 2^20.
        "long": {"length": 16384}
        | budget(steps=86400, batch_size=4, eval_every=7200, val_batches=80, test_batches=800),
        # The trend of Table 2 on a CPU: lengths 2^10 to 2^14.
        "trend": {"length": 1024, **budget(steps=400, batch_size=4, eval_every=100)},
    }

    shifts: int = parameter(8, "number of delayed copies C", at_least=1)
    lags_of: int | None = parameter(
        None, "sequence length that sets the lags; none: length", at_least=1, at_most=MAX_LENGTH, later=True
    )

    def check(self) -> None:
        super().check()
        if self.shifts > self.coded:
            limit = f"length ({self.length})" if self.lags_of is None else f"lags_of ({self.lags_of})"
            self.refuse(f"shifts must be at most {limit}, found {self.shifts}")

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.shifts)

    def lags(self) -> np.ndarray:
        """Return the lags s_c in positions, ``(shifts,)`` int64: the formula of the class equals floor(c L/C)."""
        return np.arange(self.shifts) * self.coded // self.shifts

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        signal = x[:, 0].copy()
        lags = self.lags().tolist()
        for start in range(0, len(y), BLOCK):
            stop = min(start + BLOCK, len(y))
            for channel, lag in enumerate(lags):
                first = max(start, lag)
                if first < stop:
                    y[first:stop, channel] = signal[first - lag : stop - lag]

    def baselines(self) -> dict[str, Baseline]:
        return {**super().baselines(), "copy": Rule(lambda x: np.where(np.arange(self.shifts) == 0, x[..., :1], 0.0))}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        return {**super().slices(batch), "shift": self.lags()}
