"""The runs of a suite on this machine: some at a time, each in a process of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from lrtasks.config import parameter
from lrtasks.machine import cores
from lrtasks.processes import Template
from lrtasks.suite.backends import Backend, Began, Event, Job, run_job


@dataclass(frozen=True)
class Local(Backend):
    """Processes of this machine, forked from a process that has loaded torch. They end if this process ends or dies."""

    name: ClassVar[str] = "local"

    jobs: int = parameter(1, "number of parallel runs; they share the processor cores", at_least=1, at_most=10_000)

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        threads, stop = max(1, cores() // self.jobs), threading.Event()
        events: queue.Queue[tuple[int, Event | BaseException]] = queue.Queue()

        def carry_out(number: int) -> None:
            if stop.is_set():
                return
            events.put((number, Began()))
            try:
                events.put((number, run_job(jobs[number], threads=threads, stop=stop, template=template)))
            except BaseException as error:
                events.put((number, error))

        with closing(Template(threads)) as template, ThreadPoolExecutor(self.jobs) as pool:
            try:
                for number in range(len(jobs)):
                    pool.submit(carry_out, number)
                left = len(jobs)
                while left:
                    number, event = events.get()
                    if isinstance(event, BaseException):
                        raise event
                    left -= not isinstance(event, Began)
                    yield number, event
            finally:
                stop.set()
