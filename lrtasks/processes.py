"""Child processes (commands of lrtasks, and workers) that never outlive the process that started them.

The standard input of a command is a pipe. The parent holds the other end and never writes to it. The pipe closes when
the parent dies for any reason; then the child kills itself and the processes that it started.

Loading torch and Lightning takes seconds of CPU time. On Linux, many commands can therefore fork from one process that
has already loaded these packages (:class:`Template`). The template process starts no threads and does nothing else.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from lrtasks.errors import UsageError
from lrtasks.machine import CORES, THREADS, set_process_defaults

CHILD = "LRTASKS_CHILD"
"""Environment variable that tells a child to watch its standard input."""
LAST_BYTES = 100_000
"""Number of bytes kept from the end of a child's standard error."""
SECONDS_BETWEEN_LOOKS = 0.1
PRELOADED = (
    "lrtasks.cli.runs",
    "lrtasks.evaluation.run",
    "lrtasks.results.statistics",
    "lrtasks.results.table",
)
"""Modules that the template process loads before commands fork from it."""
LARGEST_REQUEST = 1 << 16
"""Largest request to the template process, in bytes; the words of a command are short."""
_TEMPLATE = """
import atexit, os, sys
code = 1
def leave():
    sys.stderr.flush()
    os._exit(code)
atexit.register(leave)  # called last; without it, the clean-up of modules would copy the shared memory
from lrtasks.processes import serve
serve(int(sys.argv[1]))
try:
    import lrtasks.__main__
except SystemExit as end:
    code = end.code
"""


def run_command(
    arguments: Sequence[str],
    *,
    threads: int | None = None,
    time_limit: float | None = None,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    template: Template | None = None,
) -> tuple[int | None, str]:
    """Run ``python -m lrtasks`` with these arguments, in a new process group.

    Args:
        threads: processor cores that numeric routines use, unless the user's environment sets a number; ``None`` leaves
            the choice to the command.
        time_limit: seconds after which the command is killed.
        environment: variables that differ from this process's own.
        stop: the command is killed once another thread sets this.
        template: fork from this process and use the template's environment instead of ``threads`` and ``environment``;
            if the template has ended, start a new Python process.

    Returns:
        The exit code and the end of standard error. The exit code is negative for a signal, and ``None`` if the command
        was killed at its time limit or because of ``stop``.
    """
    stop = stop or threading.Event()
    watched, held = os.pipe()
    try:
        with tempfile.TemporaryFile() as errors:
            forked = template.start(arguments, watched, errors.fileno(), stop) if template else None
            process = forked or subprocess.Popen(
                [sys.executable, "-m", "lrtasks", *arguments],
                env={**_environment(threads), **(environment or {}), CHILD: "1"},
                stdin=watched,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = _wait(process, time_limit, stop)
            finally:
                with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a dead group
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - LAST_BYTES))
            return code, errors.read().decode(errors="replace")
    finally:
        os.close(watched)
        os.close(held)


class Template:
    """A process that has loaded the modules of a run and from which commands fork; it ends with this process.

    Each command uses ``threads`` as in :func:`run_command`. Templates need Linux. If the template process fails, every
    command starts a new Python process.
    """

    def __init__(self, threads: int | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _TEMPLATE, str(theirs.fileno())],
                env=_environment(threads),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], watched: int, errors: int, stop: threading.Event) -> _Forked | None:
        """Start a command by a fork of the template process; return ``None`` if this is not possible.

        ``watched`` and ``errors`` are file descriptors of the command's standard input, which the command watches, and
        of its standard error. If ``stop`` is set before the command has started, the template process is killed.
        """
        ours, theirs = multiprocessing.Pipe()
        with suppress(EOFError, OSError):
            with theirs:
                files = [theirs.fileno(), watched, errors]
                socket.send_fds(self._socket, [json.dumps(arguments).encode()], files)
            while not ours.poll(SECONDS_BETWEEN_LOOKS):
                if stop.is_set():
                    self._process.kill()
            return _Forked(ours, ours.recv())
        return None

    def close(self) -> None:
        """End the template process; commands that it has started continue."""
        self._socket.close()
        self._process.wait()


class _Forked:
    """A command that a :class:`Template` has forked; the connection ``status`` receives its exit code at the end."""

    def __init__(self, status: Connection, pid: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None:
            if not self._status.poll(timeout):
                raise subprocess.TimeoutExpired("lrtasks", timeout or 0)
            try:
                self._code = self._status.recv()
            except (EOFError, OSError):  # the process that waits for the command was killed
                self._code = -signal.SIGKILL
        return self._code


def serve(number: int) -> None:
    """Serve as a :class:`Template` process: fork at each request of a socket; return only in forked processes."""
    set_process_defaults()
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["lrtasks.evaluation.environment"].fabric_class()
    with suppress(UsageError):  # an invalid command loads the modules that parse a command
        invalid = ["eval", "--model", "", "--task", ""]
        sys.modules["lrtasks.cli"].make_app(invalid)(args=invalid, standalone_mode=False)
    gc.collect()
    gc.freeze()  # a collection would otherwise write into all memory that the processes share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the forks; each fork waits for its command
    with socket.socket(fileno=number) as requests:
        while True:
            words, files, *_ = socket.recv_fds(requests, LARGEST_REQUEST, 3)
            if not words:
                os._exit(0)  # the parent has ended
            with suppress(OSError):  # if no further process is possible, the command starts without the template
                if os.fork() == 0:
                    break
            for file in files:
                os.close(file)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = Connection(files[0])
    try:
        child = os.fork()
        if child:
            for file in files[1:]:
                os.close(file)
            status.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            os._exit(0)
    except OSError:
        os._exit(1)
    os.setsid()
    with status:
        status.send(os.getpid())
    for file, place in zip(files[1:], (sys.stdin, sys.stderr), strict=True):
        os.dup2(file, place.fileno())
        os.close(file)
    os.environ[CHILD] = "1"
    sys.argv[1:] = json.loads(words)


def end_with_parent() -> None:
    """End this process as soon as its parent process has ended, even if the parent was killed.

    This applies to processes that :mod:`multiprocessing` started and to commands of :func:`run_command`. A command also
    kills the processes that it has started. In any other process this function does nothing.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        if os.environ.pop(CHILD, None) is None:
            return
        watched = os.dup(sys.stdin.fileno())
        # replace the standard input: other code that reads it would wait forever
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, sys.stdin.fileno())
        os.close(nothing)

    def watch() -> None:
        if parent is None:
            wait([watched])
            os.killpg(os.getpgid(0), signal.SIGKILL)
        else:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _environment(threads: int | None) -> dict[str, str]:
    """Return this process's environment with ``threads`` cores, and as many threads if the user has set no number."""
    if threads is None:
        return dict(os.environ)
    names = [CORES] if any(name in os.environ for name in THREADS) else [*THREADS, CORES]
    return {**os.environ, **dict.fromkeys(names, str(threads))}


def _wait(process: subprocess.Popen[bytes] | _Forked, time_limit: float | None, stop: threading.Event) -> int | None:
    """Return the exit code, or ``None`` if the process still runs at the time limit or when ``stop`` is set."""
    last = math.inf if time_limit is None else time.monotonic() + time_limit
    while True:
        left = max(0.0, min(SECONDS_BETWEEN_LOOKS, last - time.monotonic()))
        with suppress(subprocess.TimeoutExpired):
            return process.wait(left)
        if left == 0 or stop.is_set():
            return None
