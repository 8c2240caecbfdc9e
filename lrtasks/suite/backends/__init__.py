"""Backends execute the runs of a suite. A new backend needs one file and one line in :data:`BACKENDS`."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrtasks.config import Config
from lrtasks.errors import UsageError, require_known
from lrtasks.files import write_atomically
from lrtasks.processes import run_command
from lrtasks.record import LOG


@dataclass(frozen=True)
class Job:
    """One run, which executes in a separate process.

    Attributes:
        arguments: words after ``lrtasks`` (``eval --model dlr ... --out DIR --device auto``).
        folder: the run's folder, where the process leaves its record and its checkpoint.
        time_limit: seconds after which the run is stopped, or ``None``.
    """

    arguments: tuple[str, ...]
    folder: Path
    time_limit: float | None = None


@dataclass(frozen=True)
class Began:
    """A run has begun, or begun again."""


@dataclass(frozen=True)
class Failure:
    """A run's process has failed. ``reason`` is one line; ``refused``: the run was impossible (exit code 2)."""

    reason: str
    refused: bool = False


Event = Began | Failure | None
"""``None``: the process has ended without an error; the record has the status of the run."""


@dataclass(frozen=True)
class Backend(Config):
    """Base class of the ways to execute runs, on this machine or on others. The parameters of a backend are options."""

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        """Execute all jobs, as many at a time as the backend allows.

        A job that fails, hangs or loses its machine never stops the others. Closing the iterator stops them all.

        Yields:
            The number of a job in the list and its event; each job ends exactly once.

        Raises:
            UsageError: if the machines cannot be reached. In this case, no job has been started.
        """
        raise NotImplementedError


BACKENDS = {"local": "local:Local", "ray": "ray:Ray", "slurm": "slurm:Slurm"}


def backend_class(name: str) -> type[Backend]:
    """Return the class of the backend called ``name``; raise :class:`UsageError` if there is none."""
    require_known("backend", name, BACKENDS)
    module, _, attribute = BACKENDS[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)


def make_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """Build a backend.

    Raises:
        UsageError: for an unknown name, an option that the backend does not have, or a value that is not allowed.
    """
    cls = backend_class(name)
    for option in (option for option in options if option not in cls.parameter_names()):
        owners = [other for other in BACKENDS if option in backend_class(other).parameter_names()]
        belongs = f"; it belongs to {' and '.join(owners)}" if owners else ""
        raise UsageError(f"--{option} has no meaning with --backend {name}{belongs}")
    return cls.make(**options)


def run_job(job: Job, **limits: Any) -> Failure | None:
    """Execute a job on this machine and wait until it ends. Keep its log if it failed.

    ``limits``: arguments ``threads``, ``environment``, ``stop`` and ``template`` of
    :func:`lrtasks.processes.run_command`.
    """
    code, said = run_command(("--debug", *job.arguments), time_limit=job.time_limit, **limits)
    if code == 0:
        return None
    last = (said.strip().splitlines() or [""])[-1].removeprefix("lrtasks: ")
    if code == 2:
        return Failure(last, refused=True)
    with suppress(OSError):  # without the log, the reason is still reported
        job.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(job.folder / LOG, said.encode())
    if code is None:
        return Failure(f"stopped at its time limit of {job.time_limit:g} s")
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            return Failure(f"killed by {name}" + (", often for lack of memory" if name == "SIGKILL" else ""))
    ended = f"ended with exit code {code}" + (f"; the last line it wrote: {last}" if last else "")
    return Failure(last if code == 1 and last else ended)
