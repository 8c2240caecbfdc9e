"""The heat map alone, as an SVG file that follows the reader's dark or light setting."""

from __future__ import annotations

from xml.etree import ElementTree

from lrtasks.results.report import readable, scale
from lrtasks.results.report.content import STATES, Report, Result
from lrtasks.results.report.svg import add

CELL_WIDTH, CELL_HEIGHT, GAP = 52, 30, 2
LETTER = 6.6
"""Width of a letter at 12 pixels, a little above the average."""
EDGE = 16

PLAIN = {
    "page": ("#ffffff", "#0d1117"),
    "text": ("#161c26", "#e7ecf3"),
    "soft": ("#566173", "#9aa7ba"),
    "line": ("#c9d0d9", "#3a4658"),
}


def heat_map_svg(report: Report) -> str:
    """The heat map as a picture of its own: score above floor of each model (columns) on each task (rows)."""
    left = EDGE + max(len(row.label) for row in report.rows) * LETTER + 8
    top = EDGE + max(len(column.label) for column in report.columns) * LETTER * 0.72 + 14
    width = left + len(report.columns) * (CELL_WIDTH + GAP) + EDGE + 40
    bottom = top + len(report.rows) * (CELL_HEIGHT + GAP)
    height = bottom + 44
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width:.0f} {height:.0f}",
            "width": f"{width:.0f}",
            "height": f"{height:.0f}",
            "role": "img",
            "font-family": "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif",
            "font-size": "12",
        },
    )
    add(root, "title", {}, "Score above floor by task and model")
    add(root, "style", {}, _style())
    add(root, "rect", {"class": "page", "width": width, "height": height, "rx": 8})
    for number, column in enumerate(report.columns):
        x = left + number * (CELL_WIDTH + GAP) + CELL_WIDTH / 2
        above = f"translate({x:.1f} {top - 8:.1f}) rotate(-45)"
        add(root, "text", {"class": "text", "transform": above}, column.label)
    for number, row in enumerate(report.rows):
        y = top + number * (CELL_HEIGHT + GAP)
        middle = y + CELL_HEIGHT / 2 + 4
        add(root, "text", {"class": "text", "x": left - 10, "y": middle, "text-anchor": "end"}, row.label)
        for place in range(len(report.columns)):
            _cell(root, left + place * (CELL_WIDTH + GAP), y, report.results.get((number, place)))
    _legend(root, left, bottom + 14)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _cell(root: ElementTree.Element, x: float, y: float, result: Result | None) -> None:
    box = {"x": x, "y": y, "width": CELL_WIDTH, "height": CELL_HEIGHT, "rx": 4}
    if result is None:
        add(root, "rect", {**box, "class": "missing"})
        return
    scored = result.above is not None
    kind = f"h{scale.step(result.above)}" if result.above is not None else "state"
    add(root, "rect", {**box, "class": kind})
    text = readable.above(result.above) if scored else STATES[result.state].word
    place = {"x": x + CELL_WIDTH / 2, "y": y + CELL_HEIGHT / 2 + 4, "text-anchor": "middle"}
    add(root, "text", {**place, "class": f"i{kind[1:]}" if scored else "soft"}, text)


def _legend(root: ElementTree.Element, x: float, y: float) -> None:
    add(root, "text", {"class": "soft", "x": x, "y": y + 10}, "0 floor")
    for number in range(scale.STEPS):
        add(root, "rect", {"class": f"h{number}", "x": x + 48 + 6 * number, "y": y, "width": 6, "height": 12})
    add(root, "text", {"class": "soft", "x": x + 48 + 6 * scale.STEPS + 8, "y": y + 10}, "1 perfect")


def _style() -> str:
    """Colours for light pages, and for dark ones where the reader's system asks for them."""
    light, dark = (_colours(number) for number in (0, 1))
    boxes = ".missing,.state{fill:none}.missing{stroke-dasharray:3 3}"
    return f"{light}{boxes}@media (prefers-color-scheme:dark){{{dark}}}"


def _colours(theme: int) -> str:
    ramp = scale.ramp((scale.LIGHT, scale.DARK)[theme])
    rules = [f".h{number}{{fill:{colour}}}.i{number}{{fill:{ink}}}" for number, (colour, ink) in enumerate(ramp)]
    rules += [f".{name}{{fill:{colours[theme]}}}" for name, colours in PLAIN.items() if name != "line"]
    return "".join([*rules, f".missing,.state{{stroke:{PLAIN['line'][theme]}}}"])
