"""Processes that never outlive the process that started them: commands of lrtasks, and workers.

The standard input of a command is a pipe whose other end the parent holds and never writes to. The pipe closes when the
parent closes it, or dies for whatever reason; then the child kills itself and the processes that it started. A run
therefore never goes on beside the one that takes its place.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

TETHERED = "LRTASKS_TETHERED"
"""Environment variable that tells a child to watch its standard input."""
LAST_BYTES = 100_000
"""How much of what a child wrote to standard error is kept."""
SECONDS_BETWEEN_LOOKS = 0.1


def run_command(
    arguments: Sequence[str],
    *,
    threads: int | None = None,
    time_limit: float | None = None,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> tuple[int | None, str]:
    """Run ``python -m lrtasks`` with these arguments, in a process group of its own.

    Args:
        arguments: words after ``lrtasks``.
        threads: processor cores that numeric routines use; ``None`` leaves the choice to the command.
        time_limit: seconds after which it is killed.
        environment: variables that differ from this process's own.
        stop: the command is killed once another thread sets this.

    Returns:
        The exit code, negative for a signal and ``None`` at the time limit, and the end of standard error.
    """
    limits = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    tether, held = os.pipe()
    try:
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "lrtasks", *arguments],
                env={**os.environ, **limits, **(environment or {}), TETHERED: "1"},
                stdin=tether,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = _wait(process, time_limit, stop or threading.Event())
            finally:
                with suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a dead group
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - LAST_BYTES))
            return code, errors.read().decode(errors="replace")
    finally:
        os.close(tether)
        os.close(held)


def watch_parent() -> None:
    """In a child of :func:`run_command`: end with the parent."""
    if os.environ.pop(TETHERED, None) is None:
        return
    threading.Thread(target=_end_with_parent, args=(os.dup(sys.stdin.fileno()),), daemon=True).start()
    # nothing else may wait for input that never comes
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def end_with_parent() -> None:
    """End this process of :mod:`multiprocessing` as soon as its parent has ended, even by a kill."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_with_parent(tether: int) -> None:
    os.read(tether, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], time_limit: float | None, stop: threading.Event) -> int | None:
    """The exit code; ``None`` if the process still ran at its time limit, or when it was to stop."""
    last = math.inf if time_limit is None else time.monotonic() + time_limit
    while time.monotonic() < last and not stop.is_set():
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(SECONDS_BETWEEN_LOOKS, max(last - time.monotonic(), 0)))
    return process.poll()
