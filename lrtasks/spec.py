"""Specifications and arrays that tasks and models exchange: :class:`Spec`, :class:`Sample` and :class:`Batch`."""

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
        length: number of positions. A target shorter than the input corresponds to the last ``length`` positions of the
            model, unless the target is pooled.
        width: number of channels (real), or size of the vocabulary or number of classes (token).
        pooled: for targets: all ``length`` values belong to the whole sequence. A causal model computes them from its
            last valid position, a bidirectional model from the mean over its valid positions.

    Raises:
        UsageError: for another kind, or if length or width is not a whole number of at least 1.
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
        """Return the shape of an array of ``batch`` samples."""
        return (batch, self.length, self.width) if self.kind == "real" else (batch, self.length)


class Sample(NamedTuple):
    """One sample: ``x`` and ``y`` without batch axis, ``mask`` (length,) False at padding, ``meta`` of plain values."""

    x: np.ndarray
    y: np.ndarray
    mask: np.ndarray | None = None
    meta: dict[str, Any] | None = None


class Batch(NamedTuple):
    """Several samples as NumPy arrays, stacked on axis 0.

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

    def sample(self, row: int) -> Sample:
        """Return sample number ``row``."""
        meta = None if self.meta is None else {name: values[row] for name, values in self.meta.items()}
        return Sample(self.x[row], self.y[row], None if self.mask is None else self.mask[row], meta)


def misfit(arrays: Sample | Batch, input: Spec, target: Spec) -> str | None:
    """Return the reason why a sample or batch does not fit its task's specs, or ``None`` if it fits."""
    for name, spec, values in (("x", input, arrays.x), ("y", target, arrays.y)):
        dtype = np.float32 if spec.kind == "real" else np.int64
        problem = _unlike(arrays, name, values, dtype, spec.shape(1)[1:])
        if problem:
            return problem
        if spec.kind == "real":
            finite = np.isfinite(values)
            if not finite.all():
                return f"{name} holds values that are not finite, first at {name}{np.argwhere(~finite)[0].tolist()}"
            continue
        if values.min(initial=0) >= 0 and values.max(initial=0) < spec.width:
            continue
        outside = values[((values < 0) | (values >= spec.width)) & ((values != IGNORED) | (name == "x"))]
        if outside.size:
            ignored = f", and {IGNORED} where a label is ignored" if name == "y" else ""
            return f"{name} holds {outside[0]}; allowed: 0..{spec.width - 1}{ignored}"
    return None if arrays.mask is None else _unlike(arrays, "mask", arrays.mask, bool, (input.length,))


def _unlike(arrays: Sample | Batch, name: str, found: Any, dtype: type, shape: tuple[int, ...]) -> str | None:
    """Return the reason why ``found`` is not an array of ``dtype`` with this ``shape`` per sample, or ``None``."""
    wanted = f"{name} must be {dtype.__name__} of shape {shape}"
    if not isinstance(found, np.ndarray):
        return f"{wanted}, found {type(found).__name__}"
    count = (len(arrays.x),) if isinstance(arrays, Batch) else ()
    if found.shape != count + shape:
        return f"{wanted}, found {found.dtype} of shape {found.shape[len(count) :]}"
    return None if found.dtype == dtype else f"{wanted}, found {found.dtype}; use .astype(np.{np.dtype(dtype)})"
