from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.generators.base import registry
from lrtasks.generators.signals import SignalTask


@registry.register("cummax")
@dataclass(frozen=True)
class Cummax(SignalTask):
    """Give the largest value seen so far.

    ``y[t] = max(x[0], ..., x[t])``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0.5, 0, 0], [-1, 0, 0], [0.75, 0, 0], [0.25, 0, 0]])
    >>> Cummax(length=4).answer(x)[:, 0].tolist()
    [0.5, 0.5, 0.75, 0.75]
    """

    group: ClassVar[str] = "latching"

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        np.maximum.accumulate(x[:, 0], out=y[:, 0])
