"""Line charts as SVG, coloured by classes of the page's style sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

from lrtasks.results.report.axes import Axis, tick_label
from lrtasks.results.report.svg import add

WIDTH, HEIGHT = 440, 250
LOW = 130
"""Height of a chart that is one of several about one thing."""
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 42
COLOURS = 7
DASHES = 3
LOWEST = -0.25
"""Scores below this lie on the lower edge of a chart."""

Points = Sequence[tuple[float, float | None]]
Drawn = Literal["lines", "dots", "both"]


@dataclass(frozen=True)
class Series:
    """One line of a chart.

    Attributes:
        label: what it stands for.
        points: x and y; where y is none, the line has a gap.
        number: decides colour and dashes.
        result: name of the result's details, to which the line leads.
    """

    label: str
    points: Points
    number: int
    result: str | None = None


@dataclass(frozen=True)
class Frame:
    """Where the values of a chart of some height lie, in units of its view box."""

    x: Axis
    y: Axis
    height: int

    @property
    def bottom(self) -> int:
        """Height of the x axis."""
        return self.height - BOTTOM

    def x_place(self, value: float) -> float:
        """Distance from the left edge."""
        return LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)

    def y_place(self, value: float) -> float:
        """Distance from the upper edge."""
        return self.bottom - self.y.place(value) * (self.bottom - TOP)


def score_axis(series: Sequence[Series], marks: Mapping[str, float]) -> Axis:
    """The axis of scores: up to 1, down to 0 or to the lowest value, at most to :data:`LOWEST`."""
    values = [y for line in series for _, y in line.points if y is not None] + list(marks.values())
    return Axis(max(min([0.0, *values]), LOWEST), max([1.0, *values]))


def line_chart(
    series: Sequence[Series],
    *,
    description: str,
    x_label: str,
    y_label: str,
    x: Axis,
    y: Axis,
    x_ticks: Sequence[float] | None = None,
    marks: Mapping[str, float] | None = None,
    drawn: Drawn = "both",
    height: int = HEIGHT,
) -> Markup:
    """Draw lines over one x axis.

    Args:
        series: the lines.
        description: what a screen reader says in place of the picture.
        x_label: title of the x axis.
        y_label: title of the y axis.
        x: the x axis.
        y: the y axis; values outside either axis lie on its edges.
        x_ticks: values marked on the x axis; round ones if left out.
        marks: levels drawn across the chart, by name.
        drawn: whether a point is marked by a dot, joined to the next one, or both.
        height: height of the whole, where its width is :data:`WIDTH`.
    """
    frame = Frame(x, y, height)
    root = ElementTree.Element(
        "svg", {"class": "chart", "viewBox": f"0 0 {WIDTH} {height}", "role": "img", "aria-label": description}
    )
    _draw_frame(root, frame, x_label, y_label, x.ticks() if x_ticks is None else x_ticks)
    levels = {name: frame.y_place(level) for name, level in (marks or {}).items()}
    for at in levels.values():
        add(root, "line", {"class": "mark", "x1": LEFT, "x2": WIDTH - RIGHT, "y1": at, "y2": at})
    for line in series:
        _draw_line(root, line, frame, drawn)
    for name, at in levels.items():  # last, so that no line runs through the words
        place = {"x": WIDTH - RIGHT - 2, "y": at - 4 if at > TOP + 8 else at + 12}
        add(root, "text", {"class": "mark-label", **place}, name)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def series_class(number: int) -> str:
    """Classes that colour and dash the series of this number.

    >>> series_class(0), series_class(8)
    ('m0 d0', 'm1 d1')
    """
    return f"m{number % COLOURS} d{number // COLOURS % DASHES}"


def _draw_frame(root: ElementTree.Element, frame: Frame, x_label: str, y_label: str, x_ticks: Sequence[float]) -> None:
    for value in frame.y.ticks():
        at = frame.y_place(value)
        add(root, "line", {"class": "grid", "x1": LEFT, "x2": WIDTH - RIGHT, "y1": at, "y2": at})
        add(root, "text", {"class": "tick", "x": LEFT - 6, "y": at + 4, "text-anchor": "end"}, tick_label(value))
    for value in x_ticks:
        at = frame.x_place(value)
        add(root, "line", {"class": "grid", "x1": at, "x2": at, "y1": frame.bottom, "y2": frame.bottom + 4})
        anchor = "end" if at > WIDTH - RIGHT - 8 else "middle"
        add(root, "text", {"class": "tick", "x": at, "y": frame.bottom + 17, "text-anchor": anchor}, tick_label(value))
    below = {"class": "axis", "x": (LEFT + WIDTH - RIGHT) / 2, "y": frame.bottom + 36, "text-anchor": "middle"}
    add(root, "text", below, x_label)
    upright = {"class": "axis", "transform": f"translate(12 {(TOP + frame.bottom) / 2}) rotate(-90)"}
    add(root, "text", {**upright, "text-anchor": "middle"}, y_label)


def _draw_line(root: ElementTree.Element, line: Series, frame: Frame, drawn: Drawn) -> None:
    group = add(root, "g", {"class": f"series {series_class(line.number)}"})
    if line.result is not None:
        group.set("data-result", line.result)
    add(group, "title", {}, line.label)
    for part in _unbroken(line.points):
        places = [(frame.x_place(x), frame.y_place(y)) for x, y in part]
        if drawn != "dots":
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
            add(group, "path", {"d": path, "class": "line"})
        for x, y in places if drawn != "lines" else ():
            add(group, "circle", {"cx": x, "cy": y, "r": 2.5})


def _unbroken(points: Points) -> list[list[tuple[float, float]]]:
    """The stretches of points that all have a y."""
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is not None:
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part]
