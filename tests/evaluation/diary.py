"""What a backend says of its jobs."""

from __future__ import annotations

from collections.abc import Callable


class Diary:
    """Notes which jobs have begun, and how each has ended.

    Args:
        on_start: called with a job's number when it has begun.
    """

    def __init__(self, on_start: Callable[[int], object] = lambda _: None) -> None:
        self.begun: list[int] = []
        self.lines: dict[int, str] = {}
        self._on_start = on_start

    def started(self, number: int) -> None:
        self.begun.append(number)
        self._on_start(number)

    def ended(self, number: int, line: str) -> None:
        assert number not in self.lines
        self.lines[number] = line
