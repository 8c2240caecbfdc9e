"""Shards made as tasks of a Ray cluster whose machines all see the store."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from lrtasks.data.journal import PLAN, Record
from lrtasks.data.plan import Block, Plan
from lrtasks.data.pool import Pool, worker_count
from lrtasks.data.shards import make_shard
from lrtasks.data.store import Store
from lrtasks.errors import UsageError
from lrtasks.ray_cluster import TRIES, connected, describe

_MAX_TASKS = 1000
"""At a time: each has a thread that waits for it."""


@contextmanager
def start_tasks(plan: Plan, store: Store, workers: int | str) -> Iterator[Pool]:
    """Tasks of one core each, on the cluster that this process is connected to."""
    with connected(None) as ray:
        count = worker_count(workers, plan, int(ray.cluster_resources().get("CPU", 0)))
        width = min(2 * count if workers == "auto" else count, _MAX_TASKS)
        with ThreadPoolExecutor(width) as threads:
            pool = _Tasks(ray, plan, store, threads, width)
            try:
                yield pool
            finally:
                pool.stop()


class _Tasks:
    """A thread for each shard in the making: it waits for the task, and begins another if the worker was lost."""

    def __init__(self, ray: Any, plan: Plan, store: Store, threads: ThreadPoolExecutor, width: int) -> None:
        self._ray, self._threads, self.width = ray, threads, width
        self._plan = ray.put(plan)
        self._address = store.address if store.root is None else str(store.root.absolute())
        self._task = ray.remote(num_cpus=1, max_retries=0)(make_there)
        self._running: set[Any] = set()
        self._stopped = False

    def submit(self, block: Block, attempts: Mapping[int, int]) -> Future[Record]:
        return self._threads.submit(self._finish, block, dict(attempts))

    def stop(self) -> None:
        """End what is still running."""
        self._stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for task in list(self._running):
            self._ray.cancel(task, force=True)

    def _finish(self, block: Block, attempts: dict[int, int]) -> Record:
        errors, tries = self._ray.exceptions, 0
        while True:
            tries += 1
            try:
                return self._make_once(block, attempts)
            except errors.RayTaskError as error:
                raise _explain(error) from None
            except errors.RayError as error:
                if self._stopped or tries == TRIES:
                    raise RuntimeError(
                        f"Ray lost the worker of shard {block.number} of {block.split} {TRIES} times, the last time so:"
                        f" {describe(error)}; finished shards are kept"
                    ) from error

    def _make_once(self, block: Block, attempts: dict[int, int]) -> Record:
        task = self._task.remote(self._plan, self._address, block, attempts)
        self._running.add(task)
        if self._stopped:  # while the task was begun
            self._ray.cancel(task, force=True)
        try:
            record: Record = self._ray.get(task)
            return record
        finally:
            self._running.discard(task)


def _explain(error: Any) -> Exception:
    """What a task raised, as the user should see it."""
    line = describe(error)
    if isinstance(error.cause, UsageError):
        return error.cause
    if line.startswith("ModuleNotFoundError"):
        return UsageError(f"{line}; the machines of the Ray cluster need the packages that this one has")
    return cast(Exception, error)


def make_there(plan: Plan, address: str, block: Block, attempts: dict[int, int]) -> Record:
    """Make a shard on this machine, if it sees the store of the one that asks.

    Raises:
        UsageError: if it does not, or as :func:`lrtasks.data.shards.make_shard`.
    """
    store = Store(address)
    with store.explained():
        if not store.exists(PLAN):
            host = socket.gethostname()
            raise UsageError(f"{address} on {host} is another folder than here: all machines must share the store")
    return make_shard(plan, store, block, attempts)
