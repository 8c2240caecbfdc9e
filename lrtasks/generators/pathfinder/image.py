"""From a random generator to an image, its target and what is known of it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.generators.pathfinder import placement, rendering
from lrtasks.generators.pathfinder.compiling import announced
from lrtasks.generators.pathfinder.geometry import Geometry, geometry
from lrtasks.generators.pathfinder.placement import Scene, Tables
from lrtasks.generators.pathfinder.rendering import Patches
from lrtasks.generators.pathfinder.settings import Settings
from lrtasks.generators.pathfinder.tables import empty, tables

# Clean variant: a path's pixels have at least this intensity, of 255, in the image.
VISIBLE = 64


class Kit(NamedTuple):
    """What all images of one margin share."""

    settings: Settings
    margin: int
    geometry: Geometry
    patches: Patches
    tables: Tables


@dataclasses.dataclass(frozen=True)
class Layout:
    """A placed image before it is drawn.

    Attributes:
        kit: tables and patches of the margin drawn for it.
        label: 1 if both main marks are on one path.
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
        """Row and column of each mark, ``(2 + distractors, 2)``: the origin's, the terminal's, the distractors'."""
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
        """What is known of the image, by name.

        ``label``; ``origin_tips`` and ``terminal_tips``, ``(2, 2)``, row and column of each main path's ends;
        ``marked_paths``, ``(2,)``, the path (0 or 1) of the origin mark and that of the terminal mark; ``marks``,
        ``(2 + distractors, 2)``, and ``main_mark``, ``(2 + distractors,)``, which of them are on main paths;
        ``distractors``, how many were placed; ``margin``, the gap margin drawn.
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
        target: (res, res) uint8: 0 off the main paths, 1 on one, 2 on one that carries both marks.
        paths: (2, res, res) bool: each main path's own pixels.
        peak: largest intensity before normalisation to 0..255.
    """

    image: np.ndarray
    target: np.ndarray
    paths: np.ndarray
    peak: float


@functools.lru_cache(maxsize=16)
def kit(settings: Settings, margin: int) -> Kit:
    """Tables and patches of one margin, made once per process."""
    shapes = geometry(settings, margin)
    patches = rendering.patches(settings, margin, shapes)
    return Kit(settings, margin, shapes, patches, tables(settings, margin, shapes, patches))


def lay_out(settings: Settings, rng: np.random.Generator) -> Layout:
    """Draw where everything goes.

    Raises:
        UsageError: if no two main paths fit within the attempts allowed.
    """
    with announced("the pathfinder generator"):
        state = placement.seeded(rng.integers(0, 2**32, size=4, dtype=np.uint32))
        label = int(placement.below(state, 2))
        margin = settings.gap_margins[placement.below(state, len(settings.gap_margins))]
        shared = kit(settings, margin)
        canvas, scene = empty(shared.tables)
        placement.place(shared.tables, canvas, state, scene)
        if not scene.counts[placement.FOUND]:
            raise _too_tight(settings, margin, scene)
        origin = int(placement.below(state, 2))
    return Layout(shared, label, scene, (origin, origin if label else 1 - origin))


def draw(layout: Layout) -> Picture:
    """Draw a placed image and its target."""
    settings, patches = layout.kit.settings, layout.kit.patches
    paths = np.zeros((2, settings.res, settings.res), np.float32)
    for path, dashes in zip(paths, layout.scene.main, strict=True):
        paste_dashes(path, patches, dashes)
    canvas = np.maximum(paths[0], paths[1])
    paste_dashes(canvas, patches, layout.scene.others[: layout.distractors].reshape(-1, 3))
    for row, col in layout.marks.tolist():
        top, left, patch = rendering.mark(settings.res, settings.mark_radius, settings.antialias, row, col)
        view = canvas[top : top + patch.shape[0], left : left + patch.shape[1]]
        np.maximum(view, patch, out=view)
    peak = float(canvas.max())
    threshold = 1 if settings.variant == "paper" else VISIBLE
    on_path = normalised(paths, peak) >= threshold
    one, other = (1 + (layout.marked == (path, path)) for path in range(2))
    target = np.maximum(on_path[0] * np.uint8(one), on_path[1] * np.uint8(other))
    return Picture(normalised(canvas, peak), target, on_path, peak)


def paste_dashes(canvas: np.ndarray, patches: Patches, dashes: np.ndarray) -> None:
    """Pixel-wise maximum of ``canvas`` and each dash (row, column, orientation), cut at the border."""
    half, size = patches.ink.shape[1] // 2, len(canvas)
    for row, col, orientation in dashes.tolist():
        first_row, height, first_col, width = patches.ink_box[orientation].tolist()
        top, left = row - half, col - half
        rows = slice(max(first_row, -top), min(first_row + height, size - top))
        cols = slice(max(first_col, -left), min(first_col + width, size - left))
        view = canvas[top + rows.start : top + rows.stop, left + cols.start : left + cols.stop]
        np.maximum(view, patches.ink[orientation, rows, cols], out=view)


def normalised(canvas: np.ndarray, peak: float) -> np.ndarray:
    """Scale 0..peak to 0..255 and round, halves to even."""
    return np.rint(canvas.astype(np.float64) / peak * 255).astype(np.uint8)


def _too_tight(settings: Settings, margin: int, scene: Scene) -> UsageError:
    _, no_start, outside, dead_end, crossing = scene.counts[placement.FAILED :].tolist()
    if no_start + outside > dead_end + crossing:
        reason = (
            f"seed_distance={settings.seed_distance} and dash_length={settings.dash_length} leave no room for the first"
            " dashes"
        )
    else:
        reason = (
            f"dashes={settings.dashes} of dash_length={settings.dash_length} with a gap margin of {margin} do not fit:"
            f" the longest that failed had {scene.counts[placement.LONGEST]}"
        )
    return UsageError(
        f"pathfinder: no two paths found for res={settings.res} in {placement.MAX_ATTEMPTS} attempts; {reason}"
    )
