"""Runs on other machines, which share the results folder with the machine where the suite waits for them."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.files import held, remove_empty
from lrtasks.record import FILE, LOCK
from lrtasks.suite.backends import Began, Event, Failure, Job, run_job

SECONDS_TO_APPEAR = 90.0
"""Longest time that a network file system may take to show a file of another machine on this machine."""
SECONDS_TO_LET_GO = 180.0
"""Longest time that a run on a disconnected machine may still lock its folder, until the cluster ends the run."""

Stamp = tuple[int, int]
"""Modification time in nanoseconds and size in bytes of a file."""


@dataclass(frozen=True)
class Report:
    """Report of another machine, ``host``, on a run that has ended there. ``record``: the stamp of the record there."""

    host: str
    failure: Failure | None
    record: Stamp | None = None


def run_there(job: Job, **limits: Any) -> Report:
    """Execute a job on this machine for a suite that waits on another machine; arguments as for :func:`run_job`."""
    host = socket.gethostname()
    if not job.folder.is_dir():
        missing = f"there is no folder {job.folder} on {host}"
        return Report(host, Failure(f"{missing}: all machines must share the results folder"))
    # an earlier process of the same run may still be running on a disconnected machine
    with suppress(UsageError, OSError), held(job.folder / LOCK, "", patience=SECONDS_TO_LET_GO):
        pass  # if the lock is still held, or the file system has no locks, the run itself reports it
    return Report(host, run_job(job, **limits), _stamp(job.folder))


class Remote:
    """Base class of jobs on other machines, in the process that waits for them. A subclass sends the jobs.

    A job has ended once this machine sees the same version of its record as the other machine.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.running: dict[Any, int] = {}
        """Numbers of the jobs that are queued or running, by the object that represents the job."""
        self._begun: Counter[int] = Counter()
        self._due: dict[int, tuple[Report, float]] = {}
        self._unmade: dict[int, Failure] = {}
        for number, job in enumerate(jobs):
            try:
                job.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # the other jobs go on
                reason = f"the results folder {job.folder} cannot be made: {error.strerror}"
                self._unmade[number] = Failure(reason, refused=True)

    def begin(self) -> None:
        """Send all jobs."""
        raise NotImplementedError

    def look(self) -> Iterator[tuple[int, int | Report]]:
        """Wait a moment; yield how often a job has begun, or the report of a job that has left :attr:`running`."""
        raise NotImplementedError

    def cancel(self, running: Any) -> None:
        """Stop a job."""
        raise NotImplementedError

    def events(self) -> Iterator[tuple[int, Event]]:
        """Execute the jobs and yield their events, as :meth:`lrtasks.suite.backends.Backend.run`."""
        try:
            self.begin()
            while self.running or self._due:
                for number, event in self.look():
                    if isinstance(event, Report):
                        self.expect(number, event)
                    elif event > self._begun[number]:
                        self._begun[number] = event
                        yield number, Began()
                yield from self.settled()
        finally:
            for running in self.running:
                self.cancel(running)
            for job in self.jobs:
                remove_empty(job.folder, job.folder.parent)

    def expect(self, number: int, report: Report) -> None:
        """Note that a job has ended on another machine."""
        if report.failure:
            report = replace(report, failure=self._unmade.get(number, report.failure))
        self._due[number] = report, time.monotonic() + SECONDS_TO_APPEAR

    def settled(self) -> Iterator[tuple[int, Failure | None]]:
        """Yield the jobs whose records have appeared on this machine, or have not appeared in time."""
        for number, (report, last) in list(self._due.items()):
            folder, failure = self.jobs[number].folder, report.failure
            if report.record not in (None, _stamp(folder)):
                if time.monotonic() < last:
                    continue
                missing = f"what {report.host} wrote into {folder} is not here"
                failure = Failure(f"{missing}: all machines must share the results folder")
            del self._due[number]
            yield number, failure


def _stamp(folder: Path) -> Stamp | None:
    try:
        status = (folder / FILE).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
