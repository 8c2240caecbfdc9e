"""Drawing of a random Pathfinder image, its target and its metadata."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lrtasks.compiling import compiled
from lrtasks.errors import UsageError
from lrtasks.generators.pathfinder import Settings, placement
from lrtasks.generators.pathfinder.placement import Scene
from lrtasks.generators.pathfinder.tables import Kit, kit, shrunk

LANCZOS_REACH = 3
# Clean variant: a pixel belongs to a path if the path's own intensity there, scaled as the image, is at least this.
VISIBLE = 64


@dataclasses.dataclass(frozen=True)
class Layout:
    """An image whose parts are placed but not yet drawn.

    Attributes:
        kit: tables and patches of the gap margin that was drawn for the image.
        label: 1 if both main marks are on the same path, else 0.
        scene: positions of all dashes and of the distractors' marks.
        marked: paths (0 or 1) that carry the origin mark and the terminal mark.
    """

    kit: Kit
    label: int
    scene: Scene
    marked: tuple[int, int]

    @property
    def distractors(self) -> int:
        """Number of distractors placed."""
        return int(self.scene.counts[placement.DISTRACTORS])

    @property
    def marks(self) -> np.ndarray:
        """Row and column of each mark, ``(2 + distractors, 2)``: origin mark, terminal mark, distractors' marks."""
        origin, terminal = self.marked
        return np.vstack([self.origin_tips[origin], self.terminal_tips[terminal], self.scene.marks[: self.distractors]])

    @property
    def origin_tips(self) -> np.ndarray:
        """Row and column of the start of each main path, ``(2, 2)``."""
        return self.scene.main[:, 0, :2]

    @property
    def terminal_tips(self) -> np.ndarray:
        """Row and column of the end of each main path, ``(2, 2)``."""
        return self.scene.main[:, -1, :2]

    def meta(self) -> dict[str, Any]:
        """Return the metadata of the image by name.

        ``label``; ``origin_tips`` and ``terminal_tips``, ``(2, 2)``, row and column of the ends of each main path;
        ``marked_paths``, ``(2,)``, the paths (0 or 1) of the origin mark and of the terminal mark; ``marks``,
        ``(2 + distractors, 2)``; ``main_mark``, ``(2 + distractors,)``, True for marks on main paths; ``distractors``,
        the number of distractors placed; ``margin``, the gap margin that was drawn.
        """
        return {
            "label": self.label,
            "origin_tips": self.origin_tips,
            "terminal_tips": self.terminal_tips,
            "marked_paths": np.array(self.marked),
            "marks": self.marks,
            "main_mark": np.arange(2 + self.distractors) < 2,
            "distractors": self.distractors,
            "margin": self.kit.margin,
        }


class Picture(NamedTuple):
    """A drawn image.

    Attributes:
        image: (res, res) uint8.
        target: (res, res) uint8: 2 on a main path with both marks, 1 on any other main path, 0 elsewhere.
        paths: (2, res, res) bool: the pixels of each main path.
        peak: largest intensity before the image is scaled to 0..255.
    """

    image: np.ndarray
    target: np.ndarray
    paths: np.ndarray
    peak: float


def lay_out(settings: Settings, rng: np.random.Generator) -> Layout:
    """Draw the positions of all dashes and marks.

    Raises:
        UsageError: if none of ``MAX_ATTEMPTS`` attempts places two main paths.
    """
    state = placement.seeded(rng.integers(0, 2**32, size=4, dtype=np.uint32))
    label = int(placement.below(state, 2))
    margin = settings.gap_margins[placement.below(state, len(settings.gap_margins))]
    shared = kit(settings, margin)
    canvas, scene = placement.empty(shared.tables)
    placement.place(shared.tables, canvas, state, scene)
    if not scene.counts[placement.FOUND]:
        found = f"no two paths found for res={settings.res} in {placement.MAX_ATTEMPTS} attempts"
        dashes = f"dashes={settings.dashes} of dash_length={settings.dash_length} with a gap margin of {margin}"
        longest = f"the longest failed path had {scene.counts[placement.LONGEST]} dashes"
        where = f"and seed_distance={settings.seed_distance} do not fit"
        raise UsageError(f"pathfinder: {found}: {dashes} {where}; {longest}")
    origin = int(placement.below(state, 2))
    return Layout(shared, label, scene, (origin, origin if label else 1 - origin))


def draw(layout: Layout) -> Picture:
    """Draw the image and the target of a layout."""
    settings = layout.kit.settings
    paths = np.zeros((2, settings.res, settings.res), np.float32)
    for path, dashes in zip(paths, layout.scene.main, strict=True):
        paste_dashes(path, layout.kit.ink, layout.kit.ink_box, dashes)
    canvas = np.maximum(paths[0], paths[1])
    others = layout.scene.others[: layout.distractors].reshape(-1, 3)
    paste_dashes(canvas, layout.kit.ink, layout.kit.ink_box, others)
    for row, col in layout.marks.tolist():
        top, left, patch = mark(settings.res, settings.mark_radius, settings.antialias, row, col)
        view = canvas[top : top + patch.shape[0], left : left + patch.shape[1]]
        np.maximum(view, patch, out=view)
    peak = float(canvas.max())
    threshold = 1 if settings.variant == "paper" else VISIBLE
    on_path = normalised(paths, peak) >= threshold
    one, other = (1 + (layout.marked == (path, path)) for path in range(2))
    target = np.maximum(on_path[0] * np.uint8(one), on_path[1] * np.uint8(other))
    return Picture(normalised(canvas, peak), target, on_path, peak)


@compiled
def paste_dashes(canvas: np.ndarray, ink: np.ndarray, ink_box: np.ndarray, dashes: np.ndarray) -> None:
    """Paste each dash (row, column, orientation) into ``canvas`` as a pixel-wise maximum; cut dashes at the border."""
    half, size = ink.shape[1] // 2, len(canvas)
    for dash in dashes:
        first_row, height, first_col, width = ink_box[dash[2]]
        top, left, patch = dash[0] - half, dash[1] - half, ink[dash[2]]
        begin, end = max(first_col, -left), min(first_col + width, size - left)
        for row in range(max(first_row, -top), min(first_row + height, size - top)):
            old, new = canvas[top + row, left + begin : left + end], patch[row, begin:end]
            for col in range(end - begin):
                old[col] = max(old[col], new[col])


def normalised(canvas: np.ndarray, peak: float) -> np.ndarray:
    """Scale 0..peak to 0..255 and round, halves to even; return uint8."""
    grey = np.zeros(canvas.shape, np.uint8)
    _normalise(canvas.ravel(), peak, grey.ravel())
    return grey


@compiled
def _normalise(canvas: np.ndarray, peak: float, grey: np.ndarray) -> None:
    for pixel in range(len(canvas)):
        if canvas[pixel] > 0:  # most pixels are 0
            grey[pixel] = int(np.rint(float(canvas[pixel]) / peak * 255))


@functools.lru_cache(maxsize=4096)
def mark(res: int, radius: float, scale: int, row: int, col: int) -> tuple[int, int, np.ndarray]:
    """Return first row, first column and float32 patch of a mark at (``row``, ``col``).

    The values are the same as in a whole image that is drawn ``scale`` times larger and then resampled. At the image's
    border the filter is normalised again: a mark near the border has its own patch, which ends there. All other marks
    share one patch.
    """
    reach = math.ceil(radius) + LANCZOS_REACH + 2
    side = min(2 * reach + 1, res)
    top = min(max(row - reach, 0), res - side)
    left = min(max(col - reach, 0), res - side)
    return top, left, _mark_patch(side, radius, scale, row - top, col - left)


@functools.lru_cache(maxsize=4096)
def _mark_patch(side: int, radius: float, scale: int, row: int, col: int) -> np.ndarray:
    rows, cols = np.ogrid[: side * scale, : side * scale]
    inside = (rows - row * scale) ** 2 + (cols - col * scale) ** 2 <= (radius * scale) ** 2
    return np.array(shrunk(Image.fromarray(inside.astype(np.float32)), side))
