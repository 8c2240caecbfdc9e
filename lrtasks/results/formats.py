"""Numbers and tables as text: for a terminal, in Markdown, LaTeX, HTML, CSV and JSON.

All text passes through :func:`lrtasks.errors.printable`, since names and notes of records may come from other people.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from lrtasks.errors import printable
from lrtasks.results.style import METRICS, title

_UNITS: dict[str, list[tuple[float, float, str]]] = {
    "s": [(1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h")],
    "B": [
        *((1000 * 1024**power, 1024**power, name) for power, name in enumerate(["B", "KiB", "MiB", "GiB"])),
        (math.inf, 1024**4, "TiB"),
    ],
}
"""Units of time and of size as ``(limit, size, name)``: a value below the limit is shown in the unit with this name."""


def number(value: float | None, decimals: int | None = None, *, unit: str = "", signed: bool = False) -> str:
    """Return a number as text with ``decimals`` decimals, or with three significant digits; ``""`` for ``None``.

    With ``decimals``, a number of 10,000 or more (a score far below the floor) is shown with an exponent. With ``unit``
    (``"s"`` or ``"B"``), the number is a time or a size, shown in the unit of suitable size. With ``signed``, positive
    numbers get their sign, too.

    >>> number(0.01234), number(99.96), number(1234567.8), number(None)
    ('0.0123', '100', '1,234,568', '')
    >>> number(-0.0001, 3), number(0.25, 3, signed=True), number(-123456789.0, 3)
    ('0.000', '+0.250', '-1.23e+08')
    >>> number(33984, unit="B"), number(0.0296, unit="s"), number(5400, unit="s")
    ('33.2 KiB', '29.6 ms', '90 min')
    """
    if value is None:
        return ""
    if unit:
        size, name = next((size, name) for limit, size, name in _UNITS[unit] if value < limit)
        return f"{number(value / size, decimals, signed=signed)} {name}"
    sign = "+" if signed else ""
    if decimals is not None:
        return f"{value:{sign}.2e}" if abs(value) >= 10_000 else f"{value:{sign}z.{decimals}f}"
    return f"{value:{sign},.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"


@dataclass(frozen=True)
class TextTable:
    """A table of printable text.

    Attributes:
        header: one name per column.
        lines: lists of cells, as many per line as in the header.
        joined: numbers of the columns that are never separated from the previous column when a wide table is folded.
        best: cells that LaTeX prints in bold, as numbers of line and column.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    joined: frozenset[int] = frozenset()
    best: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "header", [printable(cell) for cell in self.header])
        object.__setattr__(self, "lines", [[printable(cell) for cell in line] for line in self.lines])

    def transposed(self) -> TextTable:
        """Return the table with lines and columns exchanged; the first column becomes the header."""
        first, *others = zip(self.header, *self.lines, strict=True)
        return TextTable(first, others, best=frozenset((column - 1, line + 1) for line, column in self.best))


def render(
    form: str,
    tables: Sequence[TextTable] = (),
    notes: Sequence[str] = (),
    content: Any = None,
    *,
    width: int | None = None,
) -> str:
    """Return tables and notes as ``text``, ``markdown``, ``latex`` or ``html``, or ``content`` as ``csv`` or ``json``.

    Args:
        content: plain data for JSON; for CSV a list of flat mappings with equal keys.
        width: width of the terminal in characters (text); wider tables are folded, each part with the first column.
    """
    if form == "json":
        return json.dumps(content, indent=1, allow_nan=False)
    if form == "csv":
        return _csv(content)
    notes = [printable(note) for note in notes]
    if form == "text":
        return _text(tables, notes, width)
    return {"markdown": _markdown, "latex": _latex, "html": _html}[form](tables, notes)


def markdown_text(text: str) -> str:
    """Escape text for Markdown: no HTML, no links, no emphasis and no end of a table cell.

    >>> markdown_text("<b>a|b</b>")
    '&lt;b&gt;a\\\\|b&lt;/b&gt;'
    """
    return re.sub(r"([\\`*\[\]|])", r"\\\1", html.escape(text, quote=False))


def _markdown(tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    parts = []
    for table in tables:
        head, *body = (" | ".join(map(markdown_text, line)) for line in (table.header, *table.lines))
        parts.append("\n".join(f"| {row} |" for row in (head, " | ".join(["---"] * len(table.header)), *body)))
    bullet = "- " if len(notes) > 1 else ""
    return _joined([*parts, "\n".join(bullet + markdown_text(note) for note in notes)], "\n\n")


def _latex(tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    """Return tables with the rules of booktabs, and the notes as paragraphs."""
    parts = [r"% needs \usepackage{booktabs}", *map(_latex_table, tables)]
    if any(table.best for table in tables):
        notes = ["bold: the best score on a task and those within its interval, if above the floor", *notes]
    return _joined([*parts, *map(_latex_text, notes)], "\n\n")


def _latex_table(table: TextTable) -> str:
    """Return a table that splits each column of numbers at the decimal point into two columns, to align the numbers."""
    spelled = {0, *(place for place, name in enumerate(table.header) if name == "model")}
    lines = [[title(cell) if place in spelled else cell for place, cell in enumerate(line)] for line in table.lines]
    columns = list(zip(*lines, strict=True)) or [()] * len(table.header)
    split = [place > 0 and any(map(_NUMBER.match, column)) for place, column in enumerate(columns)]
    names = [_latex_text(title(name)) for name in table.header]
    rows = [[rf"\multicolumn{{2}}{{c}}{{{name}}}" if two else name for name, two in zip(names, split, strict=True)]]
    for place, line in enumerate(lines):
        first, *others = line
        cells = [
            _latex_number(cell, (place, column) in table.best) if split[column] else _latex_text(cell)
            for column, cell in enumerate(others, 1)
        ]
        rows.append([_latex_text(first), *cells])
    head, *body = (" & ".join(row) + r" \\" for row in rows)
    form = "".join("r@{}l" if two else "l" for two in split)
    top = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*top, *body, r"\bottomrule", r"\end{tabular}"])


_NUMBER = re.compile(r"([-+]?)([\d,]+)(\.\d+)?(.*)", re.DOTALL)


def _latex_number(cell: str, bold: bool) -> str:
    """Return a cell split into two columns at the decimal point; a word spans both columns."""
    found = _NUMBER.fullmatch(cell)
    if found is None:
        return rf"\multicolumn{{2}}{{c}}{{{_latex_text(cell)}}}" if cell else " & "
    sign, *parts, rest = found.groups(default="")
    if sign:
        parts[0] = (r"\boldmath" if bold else "") + f"${sign}$" + parts[0]  # \textbf alone leaves a formula as it is
    whole, decimals = (rf"\textbf{{{part}}}" if bold and part else part for part in parts)
    return f"{whole} & {decimals}{_latex_text(rest)}"


_LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
}


def _latex_text(text: str) -> str:
    return METRICS.get(text) or "".join(_LATEX.get(mark, mark) for mark in text)


def _html(tables: Sequence[TextTable], notes: Sequence[str]) -> str:
    """Return a complete HTML page."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>lrtasks</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>:root{color-scheme:light dark}body{font-family:sans-serif;line-height:1.4}"
        ".wide{overflow-x:auto;margin-bottom:1.5em}table{border-collapse:collapse}th{border-bottom:1px solid}"
        "th,td{text-align:left;padding:.15em .7em;white-space:nowrap}</style>"
    ]
    for table in tables:
        rows = [("th", table.header), *(("td", line) for line in table.lines)]
        cells = ("".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) for tag, row in rows)
        # if a table is wider than the window, the table scrolls, not the page
        parts.append("\n".join(['<div class="wide"><table>', *(f"<tr>{row}</tr>" for row in cells), "</table></div>"]))
    return _joined([*parts, *(f"<p>{html.escape(note)}</p>" for note in notes)], "\n")


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return CSV with one line per row; nested values are written as JSON."""

    def flat(value: Any) -> Any:
        if isinstance(value, dict | list):
            return json.dumps(value)
        return printable(value) if isinstance(value, str) else value

    frame = pd.DataFrame([{name: flat(value) for name, value in row.items()} for row in rows], dtype=object)
    return str(frame.to_csv(index=False, lineterminator="\n")).rstrip("\n")


def _text(tables: Sequence[TextTable], notes: Sequence[str], width: int | None) -> str:
    parts = []
    for table in tables:
        widths = [max(map(len, column)) for column in zip(table.header, *table.lines, strict=True)]
        for part in _folded(table, widths, width):
            rows = [[row[i].ljust(widths[i]) for i in part] for row in (table.header, *table.lines)]
            parts.append("\n".join("  ".join(row).rstrip() for row in rows))
    return _joined(["\n\n".join(parts), "\n".join(notes)], "\n")


def _folded(table: TextTable, widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Return the column numbers of each part of a folded table; parts begin with column 0 and fit if possible."""
    starts = [1, *(column for column in range(2, len(widths)) if column not in table.joined)]
    parts = [[0]]
    for first, after in itertools.pairwise([*starts, len(widths)]):
        group = range(first, after)
        longer = [*parts[-1], *group]
        if width is not None and len(parts[-1]) > 1 and sum(widths[i] + 2 for i in longer) - 2 > width:
            parts.append([0, *group])
        else:
            parts[-1] = longer
    return parts


def _joined(parts: Sequence[str], between: str) -> str:
    return between.join(filter(None, parts))
