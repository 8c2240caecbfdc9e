"""Runs on other machines, which share the results folder with the one where the suite waits for them."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lrtasks.errors import UsageError
from lrtasks.files import held
from lrtasks.record import FILE
from lrtasks.suite.backends.process import run_job
from lrtasks.suite.jobs import LOCK, Ended, Job

SECONDS_TO_APPEAR = 90.0
"""How long a network file system may take to show here what was written there."""
SECONDS_TO_LET_GO = 180.0
"""How long a run on a machine that was cut off may still hold its folder: until the cluster has ended it there."""

Stamp = tuple[int, int]
"""Time of change and size of a file."""


@dataclass(frozen=True)
class Report:
    """What another machine says of a run that has ended there.

    Attributes:
        host: the machine.
        line: how the run ended.
        record: the record that it left, as that machine sees it.
    """

    host: str
    line: str
    record: Stamp | None = None


def run_there(job: Job, threads: int, environment: Mapping[str, str] | None = None) -> Report:
    """Carry out a job on this machine for a suite that waits on another one; arguments as of :func:`run_job`."""
    host = socket.gethostname()
    if not job.folder.is_dir():
        return Report(host, f"there is no folder {job.folder} on {host}: all machines must share the results folder")
    _wait_until_free(job.folder / LOCK)
    return Report(host, run_job(job, threads, environment), _stamp(job.folder))


def _wait_until_free(lock: Path) -> None:
    """Wait for an earlier process of the same run that does not know yet that its machine was given up."""
    last = time.monotonic() + SECONDS_TO_LET_GO
    while time.monotonic() < last:
        try:
            with held(lock, ""):
                return
        except UsageError:
            time.sleep(0.5)
        except OSError:
            return  # this file system has no locks, or the folder is gone: the run itself will say so


def _stamp(folder: Path) -> Stamp | None:
    try:
        status = (folder / FILE).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class Arrivals:
    """Runs that have ended elsewhere, each until its record can be seen here as it is there.

    Args:
        jobs: all runs; their folders are made.
        ended: told of each run once.
    """

    def __init__(self, jobs: Sequence[Job], ended: Ended) -> None:
        self._jobs, self._ended = jobs, ended
        self._due: dict[int, tuple[Report, float]] = {}
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)

    def __bool__(self) -> bool:
        return bool(self._due)

    def expect(self, number: int, report: Report) -> None:
        """Note that a run has ended."""
        self._due[number] = report, time.monotonic() + SECONDS_TO_APPEAR

    def settle(self) -> None:
        """Pass on the ends of runs whose records have appeared, or have not for too long."""
        for number, (report, last) in list(self._due.items()):
            folder, line = self._jobs[number].folder, report.line
            if report.record not in (None, _stamp(folder)):
                if time.monotonic() < last:
                    continue
                line = f"what {report.host} wrote into {folder} is not here: all machines must share the results folder"
            del self._due[number]
            self._ended(number, line)

    def close(self) -> None:
        """Remove the folders in which nothing was written."""
        for job in self._jobs:
            with suppress(OSError):
                job.folder.rmdir()
                job.folder.parent.rmdir()
