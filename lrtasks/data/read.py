"""Read samples of stored datasets by index, as the arrays of the generator; check and describe datasets.

To get a sample, only its row group is read (about a quarter of a MiB). Shuffled access therefore reads little more than
it returns. The row groups that were used last stay in memory.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lrtasks.data.columns import INDEX, declared, decode, row_group, sample_bytes
from lrtasks.data.export import listed_images
from lrtasks.data.manifest import MANIFEST, PLAN, Manifest, differences, old_data, read_manifest
from lrtasks.data.store import Store
from lrtasks.errors import LostDataError, UsageError, first_line, require_known, require_whole
from lrtasks.generators.base import Split, Task, registry, require_indices, stack
from lrtasks.registry import file_source
from lrtasks.spec import Batch, Sample

CACHE_BYTES = 2**28
OPEN_SHARDS = 256
_THREADS = 4


class StoredDataset:
    """A dataset in Parquet that :func:`lrtasks.data.generate` wrote, opened by :func:`open_dataset`.

    A dataset can be pickled. A worker process opens the files itself and does not verify them again. Several threads
    can read one dataset.

    Attributes:
        manifest: description of the dataset.
        counts: number of samples by split.
    """

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self.manifest = manifest
        self.counts = dict(manifest.counts)
        self._store = store
        self._shards = {split: [one for one in manifest.shards if one.split == split] for split in manifest.counts}
        self._shard_of = {name: one for one in manifest.shards for name in one.files}
        self._forget()

    def _forget(self) -> None:
        """Reset the dataset to no open files and no rows in memory."""
        self._process = os.getpid()
        self._reading = threading.Lock()  # one reader of pyarrow serves one thread at a time
        manifest = self.manifest
        group_bytes = sample_bytes(manifest.columns) * row_group(manifest.columns)
        self._file = functools.lru_cache(OPEN_SHARDS)(self._open)
        self._group = functools.lru_cache(max(1, CACHE_BYTES // group_bytes))(
            lambda name, group: self._file(name)[0].read_row_group(group, use_threads=False)
        )

    def __len__(self) -> int:
        """Return the number of samples over all splits."""
        return sum(self.counts.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredDataset, (self._store, self.manifest)

    @functools.cached_property
    def task(self) -> Task:
        """Return the task that drew the samples.

        Raises:
            UsageError: if this program does not have the task, or has it in another version.
        """
        name = self.manifest.task
        if name not in registry.names():
            hint = "import the file that registers it, or install its package"
            raise UsageError(f"{self._store.address} holds data of the task {name!r}, which is not registered; {hint}")
        return self.task_as(registry.get(name))

    def task_as(self, kind: type[Task]) -> Task:
        """Return the task that drew the samples, as an object of class ``kind``, which need not be registered.

        Raises:
            UsageError: if ``kind`` is another task or has another version.
        """
        task = kind.make(**self.manifest.parameters)
        self.check_task(task)
        return task

    def check_task(self, task: Task) -> None:
        """Check that ``task`` is the task that drew the samples.

        Raises:
            UsageError: if the tasks differ; the message names the differences.
        """
        made_by, source = self.manifest.source, file_source(type(task))
        unlike = differences(self.manifest.fields("task", "version", "parameters"), task.identity())
        if not unlike and made_by and source and made_by != source:
            raise UsageError(old_data(self._store.address, type(task).__name__))
        if not unlike:
            columns = {column.name: column for column in self.manifest.columns}
            wanted = {column.name: column for column in declared(task)}
            unlike = differences({name: columns.get(name) for name in wanted}, wanted)
        if unlike:
            raise UsageError(f"{self._store.address} holds data of another task: {'; '.join(unlike)}")

    def batch(self, indices: Sequence[int] | range, seed: int = 0, split: Split = "train") -> Batch:
        """Return the samples ``indices`` of ``split``: the arrays of ``task.batch``, except for replaced duplicates.

        Args:
            indices: sample numbers below ``counts[split]``, in any order; repeats are allowed.
            seed: not used, because the samples are already drawn; a dataset has it so that it can replace a task.
            split: ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            UsageError: for an unknown or empty split, if there is no index, or for an index that is not a whole number
                or is out of range.
            LostDataError: for a file that cannot be read, or that another dataset has replaced.
        """
        require_known("split", split, self.counts)
        if not self.counts[split]:
            raise UsageError(f"{self._store.address} has no {split} samples")
        require_indices(indices)
        if self._process != os.getpid():  # a forked process must not share open files with its parent
            self._forget()
        wanted: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        shards = self._shards[split]
        for position, index in enumerate(indices):
            require_whole(f"the index of a {split} sample", index, 0, self.counts[split] - 1)
            shard = shards[bisect.bisect_right(shards, index, key=lambda shard: shard.first) - 1]
            (name,) = shard.files
            with self._readable(name):
                starts, row = self._file(name)[1], int(index) - shard.first
            group = bisect.bisect_right(starts, row) - 1
            wanted[name, group].append((position, row - starts[group]))
        samples: dict[int, Sample] = {}
        for (name, group), places in wanted.items():
            positions, rows = zip(*places, strict=True)
            with self._readable(name):
                with self._reading:
                    table = self._group(name, group)
                # a slice copies nothing
                consecutive = rows == (*range(rows[0], rows[0] + len(rows)),)
                table = table.slice(rows[0], len(rows)) if consecutive else table.take(list(rows))
                samples |= zip(positions, decode(self.manifest.columns, table), strict=True)
        return stack([samples[position] for position in range(len(indices))])

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        """Convert errors of the file ``name`` to a :class:`LostDataError`."""
        try:
            yield
        except (ValueError, OSError) as error:
            raise LostDataError(f"{name} in {self._store.address} cannot be read: {first_line(error)}") from error

    def _open(self, name: str) -> tuple[pq.ParquetFile, list[int]]:
        """Open a shard; return its file and the first row of each row group.

        Another dataset may have taken its place since the digests were compared. The file is not mapped into memory: if
        it became shorter, the system would kill this process.
        """
        root = self._store.root
        file = pq.ParquetFile(self._store.open(name) if root is None else pa.OSFile(str(root / name)))
        stored = json.loads((file.schema_arrow.metadata or {}).get(b"lrtasks", b"{}"))
        if unlike := differences(stored, self.manifest.origin(self._shard_of[name])):
            raise ValueError(f"it was replaced: {'; '.join(unlike)}")
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return file, [0, *itertools.accumulate(rows[:-1])]


def open_dataset(path: str | os.PathLike[str]) -> StoredDataset:
    """Open a stored dataset and verify it: compare the SHA-256 of every file with the manifest.

    If this process has already read a file, the file is read again only if its size or modification time has changed.

    Raises:
        UsageError: if the dataset is not finished, not in Parquet, or was changed.
    """
    store, manifest = _opened(path)
    with store.explained():
        if manifest.format != "parquet":
            raise UsageError(f"{path} is in format {manifest.format}; only format parquet can be opened")
        problems = [*_changed(store, manifest.files(), known=True)]
    if problems:
        more = f" (and {len(problems) - 1} more; see: lrtasks data verify)" if problems[1:] else ""
        raise UsageError(f"{path} cannot be used: {problems[0]}{more}")
    return StoredDataset(store.absolute(), manifest)  # the caller may change the working folder


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return a list of all problems of a dataset; the list is empty if the dataset is complete and unchanged.

    Raises:
        UsageError: if there is no such folder, the path is a file, or the storage cannot be reached.
    """
    store = _reachable(path)
    with store.explained():
        store.exists(MANIFEST)  # raises if the storage cannot be reached
    try:
        store, manifest = _opened(path)
    except UsageError as error:
        return [str(error)]
    with store.explained():
        return find_problems(store, manifest)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts about a dataset, ready for JSON: its request, and numbers of shards, bytes, replaced samples etc.

    Raises:
        UsageError: if the folder holds no finished dataset, or its manifest was changed.
    """
    store, manifest = _opened(path)
    with store.explained():
        return {
            "path": store.address,
            **manifest.request(),
            "samples": sum(manifest.counts.values()),
            "shards": len(manifest.shards),
            "bytes": sum(store.size(name) for name in _visible(store)),
            "columns": [INDEX, *(column.name for column in manifest.columns)],
            "replaced": len(manifest.replaced),
            "versions": manifest.versions,
        }


def find_problems(store: Store, manifest: Manifest) -> list[str]:
    """Return missing, changed and unlisted files as messages."""
    files = dict(manifest.files())
    problems = [*_changed(store, files.items())]
    if manifest.format == "png":
        if problems:
            return problems  # without its index, nothing is known about an image
        images = dict(entry for name in files for entry in listed_images(store.read(name)))
        problems = [*_changed(store, images.items())]
        files |= images
    return problems + [f"{name} is not in the manifest" for name in _visible(store) if name not in {MANIFEST, *files}]


def _reachable(path: str | os.PathLike[str]) -> Store:
    store = Store(path)
    if store.root is not None and store.root.is_file():
        raise UsageError(f"{path} is a file; a dataset is a folder")
    if store.root is not None and not store.root.is_dir():
        raise UsageError(f"there is no folder {path}")
    return store


def _opened(path: str | os.PathLike[str]) -> tuple[Store, Manifest]:
    store = _reachable(path)
    with store.explained():
        if not store.exists(MANIFEST) and store.exists(PLAN):
            raise UsageError(f"{path} is unfinished: there is no manifest; run the same generate again to finish it")
        return store, read_manifest(store)


def _visible(store: Store) -> list[str]:
    return [name for name in store.names() if "/." not in f"/{name}"]


@functools.lru_cache(maxsize=2**17)
def _known_sha256(address: str, name: str, _stamp: Any) -> str:
    return Store(address).sha256(name)


def _changed(store: Store, files: Iterable[tuple[str, str]], *, known: bool = False) -> Iterator[str]:
    """Yield a message for each file that is missing, outside the dataset or does not have the given SHA-256.

    With ``known``, a file that this process has read before is read again only if its :meth:`Store.stamp` has changed.
    """

    def check(file: tuple[str, str]) -> str | None:
        name, digest = file
        if not is_inside(name):
            return f"{name!r} is a file outside the dataset"
        try:
            found = _known_sha256(store.address, name, store.stamp(name)) if known else store.sha256(name)
        except FileNotFoundError:
            return f"{name} is missing"
        except UsageError as error:  # a folder or a pipe has its name
            return str(error)
        return None if found == digest else f"{name} was changed: its SHA-256 is not the manifest's"

    with ThreadPoolExecutor(_THREADS) as threads:
        yield from filter(None, threads.map(check, files))


def is_inside(name: str) -> bool:
    """Return whether a relative file name stays in its folder.

    >>> is_inside("train/00000.png"), is_inside("../secret"), is_inside("/etc/passwd"), is_inside("a\\\\..\\\\b")
    (True, False, False, False)
    """
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and ":" not in name
    return bool(name) and plain and not path.is_absolute() and ".." not in path.parts
