"""Where shards are made: in this process, in worker processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NamedTuple

from lrtasks.data.store import GenerationError
from lrtasks.errors import UsageError, unknown
from lrtasks.machine import cores
from lrtasks.processes import end_with_parent

BACKENDS = ("local", "ray")
MAX_WORKERS = 1024
RAY_RETRIES = 2
"""How often a shard is begun again after a worker of a Ray cluster was lost."""


class Workers(NamedTuple):
    """What makes shards, in any order: ``submit`` begins one, and ``width`` says how many to begin at a time."""

    submit: Callable[..., Future[Any]]
    width: int


def check_workers(workers: int | str, backend: str, address: str | None) -> None:
    """Check the options that say where shards are made.

    Raises:
        UsageError: for one that is not allowed.
    """
    if workers != "auto" and (type(workers) is not int or not 1 <= workers <= MAX_WORKERS):
        raise UsageError(f"workers must be 'auto' or a whole number in 1..{MAX_WORKERS}, found {workers!r}")
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "local" and address is not None:
        raise UsageError(f"an address has no meaning with the backend local, found {address!r}; it belongs to ray")


def start_workers(
    make: Callable[..., Any], workers: int | str, most: int, backend: str, address: str | None
) -> AbstractContextManager[Workers]:
    """Workers that call ``make``; they end with the ``with`` block, or when this process dies.

    Args:
        make: a function that can be pickled.
        workers: how many, or ``"auto"``: one per core of the cluster, or of this machine but one.
        most: how many can be of use.
        backend: one of :data:`BACKENDS`.
        address: of the Ray cluster, as :func:`lrtasks.ray_cluster.connected` takes it.

    Raises:
        UsageError: if the cluster does not answer.
        GenerationError: inside the block, if a worker dies.
    """
    if backend == "ray":
        return _ray(make, workers, most, address)
    count = min(most, max(1, cores() - 1) if workers == "auto" else int(workers))
    if count > 1:
        return _processes(make, count)
    return nullcontext(Workers(lambda *arguments: _done(make(*arguments)), 1))


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


@contextmanager
def _processes(make: Callable[..., Any], count: int) -> Iterator[Workers]:
    # Each worker has a pipe of its own, and a thread here waits for its answer: a worker may be killed at any moment
    # without harm to the others, which is not so with the one result queue of a ProcessPoolExecutor.
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    idle: SimpleQueue[Connection] = SimpleQueue()

    def call(*arguments: Any) -> Any:
        pipe = idle.get()
        try:
            pipe.send(arguments)
            result = pipe.recv()
        except (EOFError, OSError):
            reason = "a worker process died (out of memory, or a script without `if __name__ == '__main__':`)"
            raise GenerationError(f"{reason}; finished shards are kept") from None
        finally:
            idle.put(pipe)
        if isinstance(result, Exception):
            raise result
        return result

    with ThreadPoolExecutor(count) as threads:
        try:
            for _ in range(count):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, make), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()
                idle.put(ours)
            yield Workers(lambda *arguments: threads.submit(call, *arguments), 2 * count)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()


def _serve(pipe: Connection, make: Callable[..., Any]) -> None:
    # Ctrl-C reaches every process of the terminal; the main one decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    while True:
        arguments = pipe.recv()
        try:
            result = make(*arguments)
        except Exception as error:
            error.add_note(traceback.format_exc())
            result = error
        pipe.send(result)


@contextmanager
def _ray(make: Callable[..., Any], workers: int | str, most: int, address: str | None) -> Iterator[Workers]:
    from lrtasks.ray_cluster import connected, describe

    with connected(address) as ray:
        available = int(ray.cluster_resources().get("CPU", 0)) if workers == "auto" else int(workers)
        shared, task = ray.put(make), ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(_call_there)
        begun: list[Any] = []

        def submit(*arguments: Any) -> Future[Any]:
            begun.append(task.remote(shared, *arguments))
            future: Future[Any] = begun[-1].future()
            return future

        try:
            yield Workers(submit, max(1, min(most, 2 * available if workers == "auto" else available)))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (UsageError, GenerationError)):
                raise error.cause from None
            if describe(error).startswith("ModuleNotFoundError"):
                hint = "the machines of the Ray cluster need the packages that this one has"
                raise UsageError(f"{describe(error)}; {hint}") from None
            raise
        except ray.exceptions.RayError as error:
            lost = f"Ray lost the worker of a shard {RAY_RETRIES + 1} times, the last time so: {describe(error)}"
            raise GenerationError(f"{lost}; finished shards are kept") from error
        finally:
            for reference in begun:
                ray.cancel(reference, force=True)


def _call_there(make: Callable[..., Any], *arguments: Any) -> Any:
    return make(*arguments)
