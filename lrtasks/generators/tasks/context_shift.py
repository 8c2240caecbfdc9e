from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, registry
from lrtasks.generators.baselines import bin_starts
from lrtasks.generators.signals import EASY, HARD, Lagged, noise
from lrtasks.spec import Batch


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
