"""The runs of a suite on this machine: several at a time, each in a separate process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from lrtasks.config import parameter
from lrtasks.machine import cores
from lrtasks.processes import Template
from lrtasks.suite.backends import Backend, Began, Event, Failure, Job, run_job


@dataclass(frozen=True)
class Local(Backend):
    """Processes of this machine, forked from a process that has loaded torch. They end if this process ends or dies."""

    name: ClassVar[str] = "local"

    jobs: int = parameter(
        1, "number of parallel runs, which share the processor cores; slurm: 256", at_least=1, at_most=10_000
    )

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        threads, stop = max(1, cores() // self.jobs), threading.Event()
        left, running = iter(range(len(jobs))), dict[Future[Failure | None], int]()
        forks = closing(Template(threads)) if sys.platform == "linux" else nullcontext()
        with forks as template, ThreadPoolExecutor(self.jobs) as pool:
            try:
                while True:
                    for number in islice(left, self.jobs - len(running)):
                        begun = pool.submit(run_job, jobs[number], threads=threads, stop=stop, template=template)
                        running[begun] = number
                        yield number, Began()
                    if not running:
                        return
                    for ended in wait(running, return_when=FIRST_COMPLETED).done:
                        yield running.pop(ended), ended.result()
            finally:
                stop.set()
