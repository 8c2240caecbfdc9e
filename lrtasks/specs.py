"""What goes into a model and what comes out of it, without a word about tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lrtasks.errors import UsageError


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

    Raises:
        UsageError: for another kind, a length or width that is not a whole number of at least 1, or a pooled target
            that is longer than 1.
    """

    kind: Literal["real", "token"]
    length: int
    width: int
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("real", "token"):
            raise UsageError(f"spec: kind must be 'real' or 'token', found {self.kind!r}")
        for field, value in (("length", self.length), ("width", self.width)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"spec: {field} must be a whole number of at least 1, found {value!r}")
        if self.pooled and self.length != 1:
            raise UsageError(f"spec: a pooled target has length 1, found {self.length}")

    def shape(self, batch: int) -> tuple[int, ...]:
        """Shape of an array of ``batch`` samples."""
        return (batch, self.length, self.width) if self.kind == "real" else (batch, self.length)
