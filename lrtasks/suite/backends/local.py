"""This machine: some runs at a time, each in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from lrtasks.errors import UsageError
from lrtasks.machine import cores
from lrtasks.suite.backends.process import run_job
from lrtasks.suite.jobs import Ended, Job, Started


@dataclass(frozen=True)
class Local:
    """Ctrl-C stops all runs at once; they die with this process too, whatever it dies of.

    Attributes:
        jobs: runs at a time; they share the processor cores.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"jobs must be at least 1, found {self.jobs}")

    def carry_out(self, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        """See :class:`lrtasks.suite.jobs.Backend`."""
        threads, stop = max(1, cores() // self.jobs), threading.Event()

        def run(number: int) -> None:
            if stop.is_set():
                return
            started(number)
            line = run_job(jobs[number], threads, stop=stop)
            if not stop.is_set():
                ended(number, line)

        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(run, number) for number in range(len(jobs))]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                stop.set()
                raise
