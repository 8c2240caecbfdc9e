"""Progress on standard error: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

SECONDS_BETWEEN_LINES = 15.0


class Progress:
    """Steps done, loss, score, steps per second and time left.

    Args:
        title: what is running.
        total: number of steps.
        done: steps done before this process.
        quiet: print nothing.
    """

    def __init__(self, title: str, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self._title, self._total, self._first = title, total, done
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._start = self._last = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            sys.stderr.write("\n")

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Show the state after ``step`` steps."""
        if self._quiet:
            return
        now = time.monotonic()
        due = now - self._last >= (0.2 if self._live else SECONDS_BETWEEN_LINES)
        if not due and step < self._total:
            return
        self._last = now
        rate = (step - self._first) / max(now - self._start, 1e-9)
        left = (self._total - step) / rate if rate else float("inf")
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        line = f"{self._title}  {step}/{self._total}  {shown}  {rate:.1f} steps/s  {_clock(left)} left"
        sys.stderr.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        sys.stderr.flush()


def _clock(seconds: float) -> str:
    """Seconds as a short time.

    >>> _clock(75), _clock(7300)
    ('1m15s', '2h01m')
    """
    if seconds == float("inf"):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
