"""A suite while it runs: a live grid on a terminal, elsewhere one line per change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lrtasks.errors import UsageError
from lrtasks.progress import clock

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from lrtasks.cli.grid import Grid
    from lrtasks.suite.entries import Entry
    from lrtasks.suite.standing import Standing

MAX_RUNS_SHOWN = 4


class Display:
    """Shows a suite on standard error; called after every change (``on_change`` of ``run_suite``).

    Args:
        skipped: runs that cannot be, for the grid.
    """

    def __init__(self, skipped: Sequence[Entry] = ()) -> None:
        self._skipped = skipped
        self._live: Any = None
        self._grid: Grid | None = None
        self._standing: Standing | None = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True)
            self._live = Live(get_renderable=self._draw, console=self._console, refresh_per_second=1)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, standing: Standing, number: int | None) -> None:
        """Show that run ``number`` has changed, or at the start where the suite stands."""
        if self._live is None:
            sys.stderr.write(change_line(standing, number) + "\n")
            sys.stderr.flush()
            return
        if self._grid is None:
            from lrtasks.cli.grid import Grid

            self._grid = Grid(standing, self._skipped, ascii_only=self._console.options.ascii_only)
        self._standing = standing

    def _draw(self) -> Group:
        from rich.console import Group

        if self._standing is None or self._grid is None:
            return Group()
        return Group(*screen(self._standing, self._grid, *self._console.size))


def screen(standing: Standing, grid: Grid, width: int, height: int) -> list[Text]:
    """What a terminal of this size shows: the grid, the runs that are going on, how many have which status."""
    from rich.text import Text

    runs = running_lines(standing)
    hidden = len(runs) - MAX_RUNS_SHOWN
    if hidden > 0:
        runs[MAX_RUNS_SHOWN - 1 :] = [f"and {hidden + 1} more runs"]
    below = [Text(line[:width]) for line in (*runs, summary(standing))]
    # one line stays free, since a terminal scrolls when its last one is written
    return [*grid.draw(width, height - len(below) - 1), *below]


def running_lines(standing: Standing) -> list[str]:
    """One line for each run that is going on: for how long, at which step, and its last validation score."""
    lines = []
    for number, status in enumerate(standing.statuses):
        if status == "running":
            line = [standing.titles[number], clock(standing.elapsed(number)), *_reached(standing.folders[number])]
            lines.append("  ".join(line))
    return lines


def change_line(standing: Standing, number: int | None) -> str:
    """What has become of a run, and how many runs have which status."""
    if number is None:
        return summary(standing)
    said = f"{standing.titles[number]}: {standing.statuses[number]}"
    record, seconds = standing.records[number], standing.seconds[number]
    if record is not None and record.status == "done":
        score = record.headline()
        said += f", {record.task['metric']} {'none' if score is None else format(score, '.3f')}"
    if seconds is not None:
        said += f" after {clock(seconds)}"
    if record is not None and record.status != "done" and record.notes:
        said += f": {' '.join(record.notes[-1].split())}"
    return f"{said} ({summary(standing)})"


def summary(standing: Standing) -> str:
    """How many runs have which status, and about how long the rest takes."""
    counts = standing.counts()
    parts = [", ".join(f"{count} {status}" for status, count in counts.items())]
    if {"running", "waiting"} & counts.keys():
        left = standing.seconds_left()
        parts.append("time left unknown" if left is None else f"about {clock(left)} left")
    return "; ".join(parts)


def _reached(folder: Path) -> list[str]:
    """Step and validation score of a run by its record, which is true at every evaluation."""
    from lrtasks.record import read_record

    try:
        record = read_record(folder)
    except UsageError:
        return []
    if record.status != "running" or not record.curve:
        return []
    step, score = record.curve[-1].get("step"), record.headline("val")
    said = [f"step {step}/{record.budget.get('steps')}"]
    return said if score is None else [*said, f"val {record.task['metric']} {score:.3f}"]
