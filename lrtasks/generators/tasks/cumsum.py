from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.generators.base import registry
from lrtasks.generators.signals import SignalTask


@registry.register("cumsum")
@dataclass(frozen=True)
class Cumsum(SignalTask):
    """Sum everything seen so far, scaled to the same variance at every position.

    ``y[t] = (x[0] + ... + x[t]) / sqrt(t + 1)``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0.5, 0, 0], [-1, 0, 0], [0.25, 0, 0], [0.75, 0, 0]])
    >>> [f"{y:.3f}" for y in Cumsum(length=4).answer(x)[:, 0]]
    ['0.500', '-0.354', '-0.144', '0.250']
    """

    group: ClassVar[str] = "latching"

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        # sums of up to millions of terms: accumulated in float64, rounded once
        y[:, 0] = np.cumsum(x[:, 0], dtype=np.float64) / np.sqrt(np.arange(1, len(x) + 1))
