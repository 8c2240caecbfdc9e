"""Small pictures inside the page: PNG as data URIs, with transparent backgrounds where the page's own should show."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from lrtasks.record import PANEL

MAX_WIDTH = 720
"""Pixels to which a run's picture is reduced."""

POSITIVE, NEGATIVE = (23, 125, 190), (222, 106, 35)
CLASSES = ((128, 138, 150, 40), (23, 125, 190, 255), (222, 106, 35, 255), (32, 150, 110, 255), (160, 90, 170, 255))


def signed_rows(rows: np.ndarray) -> str:
    """A picture of real values, one pixel each: blue above 0, orange below, the fainter the nearer to it.

    Args:
        rows: ``(rows, columns)``.
    """
    scale = float(np.abs(rows).max()) or 1.0
    pixels = np.empty((*rows.shape, 4), np.uint8)
    pixels[..., :3] = np.where(rows[..., None] >= 0, POSITIVE, NEGATIVE)
    pixels[..., 3] = np.round(255 * np.abs(rows) / scale)
    return _data_uri(Image.fromarray(pixels, "RGBA"))


def grey_image(image: np.ndarray) -> str:
    """A picture of grey values, the lowest black, the highest white. ``image`` is ``(rows, columns)``."""
    low, high = float(image.min()), float(image.max())
    return _data_uri(Image.fromarray(np.uint8(255 * (image - low) / ((high - low) or 1.0)), "L"))


def class_image(labels: np.ndarray) -> str:
    """A picture of the class of each pixel; ignored ones are left out. ``labels`` is ``(rows, columns)``."""
    colours = np.asarray(CLASSES, np.uint8)[labels % len(CLASSES)]
    colours[labels < 0] = 0
    return _data_uri(Image.fromarray(colours, "RGBA"))


def predictions_panel(folder: Path) -> str | None:
    """The run's own picture of its predictions, made smaller; ``None`` if there is none that can be read."""
    path = folder / PANEL
    if not path.is_file():
        return None
    try:
        with Image.open(path, formats=["PNG"]) as image:
            picture = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # a damaged picture is no reason to have no report
    picture.thumbnail((MAX_WIDTH, 10 * MAX_WIDTH))
    return _data_uri(picture.quantize(64, dither=Image.Dither.NONE))


def _data_uri(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
