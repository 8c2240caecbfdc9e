"""Read stored datasets: the generator's arrays, by index; and check and describe them.

A sample is found in its shard by row group (about a quarter of a MiB), so shuffled access reads little more than what
it gives. The last row groups that were read are kept.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from lrtasks.data.columns import INDEX, declared, decode, row_group, sample_bytes, schema
from lrtasks.data.export import listed_pictures
from lrtasks.data.manifest import MANIFEST, Manifest, Shard, differences, is_inside, read_manifest
from lrtasks.data.store import HIDDEN, Store
from lrtasks.errors import UsageError, first_line, unknown
from lrtasks.generators.base import Split, Task, registry, stack
from lrtasks.spec import Batch, Sample

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

CACHE_BYTES = 2**28
OPEN_SHARDS = 256
_THREADS = 4


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
        self._shards = {split: manifest.of_split(split) for split in manifest.counts}
        self._forget()

    def _forget(self) -> None:
        """Start with no open files and no rows in memory."""
        self._process = os.getpid()
        manifest = self.manifest
        group_bytes = sample_bytes(manifest.columns) * row_group(manifest.columns)
        self._file = functools.lru_cache(OPEN_SHARDS)(self._open)
        self._group = functools.lru_cache(max(1, CACHE_BYTES // group_bytes))(self._read_group)

    def __len__(self) -> int:
        """Number of samples over all splits."""
        return sum(self.counts.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredDataset, (self._store, self.manifest)

    @functools.cached_property
    def task(self) -> Task:
        """The task that drew the samples.

        Raises:
            UsageError: if this program's task of that name is of another version.
        """
        return self.task_as(registry.get(self.manifest.task))

    def task_as(self, kind: type[Task]) -> Task:
        """The task that drew the samples, made as class ``kind``, which need not be registered.

        Raises:
            UsageError: if it is another task, or of another version.
        """
        task = kind.make(**self.manifest.parameters)
        self.check_task(task)
        return task

    def check_task(self, task: Task) -> None:
        """Make sure that ``task`` is the one that drew the samples.

        Raises:
            UsageError: naming what differs.
        """
        unlike = differences(self.manifest.fields("task", "version", "parameters"), task.identity())
        if not unlike:
            columns = {column.name: column for column in self.manifest.columns}
            wanted = {column.name: column for column in declared(task)}
            unlike = differences({name: columns.get(name) for name in wanted}, wanted)
        if unlike:
            raise UsageError(f"{self._store.address} holds data of another task: {'; '.join(unlike)}")

    def batch(self, indices: Sequence[int] | range, seed: int = 0, split: Split = "train") -> Batch:
        """Samples ``indices`` of ``split``: the same arrays as ``task.batch`` gives, duplicates aside.

        Args:
            indices: sample numbers below ``counts[split]``; any order, repeats allowed.
            seed: not used, since the samples are drawn already; it lets a stored dataset take the place of a task.
            split: ``"train"``, ``"val"`` or ``"test"``.

        Raises:
            UsageError: for an unknown split, no index, one that is not a whole number or is out of range, or a file
                that does not hold what the manifest says.
        """
        if split not in self.counts:
            raise unknown("split", split, self.counts)
        if len(indices) == 0:
            raise UsageError("batch needs at least one index")
        for index in indices:
            whole = isinstance(index, (int, np.integer)) and not isinstance(index, bool)
            if not whole or not 0 <= index < self.counts[split]:
                raise UsageError(f"{split} has samples 0..{self.counts[split] - 1}, found index {index!r}")
        if self._process != os.getpid():  # a forked process shares no open files with its parent
            self._forget()
        wanted: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        shards = self._shards[split]
        for position, index in enumerate(indices):
            shard = shards[bisect.bisect_right(shards, index, key=lambda shard: shard.first) - 1]
            (name,) = shard.files
            starts, row = self._file(name)[1], int(index) - shard.first
            group = bisect.bisect_right(starts, row) - 1
            wanted[name, group].append((position, row - starts[group]))
        samples: dict[int, Sample] = {}
        for (name, group), places in wanted.items():
            positions, rows = zip(*places, strict=True)
            try:
                table = self._group(name, group)
                # a slice copies nothing
                consecutive = rows == (*range(rows[0], rows[0] + len(rows)),)
                table = table.slice(rows[0], len(rows)) if consecutive else table.take(list(rows))
                samples |= zip(positions, decode(self.manifest.columns, table), strict=True)
            except (ValueError, OSError) as error:
                raise UsageError(f"{name} in {self._store.address} cannot be read: {first_line(error)}") from error
        return stack([samples[position] for position in range(len(indices))])

    def _open(self, name: str) -> tuple[pq.ParquetFile, list[int]]:
        """A shard, and the first row of each of its row groups."""
        file = _parquet(self._store, name)
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        return file, [0, *itertools.accumulate(rows[:-1])]

    def _read_group(self, name: str, group: int) -> pa.Table:
        return self._file(name)[0].read_row_group(group, use_threads=False)


def open_dataset(path: str | os.PathLike[str]) -> StoredDataset:
    """Open a stored dataset, and verify it: SHA-256, rows and columns of every file are compared with the manifest.

    A file whose SHA-256 this process knows is not read again while its size and time of change are the same.

    Raises:
        UsageError: if it is no finished dataset, is not in Parquet, or was changed.
    """
    store, manifest = _opened(path)
    with store.explained():
        if manifest.format != "parquet":
            raise UsageError(f"{path} is in format {manifest.format}; datasets are read from format parquet")
        problems = [*_changed(store, manifest.files(), known=True)] or [*_foreign(store, manifest)]
    if problems:
        more = f" (and {len(problems) - 1} more; see: lrtasks data verify)" if problems[1:] else ""
        raise UsageError(f"{path} cannot be used: {problems[0]}{more}")
    return StoredDataset(store, manifest)


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Name every problem of a dataset; an empty list if it is whole and unchanged.

    Raises:
        UsageError: if there is no such folder.
    """
    store = _reachable(path)
    try:
        _, manifest = _opened(path)
    except UsageError as error:
        return [str(error)]
    with store.explained():
        return find_problems(store, manifest)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a dataset is, JSON-ready: task, parameters, seed, counts, format, files, bytes, what was replaced, versions.

    Raises:
        UsageError: if it holds no finished dataset, or its manifest was changed.
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
    """Missing, changed and unlisted files, and shards of other data than the manifest says."""
    files = dict(manifest.files())
    problems = [*_changed(store, files.items())]
    if not problems and manifest.format == "parquet":
        problems = [*_foreign(store, manifest)]
    if not problems and manifest.format == "png":
        try:
            pictures = dict(picture for name in files for picture in listed_pictures(store.read(name)))
        except ValueError as error:
            return [f"an index cannot be read: {first_line(error)}"]
        outside = [name for name in pictures if not is_inside(name)]
        problems = [f"an index names a file outside the dataset: {name!r}" for name in outside]
        problems = problems or [*_changed(store, pictures.items())]
        files |= pictures
    return problems + [f"{name} is not in the manifest" for name in _visible(store) if name not in {MANIFEST, *files}]


def _reachable(path: str | os.PathLike[str]) -> Store:
    store = Store(path)
    if store.root is not None and not store.root.is_dir():
        found = f"{path} is a file; a dataset is a folder" if store.root.is_file() else f"there is no folder {path}"
        raise UsageError(found)
    return store


def _opened(path: str | os.PathLike[str]) -> tuple[Store, Manifest]:
    store = _reachable(path)
    with store.explained():
        if not store.exists(MANIFEST) and store.exists(f"{HIDDEN}/plan.json"):
            raise UsageError(f"{path} is unfinished: there is no manifest; run the same generate again to finish it")
        return store, read_manifest(store)


def _visible(store: Store) -> list[str]:
    return [name for name in store.names() if "/." not in f"/{name}"]


@functools.lru_cache(maxsize=2**17)
def _known_sha256(address: str, name: str, _stamp: Any) -> str:
    return Store(address).sha256(name)


def _checked(check: Callable[[Any], str | None], things: Iterable[Any]) -> Iterator[str]:
    """The problems that ``check`` finds, some things at a time."""
    with ThreadPoolExecutor(_THREADS) as threads:
        yield from filter(None, threads.map(check, things))


def _changed(store: Store, files: Iterable[tuple[str, str]], *, known: bool = False) -> Iterator[str]:
    """Files that are missing or have another SHA-256 than the one given.

    With ``known``, what this process has read before counts as unchanged while size and time of change are the same.
    """

    def check(file: tuple[str, str]) -> str | None:
        name, digest = file
        try:
            found = _known_sha256(store.address, name, store.stamp(name)) if known else store.sha256(name)
        except FileNotFoundError:
            return f"{name} is missing"
        return None if found == digest else f"{name} was changed: its SHA-256 is not the manifest's"

    return _checked(check, files)


def _foreign(store: Store, manifest: Manifest) -> Iterator[str]:
    """Parquet shards whose footers tell of other data, rows or columns than the manifest."""
    expected = schema(manifest.columns)
    sizes = {column.name: column.elements for column in manifest.columns if column.kind == "list"}

    def check(shard: Shard) -> str | None:
        for name in shard.files:
            try:
                file = _parquet(store, name)
                described = json.loads((file.schema_arrow.metadata or {}).get(b"lrtasks", b"null"))
            except (ValueError, OSError, RecursionError) as error:
                return f"{name} is not a Parquet file of a dataset: {first_line(error)}"
            footer = file.metadata
            if described != manifest.origin(shard):
                return f"{name} says that it holds other data than the manifest: {str(described)[:300]}"
            if footer.num_rows != shard.samples:
                return f"{name} has {footer.num_rows} samples, the manifest says {shard.samples}"
            if not file.schema_arrow.equals(expected):
                return f"{name} has other columns than the manifest: {', '.join(file.schema_arrow.names)[:300]}"
            for group in map(footer.row_group, range(footer.num_row_groups)):
                for chunk in map(group.column, range(group.num_columns)):
                    size = sizes.get(chunk.path_in_schema.split(".")[0])
                    if size is not None and chunk.num_values != group.num_rows * size:
                        return f"{name} holds arrays of other sizes than the manifest says"
        return None

    return _checked(check, manifest.shards)


def _parquet(store: Store, name: str) -> pq.ParquetFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(store.open(name) if store.root is None else pa.memory_map(str(store.root / name)))
