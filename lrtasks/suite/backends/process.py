"""A job in a process of its own, at the place where a backend has put it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from lrtasks.files import write_atomically
from lrtasks.suite.jobs import LOG, REFUSED, Job

_LAST_BYTES = 100_000
_REFUSED_CODE = 2
SECONDS_BETWEEN_LOOKS = 0.1
"""Seconds between two looks at whether a job is to be stopped."""


def run_job(
    job: Job, threads: int, environment: Mapping[str, str] | None = None, stop: threading.Event | None = None
) -> str:
    """Carry out a job here and now.

    The process gets a group of its own and dies with this one, as do those that it starts. What it said is kept in the
    run's folder if it failed (:data:`lrtasks.suite.jobs.LOG`).

    Args:
        job: what to run, and for how long at most.
        threads: processor cores that its numeric routines use.
        environment: variables that differ from this process's own.
        stop: the job is killed once another thread sets this.

    Returns:
        One line that says how it ended, to be used if it left no record.
    """
    command = [sys.executable, "-m", "lrtasks.suite.backends.tethered", *job.arguments]
    limits = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    tether, held = os.pipe()
    try:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                env={**os.environ, **limits, **(environment or {})},
                stdin=tether,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = _wait(process, job.time_limit, stop or threading.Event())
            finally:
                with suppress(ProcessLookupError, PermissionError):  # the latter is what macOS says of a dead group
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _LAST_BYTES))
            said = errors.read()
    finally:
        os.close(tether)
        os.close(held)
    if stop is not None and stop.is_set():
        return "stopped from outside"
    _keep_log(job, code, said)
    if code is None:
        return f"stopped at its time limit of {job.time_limit:g} s"
    return _explain(code, said.decode(errors="replace"))


def _wait(process: subprocess.Popen[bytes], time_limit: float | None, stop: threading.Event) -> int | None:
    """The exit code of ``process``; ``None`` if it was still running at its time limit, or when it was to stop."""
    last = math.inf if time_limit is None else time.monotonic() + time_limit
    while time.monotonic() < last and not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(SECONDS_BETWEEN_LOOKS, max(last - time.monotonic(), 0)))
    return process.poll()


def _keep_log(job: Job, code: int | None, said: bytes) -> None:
    """Leave what a failed run said; what was refused ran not at all, and may be some other process's run."""
    if code == 0:
        (job.folder / LOG).unlink(missing_ok=True)
    elif code != _REFUSED_CODE:
        with suppress(OSError):  # the reason is told in any case
            job.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(job.folder / LOG, said)


def _explain(code: int, said: str) -> str:
    last = (said.strip().splitlines() or [""])[-1].removeprefix("lrtasks: ")
    if code < 0:
        return f"killed by {_signal(-code)}" + (", often for lack of memory" if code == -signal.SIGKILL else "")
    if code == _REFUSED_CODE:
        return REFUSED + last
    if code == 1 and last:
        return last
    return f"ended with exit code {code}" + (f"; the last it said: {last}" if last else "")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one without a name of its own
        return f"signal {number}"
