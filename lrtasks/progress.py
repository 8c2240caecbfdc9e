"""Progress of long work on standard error: a live bar on a terminal, otherwise a plain line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Progress display inside a ``with`` block: work done, rate, time left, and values such as a loss.

    ``unit`` names the ``total`` items, in the plural; ``done`` of them were done before this process started.
    """

    def __init__(self, title: str, unit: str, total: int, *, done: int = 0, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self._title, self._unit, self._total, self._first, self._quiet = title, unit, total, done, quiet
        self._start = self._last = time.monotonic()
        self._live = not quiet and sys.stderr.isatty()
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[more]}")
        self._bar = Bar(*columns, console=Console(stderr=True), disable=not self._live)
        self._work = self._bar.add_task(title, total=total, completed=done, more="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:  # some versions of rich print an empty line otherwise
            self._bar.stop()

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Show that ``done`` items are done, with the current ``values`` by name."""
        now = time.monotonic()
        due = now - self._last >= SECONDS_BETWEEN_LINES or done >= self._total
        if self._quiet or not (self._live or due):
            return
        self._last, rate = now, (done - self._first) / max(now - self._start, 1e-9)
        pace = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        left = clock((self._total - done) / rate) if rate else "?"
        shown = [f"{name} {value:.4g}" for name, value in (values or {}).items()]
        more = "  ".join([*shown, f"{pace} {self._unit}/s", f"{left} left"])
        if self._live:
            self._bar.update(self._work, completed=done, more=more)
        else:
            print(f"{self._title}  {done}/{self._total}  {more}", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Return a time in seconds as a short text.

    >>> clock(45), clock(75), clock(7300)
    ('45s', '1m15s', '2h01m')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
