"""Worker processes that make shards, or none."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

from lrtasks.data.journal import Record
from lrtasks.data.plan import Block, Plan
from lrtasks.data.shards import make_shard
from lrtasks.data.store import Store
from lrtasks.errors import UsageError

_job: tuple[Plan, Store]


def worker_count(workers: int | str, store: Store, shards: int) -> int:
    """Number of processes: as asked, or one per core, and no more than there are shards.

    Raises:
        UsageError: if ``workers`` is neither ``"auto"`` nor a whole number of at least 1.
    """
    if workers == "auto":
        asked = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    elif isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1:
        asked = workers
    else:
        raise UsageError(f"workers must be 'auto' or a whole number of at least 1, found {workers!r}")
    return 1 if store.in_process else max(1, min(asked, shards))


class Pool:
    """Makes shards, in any order."""

    def __init__(self, plan: Plan, store: Store, executor: Executor | None) -> None:
        self._plan, self._store, self._executor = plan, store, executor

    def submit(self, block: Block, attempts: Mapping[int, int]) -> Future[Record]:
        """Have a shard made; without workers it is made here and now."""
        if self._executor is not None:
            return self._executor.submit(_make, block, attempts)
        future: Future[Record] = Future()
        future.set_result(make_shard(self._plan, self._store, block, attempts))
        return future


@contextmanager
def start_pool(plan: Plan, store: Store, workers: int) -> Iterator[Pool]:
    """``workers`` processes, or none if one is enough; they end with this block or this process, however it ends."""
    if workers == 1:
        yield Pool(plan, store, None)
        return
    # Each worker watches its end of the pipe: it closes when this process closes it or dies.
    watched, held = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start, initargs=(plan, store.address, watched)
    )
    try:
        yield Pool(plan, store, executor)
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
