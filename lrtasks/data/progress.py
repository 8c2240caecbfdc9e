"""Samples done, samples per second and time left, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

SECONDS_BETWEEN_LINES = 10.0

Advance = Callable[[int], None]


@contextmanager
def show_progress(title: str, total: int, done: int, *, quiet: bool) -> Iterator[Advance]:
    """Show progress until the block ends; the function it gives takes the number of further samples.

    Args:
        title: what is made.
        total: number of samples.
        done: samples made before.
        quiet: show nothing.
    """
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _live(title, total, done) as advance:
            yield advance
    else:
        yield _Lines(title, total, done).advance


@contextmanager
def _live(title: str, total: int, done: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    rate = TextColumn("{task.fields[rate]} samples/s")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    start, made = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(title, total=total, completed=done, rate="-")

        def advance(samples: int) -> None:
            nonlocal made
            made += samples
            progress.update(bar, advance=samples, rate=f"{made / (time.monotonic() - start):.0f}")

        yield advance


class _Lines:
    """A plain line now and then, for logs."""

    def __init__(self, title: str, total: int, done: int) -> None:
        self._title, self._total, self._first, self._done = title, total, done, done
        self._start = self._last = time.monotonic()

    def advance(self, samples: int) -> None:
        self._done += samples
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_LINES and self._done < self._total:
            return
        self._last = now
        rate = (self._done - self._first) / max(now - self._start, 1e-9)
        left = timedelta(seconds=round((self._total - self._done) / rate))
        sys.stderr.write(f"{self._title}: {self._done}/{self._total} samples, {rate:.0f} samples/s, {left} left\n")
        sys.stderr.flush()
