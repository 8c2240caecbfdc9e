"""Stored datasets for training: the generator's arrays, by index.

A sample is found in its shard by row group (a quarter of a MiB or so), so shuffled access reads little more than what
it gives. Row groups that were read are kept while there is room.
"""

from __future__ import annotations

import bisect
import functools
import os
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lrtasks.data.checks import changed_files
from lrtasks.data.columns import decode
from lrtasks.data.manifest import Manifest, Shard, differences, read_manifest
from lrtasks.data.store import Store
from lrtasks.errors import UsageError, unknown
from lrtasks.generators import randomness as random
from lrtasks.generators.base import Split, Task, make, stack
from lrtasks.spec import Batch, Sample

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CACHE_BYTES = 2**28
OPEN_SHARDS = 256

_verified: dict[tuple[Any, ...], bool] = {}


class StoredDataset:
    """A dataset that :func:`lrtasks.data.generate` wrote, in Parquet; made by :func:`open_dataset`.

    It can be pickled: a worker process opens the files for itself and does not verify them again.

    Attributes:
        manifest: what it is.
        counts: number of samples by split.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.manifest = manifest
        self.counts = dict(manifest.counts)
        self._store = store
        self._process = os.getpid()
        self._files: OrderedDict[str, tuple[pq.ParquetFile, np.ndarray]] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        """Number of samples over all splits."""
        return sum(self.counts.values())

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store.address, "manifest": self.manifest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(Store(state["store"]), state["manifest"])  # type: ignore[misc]

    @functools.cached_property
    def task(self) -> Task:
        """The task that drew the samples.

        Raises:
            UsageError: if this program's task of that name is of another version.
        """
        task = make(self.manifest.task, **self.manifest.parameters)
        self.check_task(task)
        return task

    def check_task(self, task: Task) -> None:
        """Make sure that ``task`` is the one that drew the samples.

        Raises:
            UsageError: naming what differs.
        """
        found = {name: getattr(self.manifest, name) for name in ("task", "version", "parameters")}
        unlike = differences(found, task.identity())
        if unlike:
            raise UsageError(f"{self._store.address} holds data of another task: {'; '.join(unlike)}")

    def batch(self, indices: Sequence[int] | range, seed: int = 0, split: Split = "train") -> Batch:
        """Samples ``indices`` of ``split``: the same arrays as ``task.batch`` gives, duplicates aside.

        Args:
            indices: sample numbers below ``counts[split]``; any order, repeats allowed.
            seed: not used, since the samples are drawn already; here so that a stored set can stand where a task does.
            split: ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            UsageError: for an unknown split, no index, or one out of range.
        """
        if split not in self.counts:
            raise unknown("split", split, self.counts)
        count = self.counts[split]
        if len(indices) == 0:
            raise UsageError("batch needs at least one index")
        if min(indices) < 0 or max(indices) >= count:
            wrong = next(index for index in indices if not 0 <= index < count)
            raise UsageError(f"{split} has samples 0..{count - 1}, found index {wrong}")
        if self._process != os.getpid():
            # a forked process shares no open files with its parent
            self.__setstate__(self.__getstate__())
        wanted: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for position, index in enumerate(indices):
            shard = self._shard(split, int(index))
            (name,) = shard.files
            _, starts = self._file(name)
            row = int(index) - shard.first
            group = int(np.searchsorted(starts, row, side="right")) - 1
            wanted[name, group].append((position, row - int(starts[group])))
        samples: list[Sample | None] = [None] * len(indices)
        for (name, group), places in wanted.items():
            table = self._group(name, group)
            for positions, rows in _runs(places):
                found = decode(self.manifest.columns, table.slice(rows.start, len(rows)))
                for position, sample in zip(positions, found, strict=True):
                    samples[position] = sample
        return stack([sample for sample in samples if sample is not None])

    def _shard(self, split: str, index: int) -> Shard:
        shards, firsts = self._shards[split]
        return shards[bisect.bisect_right(firsts, index) - 1]

    @functools.cached_property
    def _shards(self) -> dict[str, tuple[list[Shard], list[int]]]:
        by_split = {split: self.manifest.of_split(split) for split in self.counts}
        return {split: (shards, [shard.first for shard in shards]) for split, shards in by_split.items()}

    def _file(self, name: str) -> tuple[pq.ParquetFile, np.ndarray]:
        """An open shard, and the first row of each of its row groups."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        root = self._store.root
        file = pq.ParquetFile(self._store.open(name) if root is None else pa.memory_map(str(root / name)))
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        self._files[name] = file, np.cumsum([0, *rows[:-1]])
        if len(self._files) > OPEN_SHARDS:
            self._files.popitem(last=False)
        return self._files[name]

    def _group(self, name: str, group: int) -> pa.Table:
        key = name, group
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        table = self._file(name)[0].read_row_group(group, use_threads=False)
        self._groups[key] = table
        self._held += table.nbytes
        while self._held > CACHE_BYTES and len(self._groups) > 1:
            self._held -= self._groups.popitem(last=False)[1].nbytes
        return table


def _runs(places: list[tuple[int, int]]) -> Iterator[tuple[list[int], range]]:
    """Cut pairs of position and row into runs of consecutive rows, which are decoded at once.

    >>> list(_runs([(0, 4), (1, 5), (2, 9)]))
    [([0, 1], range(4, 6)), ([2], range(9, 10))]
    """
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end][1] != places[end - 1][1] + 1:
            yield [position for position, _ in places[start:end]], range(places[start][1], places[end - 1][1] + 1)
            start = end


def open_dataset(path: str | os.PathLike[str]) -> StoredDataset:
    """Open a stored dataset, and verify it: every file is read once and its SHA-256 compared with the manifest's.

    A file that this process has verified before is taken as unchanged while its size and time of change are the same.

    Args:
        path: folder or fsspec address.

    Raises:
        UsageError: if it is no finished dataset, is not in Parquet, or was changed.
    """
    store = Store(path)
    store.check_readable()
    with store.explained():
        manifest = read_manifest(store)
        if manifest.format != "parquet":
            raise UsageError(f"{path} is in format {manifest.format}; datasets are read from format parquet")
        if not _is_verified(store, manifest):
            problems = changed_files(store, manifest)
            if problems:
                more = f" (and {len(problems) - 1} more; see: lrtasks data verify)" if problems[1:] else ""
                raise UsageError(f"{path} cannot be used: {problems[0]}{more}")
            _verified[_stamp(store, manifest)] = True
    return StoredDataset(store, manifest)


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which epoch number ``epoch`` visits a finite set: a permutation of ``0..samples-1``, int64.

    >>> sorted(epoch_order(5, seed=0, epoch=1).tolist())
    [0, 1, 2, 3, 4]
    """
    key = random.derive_key(purpose="epoch order", seed=int(seed), samples=int(samples))
    return random.generator(key, epoch).permutation(samples)


def _is_verified(store: Store, manifest: Manifest) -> bool:
    try:
        return _stamp(store, manifest) in _verified
    except FileNotFoundError:
        return False


def _stamp(store: Store, manifest: Manifest) -> tuple[Any, ...]:
    return (store.address, *((name, digest, store.stamp(name)) for name, digest in manifest.files()))
