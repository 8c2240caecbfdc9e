"""The runs of a suite as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError
from lrtasks.ray_cluster import TRIES, connected, describe
from lrtasks.suite.backends import Began, Event, Failure, Job
from lrtasks.suite.backends.remote import PendingRecords, Report, run_there

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ray(Config):
    """Tasks of a Ray cluster, each with a process of its own; a run whose worker is lost goes on in another one."""

    name: ClassVar[str] = "ray"

    address: str | None = parameter(None, "host:port, ray://host:port or auto; none: RAY_ADDRESS, or this machine")
    cpus: int = parameter(1, "processor cores of each run", at_least=1)
    gpus: float = parameter(0.0, "GPUs of each run; a fraction lets several runs share one", at_least=0)

    def check(self) -> None:
        if self.gpus > 1 and self.gpus % 1:
            raise UsageError(f"gpus must be a whole number or a fraction of one, found {self.gpus:g}")

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        """See :class:`lrtasks.suite.backends.Backend`."""
        with connected(self.address) as ray:
            self._require_room(ray)
            yield from _Tasks(ray, self, jobs).events()

    def _require_room(self, ray: Any) -> None:
        """Ray itself waits for ever for a machine that could hold a run."""
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in machines):
            raise UsageError(
                f"no machine of the Ray cluster has {self.cpus} cores and {self.gpus:g} GPUs, which each run asks for"
            )


class _Tasks:
    """The tasks of a suite, seen from the process that waits for them.

    Lost tasks are repeated here: Ray would repeat them without a limit and without a word.
    """

    def __init__(self, ray: Any, backend: Ray, jobs: Sequence[Job]) -> None:
        self._ray, self._backend, self._jobs = ray, backend, jobs
        self._pending = PendingRecords(jobs)
        self._task = ray.remote(num_cpus=backend.cpus, num_gpus=backend.gpus, max_retries=0)(_carry_out)
        self._board = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._running: dict[Any, int] = {}
        self._tries: Counter[int] = Counter()
        self._begun: Counter[int] = Counter()

    def events(self) -> Iterator[tuple[int, Event]]:
        try:
            for number in range(len(self._jobs)):
                self._begin(number)
            while self._running or self._pending:
                done: list[Any] = []
                if self._running:
                    done, _ = self._ray.wait(list(self._running), timeout=SECONDS_BETWEEN_LOOKS)
                else:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                yield from self._newly_begun()
                for task in done:
                    yield from self._end(task, self._running.pop(task))
                yield from self._pending.settled()
        finally:
            for task in self._running:
                self._ray.cancel(task, force=True)
            self._pending.close()

    def _begin(self, number: int) -> None:
        self._tries[number] += 1
        backend, times = self._backend, self._tries[number]
        task = self._task.remote(self._jobs[number], backend.cpus, bool(backend.gpus), self._board, number, times)
        self._running[task] = number

    def _newly_begun(self) -> Iterator[tuple[int, Event]]:
        with suppress(self._ray.exceptions.RayError):  # the board's machine was lost, and it begins anew on another
            begun: dict[int, int] = self._ray.get(self._board.read.remote(), timeout=SECONDS_BETWEEN_LOOKS)
            for number, times in begun.items():
                yield from self._note_begun(number, times)

    def _note_begun(self, number: int, times: int) -> Iterator[tuple[int, Event]]:
        if times > self._begun[number]:
            self._begun[number] = times
            yield number, Began()

    def _end(self, task: Any, number: int) -> Iterator[tuple[int, Event]]:
        errors = self._ray.exceptions
        try:
            report = self._ray.get(task)
        except errors.RayTaskError as error:
            report = Report("", Failure(describe(error)))
        except errors.RayError as error:
            if self._tries[number] < TRIES:
                self._begin(number)
                return
            report = Report("", Failure(f"its Ray worker was lost {TRIES} times; the last error: {describe(error)}"))
        yield from self._note_begun(number, self._tries[number])  # a short run can be quicker than the board
        self._pending.expect(number, report)


class _Board:
    """An actor that notes which tasks have begun: Ray does not report when a task leaves the queue."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}

    def note(self, number: int, times: int) -> None:
        self._begun[number] = times

    def read(self) -> dict[int, int]:
        """How often each run has begun."""
        return self._begun


def _carry_out(job: Job, cpus: int, sees_gpus: bool, board: Any, number: int, times: int) -> Report:
    board.note.remote(number, times)
    return run_there(job, threads=cpus, environment=None if sees_gpus else {"CUDA_VISIBLE_DEVICES": ""})
