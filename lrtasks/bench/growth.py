"""With which power of the length a cost grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Growth:
    """Exponents of a cost in the length.

    Attributes:
        slope: least-squares slope of log cost against log length, over all points.
        last: slope between the two longest, which a fixed cost bends least.
        points: how many lengths these are from.
    """

    slope: float
    last: float
    points: int


def growth(costs: Sequence[tuple[int, float]]) -> Growth | None:
    """Exponents from ``(length, cost)`` pairs; costs that are not above 0 are left out. None from fewer than two.

    >>> growth([(16, 5.0), (64, 20.0), (256, 320.0)])
    Growth(slope=1.5, last=2.0, points=3)
    """
    points = sorted((math.log(length), math.log(cost)) for length, cost in costs if cost > 0)
    if len(points) < 2:
        return None
    x, y = np.array(points).T
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    last = float((y[-1] - y[-2]) / (x[-1] - x[-2]))
    return Growth(round(slope, 6), round(last, 6), len(points))
