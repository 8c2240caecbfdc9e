"""What the two Pathfinder tasks share: their parameters, and the image as a sequence of pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from lrtasks.config import parameter
from lrtasks.generators.base import Task
from lrtasks.generators.pathfinder.settings import MAX_RESOLUTION, VARIANTS, Settings, Variant, complete, names
from lrtasks.generators.pixels import from_bytes
from lrtasks.spec import Batch, Spec

if TYPE_CHECKING:
    from lrtasks.generators.pathfinder.image import Layout, Picture

_BY_RES = "as the DLR paper has it for this res (for 64: ours)"


@dataclass(frozen=True)
class PathfinderTask(Task):
    """Base of the Pathfinder tasks: ``res`` chooses the settings, each of which can be given instead.

    A setting left out is that of the DLR paper's generator for ``res`` (for 64: our own); for a ``res`` that is not
    listed, that of the next smaller listed one. After construction every field holds the value in use.
    """

    causal: ClassVar[bool] = False

    res: int = parameter(128, "rows and columns of the image, pixels", at_least=1, at_most=MAX_RESOLUTION)
    variant: str = parameter(
        "paper", "law of the DLR paper's generator, or the same without its three flaws (clean)", choices=VARIANTS
    )
    dashes: int | None = parameter(None, f"dashes of each main path; {_BY_RES}", at_least=2, at_most=200)
    distractor_dashes: int | None = parameter(
        None, "dashes of each distractor; a third of dashes, rounded down", at_least=1, at_most=200
    )
    distractors: int | None = parameter(None, f"distractors tried for; {_BY_RES}", at_least=0, at_most=1000)
    dash_length: int | None = parameter(None, f"length of a dash, pixels; {_BY_RES}", at_least=2, at_most=64)
    dash_thickness: float | None = parameter(
        None, f"thickness of a dash, pixels, whole when multiplied by antialias; {_BY_RES}", above=0, at_most=32
    )
    gap_margins: tuple[int, ...] | None = parameter(
        None,
        f"margins in pixels, one drawn per image, gaps being twice as wide; {_BY_RES}",
        at_least=1,
        at_most=16,
    )
    continuity: float | None = parameter(
        None, f"consecutive dashes turn by less than 90°/continuity; {_BY_RES}", at_least=1, at_most=90
    )
    seed_distance: int | None = parameter(
        None, f"distance of the main paths' starts, pixels; {_BY_RES}", at_least=1, at_most=MAX_RESOLUTION // 4
    )
    antialias: int | None = parameter(
        None, f"factor by which dashes and marks are drawn enlarged; {_BY_RES}", at_least=1, at_most=4
    )
    mark_radius: float | None = parameter(None, f"radius of a mark, pixels; {_BY_RES}", above=0, at_most=64)
    contrast: float | None = parameter(None, f"intensity of dashes, marks having 1; {_BY_RES}", at_least=0.5, at_most=1)
    padding: int = parameter(1, "width of the frame that dashes keep out of, pixels", at_least=1, at_most=64)
    dash_tries: int = parameter(3, "draws for each dash before its path fails", at_least=1, at_most=100)
    distractor_tries: int = parameter(5, "tries for each distractor before it is left out", at_least=1, at_most=100)

    def check(self) -> None:
        variant: Variant = "clean" if self.variant == "clean" else "paper"
        settings = complete(self.res, variant, {name: getattr(self, name) for name in names()})
        for name in names():
            object.__setattr__(self, name, getattr(settings, name))
        object.__setattr__(self, "_settings", settings)

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        settings: Settings = self._settings  # type: ignore[attr-defined]
        return settings

    @property
    def input(self) -> Spec:
        return Spec("real", self.res**2, 1)

    def image_shape(self) -> tuple[int, int]:
        return self.res, self.res

    def image(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """One image and its target, ``(res, res)`` uint8, and what is known of it.

        The image has values 0..255; the target 0 off the main paths, 1 on one of them, 2 on one that carries both main
        marks.

        Raises:
            UsageError: if no two main paths that fit are found within the attempts allowed.
        """
        layout, picture = self.picture(rng)
        return picture.image, picture.target, layout.meta()

    def picture(self, rng: np.random.Generator) -> tuple[Layout, Picture]:
        """The same image with everything known of how it came about."""
        from lrtasks.generators.pathfinder.image import draw, lay_out  # imports numba and Pillow

        layout = lay_out(self.settings, rng)
        return layout, draw(layout)

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """A uint8 image as input: ``(res², 1)`` float32 in -1..1, row by row."""
        return from_bytes(image).reshape(-1, 1)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By gap margin and by number of distractors; each ``(batch, 1)``."""
        meta = batch.meta or {}
        return {name: np.asarray(meta[name])[:, None] for name in ("margin", "distractors")}
