"""Where shards are made: in this process, in others of this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.connection import Connection
from typing import Protocol

from lrtasks.data.journal import Record
from lrtasks.data.plan import Block, Plan
from lrtasks.data.shards import make_shard
from lrtasks.data.store import Store
from lrtasks.errors import UsageError, unknown
from lrtasks.machine import cores

BACKENDS = ("local", "ray")

_job: tuple[Plan, Store]


class Pool(Protocol):
    """Makes shards, in any order."""

    @property
    def width(self) -> int:
        """How many shards it is worth asking for at a time."""

    def submit(self, block: Block, attempts: Mapping[int, int]) -> Future[Record]:
        """Have a shard made."""


def reach(store: Store, workers: int | str, backend: str, address: str | None) -> AbstractContextManager[object]:
    """Check where shards are to be made, before anything is written, and keep it within reach for a ``with`` block.

    Args:
        store: where they go.
        workers: shards made at a time, or ``"auto"`` for one per core.
        backend: one of :data:`BACKENDS`.
        address: of the Ray cluster.

    Raises:
        UsageError: for a bad argument; entering the block raises it if the cluster cannot be reached.
    """
    if workers != "auto" and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise UsageError(f"workers must be 'auto' or a whole number of at least 1, found {workers!r}")
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "local":
        if address is not None:
            raise UsageError(f"an address has no meaning with the backend local, found {address!r}; it belongs to ray")
        return nullcontext()
    if store.in_process:
        raise UsageError(f"{store.address} exists in this process alone; the machines of a Ray cluster must share it")
    from lrtasks.ray_cluster import connected

    return connected(address)


def start_pool(plan: Plan, store: Store, workers: int | str, backend: str) -> AbstractContextManager[Pool]:
    """What makes the shards; it ends with the ``with`` block or with this process, however that ends."""
    if backend == "ray":
        from lrtasks.data.ray_pool import start_tasks

        return start_tasks(plan, store, workers)
    count = worker_count(workers, plan, cores())
    if count == 1 or store.in_process:
        return nullcontext(_Here(plan, store))
    return _start_processes(plan, store, count)


def worker_count(workers: int | str, plan: Plan, available: int) -> int:
    """As many as asked, or one per core of those ``available``, and no more than there are shards."""
    shards = sum(plan.shards(split) for split in plan.counts)
    return max(1, min(available if workers == "auto" else int(workers), shards))


class _Here:
    """Makes each shard when it is submitted."""

    width = 1

    def __init__(self, plan: Plan, store: Store) -> None:
        self._plan, self._store = plan, store

    def submit(self, block: Block, attempts: Mapping[int, int]) -> Future[Record]:
        future: Future[Record] = Future()
        future.set_result(make_shard(self._plan, self._store, block, attempts))
        return future


class _Processes:
    """Has shards made by worker processes."""

    def __init__(self, executor: ProcessPoolExecutor, workers: int) -> None:
        self._executor, self.width = executor, 2 * workers

    def submit(self, block: Block, attempts: Mapping[int, int]) -> Future[Record]:
        return self._executor.submit(_make, block, attempts)


@contextmanager
def _start_processes(plan: Plan, store: Store, workers: int) -> Iterator[Pool]:
    # Each worker watches its end of the pipe: it closes when this process closes it or dies.
    watched, held = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start, initargs=(plan, store.address, watched)
    )
    try:
        yield _Processes(executor, workers)
    finally:
        held.close()
        executor.shutdown(wait=True, cancel_futures=True)
        watched.close()


def _start(plan: Plan, address: str, watched: Connection) -> None:
    global _job
    # Ctrl-C reaches every process of the terminal; the main one decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()
    _job = plan, Store(address)


def _end_with(watched: Connection) -> None:
    try:
        watched.recv()
    except (EOFError, OSError):
        os._exit(1)


def _make(block: Block, attempts: Mapping[int, int]) -> Record:
    plan, store = _job
    return make_shard(plan, store, block, attempts)
