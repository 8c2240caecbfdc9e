"""Settings of one Pathfinder image, with the DLR paper's values for each resolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from lrtasks.errors import UsageError

Variant = Literal["paper", "clean"]
VARIANTS: tuple[Variant, ...] = ("paper", "clean")
MAX_RESOLUTION = 2048


@dataclass(frozen=True)
class Settings:
    """Everything that decides the law of an image.

    Attributes:
        res: rows and columns of the image, pixels.
        variant: ``"paper"``, the law of the DLR paper's generator, or ``"clean"``, the same without its three flaws.
        dashes: dashes of each main path, N.
        distractor_dashes: dashes of each distractor.
        distractors: distractors tried for; those that find no room are left out.
        dash_length: length of a dash L, pixels.
        dash_thickness: thickness of a dash t, pixels; a whole number when multiplied by ``antialias``.
        gap_margins: possible values of the margin m, pixels, one drawn for each image; gaps between dashes are 2m wide.
        continuity: c; consecutive dashes turn by less than 90°/c.
        seed_distance: distance of the two main paths' starts, pixels.
        antialias: factor by which dashes and marks are drawn enlarged before they are resampled.
        mark_radius: radius of a mark, pixels.
        contrast: intensity of dashes; marks have 1.
        padding: width of the frame that no dash may enter, pixels.
        dash_tries: draws for each dash before its path fails.
        distractor_tries: tries for each distractor before it is left out.
    """

    res: int
    variant: Variant
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
    padding: int = 1
    dash_tries: int = 3
    distractor_tries: int = 5

    def __post_init__(self) -> None:
        if not self.gap_margins:
            raise UsageError("pathfinder: gap_margins must hold at least one margin, found none")
        drawn = self.dash_thickness * self.antialias
        if drawn < 1 or not drawn.is_integer():
            raise UsageError(
                "pathfinder: dash_thickness × antialias must be a whole number of at least 1, "
                f"found {self.dash_thickness:g} × {self.antialias} = {drawn:g}"
            )
        band, cause = max((2 * self.seed_distance, "seed_distance"), (self.padding, "padding"))
        window = self.res - 2 * band
        needed = self.dash_length + 4 * max(self.gap_margins) + math.ceil(self.dash_thickness) + 4
        if window < needed:
            raise UsageError(
                f"pathfinder: {cause}={getattr(self, cause)} is too large for res={self.res}: paths start in the"
                f" central {window} pixels (on each side 2 × seed_distance or padding is left out), and a dash with"
                f" its margins needs {needed}"
            )
        largest = math.pi / 2 * (self.dash_length + min(self.gap_margins))
        if self.continuity > largest:
            raise UsageError(
                f"pathfinder: continuity={self.continuity:g} is too large for dash_length={self.dash_length} and gap"
                f" margin {min(self.gap_margins)}: it must be at most {largest:.2f}, or a turn is less than a pixel"
            )


# DLR paper's generator settings; 64 is ours: small enough for a two-core machine, dense enough to need the whole path.
_TABLE: dict[int, dict[str, Any]] = {
    64: {
        "dashes": 8,
        "distractor_dashes": 2,
        "distractors": 8,
        "dash_length": 4,
        "dash_thickness": 1.5,
        "gap_margins": (1, 2),
        "continuity": 1.8,
        "seed_distance": 10,
        "antialias": 2,
        "mark_radius": 2.1,
        "contrast": 0.9,
    },
    128: {
        "dashes": 14,
        "distractor_dashes": 4,
        "distractors": 16,
        "dash_length": 5,
        "dash_thickness": 1.5,
        "gap_margins": (2, 3),
        "continuity": 1.8,
        "seed_distance": 22,
        "antialias": 2,
        "mark_radius": 2.1,
        "contrast": 0.9,
    },
    256: {
        "dashes": 16,
        "distractor_dashes": 5,
        "distractors": 16,
        "dash_length": 8,
        "dash_thickness": 2.0,
        "gap_margins": (4,),
        "continuity": 2.2,
        "seed_distance": 27,
        "antialias": 2,
        "mark_radius": 4.2,
        "contrast": 1.0,
    },
    512: {
        "dashes": 12,
        "distractor_dashes": 4,
        "distractors": 18,
        "dash_length": 22,
        "dash_thickness": 6.0,
        "gap_margins": (7,),
        "continuity": 2.5,
        "seed_distance": 40,
        "antialias": 3,
        "mark_radius": 9.0,
        "contrast": 1.0,
    },
}
RESOLUTIONS = tuple(_TABLE)


def complete(res: int, variant: Variant, given: Mapping[str, Any]) -> Settings:
    """Settings with every value that is ``None`` in ``given`` filled in from the table.

    The row is that of ``res``, or else of the next smaller listed resolution (of 64 below 64).
    A number of distractor dashes that is not given follows from the dashes that are: a third, rounded down.
    """
    row = _TABLE[max((known for known in RESOLUTIONS if known <= res), default=RESOLUTIONS[0])]
    chosen = {name: value for name, value in given.items() if value is not None}
    if "dashes" in chosen and "distractor_dashes" not in chosen:
        chosen["distractor_dashes"] = max(1, chosen["dashes"] // 3)
    return Settings(res=res, variant=variant, **{**row, **chosen})


def names() -> list[str]:
    """Names of the settings that :func:`complete` fills in or takes, in order."""
    return [field.name for field in fields(Settings) if field.name not in ("res", "variant")]
