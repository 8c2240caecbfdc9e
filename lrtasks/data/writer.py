"""Generate a stored dataset: many processes, one result.

What a shard holds is a function of (task, seed, split, shard) alone, apart from duplicates, whose settling does not
depend on the number of workers (:mod:`lrtasks.data.duplicates`). A shard counts as done when its record stands in the
journal (the hidden folder ``.lrtasks``), which is written after the shard's files; a run that was killed is continued
from the records whose files still have their SHA-256. The manifest is written last.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from lrtasks.data import journal, tsv
from lrtasks.data.checks import find_problems
from lrtasks.data.duplicates import Settlement
from lrtasks.data.lock import locked
from lrtasks.data.manifest import MANIFEST, Manifest, Shard, differences, read_manifest, write_manifest
from lrtasks.data.parts import PARTS, joined
from lrtasks.data.pictures import index_header, index_name
from lrtasks.data.plan import Block, Plan, make_plan
from lrtasks.data.pool import Pool, reach, start_pool
from lrtasks.data.store import Store
from lrtasks.errors import UsageError
from lrtasks.generators.base import Task
from lrtasks.progress import Progress

DEFAULT_SPLIT = (0.96, 0.02, 0.02)


def generate(
    task: Task,
    out: str | os.PathLike[str],
    *,
    samples: int = 100_000,
    split: Sequence[float] = DEFAULT_SPLIT,
    seed: int = 0,
    workers: int | str = "auto",
    format: str = "parquet",
    shard_size: int | None = None,
    backend: str = "local",
    address: str | None = None,
    progress: bool = False,
) -> Manifest:
    """Write a dataset to a folder; go on where an earlier run of the same request stopped.

    Args:
        task: what to draw; sample i of a split is sample i of the task's stream, duplicates aside.
        out: folder, or an address that fsspec knows, such as ``s3://bucket/name``.
        samples: number of samples over all splits.
        split: fractions of train, validation and test samples.
        seed: seed of the streams.
        workers: number of processes, or ``"auto"`` for one per core. They import the caller's main module, so a script
            needs ``if __name__ == "__main__":``; 1 starts none. On a Ray cluster, the number of shards made at a time.
        format: ``"parquet"``, which training reads, ``"npy"``, ``"png"`` (tasks of pictures) or ``"tsv"`` (of tokens).
        shard_size: samples per shard; by default 1,000, or fewer if they are large.
        backend: ``"local"`` for this machine, ``"ray"`` for a Ray cluster whose machines all see ``out``.
        address: of the Ray cluster, as :func:`lrtasks.ray_cluster.connected` takes it.
        progress: show samples per second and time left on standard error.

    Returns:
        The manifest.

    Raises:
        UsageError: for an argument out of range, a folder that holds something else, another run that writes there, a
            full disk, an address that cannot be written, or a Ray cluster that does not answer.
    """
    plan = make_plan(task, samples=samples, split=split, seed=seed, format=format, shard_size=shard_size)
    store = Store(out)
    blocks = list(plan.blocks())
    place = reach(store, workers, backend, address)
    _check_folder(store)
    with place:
        store.prepare()
        with store.explained(), locked(store):
            store.remove_partial_files()
            whole = _claim(store, plan, quiet=not progress)
            if whole is not None:
                return whole
            records = journal.finished(plan, store, blocks)
            try:
                return _Run(plan, store, blocks, records).finish(workers, backend, quiet=not progress)
            finally:
                store.remove_partial_files()


class _Run:
    """One run, from the shards that are done to the manifest."""

    def __init__(self, plan: Plan, store: Store, blocks: list[Block], records: dict[Block, journal.Record]) -> None:
        self._plan, self._store, self._blocks, self._records = plan, store, blocks, records
        self._todo = deque(block for block in blocks if block not in records)
        self._again: deque[tuple[Block, dict[int, int]]] = deque()
        self._settlement = Settlement(plan.task, plan.seed)
        self._settled = 0

    def finish(self, workers: int | str, backend: str, *, quiet: bool) -> Manifest:
        done = sum(block.samples for block in self._records)
        total = sum(block.samples for block in self._blocks)
        if done and not quiet:
            sys.stderr.write(f"{len(self._records)} of {len(self._blocks)} shards are done and unchanged: kept\n")
        self._settle()
        if self._todo or self._again:
            with (
                start_pool(self._plan, self._store, workers, backend) as pool,
                Progress(self._plan.task.name, "samples", total, done=done, quiet=quiet) as progress,
            ):
                try:
                    self._make(pool, progress)
                except BrokenProcessPool as error:
                    raise RuntimeError(
                        "a worker process died (out of memory, or a script without `if __name__ == '__main__':`);"
                        " finished shards are kept"
                    ) from error
        return self._conclude()

    def _make(self, pool: Pool, progress: Progress) -> None:
        running: dict[Future[journal.Record], Block] = {}
        done = sum(block.samples for block in self._records)
        while self._todo or self._again or running:
            while len(running) < pool.width and (self._again or self._todo):
                block, attempts = self._again.popleft() if self._again else (self._todo.popleft(), {})
                running[pool.submit(block, attempts)] = block
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                block = running.pop(future)
                record = future.result()
                done += 0 if block in self._records else block.samples
                self._records[block] = record
                progress.update(done)
            self._settle()

    def _settle(self) -> None:
        """Settle duplicates as far as there is no gap; shards with replacements are to be made again."""
        while self._settled < len(self._blocks) and self._blocks[self._settled] in self._records:
            block = self._blocks[self._settled]
            record = self._records[block]
            attempts = self._settlement.settle(block.split, block.first, record.digests)
            if attempts != record.attempts:
                self._again.append((block, attempts))
            self._records[block] = dataclasses.replace(record, digests=())
            self._settled += 1

    def _conclude(self) -> Manifest:
        plan, store = self._plan, self._store
        headers = {"png": (index_header, index_name), "tsv": (lambda plan: tsv.table_header(plan.task), tsv.table_name)}
        if plan.format in headers:
            header, name = headers[plan.format]
            shards = []
            for split, count in plan.counts.items():
                blocks = [block for block in self._blocks if block.split == split]
                digest = store.write_chunks(name(split), joined(store, header(plan), blocks))
                shards.append(Shard(split, 0, count, {name(split): digest}))
        else:
            shards = [
                Shard(block.split, block.first, block.samples, self._records[block].files) for block in self._blocks
            ]
        replaced = [
            {"split": block.split, "index": index, "attempt": attempt}
            for block in self._blocks
            for index, attempt in sorted(self._records[block].attempts.items())
        ]
        manifest = Manifest(
            **plan.request(),
            columns=plan.columns,
            shards=tuple(shards),
            replaced=tuple(replaced),
            versions=journal.versions(),
        )
        write_manifest(store, manifest)
        store.remove_folder(PARTS)
        return manifest


def _check_folder(store: Store) -> None:
    with store.explained():
        known = store.exists(MANIFEST) or store.exists(journal.PLAN)
        if not known and not store.is_empty():
            raise UsageError(f"{store.address} is not empty and holds no dataset; choose another folder")


def _claim(store: Store, plan: Plan, *, quiet: bool) -> Manifest | None:
    """Make sure that the folder is this plan's; its manifest, if the dataset is whole already."""
    if store.exists(MANIFEST):
        manifest = read_manifest(store)
        _compare(store, manifest.request(), plan)
        problems = find_problems(store, manifest)
        if not problems:
            if not quiet:
                sys.stderr.write(f"{store.address} holds this dataset already: verified and kept\n")
            return manifest
        for problem in problems:
            sys.stderr.write(f"{problem}: to be made again\n")
        store.remove(MANIFEST)
    try:
        _compare(store, json.loads(store.read(journal.PLAN)), plan)
    except (FileNotFoundError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        store.write(journal.PLAN, json.dumps(plan.request(), indent=1).encode())
    return None


def _compare(store: Store, found: dict[str, object], plan: Plan) -> None:
    unlike = differences(found, plan.request())
    if unlike:
        raise UsageError(f"{store.address} holds another dataset: {'; '.join(unlike)}; choose another folder")
