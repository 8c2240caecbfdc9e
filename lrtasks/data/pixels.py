"""Pictures as PNG: greyscale for inputs, a small palette of colours for label maps."""

from __future__ import annotations

import io
import struct
import zlib

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
    scaled = values.astype(np.float32) * np.float32(127.5) + np.float32(127.5)
    pixels: np.ndarray = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    if not np.array_equal(from_bytes(pixels), values):
        raise UsageError("an image is stored as 8-bit pixels: each input value must be (byte / 255 - 0.5) / 0.5")
    return pixels


def encode_grey(pixels: np.ndarray) -> bytes:
    """PNG of ``(rows, columns)`` uint8 grey values."""
    return _png(pixels)


def encode_labels(labels: np.ndarray, classes: int) -> bytes:
    """PNG of ``(rows, columns)`` labels below ``classes`` (-100 where ignored), whose pixel values are the labels.

    Raises:
        UsageError: for a label that is too large.
    """
    if labels.max(initial=0) >= min(classes, IGNORED_BYTE):
        raise UsageError(f"a label map holds labels below {min(classes, IGNORED_BYTE)}, found {labels.max()}")
    ignored = labels < 0
    shown = 256 if ignored.any() else classes
    palette = b"".join(bytes(_COLOURS[label % len(_COLOURS)]) for label in range(shown))
    return _png(np.where(ignored, IGNORED_BYTE, labels).astype(np.uint8), palette)


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


def _png(pixels: np.ndarray, palette: bytes = b"") -> bytes:
    """A PNG file with a byte per pixel.

    Rows are not filtered: of flat areas with thin lines that makes smaller files, in a third of Pillow's time.
    """
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3 if palette else 0, 0, 0, 0)
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # before each row the number of its filter, 0
    chunks = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows.tobytes(), 4)), (b"IEND", b"")]
    written = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
        if data or name == b"IEND"
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
