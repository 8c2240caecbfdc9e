"""The runs of a suite as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from lrtasks.config import parameter
from lrtasks.errors import UsageError
from lrtasks.ray_cluster import connected, describe
from lrtasks.suite.backends import Backend, Event, Failure, Job
from lrtasks.suite.backends.remote import Remote, Report, run_there

SECONDS_BETWEEN_LOOKS = 1.0
TRIES = 3
"""Largest number of attempts to execute a run whose workers are lost."""


@dataclass(frozen=True)
class Ray(Backend):
    """Tasks of a Ray cluster, each in a separate process. A run whose worker is lost continues on another worker."""

    name: ClassVar[str] = "ray"

    address: str | None = parameter(None, "host:port, ray://host:port or auto; none: RAY_ADDRESS, or this machine")
    cpus: int = parameter(1, "processor cores of each run", at_least=1)
    gpus: float = parameter(0.0, "GPUs of each run; a fraction lets several runs share one", at_least=0)

    def check(self) -> None:
        if self.gpus > 1 and self.gpus % 1:
            raise UsageError(f"gpus must be a whole number or a fraction of one, found {self.gpus:g}")

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        with connected(self.address) as ray:
            machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in machines):
                wanted = f"{self.cpus} cores and {self.gpus:g} GPUs, which each run asks for"
                raise UsageError(f"no machine of the Ray cluster has {wanted}")  # Ray itself would wait forever
            yield from _Tasks(ray, self, jobs).events()


class _Tasks(Remote):
    """Jobs as Ray tasks. Lost tasks are repeated here; Ray would repeat them without a limit and without a message."""

    def __init__(self, ray: Any, backend: Ray, jobs: Sequence[Job]) -> None:
        super().__init__(jobs)
        self._ray, self._backend = ray, backend
        self._task = ray.remote(num_cpus=backend.cpus, num_gpus=backend.gpus, max_retries=0)(_execute)
        self._board = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._tries: Counter[int] = Counter()

    def begin(self) -> None:
        for number in range(len(self.jobs)):
            self._submit(number)

    def _submit(self, number: int) -> None:
        self._tries[number] += 1
        backend, times = self._backend, self._tries[number]
        task = self._task.remote(self.jobs[number], backend.cpus, bool(backend.gpus), self._board, number, times)
        self.running[task] = number

    def look(self) -> Iterator[tuple[int, int | Report]]:
        done: list[Any] = []
        if self.running:
            done, _ = self._ray.wait(list(self.running), timeout=SECONDS_BETWEEN_LOOKS)
        else:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        errors = self._ray.exceptions
        with suppress(errors.RayError):  # the board's machine was lost; Ray restarts the board on another machine
            yield from self._ray.get(self._board.read.remote(), timeout=SECONDS_BETWEEN_LOOKS).items()
        for task in done:
            number = self.running.pop(task)
            yield number, self._tries[number]  # a short run can end before the board notes its start
            try:
                yield number, self._ray.get(task)
            except errors.RayTaskError as error:
                yield number, Report("", Failure(describe(error)))
            except errors.RayError as error:
                if self._tries[number] < TRIES:
                    self._submit(number)
                else:
                    reason = f"its Ray worker was lost {TRIES} times; the last error: {describe(error)}"
                    yield number, Report("", Failure(reason))

    def cancel(self, running: Any) -> None:
        self._ray.cancel(running, force=True)


class _Board:
    """An actor that notes which tasks have begun: Ray does not report when a task leaves the queue."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}

    def note(self, number: int, times: int) -> None:
        self._begun[number] = times

    def read(self) -> dict[int, int]:
        """Return how often each run has begun."""
        return self._begun


def _execute(job: Job, cpus: int, sees_gpus: bool, board: Any, number: int, times: int) -> Report:
    board.note.remote(number, times)
    return run_there(job, threads=cpus, environment=None if sees_gpus else {"CUDA_VISIBLE_DEVICES": ""})
