"""A suite's runs as tasks of a Ray cluster."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.ray_cluster import TRIES, connected, describe
from lrtasks.suite.backends.remote import Arrivals, Report, run_there
from lrtasks.suite.jobs import Ended, Job, Started

SECONDS_BETWEEN_LOOKS = 1.0


@dataclass(frozen=True)
class Ray:
    """Each run is a task, and in it a process; one whose worker or machine is lost goes on in another.

    Attributes:
        address: as :func:`lrtasks.ray_cluster.connected` takes it.
        cpus: processor cores of each run, and threads of its process.
        gpus: GPUs of each run; several share one if it is a fraction, and without any a run sees none.
    """

    address: str | None = None
    cpus: int = 1
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.cpus < 1:
            raise UsageError(f"cpus must be at least 1, found {self.cpus}")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus % 1):
            raise UsageError(f"gpus must be a whole number or a fraction of one, found {self.gpus:g}")

    def carry_out(self, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        """See :class:`lrtasks.suite.jobs.Backend`."""
        with connected(self.address) as ray:
            self._require_room(ray)
            _Tasks(ray, self, jobs, started, ended).finish()

    def _require_room(self, ray: Any) -> None:
        resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        nodes = {(node.get("CPU", 0), node.get("GPU", 0)) for node in resources}
        if not any(cpus >= self.cpus and gpus >= self.gpus for cpus, gpus in nodes):
            found = "; ".join(f"{cpus:g} and {gpus:g}" for cpus, gpus in sorted(nodes, reverse=True))
            raise UsageError(
                f"a run asks for {self.cpus} CPUs and {self.gpus:g} GPUs of one node, and the nodes of the Ray cluster"
                f" have {found}"
            )


class _Tasks:
    """The tasks of one suite, seen from the process that waits for them.

    Ray itself would repeat lost tasks too, but without end where memory was short, and without a word.
    """

    def __init__(self, ray: Any, place: Ray, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        self._ray, self._place, self._jobs, self._started = ray, place, jobs, started
        self._arrivals = Arrivals(jobs, ended)
        self._task = ray.remote(num_cpus=place.cpus, num_gpus=place.gpus, max_retries=0)(_carry_out)
        self._board = ray.remote(num_cpus=0, max_restarts=-1)(_Board).remote()
        self._running: dict[Any, int] = {}
        self._tries: Counter[int] = Counter()
        self._begun: Counter[int] = Counter()

    def finish(self) -> None:
        """Begin all runs and wait until the last has ended; whatever stops this stops them too."""
        try:
            for number in range(len(self._jobs)):
                self._begin(number)
            while self._running or self._arrivals:
                self._look()
        finally:
            for task in self._running:
                self._ray.cancel(task, force=True)
            self._arrivals.close()

    def _look(self) -> None:
        if self._running:
            done, _ = self._ray.wait(list(self._running), timeout=SECONDS_BETWEEN_LOOKS)
            self._read_board()
            for task in done:
                self._end(task, self._running.pop(task))
        else:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        self._arrivals.settle()

    def _begin(self, number: int) -> None:
        self._tries[number] += 1
        place, times = self._place, self._tries[number]
        task = self._task.remote(self._jobs[number], place.cpus, bool(place.gpus), self._board, number, times)
        self._running[task] = number

    def _read_board(self) -> None:
        with suppress(self._ray.exceptions.RayError):  # its machine was lost, and it begins anew on another
            begun: dict[int, int] = self._ray.get(self._board.read.remote(), timeout=SECONDS_BETWEEN_LOOKS)
            for number, times in begun.items():
                self._note_begun(number, times)

    def _note_begun(self, number: int, times: int) -> None:
        if times > self._begun[number]:
            self._begun[number] = times
            self._started(number)

    def _end(self, task: Any, number: int) -> None:
        errors = self._ray.exceptions
        try:
            report = self._ray.get(task)
        except errors.RayTaskError as error:
            report = Report("", describe(error))
        except errors.RayError as error:
            if self._tries[number] < TRIES:
                self._begin(number)
                return
            report = Report("", f"its Ray worker was lost {TRIES} times, the last time so: {describe(error)}")
        self._note_begun(number, self._tries[number])  # a short run can be quicker than the board
        self._arrivals.expect(number, report)


class _Board:
    """An actor to which tasks say that they have begun: Ray tells nobody when a task leaves the queue."""

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}

    def note(self, number: int, times: int) -> None:
        self._begun[number] = times

    def read(self) -> dict[int, int]:
        """How often each run has begun."""
        return self._begun


def _carry_out(job: Job, cpus: int, sees_gpus: bool, board: Any, number: int, times: int) -> Report:
    board.note.remote(number, times)
    return run_there(job, cpus, None if sees_gpus else {"CUDA_VISIBLE_DEVICES": ""})
