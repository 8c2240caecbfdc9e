"""Figures that a module provides as data; ``lrtasks analyze`` draws them before and after training.

A module offers ``portraits() -> list[Portrait]``, valid after a forward pass in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class Portrait:
    """One figure.

    Attributes:
        title: title of the figure, also the stem of the file name.
        kind: kind of each series: ``"lines"``, y over 0, 1, 2, ...; ``"plane"``, complex numbers, drawn with the unit
            circle; ``"image"``, a matrix; ``"positions"``, a matrix ``(samples, positions)``, drawn as one picture per
            sample where positions are pixels; ``"bars"``, one height per label.
        series: arrays by name.
        x_label: meaning of the horizontal axis.
        y_label: meaning of the vertical axis.
        log_x: whether the horizontal axis is logarithmic (lines).
        log_y: whether the vertical axis is logarithmic (lines).
        labels: names of the bars.
    """

    title: str
    kind: Literal["lines", "plane", "image", "positions", "bars"]
    series: Mapping[str, np.ndarray]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    labels: tuple[str, ...] = ()
