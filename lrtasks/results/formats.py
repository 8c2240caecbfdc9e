"""Sheets of text as plain text, Markdown, LaTeX or HTML, and flat rows as CSV."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
        header: one name per column.
        lines: as many texts per line.
        joined: numbers of columns that stay beside the one before them where a wide sheet is folded.
    """

    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    joined: frozenset[int] = frozenset()

    def transposed(self) -> Sheet:
        """Lines as columns and columns as lines; the first column becomes the header."""
        first, *others = zip(self.header, *self.lines, strict=True)
        return Sheet(first, others)


def text(sheets: Sequence[Sheet], notes: Sequence[str] = (), *, width: int | None = None) -> str:
    """For a terminal: columns aligned; a sheet wider than ``width`` characters is folded, its first column repeated."""
    parts = [_aligned(part) for sheet in sheets for part in _folded(sheet, width)]
    return _join(["\n\n".join(parts), "\n".join(notes)], "\n")


def markdown(sheets: Sequence[Sheet], notes: Sequence[str] = ()) -> str:
    """Markdown tables, and the notes as a list if there are several."""
    tables = []
    for sheet in sheets:
        rows = [sheet.header, ["---"] * len(sheet.header), *sheet.lines]
        tables.append("\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows))
    return _join([*tables, "\n".join(f"- {note}" for note in notes) if len(notes) > 1 else "".join(notes)], "\n\n")


def latex(sheets: Sequence[Sheet], notes: Sequence[str] = ()) -> str:
    """LaTeX tables with the rules of booktabs; the notes are paragraphs."""
    tables = []
    for sheet in sheets:
        rows = [" & ".join(_latex_escape(cell) for cell in row) + r" \\" for row in (sheet.header, *sheet.lines)]
        columns = "l" * len(sheet.header)
        body = [r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule"]
        tables.append("\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"]))
    return _join([r"% needs \usepackage{booktabs}", *tables, *map(_latex_escape, notes)], "\n\n")


def html_page(sheets: Sequence[Sheet], notes: Sequence[str] = ()) -> str:
    """A page with one table per sheet."""
    head = (
        '<!doctype html>\n<meta charset="utf-8">\n<title>lrtasks</title>\n'
        "<style>body{font-family:sans-serif}th,td{text-align:left;padding:.1em .7em}</style>"
    )
    tables = [
        "<table>\n"
        + _html_row("th", sheet.header)
        + "\n"
        + "\n".join(_html_row("td", line) for line in sheet.lines)
        + "\n</table>"
        for sheet in sheets
    ]
    return _join([head, *tables, *(f"<p>{html.escape(note)}</p>" for note in notes)], "\n")


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per row; nested values are JSON."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in row.items()}
        )
    return buffer.getvalue().rstrip("\n")


def digits(value: float) -> str:
    """Three digits, or all that stand before the point.

    >>> digits(0.01234), digits(99.96), digits(1234567.8)
    ('0.0123', '100', '1,234,568')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


FORMS: dict[str, Callable[[Sequence[Sheet], Sequence[str]], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "html": html_page,
}
"""The forms in which sheets can be shown, by name."""


def _join(parts: Sequence[str], between: str) -> str:
    return between.join(part for part in parts if part)


def _aligned(sheet: Sheet) -> str:
    rows = [sheet.header, *sheet.lines]
    widths = _widths(sheet)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _widths(sheet: Sheet) -> list[int]:
    return [max(map(len, column)) for column in zip(sheet.header, *sheet.lines, strict=True)]


def _folded(sheet: Sheet, width: int | None) -> list[Sheet]:
    """The sheet in parts that fit, as far as single columns do."""
    if width is None:
        return [sheet]
    widths = _widths(sheet)
    parts: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        if column in sheet.joined:
            parts[-1].append(column)
            continue
        # with the columns that must stay beside it
        group = [column]
        while group[-1] + 1 in sheet.joined:
            group.append(group[-1] + 1)
        if len(parts[-1]) > 1 and sum(widths[i] + 2 for i in [*parts[-1], *group]) - 2 > width:
            parts.append([0])
        parts[-1].append(column)
    return [Sheet([sheet.header[i] for i in part], [[line[i] for i in part] for line in sheet.lines]) for part in parts]


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
}


def _latex_escape(text: str) -> str:
    return "".join(_LATEX.get(mark, mark) for mark in text)


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
