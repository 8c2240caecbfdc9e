"""A function in a process of its own, whose end, whatever it dies of, becomes a result or a reason."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from lrtasks.bench.resident import limit_memory
from lrtasks.errors import UsageError, is_shortage

# processes are forked from one that has imported torch and done nothing else
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["lrtasks.bench.measure"])


@dataclass(frozen=True)
class Outcome:
    """What a process returned, or one line on why it returned nothing."""

    value: Any = None
    reason: str | None = None


def run_apart(function: Callable[..., Any], *arguments: Any, time_limit: float, limited: bool = True) -> Outcome:
    """Call ``function`` in a new process.

    Args:
        function: a function of a module; it and its arguments are pickled.
        arguments: what it is called with.
        time_limit: seconds after which the process is stopped.
        limited: let it use nine tenths of the memory that is free now and no more; not for CUDA, which maps far more
            than it uses.
    """
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=_serve, args=(sender, function, arguments, limited), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(time_limit):
            return Outcome(reason=f"stopped at its time limit of {time_limit:g} s")
        try:
            outcome: Outcome = receiver.recv()
        except EOFError:
            process.join()
            return Outcome(reason=_death(process.exitcode or 0))
        return outcome
    finally:
        process.kill()
        process.join()
        receiver.close()


def _serve(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], limited: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes it, and ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if limited:
        limit_memory()
    try:
        outcome = Outcome(function(*arguments))
    except UsageError as error:
        outcome = Outcome(reason=" ".join(str(error).split()))
    except Exception as error:
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        outcome = Outcome(reason="out of memory" if is_shortage(error) else what)
    sender.send(outcome)


def _end_with_parent() -> None:
    """End this process when the one that asked for it has ended, even by a kill."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _death(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed, most likely for want of memory"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
