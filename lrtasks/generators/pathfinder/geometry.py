"""Directions, steps and turning weights: everything of the placement that needs trigonometry, as tables.

Coordinates are (row, column), row 0 at the top; an orientation θ moves rows by sin θ and columns by cos θ.
Orientations are numbered: 0..359 are the whole degrees -180..179 of first dashes, then come the directions from a pivot
to each pixel of the ring of candidates. Trigonometry is from ``math``, one number at a time, so that the tables do not
depend on which vector instructions a processor has.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lrtasks.generators.pathfinder.settings import Settings

DEGREES = 360
# Weights are whole numbers, so that a choice is the same on every platform: cos² in units of 2^-20 times 0..255.
WEIGHT_UNIT = 2**20


class Geometry(NamedTuple):
    """Tables for one margin; ``n`` orientations, ``k`` ring pixels.

    Attributes:
        angle: (n,) radians, -π..π.
        drawn_angle: (n,) radians: direction in which a dash is drawn from the pixel it is placed at. First dashes are
            drawn forwards from their tail, the others backwards from their head.
        head: (360, 2) step from the tail of a first dash to its head.
        back: (360, 2) step from that head to the first pivot, m behind the tail.
        advance: (n, 2) step from a pivot to the next.
        second: (360, 2) whole steps between the two main paths' tails, by degrees 0..359.
        ring: (k, 2) whole steps from a pivot to the candidate heads.
        near: (n, j) for each orientation, the ring pixels that need a turn below 90°/c, padded with 0.
        weight: (n, j) their weights cos²(c δ) in units of ``1 / WEIGHT_UNIT``, padded with 0.
        near_count: (n,) how many of them there are.

    Steps are real numbers: a point moved by one is rounded up, which in the clean variant changes nothing, since its
    steps are whole.
    """

    angle: np.ndarray
    drawn_angle: np.ndarray
    head: np.ndarray
    back: np.ndarray
    advance: np.ndarray
    second: np.ndarray
    ring: np.ndarray
    near: np.ndarray
    weight: np.ndarray
    near_count: np.ndarray


def geometry(settings: Settings, margin: int) -> Geometry:
    """Compute the tables of ``settings`` for one gap margin."""
    length = settings.dash_length
    degrees = [degree * math.pi / 180 for degree in range(-180, 180)]
    ring = _ring(settings, length + margin)
    angles = degrees + [math.atan2(row, col) for row, col in ring.tolist()]
    near, weight, near_count = _turns(angles, len(ring), settings.continuity)
    return Geometry(
        angle=np.array(angles),
        drawn_angle=np.array(degrees + [opposite(angle) for angle in angles[DEGREES:]]),
        head=steps(settings, degrees, length),
        back=steps(settings, [opposite(angle) for angle in degrees], length + margin),
        advance=steps(settings, angles, length + 2 * margin),
        second=_nearest(_moves([degree * math.pi / 180 for degree in range(360)], settings.seed_distance)),
        ring=ring,
        near=near,
        weight=weight,
        near_count=near_count,
    )


def opposite(angle: float) -> float:
    """The opposite direction, in -π..π."""
    return angle + math.pi if angle < 0 else angle - math.pi


def steps(settings: Settings, angles: list[float], distance: float) -> np.ndarray:
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


def _turns(angles: list[float], ring_size: int, continuity: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    targets = angles[DEGREES:]
    near = np.zeros((len(angles), ring_size), np.int64)
    weight = np.zeros((len(angles), ring_size), np.int64)
    count = np.zeros(len(angles), np.int64)
    for index, angle in enumerate(angles):
        for pixel, target in enumerate(targets):
            turn = abs(target - angle)
            turn = min(min(turn, 2 * math.pi - turn) * continuity, math.pi / 2)
            units = round(math.cos(turn) ** 2 * WEIGHT_UNIT)
            if units > 0:
                near[index, count[index]] = pixel
                weight[index, count[index]] = units
                count[index] += 1
    widest = int(count.max())
    return near[:, :widest].copy(), weight[:, :widest].copy(), count
