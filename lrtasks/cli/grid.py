"""A suite as a grid of tasks × models that fills up, cut to the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from rich.text import Text

from lrtasks.results.settings import key
from lrtasks.suite.entries import Entry, side_labels, sides

if TYPE_CHECKING:
    from lrtasks.suite.standing import Standing

SYMBOLS = {"waiting": "·", "running": "▸", "failed": "✗", "diverged": "↯", "refused": "–"}
ASCII_SYMBOLS = {"waiting": ".", "running": ">", "failed": "x", "diverged": "!", "refused": "-"}
STYLES = {"running": "cyan", "failed": "red", "diverged": "red", "refused": "dim", "waiting": "dim"}

SHORTEST_NAME = 12
SINGLE, SEVERAL, NARROW = 5, 9, 3
"""Characters of a cell: one score; a score and how many seeds are done; either of them."""


@dataclass(frozen=True)
class Layout:
    """Which part of the grid is shown, and how.

    Attributes:
        name: characters of the task's name.
        cells: characters of each column shown.
        gap: spaces between columns.
        numbered: the columns have numbers in place of names.
    """

    name: int
    cells: tuple[int, ...]
    gap: int
    numbered: bool


class Grid:
    """The runs of a suite by task and model; a cell holds all seeds.

    Args:
        standing: where the suite stands; read anew whenever the grid is drawn.
        skipped: runs that cannot be.
        ascii_only: draw without symbols that some terminals lack.
    """

    def __init__(self, standing: Standing, skipped: Iterable[Entry] = (), *, ascii_only: bool = False) -> None:
        self._standing = standing
        self._symbols = ASCII_SYMBOLS if ascii_only else SYMBOLS
        self._ellipsis = "~" if ascii_only else "…"
        entries = [*standing.entries, *skipped]
        rows, columns = zip(*map(sides, entries), strict=True)
        self.rows, row_of = _axis(rows)
        self.columns, column_of = _axis(columns)
        self._cells: dict[tuple[int, int], list[int]] = {}
        for number, place in enumerate(zip(row_of, column_of, strict=True)):
            members = self._cells.setdefault(place, [])
            if number < len(standing.entries):
                members.append(number)
        self._several = max((len(members) for members in self._cells.values()), default=0) > 1

    def draw(self, width: int, height: int) -> list[Text]:
        """At most ``height`` lines of at most ``width`` characters: header, tasks, numbers of the models, symbols."""
        layout = self._layout(width)
        first = self._first(1, len(layout.cells), len(self.columns))
        columns = range(first, first + len(layout.cells))
        legend = self._legend(columns, width) if layout.numbered else []
        legend.append(self._symbol_line())
        room = height - 1 - len(legend)
        if len(self.rows) > room or len(self.columns) > len(columns):
            room = max(room - 1, 1)
            legend.append(self._hidden(len(self.rows) - room, len(self.columns) - len(columns)))
        top = self._first(0, min(room, len(self.rows)), len(self.rows))
        rows = range(top, min(top + room, len(self.rows)))
        drawn = [self._header(layout, columns), *(self._line(layout, row, columns) for row in rows), *legend]
        for line in drawn:
            line.truncate(width)
        return drawn

    def _layout(self, width: int) -> Layout:
        count, longest = len(self.columns), max(map(len, self.rows))
        cell = SEVERAL if self._several else SINGLE
        full = tuple(max(len(name), cell) for name in self.columns)
        if longest + sum(full) + 2 * count <= width:
            return Layout(longest, full, 2, numbered=False)
        for name in (longest, min(longest, SHORTEST_NAME)):
            for size in dict.fromkeys((cell, SINGLE, NARROW)):
                if name + count * (size + 1) <= width:
                    return Layout(name, (size,) * count, 1, numbered=True)
        name = min(longest, SHORTEST_NAME)
        return Layout(name, (NARROW,) * max((width - name) // (NARROW + 1), 1), 1, numbered=True)

    def _first(self, axis: int, shown: int, count: int) -> int:
        """Where to begin if not all ``count`` rows or columns fit: at the first that is not through."""
        open_ = [
            place[axis]
            for place, members in self._cells.items()
            if any(self._standing.statuses[number] in ("waiting", "running") for number in members)
        ]
        return min(min(open_, default=0), count - shown)

    def _header(self, layout: Layout, columns: Sequence[int]) -> Text:
        names = [str(column + 1) if layout.numbered else self.columns[column] for column in columns]
        cells = (name.rjust(size + layout.gap) for name, size in zip(names, layout.cells, strict=True))
        return Text(" " * layout.name + "".join(cells), style="bold")

    def _line(self, layout: Layout, row: int, columns: Sequence[int]) -> Text:
        line = Text(_shortened(self.rows[row], layout.name, self._ellipsis).ljust(layout.name))
        for column, size in zip(columns, layout.cells, strict=True):
            text, style = self._cell((row, column), size)
            line.append(text.rjust(size + layout.gap), style=style)
        return line

    def _cell(self, place: tuple[int, int], size: int) -> tuple[str, str]:
        """Text and style: a symbol, or the mean score and how many seeds are done where not all are."""
        if place not in self._cells:
            return "", ""
        numbers = self._cells[place]
        statuses = {self._standing.statuses[number] for number in numbers} or {"refused"}
        records = [self._standing.records[number] for number in numbers]
        scores = [record.headline() for record in records if record is not None and record.status == "done"]
        worst = next((status for status in STYLES if status in statuses), "done")
        if not scores:
            return self._symbols[worst], STYLES[worst]
        values = [value for value in scores if value is not None]
        value = mean(values) if values else None
        if len(scores) == len(numbers):
            return shown(value, min(size, SINGLE)), "green"
        counted = f"{len(scores)}/{len(numbers)}"
        if size >= SINGLE + len(counted) + 1:
            counted = f"{shown(value, SINGLE)} {counted}"
        return (counted if len(counted) <= size else self._symbols[worst]), STYLES[worst]

    def _legend(self, columns: Sequence[int], width: int) -> list[Text]:
        return _wrapped([f"{column + 1} {self.columns[column]}" for column in columns], width)

    def _hidden(self, tasks: int, models: int) -> Text:
        counts = {"more tasks": tasks, "more models": models}
        said = " and ".join(f"{count} {name}" for name, count in counts.items() if count > 0)
        return Text(f"no room for {said}", style="dim")

    def _symbol_line(self) -> Text:
        words = [f"{self._symbols[name]} {name}" for name in ("waiting", "running", "failed", "diverged")]
        return Text("  ".join([*words, f"{self._symbols['refused']} cannot be"]), style="dim")


def shown(score: float | None, width: int) -> str:
    """A score in at most ``width`` ≥ 3 characters, as exact as they allow.

    >>> [shown(0.9876, 5), shown(0.9876, 3), shown(0.999, 3), shown(-0.02, 3), shown(-1e-9, 5), shown(-1e9, 5)]
    ['0.988', '.99', '1.0', '<0', '0.000', '<<']
    """
    if score is None:
        return "?"
    if score < 0 and width < SINGLE:
        return "<0"
    for digits in (3, 2, 1, 0):
        text = f"{score:z.{digits}f}"
        for form in (text, text.replace("0.", ".", 1) if text.startswith("0.") else text):
            if len(form) <= width:
                return form
    return "<<" if score < 0 else ">>"


def _axis(settings: Sequence[dict[str, Any]]) -> tuple[list[str], list[int]]:
    """The labels along one side of the grid, and each entry's place among them."""
    distinct = {key(entry): entry for entry in settings}
    places = {text: place for place, text in enumerate(distinct)}
    return side_labels(list(distinct.values())), [places[key(entry)] for entry in settings]


def _shortened(name: str, width: int, ellipsis: str) -> str:
    if len(name) <= width:
        return name
    head = width // 2
    return name[:head] + ellipsis + name[len(name) - (width - head - 1) :]


def _wrapped(parts: Iterable[str], width: int) -> list[Text]:
    """Join parts to lines of at most ``width`` characters."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += "  " + part
        else:
            lines.append(part[:width])
    return [Text(line, style="dim") for line in lines]
