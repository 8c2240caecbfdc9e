"""Select-fixed: pick out the values of a signal at positions that never change."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_SEED, registry
from lrtasks.generators.tasks.select import Select


@registry.register("select-fixed")
@dataclass(frozen=True)
class SelectFixed(Select):
    """As ``select``, with the same positions marked in every sample of every split, whatever the seed.

    Source: DLR paper, section 3.1.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256, "marks": 16},
        "paper": {"length": 4096, "marks": 32},
    }

    layout_seed: int = parameter(0, "seed of the marked positions", at_least=0, at_most=MAX_SEED)

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        return self._positions

    @functools.cached_property
    def _positions(self) -> np.ndarray:
        return super().positions(self.layout_rng(**self.parameters()))
