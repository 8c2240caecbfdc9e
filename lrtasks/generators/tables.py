"""Stored forms of samples: rows of a text table for tokens (a list is numbers separated by blanks), 8-bit pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.spec import IGNORED, Batch, Sample, Spec

Row = Mapping[str, str | None]
"""Cells by column name."""


def to_row(batch: Batch, index: int) -> dict[str, str]:
    """Return the cells of sample ``index``: ``Source`` (input without padding), ``Target`` (labels that are not
    ignored) and ``TargetInds`` (positions of these labels).

    >>> to_row(Batch(np.array([[5, 6, 7]]), np.array([[-100, 1, 2]])), 0)
    {'Source': '5 6 7', 'Target': '1 2', 'TargetInds': '1 2'}
    """
    tokens = batch.x[index] if batch.mask is None else batch.x[index][batch.mask[index]]
    places = np.flatnonzero(batch.y[index] != IGNORED)
    return {"Source": join(tokens), "Target": join(batch.y[index][places]), "TargetInds": join(places)}


def padded(tokens: np.ndarray, labels: np.ndarray, places: np.ndarray, x: Spec, y: Spec, pad: int) -> Sample:
    """Return a sample with the lengths of the specs.

    Args:
        tokens: ``(at most x.length,)``.
        labels: ``(labels,)``, classes of the target.
        places: ``(labels,)``, position of each label.
        x: spec of the input.
        y: spec of the target.
        pad: token of the padding on the right.

    Raises:
        UsageError: for a token, label or position out of range, too many tokens, or unequal numbers of labels and
            positions.
    """
    if len(tokens) > x.length:
        raise UsageError(f"the sequence has {len(tokens)} tokens, but the task allows at most {x.length}")
    if len(labels) != len(places):
        raise UsageError(f"{len(labels)} labels for {len(places)} positions")
    allowed = {"token": (tokens, x.width), "label": (labels, y.width), "position": (places, min(y.length, len(tokens)))}
    for what, (values, width) in allowed.items():
        outside = values[(values < 0) | (values >= width)]
        if outside.size:
            raise UsageError(f"{what} {outside[0]} is out of range; allowed: 0..{width - 1}")
    inputs, targets = np.full(x.length, pad, np.int64), np.full(y.length, IGNORED, np.int64)
    inputs[: len(tokens)] = tokens
    targets[places] = labels
    return Sample(inputs, targets, np.arange(x.length) < len(tokens))


def cell(row: Row, name: str) -> str:
    """Return one cell; raise :class:`UsageError` if the column is missing."""
    found = row.get(name)
    if found is None:
        raise UsageError(f"there is no column {name!r}; found {', '.join(filter(None, row))}")
    return found


def numbers(row: Row, name: str) -> np.ndarray:
    """Return the whole numbers in one cell, int64; raise :class:`UsageError` for any other text."""
    words = cell(row, name).split()
    try:
        return np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        raise UsageError(f"{name} must be whole numbers separated by blanks, found {cell(row, name)[:60]!r}") from None


def join(values: np.ndarray) -> str:
    """Write numbers as text, separated by blanks."""
    return " ".join(map(str, values.tolist()))


def from_bytes(pixels: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Convert 8-bit pixels to float32 values ``(byte / 255 - 0.5) / 0.5`` of the same shape, in ``out`` if given.

    >>> from_bytes(np.array([0, 255], np.uint8)).tolist()
    [-1.0, 1.0]
    """
    values: np.ndarray = np.divide(pixels, np.float32(255), out=out, dtype=np.float32)
    values -= np.float32(0.5)
    values /= np.float32(0.5)
    return values
