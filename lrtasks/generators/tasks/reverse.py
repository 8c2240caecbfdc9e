from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.signals import HARD, SignalTask
from lrtasks.spec import Spec


@registry.register("reverse")
@dataclass(frozen=True)
class Reverse(SignalTask):
    """Read L values, then, over L further positions that hold zeros, give them back in reverse order.

    ``y[t] = x[L - 1 - t]`` for t = 0..L-1, at input positions L..2L-1. Source: DLR paper (arXiv:2212.00768),
    section 3.1.

    >>> x = np.zeros((6, 3))
    >>> x[:3, 0] = 0.5, -1, 0.25
    >>> Reverse(length=3).answer(x)[:, 0].tolist()
    [0.25, -1.0, 0.5]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {"small": {"length": 32, **budget(batch_size=32)}, **HARD}

    length: int = parameter(4096, "number of values L; the input has 2L positions", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", 2 * self.length, 3)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        y[:, 0] = x[: self.length, 0][::-1]
