"""What the search looks up and works on, made from geometry and patches."""

from __future__ import annotations

import math

import numpy as np

from lrtasks.generators.pathfinder.geometry import WEIGHT_UNIT, Geometry
from lrtasks.generators.pathfinder.placement import CROSSING, FAILED, Canvas, Scene, Tables
from lrtasks.generators.pathfinder.rendering import Patches
from lrtasks.generators.pathfinder.settings import Settings

REGISTER = 16  # bytes


def tables(settings: Settings, margin: int, geometry: Geometry, patches: Patches) -> Tables:
    """Gather what :func:`lrtasks.generators.pathfinder.placement.place` needs for one margin."""
    # farthest from an image pixel that anything is looked up: a dilated patch, or a candidate around an outside pivot
    pad = patches.reach.shape[1] // 2 + margin + 4
    stride = settings.res + 2 * pad
    cover_half = patches.cover.shape[1] // 2
    # Two dashes collide where they take more than 1.8 of a pixel; `limit` is the least taken value for each own value.
    level = (np.arange(256) / 255).astype(np.float32).astype(np.float64)
    collides = level[:, None] + level[None, :] >= 1.8
    limit = np.where(collides.any(axis=1), collides.argmax(axis=1), 256)
    hard = [np.argwhere(limit[patch] < 256) for patch in patches.cover]
    hard_at, hard_count = _padded([(pixels - cover_half) @ (stride, 1) for pixels in hard])
    hard_limit, _ = _padded([limit[patch[tuple(pixels.T)]] for patch, pixels in zip(patches.cover, hard, strict=True)])
    cover, cover_box = _in_blocks(patches.cover, patches.cover_box)
    reach, reach_box = _in_blocks(patches.reach, patches.reach_box)
    return Tables(
        head=geometry.head,
        back=geometry.back,
        advance=geometry.advance,
        second=geometry.second,
        ring=geometry.ring,
        near=geometry.near,
        near_at=geometry.ring[geometry.near] @ (stride, 1),
        near_count=geometry.near_count,
        weight=geometry.weight,
        cover=cover,
        cover_box=cover_box,
        cover_half=cover_half,
        reach=reach,
        reach_box=reach_box,
        reach_half=patches.reach.shape[1] // 2,
        hard_at=hard_at,
        hard_limit=hard_limit,
        hard_count=hard_count,
        solid_at=patches.solid @ (stride, 1),
        solid_count=patches.solid_count,
        solid_box=patches.solid_box,
        least_weight=math.ceil(1e-4 * 255 * WEIGHT_UNIT),
        res=settings.res,
        pad=pad,
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


def _in_blocks(stack: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Widen boxes to whole vector registers, which halves the time of pasting, and patches accordingly, by zeros."""
    wide = box.copy()
    wide[:, 3] += -box[:, 3] % REGISTER
    return np.pad(stack, ((0, 0), (0, 0), (0, REGISTER))), wide


def _padded(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of different lengths as one array filled up with zeros, and the lengths."""
    count = np.array([len(row) for row in rows], np.int64)
    table = np.zeros((len(rows), int(count.max())), np.int64)
    for index, row in enumerate(rows):
        table[index, : len(row)] = row
    return table, count


def empty(t: Tables) -> tuple[Canvas, Scene]:
    """A canvas with nothing but the frame, and room for a scene."""
    size = t.res + 2 * t.pad
    cover = np.zeros((size, size), np.uint8)
    cover[t.pad : -t.pad, t.pad : -t.pad] = 255
    cover[t.pad + t.padding : -t.pad - t.padding, t.pad + t.padding : -t.pad - t.padding] = 0
    reach = np.full((size, size), 255, np.uint8)
    edge = t.pad + t.padding + t.margin
    reach[edge:-edge, edge:-edge] = 0
    canvas = Canvas(
        cover.ravel(),
        reach.ravel(),
        cover.flatten(),
        reach.flatten(),
        pasted=np.zeros((2 * t.dashes + t.distractor_dashes, 2), np.int64),
        pending=np.zeros(1, np.int64),
    )
    scene = Scene(
        main=np.zeros((2, t.dashes, 3), np.int64),
        others=np.zeros((t.distractors, t.distractor_dashes, 3), np.int64),
        marks=np.zeros((t.distractors, 2), np.int64),
        counts=np.zeros(FAILED + CROSSING + 1, np.int64),
    )
    return canvas, scene
