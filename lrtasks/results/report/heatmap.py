"""Colours of scaled scores, and the heat map alone as an SVG file that follows the reader's dark or light setting.

Both ramps get steadily darker or steadily lighter, so that they are read in grey and by colour-blind readers as well.
"""

from __future__ import annotations

import functools

from lrtasks.results.report.content import Report

LIGHT = ("#eef1f4", "#cbe4e1", "#86c5c9", "#3f93b8", "#1f5e9c", "#12306b")
DARK = ("#222b3a", "#23466e", "#22708f", "#2f9f97", "#83d18c", "#f6ec85")
STEPS = 21
"""Number of colours of a ramp: one for every 0.05 between 0 and 1."""

CELL_WIDTH, CELL_HEIGHT, GAP, EDGE = 52, 30, 2, 16
LETTER = 6.6
"""Width of a letter at 12 pixels, a little above the average."""


def step(value: float) -> int:
    """Number of the colour for a value, 0 to ``STEPS - 1``; what lies outside 0..1 gets the nearest colour.

    >>> step(-3.0), step(0.5), step(1.0)
    (0, 10, 20)
    """
    return round(min(max(value, 0.0), 1.0) * (STEPS - 1))


@functools.cache
def ramp(stops: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The colours of a ramp through ``stops``, each with the colour of legible text on it, as ``#rrggbb``."""
    colours = []
    for place in range(STEPS):
        at = place / (STEPS - 1) * (len(stops) - 1)
        left = min(int(at), len(stops) - 2)
        mixed = (a + (b - a) * (at - left) for a, b in zip(_parse(stops[left]), _parse(stops[left + 1]), strict=True))
        colour = "#" + "".join(f"{round(255 * part):02x}" for part in mixed)
        colours.append((colour, max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, colour))))
    return tuple(colours)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of a colour ``#rrggbb``, 0 to 1, as WCAG 2 defines it."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in _parse(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def heat_map_svg(report: Report) -> str:
    """The heat map as a picture of its own: scaled score of each model (columns) on each task (rows)."""
    from lrtasks.results.report.page import environment

    left = EDGE + max(len(row.label) for row in report.rows) * LETTER + 8
    top = EDGE + max(len(column.label) for column in report.columns) * LETTER * 0.72 + 14
    sizes = {"cell": CELL_WIDTH, "high": CELL_HEIGHT, "wide": CELL_WIDTH + GAP, "down": CELL_HEIGHT + GAP}
    return (
        environment()
        .get_template("heatmap.svg")
        .render(report=report, left=round(left), top=round(top), edge=EDGE, light=ramp(LIGHT), dark=ramp(DARK), **sizes)
    )


def _parse(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue
