"""Tables that all images of one gap margin share, made once per process: directions, turns and patches of dashes.

Coordinates are (row, column), row 0 at the top; an orientation θ moves rows by sin θ and columns by cos θ.
Orientations are numbered: 0..359 are the whole degrees -180..179 of first dashes; the next numbers are the directions
from a pivot to each pixel of the ring of candidates. Trigonometric functions are from ``math``, one number at a time,
so that the tables do not depend on the vector instructions of a processor.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from lrtasks.generators.pathfinder import Settings
from lrtasks.generators.pathfinder.placement import DEGREES, REGISTER, Tables

# Weights are whole numbers, so that all platforms make the same choices: cos² in units of 2^-20, times 0..255.
WEIGHT_UNIT = 2**20
FULL = 255


class Kit(NamedTuple):
    """Tables and patches that all images of one margin share; there are ``n`` orientations.

    Attributes:
        angle: (n,) radians, -π..π.
        ink: (n, side, side) float32: intensity of a dash, not clipped, times contrast, centred on the pixel where the
            dash is placed.
        ink_box: (n, 4) first row, number of rows, first column, number of columns of the part above 0.
        cover: (n, side, side) uint8: the dash widened by the margin, an area that other dashes must not overlap.
    """

    settings: Settings
    margin: int
    angle: np.ndarray
    ink: np.ndarray
    ink_box: np.ndarray
    cover: np.ndarray
    tables: Tables


@functools.lru_cache(maxsize=16)
def kit(settings: Settings, margin: int) -> Kit:
    """Compute the tables of ``settings`` for one gap margin."""
    length = settings.dash_length
    degrees = [degree * math.pi / 180 for degree in range(-180, 180)]
    ring = _ring(settings, length + margin)
    angles = degrees + [math.atan2(row, col) for row, col in ring.tolist()]
    near, weight, near_count = _turns(angles, settings.continuity)
    # first dashes are drawn forwards from their tail, all others backwards from their head
    ink, cover = _patches(settings, margin, degrees + [_opposite(angle) for angle in angles[DEGREES:]])
    reach = dilated(np.pad(cover, ((0, 0), (margin, margin), (margin, margin))), margin)
    # largest distance of a look-up from the image: by a dilated patch, or by a candidate around an outside pivot
    pad = reach.shape[1] // 2 + margin + 4
    stride = settings.res + 2 * pad
    hard = _hard(cover)
    solid = _solid(settings, cover[:DEGREES], margin)
    reached = [[pixels.min(axis=0), pixels.max(axis=0)] for pixels in solid]
    tables = Tables(
        head=_steps(settings, degrees, length),
        back=_steps(settings, [_opposite(angle) for angle in degrees], length + margin),
        advance=_steps(settings, angles, length + 2 * margin),
        second=_nearest(_moves([degree * math.pi / 180 for degree in range(360)], settings.seed_distance)),
        ring=ring,
        near=near,
        near_at=ring[near] @ (stride, 1),
        near_count=near_count,
        weight=weight,
        cover=_flat(cover),
        cover_box=_flat_boxes(cover, stride),
        reach=_flat(reach),
        reach_box=_flat_boxes(reach, stride),
        spare=FULL - _flat(hard),
        spare_box=_flat_boxes(hard, stride),
        solid_at=_padded([pixels @ (stride, 1) for pixels in solid]),
        solid_count=np.array([len(pixels) for pixels in solid]),
        solid_box=np.array(reached).transpose(0, 2, 1).reshape(-1, 4),
        smallest_weight=math.ceil(1e-4 * FULL * WEIGHT_UNIT),
        pad=pad,
        stride=stride,
        margin=margin,
        marks_on_tips=settings.variant == "clean",
        **{name: value for name, value in settings._asdict().items() if name in Tables._fields},
    )
    return Kit(settings, margin, np.array(angles), ink, boxes(ink), cover, tables)


def _opposite(angle: float) -> float:
    """Return the opposite direction, in -π..π."""
    return angle + math.pi if angle < 0 else angle - math.pi


def _steps(settings: Settings, angles: list[float], distance: float) -> np.ndarray:
    """Return steps (sin θ, cos θ) × ``distance``, ``(len(angles), 2)``; the clean variant rounds them to nearest."""
    moves = _moves(angles, distance)
    return moves if settings.variant == "paper" else _nearest(moves).astype(np.float64)


def _moves(angles: list[float], distance: float) -> np.ndarray:
    return np.array([(distance * math.sin(angle), distance * math.cos(angle)) for angle in angles])


def _nearest(moves: np.ndarray) -> np.ndarray:
    """Round to nearest, halves away from zero, so that rounding a mirrored step gives the mirrored rounded step."""
    exact = np.round(np.abs(moves), 9)  # 4.5 may have been computed as 4.499999999999999
    return (np.sign(moves) * np.floor(exact + 0.5)).astype(np.int64)


def _ring(settings: Settings, radius: int) -> np.ndarray:
    """Return the distinct pixels of a circle around a pivot, sorted, ``(k, 2)``.

    Paper: points at arc distances of one pixel, starting at angle 0, rounded down. Clean: about as many points, rounded
    to nearest; their number is divisible by 8, which makes the ring its own mirror image.
    """
    if settings.variant == "paper":
        angles = [index / radius for index in range(math.ceil(2 * math.pi * radius))]
        points = np.floor(_moves(angles, radius)).astype(np.int64)
    else:
        count = 8 * math.ceil(2 * math.pi * radius / 8)
        points = _nearest(_moves([2 * math.pi * index / count for index in range(count)], radius))
    return np.unique(points, axis=0)


def _turns(angles: list[float], continuity: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each orientation, ring pixels at turns δ below 90°/c, weights cos²(c δ), and number of pixels."""
    near, weight = [], []
    for angle in angles:
        turns = [abs(target - angle) for target in angles[DEGREES:]]
        turns = [min(min(turn, 2 * math.pi - turn) * continuity, math.pi / 2) for turn in turns]
        units = np.array([round(math.cos(turn) ** 2 * WEIGHT_UNIT) for turn in turns])
        near.append(np.flatnonzero(units))
        weight.append(units[units > 0])
    return _padded(near), _padded(weight), np.array([len(pixels) for pixels in near])


def _patches(settings: Settings, margin: int, angles: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return ink and cover of dashes drawn from the patch centre in each direction, each ``(n, side, side)``."""
    scale = settings.antialias
    half = settings.dash_length + math.ceil(settings.dash_thickness) + margin
    side = 2 * half + 1
    ink = np.zeros((len(angles), side, side), np.float32)
    cover = np.zeros((len(angles), side, side), np.uint8)
    ends = np.ceil(half * scale + _steps(settings, angles, settings.dash_length * scale))
    for some in np.array_split(np.arange(len(ink)), math.ceil(len(ink) / 32)):  # chunks that fit in the cache
        lines = [_line(half * scale, ends[index], round(settings.dash_thickness * scale)) for index in some]
        widened = dilated(np.stack([np.asarray(line) for line in lines]).astype(np.uint8), margin * scale)
        for index, line, wide in zip(some, lines, widened, strict=True):
            ink[index] = np.asarray(shrunk(line, side)).astype(np.float64) / FULL * settings.contrast
            cover[index] = np.asarray(shrunk(Image.fromarray(wide), side))
    return ink, cover


def _line(centre: int, end: np.ndarray, width: int) -> Image.Image:
    image = Image.new("F", (2 * centre + 1, 2 * centre + 1))
    ImageDraw.Draw(image).line([(centre, centre), (int(end[1]), int(end[0]))], fill=FULL, width=width)
    return image


def shrunk(image: Image.Image, side: int) -> Image.Image:
    """Resample ``image`` to ``side`` × ``side`` pixels."""
    return image.resize((side, side), Image.Resampling.LANCZOS)


def dilated(stack: np.ndarray, radius: int) -> np.ndarray:
    """Dilate each grey image of ``(n, rows, columns)`` by a disc of ``radius`` pixels; outside pixels count as 0."""
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


def _hard(cover: np.ndarray) -> np.ndarray:
    """Return, for each pixel of ``cover``, 256 minus the smallest ``cover`` value at which it collides; 0 if at none.

    Two dashes collide at a pixel if they take 1.8 or more of the pixel in total.
    """
    level = (np.arange(256) / FULL).astype(np.float32).astype(np.float64)
    return (level[:, None] + level[None, :] >= 1.8).sum(axis=1).astype(np.uint8)[cover]


def _solid(settings: Settings, cover: np.ndarray, margin: int) -> list[np.ndarray]:
    """Return, for each dash, steps ``(p, 2)`` to the pixels that it covers fully: these must be free for it to start.

    The pixels are ordered from the outside to the inside, so that an obstacle is found early. The paper's generator
    checks pixels shifted by one down and right, and only pixels within L + m; the paper variant does the same.
    """
    half = cover.shape[1] // 2
    kept = settings.dash_length + margin
    found = []
    for patch in cover:
        pixels = np.argwhere(patch == FULL) - half
        if settings.variant == "paper":
            pixels = pixels[(pixels >= -kept - 1).all(axis=1) & (pixels <= kept - 1).all(axis=1)] + 1
        distance = ((pixels - pixels.mean(axis=0)) ** 2).sum(axis=1)
        found.append(pixels[np.argsort(-distance, kind="stable")])
    return found


def boxes(patches: np.ndarray) -> np.ndarray:
    """Return first row, number of rows, first column, number of columns of each patch's part above 0, ``(n, 4)``."""
    found = np.zeros((len(patches), 4), np.int64)
    for index, patch in enumerate(patches > 0):
        rows, cols = np.flatnonzero(patch.any(axis=1)), np.flatnonzero(patch.any(axis=0))
        found[index] = rows[0], rows[-1] + 1 - rows[0], cols[0], cols[-1] + 1 - cols[0]
    return found


def _widened(patches: np.ndarray) -> np.ndarray:
    """Return the boxes widened to whole vector registers, which halves the time of pasting."""
    wide = boxes(patches)
    wide[:, 3] += -wide[:, 3] % REGISTER
    return wide


def _flat(patches: np.ndarray) -> np.ndarray:
    """Return the pixels in the boxes of all patches as one flat array: patch after patch, row by row."""
    padded = np.pad(patches, ((0, 0), (0, 0), (0, REGISTER)))
    parts = zip(padded, _widened(patches).tolist(), strict=True)
    return np.concatenate([p[top : top + rows, left : left + cols].ravel() for p, (top, rows, left, cols) in parts])


def _flat_boxes(patches: np.ndarray, stride: int) -> np.ndarray:
    """Return, for each patch, ``(n, 4)``: offset of its box from its centre in a flat array; rows; columns, in units
    of ``REGISTER``; offset of its pixels in :func:`_flat`."""
    top, rows, left, cols = _widened(patches).T
    half = patches.shape[1] // 2
    begin = np.cumsum(rows * cols) - rows * cols
    return np.stack([(top - half) * stride + left - half, rows, cols // REGISTER, begin], axis=1)


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    """Return rows of different lengths as one array, filled up with zeros."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
