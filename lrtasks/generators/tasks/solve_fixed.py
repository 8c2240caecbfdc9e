"""Solve-fixed: recover the solution of a linear system whose matrix never changes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_SEED, registry
from lrtasks.generators.tasks.solve import Solve


@registry.register("solve-fixed")
@dataclass(frozen=True)
class SolveFixed(Solve):
    """As ``solve``, with the same matrix A in every sample of every split, whatever the seed.

    Source: DLR paper, section 3.1.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
    }

    layout_seed: int = parameter(0, "seed of the matrix A", at_least=0, at_most=MAX_SEED)

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        return self._matrix

    @functools.cached_property
    def _matrix(self) -> np.ndarray:
        return super().matrix(self.layout_rng(**self.parameters()))
