"""What all images of one gap margin share, made once per process: directions, turns, and dashes as small patches.

Coordinates are (row, column), row 0 at the top; an orientation θ moves rows by sin θ and columns by cos θ.
Orientations are numbered: 0..359 are the whole degrees -180..179 of first dashes, then come the directions from a pivot
to each pixel of the ring of candidates. Trigonometry is from ``math``, one number at a time, so that the tables do not
depend on which vector instructions a processor has.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from lrtasks.generators.pathfinder.placement import DEGREES, Tables
from lrtasks.generators.pathfinder.settings import Settings

# Weights are whole numbers, so that a choice is the same on every platform: cos² in units of 2^-20 times 0..255.
WEIGHT_UNIT = 2**20
FULL = 255
REGISTER = 16  # bytes


class Kit(NamedTuple):
    """What all images of one margin share; ``n`` orientations.

    Attributes:
        settings: settings of the images.
        margin: the gap margin.
        angle: (n,) radians, -π..π.
        ink: (n, side, side) float32: intensity of a dash, not clipped, times contrast, centred on the pixel where the
            dash is placed.
        ink_box: (n, 4) first row, number of rows, first column, number of columns of the part above 0.
        cover: (n, side, side) uint8: the dash widened by the margin, what other dashes must not overlap.
        tables: what the search looks up.
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
    # first dashes are drawn forwards from their tail, the others backwards from their head
    ink, cover = _patches(settings, margin, degrees + [_opposite(angle) for angle in angles[DEGREES:]])
    reach = dilated(np.pad(cover, ((0, 0), (margin, margin), (margin, margin))), margin)
    # the greatest distance of a look-up from the image: for a dilated patch, or for a candidate around an outside pivot
    pad = reach.shape[1] // 2 + margin + 4
    stride = settings.res + 2 * pad
    hard = _hard(cover)
    half = cover.shape[1] // 2
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
        hard_at=_padded([(pixels - half) @ (stride, 1) for pixels, _ in hard]),
        hard_limit=_padded([limits for _, limits in hard]),
        hard_count=np.array([len(pixels) for pixels, _ in hard]),
        solid_at=_padded([pixels @ (stride, 1) for pixels in solid]),
        solid_count=np.array([len(pixels) for pixels in solid]),
        solid_box=np.array(reached).transpose(0, 2, 1).reshape(-1, 4),
        least_weight=math.ceil(1e-4 * FULL * WEIGHT_UNIT),
        res=settings.res,
        pad=pad,
        stride=stride,
        margin=margin,
        dashes=settings.dashes,
        distractor_dashes=settings.distractor_dashes,
        distractors=settings.distractors,
        seed_distance=settings.seed_distance,
        padding=settings.padding,
        dash_tries=settings.dash_tries,
        distractor_tries=settings.distractor_tries,
        marks_on_tips=settings.variant == "clean",
    )
    return Kit(settings, margin, np.array(angles), ink, boxes(ink), cover, tables)


# ---------------------------------------------------------------- directions


def _opposite(angle: float) -> float:
    """The opposite direction, in -π..π."""
    return angle + math.pi if angle < 0 else angle - math.pi


def _steps(settings: Settings, angles: list[float], distance: float) -> np.ndarray:
    """Steps (sin θ, cos θ) × ``distance``, ``(len(angles), 2)``: as they are (paper), or rounded to nearest (clean)."""
    moves = _moves(angles, distance)
    return moves if settings.variant == "paper" else _nearest(moves).astype(np.float64)


def _moves(angles: list[float], distance: float) -> np.ndarray:
    return np.array([(distance * math.sin(angle), distance * math.cos(angle)) for angle in angles])


def _nearest(moves: np.ndarray) -> np.ndarray:
    """Nearest whole numbers, halves away from zero: the mirror image of a step is rounded to the mirror image."""
    exact = np.round(np.abs(moves), 9)  # 4.5 may have come out as 4.499999999999999
    rounded: np.ndarray = (np.sign(moves) * np.floor(exact + 0.5)).astype(np.int64)
    return rounded


def _ring(settings: Settings, radius: int) -> np.ndarray:
    """Different pixels of a circle around a pivot, sorted, ``(k, 2)``.

    Paper: points one pixel of arc apart from angle 0 on, rounded down. Clean: points as dense, in a number divisible
    by 8, rounded to nearest, which makes the ring its own mirror image.
    """
    if settings.variant == "paper":
        angles = [index / radius for index in range(math.ceil(2 * math.pi * radius))]
        points = np.floor(_moves(angles, radius)).astype(np.int64)
    else:
        count = 8 * math.ceil(2 * math.pi * radius / 8)
        points = _nearest(_moves([2 * math.pi * index / count for index in range(count)], radius))
    return np.unique(points, axis=0)


def _turns(angles: list[float], continuity: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each orientation the ring pixels that need a turn below 90°/c, their weights cos²(c δ), and their number."""
    near, weight = [], []
    for angle in angles:
        turns = [abs(target - angle) for target in angles[DEGREES:]]
        turns = [min(min(turn, 2 * math.pi - turn) * continuity, math.pi / 2) for turn in turns]
        units = np.array([round(math.cos(turn) ** 2 * WEIGHT_UNIT) for turn in turns])
        near.append(np.flatnonzero(units))
        weight.append(units[units > 0])
    return _padded(near), _padded(weight), np.array([len(pixels) for pixels in near])


# ---------------------------------------------------------------- dashes


def _patches(settings: Settings, margin: int, angles: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Ink and cover of the dashes drawn from a patch's centre in each direction, ``(n, side, side)`` each."""
    scale = settings.antialias
    half = settings.dash_length + math.ceil(settings.dash_thickness) + margin
    side = 2 * half + 1
    ink = np.zeros((len(angles), side, side), np.float32)
    cover = np.zeros((len(angles), side, side), np.uint8)
    ends = np.ceil(half * scale + _steps(settings, angles, settings.dash_length * scale))
    for some in np.array_split(np.arange(len(ink)), math.ceil(len(ink) / 32)):  # chunks that stay in the cache
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
    """``image`` resampled to ``side`` × ``side`` pixels."""
    return image.resize((side, side), Image.Resampling.LANCZOS)


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


def _hard(cover: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each patch, the pixels that can collide, and the least value of a taken pixel that they collide with.

    Two dashes collide where they take more than 1.8 of a pixel.
    """
    level = (np.arange(256) / FULL).astype(np.float32).astype(np.float64)
    collides = level[:, None] + level[None, :] >= 1.8
    limit = np.where(collides.any(axis=1), collides.argmax(axis=1), 256)
    return [(np.argwhere(limit[patch] < 256), limit[patch][limit[patch] < 256]) for patch in cover]


def _solid(settings: Settings, cover: np.ndarray, margin: int) -> list[np.ndarray]:
    """For each dash, steps to the pixels that must be free for it to start: those it covers fully, ``(p, 2)``.

    The pixels are ordered from the outside to the inside, so that an obstacle is found early. The paper's generator
    checks pixels one too far down and right, and only those within L + m; the paper variant does the same.
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


# ---------------------------------------------------------------- layout in memory


def boxes(patches: np.ndarray) -> np.ndarray:
    """First row, number of rows, first column, number of columns of the part of each patch above 0, ``(n, 4)``."""
    found = np.zeros((len(patches), 4), np.int64)
    for index, patch in enumerate(patches > 0):
        rows, cols = np.flatnonzero(patch.any(axis=1)), np.flatnonzero(patch.any(axis=0))
        found[index] = rows[0], rows[-1] + 1 - rows[0], cols[0], cols[-1] + 1 - cols[0]
    return found


def _widened(patches: np.ndarray) -> np.ndarray:
    """Boxes widened to whole vector registers, which halves the time of pasting."""
    wide = boxes(patches)
    wide[:, 3] += -wide[:, 3] % REGISTER
    return wide


def _flat(patches: np.ndarray) -> np.ndarray:
    """The boxes of all patches, one after another, row by row."""
    padded = np.pad(patches, ((0, 0), (0, 0), (0, REGISTER)))
    parts = zip(padded, _widened(patches).tolist(), strict=True)
    return np.concatenate([p[top : top + rows, left : left + cols].ravel() for p, (top, rows, left, cols) in parts])


def _flat_boxes(patches: np.ndarray, stride: int) -> np.ndarray:
    """For each patch in :func:`_flat`: where its box begins in a flat picture, seen from its centre; rows; columns;
    where it begins in :func:`_flat`; ``(n, 4)``."""
    top, rows, left, cols = _widened(patches).T
    half = patches.shape[1] // 2
    return np.stack([(top - half) * stride + left - half, rows, cols, np.cumsum(rows * cols) - rows * cols], axis=1)


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array filled up with zeros."""
    table = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table
