"""Where a suite stands while it runs: what a display needs to know."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from lrtasks.record import RunRecord
from lrtasks.suite.entries import Entry, titles

WAITING, RUNNING, REFUSED = "waiting", "running", "refused"
"""Statuses that a run has in a suite beside those of its record: ``done``, ``diverged`` and ``failed``.

A run is refused that cannot be, or that some other process is working on; nothing about it is written.
"""


class Standing:
    """A status for each run of a suite, its record once it has ended, and how long it took.

    Attributes:
        entries: the runs.
        titles: what a reader should see of each.
        folders: their folders.
        statuses: ``waiting``, ``running``, ``done``, ``diverged``, ``failed`` or ``refused``.
        records: records of the runs that have ended.
        began: when a run began, on :func:`time.monotonic`'s clock, while it runs.
        seconds: how long a run took that has ended, now or in an earlier call.
    """

    def __init__(self, entries: Sequence[Entry], folders: Sequence[Path]) -> None:
        self.entries, self.titles, self.folders = entries, titles(entries), folders
        self.statuses = [WAITING] * len(entries)
        self.records: list[RunRecord | None] = [None] * len(entries)
        self.began: list[float | None] = [None] * len(entries)
        self.seconds: list[float | None] = [None] * len(entries)

    def begin(self, number: int) -> None:
        """Note that a run begins, or begins anew."""
        self.statuses[number] = RUNNING
        self.began[number] = time.monotonic()

    def end(self, number: int, status: str, record: RunRecord) -> None:
        """Note how a run ended; one that did not begin now ended in an earlier call, whose cost its record tells."""
        began = self.began[number]
        taken = record.cost.get("seconds_with_evaluation") if began is None else time.monotonic() - began
        self.statuses[number], self.records[number] = status, record
        self.began[number], self.seconds[number] = None, taken

    def counts(self) -> dict[str, int]:
        """How many runs have each status that any has; those that have ended come first."""
        order = ("done", "diverged", "failed", REFUSED, RUNNING, WAITING)
        found = {status: self.statuses.count(status) for status in order}
        return {status: count for status, count in found.items() if count}

    def elapsed(self, number: int) -> float:
        """Seconds since a run began; 0 if it does not run."""
        began = self.began[number]
        return 0.0 if began is None else time.monotonic() - began

    def seconds_left(self) -> float | None:
        """Estimate when the last run ends, or ``None`` while nothing is known.

        A run is taken to last as long as the mean of its model's runs that have ended, or of all models' where its own
        has none; as many go on at a time as do now.
        """
        expected = self._expected()
        if expected is None:
            return None
        left = [
            max(expected[number] - self.elapsed(number), 0.0)
            for number, status in enumerate(self.statuses)
            if status in (WAITING, RUNNING)
        ]
        at_a_time = max(1, self.statuses.count(RUNNING))
        return max(sum(left) / at_a_time, max(left, default=0.0))

    def _expected(self) -> list[float] | None:
        """How long each run is expected to last."""
        by_model: dict[str, list[float]] = {}
        for entry, status, seconds in zip(self.entries, self.statuses, self.seconds, strict=True):
            if seconds is not None and status != REFUSED:
                by_model.setdefault(entry.model, []).append(seconds)
        if not by_model:
            return None
        of_any = mean(value for values in by_model.values() for value in values)
        return [mean(by_model.get(entry.model, [of_any])) for entry in self.entries]
