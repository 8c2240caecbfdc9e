from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, ScaledFirstValue
from lrtasks.generators.signals import EASY, HARD, SignalTask
from lrtasks.spec import Spec


@registry.register("sort")
@dataclass(frozen=True)
class Sort(SignalTask):
    """Read L values, then give them back in ascending order of ``|x[i] - x[0]|``, ties in order of position.

    The targets are at input positions L..2L-1, where the input holds zeros. Source: DLR paper (arXiv:2212.00768),
    section 3.1.

    >>> x = np.zeros((8, 3))
    >>> x[:4, 0] = 0.5, -1, 0.25, 0.625
    >>> Sort(length=4).answer(x)[:, 0].tolist()
    [0.5, 0.625, 0.25, -1.0]
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 4, **EASY, **budget(schedule="linear")}, **HARD}

    length: int = parameter(4096, "number of values L; the input has 2L positions", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", 2 * self.length, 3)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        values = x[: self.length, 0]
        # in float64: differences of float32 values are hardly rounded, so no false ties arise
        distance = np.abs(values.astype(np.float64) - float(values[0]))
        y[:, 0] = values[np.argsort(distance, kind="stable")]

    def baselines(self) -> dict[str, Baseline]:
        return {**super().baselines(), "first-value": ScaledFirstValue()}
