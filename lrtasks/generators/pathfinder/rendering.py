"""Dashes and marks as small patches, drawn by Pillow once for each orientation and pasted from then on."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from lrtasks.generators.pathfinder.geometry import DEGREES, Geometry, steps
from lrtasks.generators.pathfinder.settings import Settings

FULL = 255
_LANCZOS_REACH = 3


class Patches(NamedTuple):
    """Patches of one margin, one for each of ``n`` orientations, centred on the pixel where the dash is placed.

    Attributes:
        ink: (n, side, side) float32: intensity of the dash, not clipped, times contrast.
        ink_box: (n, 4) first row, number of rows, first column, number of columns of the part above 0.
        cover: (n, side, side) uint8: the dash widened by the margin, what other dashes must not overlap.
        cover_box: (n, 4) its part above 0.
        reach: (n, side + 2m, side + 2m) uint8: ``cover`` dilated by a disc of radius m.
        reach_box: (n, 4) its part above 0.
        solid: (360, p, 2) for each first dash, steps from its start to the pixels that must be free, in an order that
            finds an obstacle soon; padded.
        solid_count: (360,) how many they are.
        solid_box: (360, 4) smallest and largest row step, smallest and largest column step.
    """

    ink: np.ndarray
    ink_box: np.ndarray
    cover: np.ndarray
    cover_box: np.ndarray
    reach: np.ndarray
    reach_box: np.ndarray
    solid: np.ndarray
    solid_count: np.ndarray
    solid_box: np.ndarray


def patches(settings: Settings, margin: int, geometry: Geometry) -> Patches:
    """Draw the dashes of all orientations."""
    scale = settings.antialias
    half = settings.dash_length + math.ceil(settings.dash_thickness) + margin
    side = 2 * half + 1
    ink = np.zeros((len(geometry.angle), side, side), np.float32)
    cover = np.zeros((len(geometry.angle), side, side), np.uint8)
    ends = np.ceil(half * scale + steps(settings, geometry.drawn_angle.tolist(), settings.dash_length * scale))
    for some in np.array_split(np.arange(len(ink)), math.ceil(len(ink) / 32)):  # chunks that stay in the cache
        lines = [_line(half * scale, ends[index], round(settings.dash_thickness * scale)) for index in some]
        widened = dilated(np.stack([np.asarray(line) for line in lines]).astype(np.uint8), margin * scale)
        for index, line, wide in zip(some, lines, widened, strict=True):
            ink[index] = np.asarray(_shrunk(line, side)).astype(np.float64) / FULL * settings.contrast
            cover[index] = np.asarray(_shrunk(Image.fromarray(wide), side))
    reach = dilated(np.pad(cover, ((0, 0), (margin, margin), (margin, margin))), margin)
    solid, solid_count, solid_box = _solid(settings, cover[:DEGREES], margin)
    return Patches(ink, _boxes(ink), cover, _boxes(cover), reach, _boxes(reach), solid, solid_count, solid_box)


def dilated(stack: np.ndarray, radius: int) -> np.ndarray:
    """Grey dilation of each image of ``(n, rows, columns)`` by a disc of ``radius`` pixels; what is outside is 0."""
    wide = stack.copy()
    result = stack.copy()
    for width in range(radius + 1):
        if width:
            np.maximum(wide[:, :, width:], stack[:, :, :-width], out=wide[:, :, width:])
            np.maximum(wide[:, :, :-width], stack[:, :, width:], out=wide[:, :, :-width])
        for height in range(radius + 1):
            if math.isqrt(radius**2 - height**2) == width:
                below, above = result[:, height:], result[:, : result.shape[1] - height]
                np.maximum(below, wide[:, : result.shape[1] - height], out=below)
                np.maximum(above, wide[:, height:], out=above)
    return result


@functools.lru_cache(maxsize=4096)
def mark(res: int, radius: float, scale: int, row: int, col: int) -> tuple[int, int, np.ndarray]:
    """A mark at (``row``, ``col``): first row and column of its patch, and the patch, float32.

    The same values as in a whole image drawn ``scale`` times enlarged and resampled. The filter is normalised anew at
    the image's border, so a mark near it has a patch that ends there; all others share one.
    """
    reach = math.ceil(radius) + _LANCZOS_REACH + 2
    side = min(2 * reach + 1, res)
    top = min(max(row - reach, 0), res - side)
    left = min(max(col - reach, 0), res - side)
    return top, left, _mark_patch(side, radius, scale, row - top, col - left)


@functools.lru_cache(maxsize=4096)
def _mark_patch(side: int, radius: float, scale: int, row: int, col: int) -> np.ndarray:
    rows, cols = np.ogrid[: side * scale, : side * scale]
    inside = (rows - row * scale) ** 2 + (cols - col * scale) ** 2 <= (radius * scale) ** 2
    return np.array(_shrunk(Image.fromarray(inside.astype(np.float32)), side))


def _line(centre: int, end: np.ndarray, width: int) -> Image.Image:
    image = Image.new("F", (2 * centre + 1, 2 * centre + 1))
    ImageDraw.Draw(image).line([(centre, centre), (int(end[1]), int(end[0]))], fill=FULL, width=width)
    return image


def _shrunk(image: Image.Image, side: int) -> Image.Image:
    return image.resize((side, side), Image.Resampling.LANCZOS)


def _boxes(stack: np.ndarray) -> np.ndarray:
    boxes = np.zeros((len(stack), 4), np.int64)
    for index, patch in enumerate(stack > 0):
        rows, cols = np.flatnonzero(patch.any(axis=1)), np.flatnonzero(patch.any(axis=0))
        boxes[index] = rows[0], rows[-1] + 1 - rows[0], cols[0], cols[-1] + 1 - cols[0]
    return boxes


def _solid(settings: Settings, cover: np.ndarray, margin: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pixels that must be free for a dash to start: those it covers fully.

    The generator whose law this is looks at them one pixel too far down and right, and only within L + m of there.
    """
    half = cover.shape[1] // 2
    kept = settings.dash_length + margin
    found = []
    for patch in cover:
        pixels = np.argwhere(patch == FULL) - half
        if settings.variant == "paper":
            pixels = pixels[(pixels >= -kept - 1).all(axis=1) & (pixels <= kept - 1).all(axis=1)] + 1
        found.append(pixels)
    count = np.array([len(pixels) for pixels in found], np.int64)
    solid = np.zeros((len(found), int(count.max()), 2), np.int64)
    box = np.zeros((len(found), 4), np.int64)
    for index, pixels in enumerate(found):
        centre = pixels.mean(axis=0)
        outside_in = np.argsort(-((pixels - centre) ** 2).sum(axis=1), kind="stable")
        solid[index, : len(pixels)] = pixels[outside_in]
        box[index] = *pixels.min(axis=0)[:1], *pixels.max(axis=0)[:1], *pixels.min(axis=0)[1:], *pixels.max(axis=0)[1:]
    return solid, count, box
