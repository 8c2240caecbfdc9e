"""A recorder of the events that a backend reports for its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from lrtasks.suite.backends import Backend, Began, Job


class Diary:
    """Runs jobs on a backend, and records which jobs have begun and how each job ended.

    Args:
        on_start: called with the number of a job when the job has begun.
    """

    def __init__(self, on_start: Callable[[int], object] = lambda _: None) -> None:
        self.begun: list[int] = []
        self.lines: dict[int, str] = {}
        self._on_start = on_start

    def execute(self, backend: Backend, jobs: Sequence[Job]) -> None:
        with closing(backend.run(jobs)) as events:
            for number, event in events:
                if isinstance(event, Began):
                    self.begun.append(number)
                    self._on_start(number)
                else:
                    assert number not in self.lines
                    self.lines[number] = "fine" if event is None else "refused: " * event.refused + event.reason
