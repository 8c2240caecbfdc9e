"""Sort: order the values of a signal by their distance to the first one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.baselines import Baseline, ScaledFirstValue
from lrtasks.generators.signals import noise, padded, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("sort")
@dataclass(frozen=True)
class Sort(Task):
    """Read L values, then give them back in ascending order of ``|x[i] - x[0]|``, ties in order of position.

    The targets stand at input positions L..2L-1, where the input holds zeros. Source: DLR paper, section 3.1.

    Example: the signal 0.5, -1, 0.2, 0.6 (then four zeros) has the targets 0.5, 0.6, 0.2, -1.
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
        # in float64, where differences of float32 values hardly round and so make no false ties
        distance = np.abs(values.astype(np.float64) - float(values[0]))
        ordered = values[np.argsort(distance, kind="stable")]
        return Sample(with_positions(padded(values, 2 * self.length)), ordered[:, None])

    def baselines(self) -> Mapping[str, Baseline]:
        return {**super().baselines(), "first-value": ScaledFirstValue()}
