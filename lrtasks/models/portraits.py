"""What a module shows of itself: figures as data, drawn by ``lrtasks analyze`` before and after training.

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
        title: what is shown; also the stem of the file's name.
        kind: what each series is: ``"lines"``, y over 0, 1, 2, ...; ``"plane"``, complex numbers, drawn with the unit
            circle; ``"image"``, a matrix; ``"positions"``, a matrix ``(samples, positions)``, drawn as pictures of the
            samples where positions are pixels; ``"bars"``, one height per label.
        series: arrays by name.
        x_label: meaning of the horizontal axis.
        y_label: meaning of the vertical axis.
        log_x: logarithmic horizontal axis (lines).
        log_y: logarithmic vertical axis (lines).
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
