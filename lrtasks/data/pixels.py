"""Pictures as PNG: greyscale for inputs, a small palette of colours for label maps."""

from __future__ import annotations

import io

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.pixels import from_bytes

IGNORED_BYTE = 255
"""Pixel value that stands for the label -100."""

_COLOURS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0))
"""One per class, repeated; a palette that colour-blind readers can tell apart (Okabe and Ito, 2008), on black."""


def to_bytes(values: np.ndarray) -> np.ndarray:
    """The 8-bit pixels of which ``values`` are the real values, uint8.

    Raises:
        UsageError: if some value is not one of the 256 that bytes have.
    """
    scaled = np.rint((values.astype(np.float64) * 0.5 + 0.5) * 255)
    pixels = np.clip(scaled, 0, 255).astype(np.uint8)
    if not np.array_equal(from_bytes(pixels), values):
        raise UsageError("an image is stored as 8-bit pixels: each input value must be (byte / 255 - 0.5) / 0.5")
    return pixels


def encode_grey(pixels: np.ndarray) -> bytes:
    """PNG of ``(rows, columns)`` uint8 grey values."""
    from PIL import Image

    return _png(Image.fromarray(pixels))


def encode_labels(labels: np.ndarray, classes: int) -> bytes:
    """PNG of ``(rows, columns)`` labels below ``classes`` (-100 where ignored), whose pixel values are the labels.

    Raises:
        UsageError: for a label that is too large.
    """
    from PIL import Image

    if labels.max(initial=0) >= min(classes, IGNORED_BYTE):
        raise UsageError(f"a label map holds labels below {min(classes, IGNORED_BYTE)}, found {labels.max()}")
    ignored = labels < 0
    image = Image.fromarray(np.where(ignored, IGNORED_BYTE, labels).astype(np.uint8))
    shown = 256 if ignored.any() else classes
    palette = [_COLOURS[label % len(_COLOURS)] for label in range(shown)]
    image.putpalette([level for colour in palette for level in colour])
    return _png(image)


def decode(data: bytes) -> np.ndarray:
    """Pixel values of a PNG, ``(rows, columns)`` uint8: grey values, or labels of a palette image."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def decode_labels(data: bytes) -> np.ndarray:
    """Labels of a PNG made by :func:`encode_labels`, ``(rows, columns)`` int64."""
    labels = decode(data).astype(np.int64)
    labels[labels == IGNORED_BYTE] = -100
    return labels


def _png(image: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")  # type: ignore[attr-defined]
    return buffer.getvalue()
