"""The runs of a suite as the elements of a Slurm array job, through submitit."""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lrtasks.config import parameter, parse_assignment
from lrtasks.errors import UsageError, first_line, in_one_line, require_known
from lrtasks.suite.backends import Backend, Event, Failure, Job
from lrtasks.suite.backends.remote import SECONDS_TO_APPEAR, Remote, Report, run_there

LARGEST_ARRAY = 1000
"""Largest number of elements of an array. Slurm's own limit is 1001 unless an administrator has changed it."""
EXTRA_MINUTES = 10
"""Minutes that a job gets beyond the time limit of its run: to start, and to wait for the run's folder."""
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_QUESTIONS = 30.0
"""Shortest time between two questions to Slurm for the state of a job that is paused, or for its queue."""
PAUSED = ("SUSPENDED", "RESIZING")
"""States of a job that goes on later; submitit counts a job in such a state as ended."""
UNKNOWN = "UNKNOWN"
"""State of a job that Slurm's accounting does not list."""
UNSETTLED = (UNKNOWN, "PREEMPTED", "REQUEUED")
"""States in which submitit waits forever for the result of a job; the queue shows whether the job has ended."""
CLUSTERS = ("slurm", "local")
"""Values of the parameter ``cluster``."""
GENERIC = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
"""Parameters for which submitit has its own names; all others are options of ``sbatch``."""


@dataclass(frozen=True)
class Slurm(Backend):
    """Elements of an array job. An element is queued again if it is preempted or ended by Slurm's time limit.

    The process that submits the jobs waits for them, and cancels them if it is interrupted. Job scripts and logs are
    kept in the folder ``slurm`` of the results folder.
    """

    name: ClassVar[str] = "slurm"

    jobs: int | None = parameter(None, "number of parallel runs; none: 256", at_least=1)
    cpus: int | None = parameter(None, "processor cores of each run; none: 1", at_least=1)
    gpus: int | None = parameter(None, "GPUs of each run", at_least=0)
    slurm: tuple[str, ...] = parameter(
        (),
        "NAME=VALUE: a parameter of the jobs, such as partition=long; cluster=local needs no Slurm",
    )

    def check(self) -> None:
        self._parameters()

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters of submitit's executor."""
        names = {"jobs": "array_parallelism", "cpus": "cpus_per_task", "gpus": "gpus_per_node"}
        own = {names[option]: getattr(self, option) for option in names if getattr(self, option) is not None}
        for assignment in self.slurm:
            if "=" not in assignment or assignment.startswith("="):
                raise UsageError(f"--slurm takes NAME=VALUE, found {assignment!r}")
            name, value = parse_assignment(assignment)
            if name in own and own[name] != value:
                raise UsageError(f"{name} is given twice: {own[name]!r}, and {value!r} by --slurm {assignment}")
            own[name] = value
        return {"cpus_per_task": 1, **own}

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        parameters = self._parameters()
        yield from _Elements(_executor(jobs, parameters), jobs, parameters["cpus_per_task"]).events()


def _executor(jobs: Sequence[Job], parameters: dict[str, Any]) -> Any:
    try:
        import submitit
    except ImportError:
        raise UsageError("the backend slurm needs submitit; pip install 'lrtasks[slurm]'") from None
    limits = [job.time_limit for job in jobs if job.time_limit is not None]
    minutes = math.ceil(max(limits) / 60) + EXTRA_MINUTES if len(limits) == len(jobs) else None
    given = {"name": "lrtasks", "timeout_min": minutes, **parameters}
    cluster = given.pop("cluster", "slurm")
    require_known("cluster", cluster, CLUSTERS)
    if given["timeout_min"] is None or "time" in given:
        raise UsageError("Slurm needs a time limit: give --slurm timeout_min=MINUTES, or --time-limit SECONDS")
    named = {name if name in GENERIC else f"slurm_{name}": value for name, value in given.items()}

    def make(folder: str | Path) -> Any:
        executor = submitit.AutoExecutor(folder, cluster=cluster)
        executor.update_parameters(**named)
        return executor

    try:
        with tempfile.TemporaryDirectory() as trial:
            make(trial)  # submitit makes the folder before it checks the parameters
        return make(jobs[0].folder.parents[1] / "slurm")
    except RuntimeError:
        raise UsageError("there is no srun on this machine; submit Slurm jobs from a machine that has it") from None
    except (AssertionError, NameError, TypeError, ValueError) as error:
        raise UsageError(f"bad parameters for Slurm: {first_line(error)}") from None


@dataclass(frozen=True)
class _Element:
    """The function that an element of the array calls."""

    job: Job
    cpus: int

    def __call__(self) -> Report:
        return run_there(self.job, threads=self.cpus)

    def checkpoint(self) -> Any:
        """Return the same job again, which continues from the checkpoint. Submitit calls this before a time limit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Elements(Remote):
    """Jobs as the elements of arrays."""

    def __init__(self, executor: Any, jobs: Sequence[Job], cpus: int) -> None:
        super().__init__(jobs)
        self._executor, self._cpus = executor, cpus
        self._asked = time.monotonic()
        self._queues: deque[set[str]] = deque(maxlen=2)
        self._listed = -math.inf
        self._last: dict[int, float] = {}

    def begin(self) -> None:
        for first in range(0, len(self.jobs), LARGEST_ARRAY):
            numbers = range(first, min(first + LARGEST_ARRAY, len(self.jobs)))
            try:
                with self._executor.batch():
                    elements = [_Element(self.jobs[number], self._cpus) for number in numbers]
                    submitted = [self._executor.submit(element) for element in elements]
            except (OSError, RuntimeError) as error:
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                raise UsageError(f"Slurm did not take the jobs: {reason}") from error
            self.running.update(zip(submitted, numbers, strict=True))

    def look(self) -> Iterator[tuple[int, int | Report]]:
        readable = True
        for submitted, number in list(self.running.items()):
            ended = submitted.paths.result_pickle.exists()
            if readable and not ended:
                try:
                    ended = (submitted.done() and not self._is_paused(submitted)) or self._has_left(submitted)
                except Exception:  # submitit cannot read what sacct printed; ask again at the next look
                    readable = False
                if ended:  # a shared disk may show its result later
                    ended = time.monotonic() >= self._last.setdefault(number, time.monotonic() + SECONDS_TO_APPEAR)
            # the log appears as soon as the element runs, long before Slurm's accounting reports it
            if ended or submitted.paths.stdout.exists():
                yield number, 1
            if ended:
                del self.running[submitted]
                yield number, _report(submitted)
        time.sleep(SECONDS_BETWEEN_LOOKS)

    def _is_paused(self, submitted: Any) -> bool:
        """Return whether a job without a result is only paused; from time to time, let submitit ask Slurm again."""
        paused = not submitted.paths.result_pickle.exists() and _state(submitted) in PAUSED
        if paused and time.monotonic() - self._asked > SECONDS_BETWEEN_QUESTIONS:
            self._asked = time.monotonic()
            submitted.watcher.clear()
        return paused

    def _has_left(self, submitted: Any) -> bool:
        """Return whether a job in an unsettled state has left the queue.

        Slurm's accounting may be off, and a preempted job may be queued again or not. Two answers must lack the job,
        because its result may appear later on a shared disk.
        """
        if _state(submitted) not in UNSETTLED:
            return False
        if time.monotonic() - self._listed > SECONDS_BETWEEN_QUESTIONS:
            self._listed = time.monotonic()
            self._queues += [queue] if (queue := _queue()) is not None else []
        return len(self._queues) == 2 and not any(submitted.job_id in queue for queue in self._queues)

    def cancel(self, running: Any) -> None:
        running.cancel(check=False)


def _report(submitted: Any) -> Report:
    """Return the report of a job that has ended. If it cannot be read, only this job fails."""
    how = f"ended without a result, in the state {_state(submitted)}"
    if submitted.paths.result_pickle.exists():  # submitit would wait for it, job by job
        try:
            return submitted.result()
        except Exception as error:
            # submitit puts the job's traceback above its last line of dashes
            last = (str(error).rpartition("\n---")[0].splitlines() or [in_one_line(error)])[-1]
            how = f"failed with {last}"
    return Report("", Failure(f"the Slurm job {submitted.job_id} {how}; its log is {submitted.paths.stderr}"))


def _state(submitted: Any) -> str:
    """Return the state of a job in Slurm's last answer."""
    return submitted.get_info(mode="cache").get("State") or UNKNOWN


def _queue() -> set[str] | None:
    """Return the ids of the user's jobs that wait or run; ``None`` if Slurm does not tell."""
    try:
        listed = subprocess.run(
            ["squeue", "--me", "--array", "--noheader", "--format=%i"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return set(listed.stdout.split())
