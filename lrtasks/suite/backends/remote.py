"""Runs on other machines, which share the results folder with the one where the suite waits for them."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.files import held, remove_empty
from lrtasks.record import FILE, LOCK
from lrtasks.suite.backends import Began, Event, Failure, Job, run_job

SECONDS_TO_APPEAR = 90.0
"""How long a network file system may take to show here what was written there."""
SECONDS_TO_LET_GO = 180.0
"""How long a run on a machine that was cut off may still hold its folder, until the cluster has ended it there."""

Stamp = tuple[int, int]
"""Time of change and size of a file."""


@dataclass(frozen=True)
class Report:
    """What another machine (``host``) reports of a run that has ended there; ``record`` is as that machine sees it."""

    host: str
    failure: Failure | None
    record: Stamp | None = None


def run_there(job: Job, **limits: Any) -> Report:
    """Carry out a job on this machine for a suite that waits on another one; arguments as of :func:`run_job`."""
    host = socket.gethostname()
    if not job.folder.is_dir():
        reason = f"there is no folder {job.folder} on {host}: all machines must share the results folder"
        return Report(host, Failure(reason))
    _wait_until_free(job.folder / LOCK)
    return Report(host, run_job(job, **limits), _stamp(job.folder))


class Remote:
    """Jobs on other machines, seen from the process that waits for them; a subclass sends them there.

    A job ends when this machine sees its record as the other one does.

    Args:
        jobs: all jobs; their folders are made.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.running: dict[Any, int] = {}
        """Numbers of the jobs that are queued or running, by the object that represents the job."""
        self._begun: Counter[int] = Counter()
        self._due: dict[int, tuple[Report, float]] = {}
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)

    def begin(self) -> None:
        """Send all jobs."""
        raise NotImplementedError

    def look(self) -> Iterator[tuple[int, int | Report]]:
        """Wait for a moment; tell how often a job has begun, or that it has ended and has left :attr:`running`."""
        raise NotImplementedError

    def cancel(self, running: Any) -> None:
        """Stop a job."""
        raise NotImplementedError

    def events(self) -> Iterator[tuple[int, Event]]:
        """Carry out the jobs, as :meth:`lrtasks.suite.backends.Backend.run`."""
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
        """Note that a job has ended elsewhere."""
        self._due[number] = report, time.monotonic() + SECONDS_TO_APPEAR

    def settled(self) -> Iterator[tuple[int, Failure | None]]:
        """The jobs whose records have appeared, or have not for too long."""
        for number, (report, last) in list(self._due.items()):
            folder, failure = self.jobs[number].folder, report.failure
            if report.record not in (None, _stamp(folder)):
                if time.monotonic() < last:
                    continue
                failure = Failure(
                    f"what {report.host} wrote into {folder} is not here: all machines must share the results folder"
                )
            del self._due[number]
            yield number, failure


def _wait_until_free(lock: Path) -> None:
    """Wait until an earlier process of the same run has ended: its machine was cut off, but it may still be running."""
    last = time.monotonic() + SECONDS_TO_LET_GO
    while time.monotonic() < last:
        try:
            with held(lock, ""):
                return
        except UsageError:
            time.sleep(0.5)
        except OSError:
            return  # this file system has no locks, or the folder is gone: the run itself reports it


def _stamp(folder: Path) -> Stamp | None:
    try:
        status = (folder / FILE).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
