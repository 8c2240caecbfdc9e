"""The progress of a suite: what a display needs to know."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from lrtasks.record import RunRecord
from lrtasks.run_config import RunConfig

WAITING, RUNNING, REFUSED = "waiting", "running", "refused"
"""Statuses that a run has in a suite beside those of its record: ``done``, ``diverged`` and ``failed``.

A refused run is impossible here, or another process works on it; nothing about it is written.
"""


class SuiteProgress:
    """A status for each run of a suite, its record once it has ended, and how long it took.

    Attributes:
        runs: the runs.
        folders: their folders.
        statuses: ``waiting``, ``running``, ``done``, ``diverged``, ``failed`` or ``refused``.
        records: records of the runs that have ended.
        began: when a run began, on :func:`time.monotonic`'s clock, while it goes on.
        seconds: how long a run took that has ended, now or in an earlier call.
    """

    def __init__(self, runs: Sequence[RunConfig], out: Path) -> None:
        self.runs = runs
        self.folders = [run.folder(out) for run in runs]
        self.statuses = [WAITING] * len(runs)
        self.records: list[RunRecord | None] = [None] * len(runs)
        self.began: list[float | None] = [None] * len(runs)
        self.seconds: list[float | None] = [None] * len(runs)

    def begin(self, number: int) -> None:
        """Note that a run begins, or begins again."""
        self.statuses[number] = RUNNING
        self.began[number] = time.monotonic()

    def end(self, number: int, status: str, record: RunRecord) -> None:
        """Note how a run ended; the cost of a run that ended in an earlier call is taken from its record."""
        began = self.began[number]
        taken = record.cost.get("seconds_with_evaluation") if began is None else time.monotonic() - began
        self.statuses[number], self.records[number] = status, record
        self.began[number], self.seconds[number] = None, taken

    def counts(self) -> dict[str, int]:
        """Number of runs by status, without zeros."""
        order = ("done", "diverged", "failed", REFUSED, RUNNING, WAITING)
        found = {status: self.statuses.count(status) for status in order}
        return {status: count for status, count in found.items() if count}

    def elapsed(self, number: int) -> float:
        """Seconds since a run began; 0 if it does not go on."""
        began = self.began[number]
        return 0.0 if began is None else time.monotonic() - began

    def seconds_left(self) -> float | None:
        """Estimated seconds until the last run ends; ``None`` while nothing is known.

        A run is expected to take as long as the mean of its model's ended runs, or of all ended runs if its model has
        none; the number of runs at a time is expected to stay what it is.
        """
        by_model: dict[str, list[float]] = {}
        for run, status, seconds in zip(self.runs, self.statuses, self.seconds, strict=True):
            if seconds is not None and status != REFUSED:
                by_model.setdefault(run.model.name, []).append(seconds)
        if not by_model:
            return None
        of_any = mean(value for values in by_model.values() for value in values)
        left = [
            max(mean(by_model.get(run.model.name, [of_any])) - self.elapsed(number), 0.0)
            for number, (run, status) in enumerate(zip(self.runs, self.statuses, strict=True))
            if status in (WAITING, RUNNING)
        ]
        return max(sum(left) / max(1, self.statuses.count(RUNNING)), max(left, default=0.0))
