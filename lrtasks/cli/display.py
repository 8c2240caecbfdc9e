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

    from lrtasks.run_config import RunConfig
    from lrtasks.suite.run import OnChange, SuiteProgress

SYMBOLS = {"waiting": ".", "running": ">", "failed": "x", "diverged": "!", "refused": "-"}
STYLES = {"running": "cyan", "failed": "red", "diverged": "red", "refused": "dim", "waiting": "dim"}
MAX_RUNS_SHOWN = 4
CHARACTERS_PER_COLUMN = 7


@contextmanager
def display() -> Iterator[OnChange]:
    """Yield a function that shows a suite on standard error after every change."""
    if not sys.stderr.isatty():
        yield lambda progress, number: print(change_line(progress, number), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    current: SuiteProgress | None = None

    def draw() -> Group | str:
        return screen(current, *console.size) if current else ""

    def show(progress: SuiteProgress, _: int | None) -> None:
        nonlocal current
        current = progress
        live.refresh()

    with Live(get_renderable=draw, console=console, refresh_per_second=1) as live:
        yield show


def screen(progress: SuiteProgress, width: int, height: int) -> Group:
    """Return the :func:`grid` with a line for each of some running runs and the :func:`summary` below it."""
    from rich.console import Group
    from rich.text import Text

    lines = [*running_lines(progress), summary(progress)]
    if len(lines) > MAX_RUNS_SHOWN + 1:
        lines[MAX_RUNS_SHOWN:-1] = [f"and {len(lines) - 1 - MAX_RUNS_SHOWN} more runs"]
    below = [Text(line[:width]) for line in lines]
    return Group(grid(progress, width, height - len(below) - 4), *below)


def grid(progress: SuiteProgress, width: int, height: int) -> Table:
    """Return a table of tasks × models, cut to the size of the terminal; the more numerous ones are the rows.

    A cell shows the mean score of the finished seeds, a status symbol, or both.
    """
    from rich.table import Table

    cells: dict[tuple[str, str], list[int]] = {}
    for number, (label, run) in enumerate(zip(task_labels(progress.runs), progress.runs, strict=True)):
        cells.setdefault((label, run.model.name), []).append(number)
    names = {"tasks": dict.fromkeys(task for task, _ in cells), "models": dict.fromkeys(model for _, model in cells)}
    (below, rows), (across, columns) = sorted(names.items(), key=lambda entry: -len(entry[1]))
    heads = {column: column.replace("-", "- ").split() for column in columns}
    widest = max(CHARACTERS_PER_COLUMN, *(len(piece) for pieces in heads.values() for piece in pieces))
    shown = list(columns)[: max(1, (width - max(map(len, rows))) // (widest + 2))]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for column in shown:
        table.add_column("\n".join(heads[column]), justify="right", overflow="fold")
    lines: list[tuple[bool, str, list[list[int]]]] = []
    for row in rows:
        numbers = [cells.get((row, column) if below == "tasks" else (column, row), []) for column in columns]
        done = all(progress.statuses[run] not in ("waiting", "running") for cell in numbers for run in cell)
        lines.append((done, row, numbers))
    lines = sorted(lines, key=lambda line: line[0])[: max(1, height - max(map(len, heads.values())) + 1)]
    for _, row, numbers in lines:
        table.add_row(row, *(_cell(progress, cell) for cell in numbers[: len(shown)]))
    hidden = {below: len(rows) - len(lines), across: len(columns) - len(shown)}
    said = " and ".join(f"{count} {what}" for what, count in hidden.items() if count)
    symbols = "  ".join(f"{symbol} {name}" for name, symbol in SYMBOLS.items())
    table.caption = symbols + (f"; no room for {said}" if said else "")
    table.caption_justify = "left"
    return table


def task_labels(runs: Sequence[RunConfig]) -> list[str]:
    """Return a label for each run: its task, with the task and budget settings that differ between runs."""
    given = [{name: value for name, value in run.settings.items() if name[:5] != "model"} for run in runs]
    names = dict.fromkeys(name for settings in given for name in settings)
    varied = [name for name in names if len({repr(settings.get(name)) for settings in given}) > 1]
    return [
        " ".join([run.task.name, *(f"{name.split('.')[-1]}={settings[name]}" for name in varied if name in settings)])
        for run, settings in zip(runs, given, strict=True)
    ]


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
    if not statuses:
        return ""
    scores = [
        record.headline() for number in numbers if (record := progress.records[number]) and record.status == "done"
    ]
    known = [score for score in scores if score is not None]
    worst = next((status for status in STYLES if status in statuses), None)
    if worst is None:
        return f"[green]{mean(known):z.3f}[/]" if known else "?"
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
