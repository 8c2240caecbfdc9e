"""A suite's runs as the elements of a Slurm array job, through submitit."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lrtasks.errors import UsageError, first_line
from lrtasks.suite.backends.remote import Arrivals, Report, run_there
from lrtasks.suite.jobs import Ended, Job, Started

LARGEST_ARRAY = 1000
"""Slurm's own limit is 1001 unless an administrator has changed it."""
MINUTES_BESIDE = 10
"""How much longer than a run's time limit its job may live: to start, and to wait for the run's folder."""
SECONDS_BETWEEN_LOOKS = 1.0
_GENERIC = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
"""What submitit names itself; all else is an option of ``sbatch``."""


@dataclass(frozen=True)
class Slurm:
    """Each run is an element of an array job; one that is preempted, or that Slurm's time limit ends, queues again.

    The process that submits the jobs waits for them, and cancels them if it is interrupted. Job scripts and logs are
    kept in the folder ``slurm`` of the results folder.

    Attributes:
        parameters: those of submitit's ``AutoExecutor`` (``timeout_min``, ``mem_gb``, ``cpus_per_task``,
            ``gpus_per_node``, ...) and of its Slurm executor, most of which ``sbatch`` has too (``partition``,
            ``account``, ``array_parallelism``, ...). ``timeout_min`` may be left out if the runs have a time limit.
        cluster: ``"slurm"``, or ``"local"``: processes of this machine in place of jobs.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = "slurm"

    def carry_out(self, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        """See :class:`lrtasks.suite.jobs.Backend`."""
        if jobs:
            executor = self._executor(jobs)
            elements = [_Element(job, self.parameters.get("cpus_per_task", 1)) for job in jobs]
            _Elements(executor, elements, started, ended).finish()

    def _executor(self, jobs: Sequence[Job]) -> Any:
        try:
            import submitit
        except ImportError:
            raise UsageError("the backend slurm needs submitit; pip install 'lrtasks[slurm]'") from None
        try:
            executor = submitit.AutoExecutor(jobs[0].folder.parents[1] / "slurm", cluster=self.cluster)
        except RuntimeError:
            raise UsageError("there is no srun on this machine; Slurm jobs are submitted where there is") from None
        given = {"name": "lrtasks", "timeout_min": _minutes(jobs), "cpus_per_task": 1, **self.parameters}
        if given["timeout_min"] is None or "time" in given:
            raise UsageError(
                "Slurm has to know how long a run may take: timeout_min=MINUTES, or a time limit of the runs"
            )
        try:
            executor.update_parameters(
                **{name if name in _GENERIC else f"slurm_{name}": value for name, value in given.items()}
            )
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise UsageError(f"bad parameters for Slurm: {first_line(error)}") from None
        return executor


def _minutes(jobs: Sequence[Job]) -> int | None:
    limits = [job.time_limit for job in jobs if job.time_limit is not None]
    return math.ceil(max(limits) / 60) + MINUTES_BESIDE if len(limits) == len(jobs) else None


@dataclass(frozen=True)
class _Element:
    """What an element of the array does."""

    job: Job
    cpus: int

    def __call__(self) -> Report:
        return run_there(self.job, self.cpus)

    def checkpoint(self) -> Any:
        """The same once more, which goes on from the run's own checkpoint; submitit asks for it in time."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Elements:
    """The elements of a suite's arrays, seen from the process that waits for them."""

    def __init__(self, executor: Any, elements: Sequence[_Element], started: Started, ended: Ended) -> None:
        self._executor, self._elements, self._started = executor, elements, started
        self._arrivals = Arrivals([element.job for element in elements], ended)
        self._queued: dict[int, Any] = {}
        self._running: dict[int, Any] = {}

    def finish(self) -> None:
        """Submit all elements and wait until the last has ended; whatever stops this cancels them."""
        try:
            for first in range(0, len(self._elements), LARGEST_ARRAY):
                self._submit(range(first, min(first + LARGEST_ARRAY, len(self._elements))))
            while self._queued or self._running or self._arrivals:
                self._look()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for submitted in (*self._queued.values(), *self._running.values()):
                submitted.cancel(check=False)
            self._arrivals.close()

    def _submit(self, numbers: range) -> None:
        try:
            with self._executor.batch():
                submitted = [self._executor.submit(self._elements[number]) for number in numbers]
        except (OSError, RuntimeError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise UsageError(f"Slurm did not take the jobs: {reason}") from error
        self._queued.update(zip(numbers, submitted, strict=True))

    def _look(self) -> None:
        for number, submitted in list(self._queued.items()):
            # the log is there as soon as the element runs, long before Slurm's accounts say so
            if submitted.paths.stdout.exists() or submitted.done():
                self._running[number] = self._queued.pop(number)
                self._started(number)
        for number, submitted in list(self._running.items()):
            if submitted.done():
                del self._running[number]
                self._arrivals.expect(number, _report(submitted))
        self._arrivals.settle()


def _report(submitted: Any) -> Report:
    if submitted.exception() is None:
        report: Report = submitted.result()
        return report
    state, log = submitted.state, submitted.paths.stderr
    return Report(
        "", f"the Slurm job {submitted.job_id} ended without a result, in the state {state}; its log is {log}"
    )
