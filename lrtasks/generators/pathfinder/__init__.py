"""The Pathfinder generator. This file has the settings of an image, with the DLR paper's values for each resolution.

An image holds two long dashed paths that start near each other, many short dashed paths (distractors), and round marks:
two on the long paths, one on each distractor. The design follows Linsley et al., "Learning long-range spatial
dependencies with horizontal gated recurrent units" (arXiv:1805.08315), and the settings follow
Pathfinder-Segmentation in the DLR paper.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from lrtasks.errors import UsageError

VARIANTS = ("paper", "clean")
MAX_RESOLUTION = 2048


class Settings(NamedTuple):
    """All settings that determine the distribution of images; the tasks' parameters document each field."""

    res: int
    variant: str
    dashes: int
    distractor_dashes: int
    distractors: int
    dash_length: int
    dash_thickness: float
    gap_margins: tuple[int, ...]
    continuity: float
    seed_distance: int
    antialias: int
    mark_radius: float
    contrast: float
    padding: int
    dash_tries: int
    distractor_tries: int


# Fields of Settings from dashes to contrast, in this order: values of the DLR paper's generator. Row 64 is ours: small
# enough for a two-core machine, and so dense that a model must follow the whole path.
TABLE: dict[int, tuple[Any, ...]] = {
    64: (8, 2, 8, 4, 1.5, (1, 2), 1.8, 10, 2, 2.1, 0.9),
    128: (14, 4, 16, 5, 1.5, (2, 3), 1.8, 22, 2, 2.1, 0.9),
    256: (16, 5, 16, 8, 2.0, (4,), 2.2, 27, 2, 4.2, 1.0),
    512: (12, 4, 18, 22, 6.0, (7,), 2.5, 40, 3, 9.0, 1.0),
}
RESOLUTIONS = tuple(TABLE)


def check(s: Settings) -> None:
    """Raise :class:`UsageError` for settings that contradict each other."""
    if not s.gap_margins:
        raise UsageError("pathfinder: gap_margins must hold at least one margin, found none")
    drawn = s.dash_thickness * s.antialias
    if drawn < 1 or not drawn.is_integer():
        found = f"{s.dash_thickness:g} × {s.antialias} = {drawn:g}"
        raise UsageError(f"pathfinder: dash_thickness × antialias must be a whole number of at least 1, found {found}")
    band, cause = max((2 * s.seed_distance, "seed_distance"), (s.padding, "padding"))
    window = s.res - 2 * band
    needed = s.dash_length + 4 * max(s.gap_margins) + math.ceil(s.dash_thickness) + 4
    if window < needed:
        raise UsageError(
            f"pathfinder: {cause}={getattr(s, cause)} is too large for res={s.res}: paths start in the"
            f" central {max(window, 0)} pixels (on each side 2 × seed_distance or padding is left out), and a dash with"
            f" its margins needs {needed}"
        )
    largest = math.pi / 2 * (s.dash_length + min(s.gap_margins))
    if s.continuity > largest:
        raise UsageError(
            f"pathfinder: continuity={s.continuity:g} is too large for dash_length={s.dash_length} and gap"
            f" margin {min(s.gap_margins)}: it must be at most {largest:.2f}, or a turn is less than a pixel"
        )
