"""Shapes and arrays that tasks and models exchange: :class:`Spec`, :class:`Sample` and :class:`Batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from lrtasks.errors import UsageError

IGNORED = -100
"""Label of target positions that are not scored."""


@dataclass(frozen=True)
class Spec:
    """Shape and kind of an input or a target.

    Attributes:
        kind: ``"real"`` for signals, arrays ``(batch, length, width)`` of float32;
            ``"token"`` for symbols, arrays ``(batch, length)`` of int64 in ``0..width-1``
            (targets also hold -100 where a label is ignored).
        length: number of positions. A target shorter than the input is read at the model's last ``length`` positions,
            unless it is pooled.
        width: number of channels (real), or size of the vocabulary or number of classes (token).
        pooled: for targets: all ``length`` values belong to the whole sequence. A causal model reads them from its last
            valid position, a bidirectional one from the mean over its valid positions.

    Raises:
        UsageError: for another kind, or a length or width that is not a whole number of at least 1.
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

    def shape(self, batch: int) -> tuple[int, ...]:
        """Shape of an array of ``batch`` samples."""
        return (batch, self.length, self.width) if self.kind == "real" else (batch, self.length)


class Sample(NamedTuple):
    """One sample: ``x`` and ``y`` without batch axis, ``mask`` (length,) False at padding, ``meta`` of plain values."""

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray | None = None
    meta: dict[str, Any] | None = None


class Batch(NamedTuple):
    """Samples stacked on axis 0, NumPy arrays.

    Attributes:
        x: ``(batch, length, channels)`` float32, or ``(batch, length)`` int64 tokens.
        y: ``(batch, target length, channels)`` float32, or ``(batch, target length)`` int64 with -100 where ignored.
        mask: ``(batch, length)`` bool, False at padding positions of the input; ``None`` if there is no padding.
        meta: per-sample details by name, each an array or list of ``batch`` entries; ``None`` if the task has none.
    """

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray | None = None
    meta: dict[str, Any] | None = None
