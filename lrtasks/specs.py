"""What goes into a model and what comes out of it, without a word about tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Spec:
    """Shape and kind of an input or a target.

    Attributes:
        kind: ``"real"`` for signals, arrays ``(batch, length, width)`` of float32;
            ``"token"`` for symbols, arrays ``(batch, length)`` of int64 in ``0..width-1``
            (targets also hold -100 where a label is ignored).
        length: number of positions. A target shorter than the input is read at the model's last ``length`` positions.
        width: number of channels (real), or size of the vocabulary or number of classes (token).
        pooled: for targets of length 1: one value for the whole sequence, which a causal model reads at the last
            valid position and a bidirectional one from the mean over valid positions.
    """

    kind: Literal["real", "token"]
    length: int
    width: int
    pooled: bool = False

    def shape(self, batch: int) -> tuple[int, ...]:
        """Shape of an array of ``batch`` samples."""
        return (batch, self.length, self.width) if self.kind == "real" else (batch, self.length)
