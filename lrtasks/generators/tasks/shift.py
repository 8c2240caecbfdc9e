"""Delay a sequence by several fixed lags, or by one lag that its first two values encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, Rule, bin_starts
from lrtasks.generators.signals import EASY, HARD, SignalTask, noise
from lrtasks.spec import Batch, Spec

BLOCK = 4096
"""Number of positions whose targets ``shift`` writes together, so that they stay in the cache of one core."""


class Lagged(SignalTask):
    """Base of tasks that, at another length, keep the lags of the length in training (``coded``)."""

    lags_of: int | None

    def check(self) -> None:
        if self.lags_of == self.length:
            object.__setattr__(self, "lags_of", None)

    @property
    def coded(self) -> int:
        return self.lags_of or self.length

    def at_length(self, length: int) -> Task:
        return self.make(**{**self.parameters(), "length": length, "lags_of": self.coded})


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
        **SignalTask.presets,
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
        """Return the delays s_c in positions, ``(shifts,)``: the formula above equals cL/C, computed in integers."""
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


@registry.register("context-shift")
@dataclass(frozen=True)
class ContextShift(Lagged):
    """Delay the sequence by s positions; its first two values, cos(2πs/L) and sin(2πs/L), encode s.

    L is the ``length``. s is uniform over ``0..L-3``. The other L - 2 values are noise. ``y[t] = x[t - s]`` if
    ``t >= s``, else 0. The further tests have other lengths but keep the code and the lags of the trained length.
    Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0, 0, 0], [1, 0, 0], [0.5, 0, 0], [-1, 0, 0]])  # cos and sin of 2π/4: one position late
    >>> ContextShift(length=4).answer(x)[:, 0].tolist()
    [0.0, 0.0, 1.0, 0.5]
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 32, **EASY}, **HARD}

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)
    lags_of: int | None = parameter(
        None, "length that sets the lags and their code; none: length", at_least=3, at_most=MAX_LENGTH, later=True
    )

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        lag = int(rng.integers(self.coded - 2))
        angle = 2 * np.pi * lag / self.coded
        x[:2, 0] = np.cos(angle), np.sin(angle)
        x[2:, 0] = noise(rng, self.length - 2)
        self.respond(x, y)
        return {"shift": lag}

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        cos, sin = x[:2, 0].astype(np.float64)
        turns = np.arctan2(sin, cos) / (2 * np.pi) * self.coded
        lag = round(turns) % self.coded
        if abs(turns - round(turns)) > 0.25 or lag > self.coded - 3 or abs(cos**2 + sin**2 - 1) > 1e-3:
            code = f"cos(2πs/{self.coded}) and sin(2πs/{self.coded}) of a whole number s in 0..{self.coded - 3}"
            self.refuse(f"the first two values are {code}, found {cos:g} and {sin:g}")
        y[lag:, 0] = x[: max(len(x) - lag, 0), 0]

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        lags = bin_starts(batch.meta["shift"], self.coded - 2)
        return {**super().slices(batch), "shift": lags[:, None, None]}
