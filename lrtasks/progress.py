"""Progress of long work on standard error: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """How much is done, the rate, the time left, and values such as a loss.

    Args:
        title: what is running.
        unit: what is counted, in the plural.
        total: how much there is.
        done: how much of it was done before this process.
        quiet: show nothing.
    """

    def __init__(self, title: str, unit: str, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self._title, self._unit, self._total, self._first = title, unit, total, done
        self._quiet = quiet
        self._live: Any = None
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            more = TextColumn("{task.fields[more]}")
            self._live = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), more, console=Console(stderr=True)
            )
            self._live.start()
            self._bar = self._live.add_task(self._title, total=self._total, completed=self._first, more="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, done: int, values: Mapping[str, float] | None = None) -> None:
        """Show that ``done`` of the total are done, with the present ``values`` by name."""
        if self._quiet:
            return
        now = time.monotonic()
        if self._live is None and now - self._last < SECONDS_BETWEEN_LINES and done < self._total:
            return
        self._last = now
        rate = (done - self._first) / max(now - self._start, 1e-9)
        left = clock((self._total - done) / rate) if rate else "?"
        pace = f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
        shown = [f"{name} {value:.4g}" for name, value in (values or {}).items()]
        more = "  ".join([*shown, f"{pace} {self._unit}/s", f"{left} left"])
        if self._live is not None:
            self._live.update(self._bar, completed=done, more=more)
        else:
            sys.stderr.write(f"{self._title}  {done}/{self._total}  {more}\n")
            sys.stderr.flush()


def clock(seconds: float) -> str:
    """Seconds as a short time.

    >>> clock(75), clock(7300)
    ('1m15s', '2h01m')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
