"""What a suite hands to a backend: runs as commands, and what a backend must be able to do with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Job:
    """One run that a suite wants carried out in a process of its own.

    Attributes:
        title: what a reader should see, such as ``"dlr on shift seed 0"``.
        arguments: what follows ``python -m lrtasks`` (``eval --model dlr ... --out DIR --device auto``).
        folder: the run's folder, where the process leaves its record and its checkpoint.
        time_limit: seconds after which the run is stopped, or ``None``.
    """

    title: str
    arguments: tuple[str, ...]
    folder: Path
    time_limit: float | None = None


LOCK = "lock"
"""File in a run's folder, held by the one process that may work there."""
LOG = "log.txt"
"""File in a run's folder: what the process of a run that failed wrote to standard error."""
REFUSED = "refused: "
"""Beginning of the line on a job that asked for what cannot be (exit code 2 of ``lrtasks``)."""

Started = Callable[[int], None]
"""Called with a job's number in the list when it begins (again, if it had to begin anew)."""
Ended = Callable[[int, str], None]
"""Called once for every job with its number and one line that says how it ended, for use if it left no record."""


class Backend(Protocol):
    """A place where jobs run: this machine, a Ray cluster, a Slurm cluster."""

    def carry_out(self, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        """Run all jobs, as many at a time as there is room for, and return when the last has ended.

        A job that fails, hangs or loses its machine never stops the others. ``started`` and ``ended`` may be called
        from any thread.

        Raises:
            UsageError: if the place cannot be reached; no job has been started then.
        """
