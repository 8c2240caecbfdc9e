"""Show a suite while it runs: as a live table on a terminal, elsewhere as one line per change."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from lrtasks.errors import UsageError
from lrtasks.progress import clock
from lrtasks.record import read_record

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from lrtasks.suite.run import OnChange, SuiteProgress

SYMBOLS = {"waiting": ".", "running": ">", "failed": "x", "diverged": "!", "refused": "-", "elsewhere": "~"}
STYLES = {
    "running": "cyan",
    "failed": "red",
    "diverged": "red",
    **dict.fromkeys(("refused", "elsewhere", "waiting"), "dim"),
}
MAX_RUNS_SHOWN = 4


@contextmanager
def display() -> Iterator[OnChange]:
    """Yield a function that shows a suite on standard error after every change."""
    if not sys.stderr.isatty():
        yield lambda progress, number: print(change_line(progress, number), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.live import Live

    shown: list[SuiteProgress] = []  # the suite, once it has begun

    def show(progress: SuiteProgress, _: int | None) -> None:
        shown[:] = [progress]
        live.refresh()

    console = Console(stderr=True)
    with Live(get_renderable=lambda: screen(*shown) if shown else "", console=console, refresh_per_second=1) as live:
        yield show


def screen(progress: SuiteProgress) -> Group:
    """Return the :func:`summary`, a line for each of some running runs, and the :func:`grid`, which may be cut off."""
    from rich.console import Group
    from rich.text import Text

    lines = running_lines(progress)
    if len(lines) > MAX_RUNS_SHOWN:
        lines[MAX_RUNS_SHOWN:] = [f"and {len(lines) - MAX_RUNS_SHOWN} more runs"]
    shown = [Text(line, no_wrap=True, overflow="ellipsis") for line in (summary(progress), *lines)]
    return Group(*shown, grid(progress))


def grid(progress: SuiteProgress) -> Table:
    """Return a table of tasks and models. The longer list makes the rows; rows with unfinished runs come first.

    The labels are as in the table of results. A cell shows the mean score of the finished seeds, a status symbol, or
    both.
    """
    from rich.markup import escape
    from rich.table import Column, Table

    cells: dict[tuple[str, str], list[int]] = {}
    for number, place in enumerate(progress.labels):
        cells.setdefault(place, []).append(number)
    rows, columns = (dict.fromkeys(names) for names in zip(*cells, strict=True))
    if turned := len(columns) > len(rows):
        rows, columns = columns, rows
    heads = [Column(escape(name), justify="right", overflow="fold") for name in columns]
    table = Table("", *heads, box=None, pad_edge=False)
    lines = []
    for row in rows:
        numbers = [cells.get((column, row) if turned else (row, column), []) for column in columns]
        finished = all(progress.statuses[run] not in ("waiting", "running") for cell in numbers for run in cell)
        lines.append((finished, [escape(row), *(_cell(progress, cell) for cell in numbers)]))
    for _, line in sorted(lines, key=lambda line: line[0]):
        table.add_row(*line)
    table.caption, table.caption_justify = "  ".join(f"{mark} {name}" for name, mark in SYMBOLS.items()), "left"
    return table


def running_lines(progress: SuiteProgress) -> list[str]:
    """Return one line for each running run: elapsed time, step, and last validation score."""
    return [
        "  ".join([run.title(), clock(progress.elapsed(number)), *_reached(progress.folders[number])])
        for number, run in enumerate(progress.runs)
        if progress.statuses[number] == "running"
    ]


def change_line(progress: SuiteProgress, number: int | None) -> str:
    """Return a line with the new status of a run and the :func:`summary`; ``None`` gives the summary alone."""
    if number is None:
        return summary(progress)
    said = f"{progress.runs[number].title()}: {progress.statuses[number]}"
    record, seconds = progress.records[number], progress.seconds[number]
    if record is not None and record.status == "done":
        score = record.headline()
        said += f", {record.task['metric']} {'none' if score is None else format(score, '.3f')}"
    if seconds is not None:
        said += f" after {clock(seconds)}"
    if record is not None and record.status != "done" and record.notes:
        said += f": {' '.join(record.notes[-1].split())}"
    return f"{said} ({summary(progress)})"


def summary(progress: SuiteProgress) -> str:
    """Return the number of runs with each status, and the estimated time left."""
    counts = progress.counts()
    parts = [", ".join(f"{count} {status}" for status, count in counts.items())]
    if {"running", "waiting"} & counts.keys():
        left = progress.seconds_left()
        parts.append("time left unknown" if left is None else f"about {clock(left)} left")
    return "; ".join(parts)


def _cell(progress: SuiteProgress, numbers: Sequence[int]) -> str:
    statuses = [progress.statuses[number] for number in numbers]
    records = [record for number in numbers if (record := progress.records[number]) and record.status == "done"]
    known = [score for record in records if (score := record.headline()) is not None]
    worst = next((status for status in STYLES if status in statuses), None)
    if worst is None:
        return f"[green]{mean(known):z.3f}[/]" if known else "?" if numbers else ""
    mark = f"[{STYLES[worst]}]{SYMBOLS[worst]}[/]"
    return f"{mean(known):z.2f} {mark}" if known else mark


def _reached(folder: Path) -> list[str]:
    """Return step and validation score of a run from its record, which is written at every evaluation."""
    try:
        record = read_record(folder)
    except UsageError:
        return []
    if record.status != "running" or not record.curve:
        return []
    step, score = record.curve[-1].get("step"), record.headline("val")
    said = [f"step {step}/{record.budget.get('steps')}"]
    return said if score is None else [*said, f"val {record.task['metric']} {score:.3f}"]
