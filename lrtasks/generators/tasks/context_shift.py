"""Context-shift: delay a signal by a lag that its first two values encode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.generators.base import MAX_LENGTH, registry
from lrtasks.generators.octaves import bin_starts
from lrtasks.generators.signals import SignalTask, noise
from lrtasks.spec import Batch


@registry.register("context-shift")
@dataclass(frozen=True)
class ContextShift(SignalTask):
    """Delay the whole sequence by s positions, where its first two values are cos(2πs/L) and sin(2πs/L).

    s is uniform in ``0..L-3``; the other L - 2 values are noise; ``y[t] = x[t - s]`` if ``t >= s`` else 0. At another
    length, the further tests keep the code and the lags of the trained length.
    Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0, 0, 0], [1, 0, 0], [0.5, 0, 0], [-1, 0, 0]])  # cos and sin of 2π/4: one position late
    >>> ContextShift(length=4).answer(x)[:, 0].tolist()
    [0.0, 0.0, 1.0, 0.5]
    """

    group: ClassVar[str] = "algorithms"

    presets: ClassVar[Presets] = {
        "small": {"length": 64, "budget.batch_size": 64, "budget.steps": 3000},
        # no model of the package leaves its floor here in 2,000 steps of 16 samples
        "small-hard": {"length": 256},
        "paper": {"length": 4096},
    }

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)
    lags_of: int | None = parameter(
        None, "length whose lags and code are taken; none: this length", at_least=3, at_most=MAX_LENGTH, later=True
    )

    def check(self) -> None:
        if self.lags_of == self.length:
            object.__setattr__(self, "lags_of", None)

    def at_length(self, length: int) -> ContextShift:
        return replace(self, length=length, lags_of=self._coded)

    @property
    def _coded(self) -> int:
        return self.lags_of or self.length

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        lag = int(rng.integers(self._coded - 2))
        angle = 2 * np.pi * lag / self._coded
        x[:2, 0] = np.cos(angle), np.sin(angle)
        x[2:, 0] = noise(rng, self.length - 2)
        self.respond(x, y)
        return {"shift": lag}

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        cos, sin = x[:2, 0].astype(np.float64)
        turns = np.arctan2(sin, cos) / (2 * np.pi) * self._coded
        lag = round(turns) % self._coded
        if abs(turns - round(turns)) > 0.25 or lag > self._coded - 3 or abs(cos**2 + sin**2 - 1) > 1e-3:
            raise UsageError(
                f"context-shift: the first two values are cos(2πs/{self._coded}) and sin(2πs/{self._coded}) of a whole"
                f" number s in 0..{self._coded - 3}, found {cos:g} and {sin:g}"
            )
        y[lag:, 0] = x[: max(len(x) - lag, 0), 0]

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        lags = bin_starts(batch.meta["shift"], self._coded - 2)
        return {**super().slices(batch), "shift": lags[:, None, None]}
