"""Write a stored dataset; the result does not depend on the number of processes.

A shard depends only on (task, seed, split, shard) and on the duplicates in it that were drawn again. A shard is
done when its record is in the journal (the hidden folder ``.lrtasks``). The record is written after the shard's files.
After a kill, the next run keeps the shards whose files still have the SHA-256 in their record. The manifest is written
last.

Duplicates: no two samples of a stored set have the same :meth:`~lrtasks.generators.base.Task.duplicate_key`. Samples
are compared in the order train, val, test, and by index. Each sample is its first attempt whose key differs from the
keys of all samples before it: attempt 0 if possible, else attempt 1, 2, ... of the same index. Workers return the keys
of attempt 0, in any order. The main process compares the shards in order. At the end, workers write the shards with
replaced samples again. The samples therefore depend only on (task, seed, counts).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import platform
import signal
import socket
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

from lrtasks.data.columns import array_bytes, draw, layout, row_group, sample_bytes
from lrtasks.data.export import FORMATS, TABLES, contents, file_names, part_name, require_format, table_header
from lrtasks.data.manifest import MANIFEST, PLAN, Manifest, Shard, differences, old_data, read_manifest
from lrtasks.data.read import find_problems
from lrtasks.data.store import HIDDEN, LOCK, GenerationError, Store, partial_of
from lrtasks.errors import UsageError, require_known, require_whole
from lrtasks.generators.base import SPLITS, Task, stack
from lrtasks.machine import MAX_WORKERS, cores
from lrtasks.processes import end_with_parent
from lrtasks.progress import Progress
from lrtasks.registry import file_source
from lrtasks.spec import Batch

DEFAULT_SPLIT = (0.96, 0.02, 0.02)
LARGEST_SHARD = 1000
MAX_SAMPLES = 10**8
MAX_SHARDS = 10**5
MAX_ATTEMPTS = 1000
BACKENDS = ("local", "ray")
RAY_RETRIES = 2
"""Largest number of new attempts for a shard after the loss of a worker of a Ray cluster."""
_PACKAGES = ("lrtasks", "numpy", "scipy", "numba", "pillow", "pyarrow")
_SHARD_BYTES = 2**26
_CHUNK_BYTES = 2**25


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
    """Write a dataset to a folder; continue where an earlier run of the same request stopped.

    Sample i of a split is sample i of the task's stream, unless it is a duplicate.

    Args:
        task: task that draws the samples.
        out: folder, or an fsspec address such as ``s3://bucket/name``. The folder must be empty, or contain only this
            dataset, finished or not. Two runs must not write to one address of an object store, which has no locks.
        samples: number of samples over all splits, at most :data:`MAX_SAMPLES`.
        split: fractions of train, validation and test samples.
        seed: seed of the streams.
        workers: number of processes, or ``"auto"`` for one less than the number of cores; 1 starts no process. The
            processes import the caller's main module, so a script needs ``if __name__ == "__main__":``. On a Ray
            cluster, the number of shards made at the same time; ``"auto"`` is twice the number of CPUs of the cluster.
        format: ``"parquet"``, which training reads, ``"npy"``, ``"png"`` (image tasks) or ``"tsv"`` (token tasks).
        shard_size: samples per shard; by default 1,000, or fewer if the samples are large.
        backend: ``"local"`` for this machine, ``"ray"`` for a Ray cluster whose machines all have access to ``out``.
        address: address of the Ray cluster, as for :func:`lrtasks.ray_cluster.connected`.
        progress: show samples per second and time left on standard error.

    Returns:
        The manifest.

    Raises:
        UsageError: for an argument out of range, a folder that contains another file or a symbolic link, another run
            that writes to the local folder, a sample that does not fit the task's specs, too few different samples, an
            address that cannot be written, or a Ray cluster that does not answer.
        GenerationError: if the disk is full, the folder vanishes or a worker dies; finished shards are kept.
    """
    if not isinstance(task, Task):
        raise UsageError(f"task must be a task that lrtasks.make gave, found {task!r}")
    plan, store = make_plan(task, samples, split, seed, format, shard_size), Store(out)
    if workers != "auto" and (type(workers) is not int or not 1 <= workers <= MAX_WORKERS):
        raise UsageError(f"workers must be 'auto' or a whole number in 1..{MAX_WORKERS}, found {workers!r}")
    require_known("backend", backend, BACKENDS)
    if backend == "local" and address is not None:
        raise UsageError(f"an address has no meaning with the backend local, found {address!r}; it belongs to ray")
    if backend == "ray" and store.in_process:
        raise UsageError(f"{store.address} exists in this process alone; the machines of a Ray cluster must share it")
    with store.explained():
        _check_folder(store, plan)
        if store.read_only and (manifest := _finished(store, quiet=not progress)):
            return manifest
        with store.locked():
            _check_folder(store, plan)
            shards = [shard for split in plan.counts for shard in plan.planned(split)]
            if manifest := _finished(store, quiet=not progress):
                _remove_parts(store, plan, shards)  # a run that was killed after it wrote the manifest left them
                return manifest
            make = partial(make_shard, task, plan, store.absolute() if backend == "ray" else store)
            most = 1 if store.in_process else len(shards)
            try:
                with _workers(make, workers, most, backend, address) as run:
                    # the folder is made after the connection: if the cluster does not answer, no folder is left
                    store.write(PLAN, [json.dumps(plan.request(), indent=1).encode()])
                    store.remove(MANIFEST)
                    records = _make(task, plan, shards, _kept(store, plan, shards), run, quiet=not progress)
                return _conclude(store, task, plan, shards, records)
            finally:
                store.remove_partials()


Attempts = Mapping[int, int]
"""For each index of a shard that is drawn again, the number of the attempt."""


@dataclass(frozen=True)
class Record:
    """Entry of a finished shard in the journal.

    Attributes:
        files: SHA-256 of each file by name.
        attempts: for each index that was drawn again, the number of the attempt.
        digests: digest of each sample's duplicate key at attempt 0, in hexadecimal; ``None`` if there is no key.
    """

    files: dict[str, str]
    attempts: dict[int, int]
    digests: list[str | None]
    versions: dict[str, str]


Runner = Callable[[Iterable[tuple[Shard, Attempts]]], Iterator[tuple[Shard, Record]]]
"""Function that makes shards and yields their records in any order."""


def make_shard(task: Task, plan: Manifest, store: Store, shard: Shard, attempts: Attempts) -> tuple[Shard, Record]:
    """Draw a shard, write its files and then its record.

    Raises:
        UsageError: if a sample does not fit the task's specs, or the address cannot be written.
        GenerationError: if the disk is full or the folder has vanished.
    """
    digests: list[str | None] = []
    with store.explained():
        if not store.exists(PLAN):
            where = f"{store.address} on {socket.gethostname()}"
            raise GenerationError(f"{where} holds no plan: it was removed, or the machines share no folder")
        made, files = contents(plan, task, shard, _draw(task, plan, shard, attempts, digests)), {}
        for name, content in zip(file_names(plan, shard), made, strict=True):
            # images need no sync: the next run checks their digests before it keeps them
            files[name] = store.write(name, [content], sync=not name.endswith(".png"))
        record = Record(files, dict(attempts), digests, plan.versions)
        store.write(_record_name(plan, shard), [json.dumps(dataclasses.asdict(record)).encode()])
    return shard, record


def _draw(
    task: Task, plan: Manifest, shard: Shard, attempts: Attempts, digests: list[str | None]
) -> Iterator[tuple[range, Batch]]:
    """Yield the samples of a shard, a few at a time to save memory; append the digests of attempt 0 to ``digests``."""
    rows = row_group(plan.columns)
    # a multiple of the row group size, so that all row groups of a file have equal sizes
    step = rows * max(1, _CHUNK_BYTES // (array_bytes(plan.columns) * rows))
    for start in shard.indices[::step]:
        indices = range(start, min(start + step, shard.indices.stop))
        batch = draw(task, indices, plan.seed, shard.split)
        if batch.mask is not None and all(column.role != "mask" for column in plan.columns):
            raise UsageError(f"{task.name}: samples {start} to {indices[-1]} have a mask, but the first do not")
        digests += [_key_digest(task, batch, row) for row in range(len(indices))]
        again = [index for index in indices if index in attempts]
        if again:
            drawn = [batch.sample(row) for row in range(len(indices))]
            for index in again:
                drawn[index - start] = draw(task, [index], plan.seed, shard.split, attempts[index]).sample(0)
            batch = stack(drawn)
        yield indices, batch


def _workers(
    make: Callable[..., tuple[Shard, Record]], workers: int | str, most: int, backend: str, address: str | None
) -> AbstractContextManager[Runner]:
    """Start at most ``most`` workers that call ``make``; they end with the ``with`` block or when this process dies."""
    if backend == "ray":
        return _ray(make, workers, most, address)
    count = min(most, max(1, cores() - 1) if workers == "auto" else int(workers))
    return _processes(make, count) if count > 1 else nullcontext(lambda jobs: (make(*job) for job in jobs))


@contextmanager
def _processes(make: Callable[..., tuple[Shard, Record]], count: int) -> Iterator[Runner]:
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        try:
            yield lambda jobs: (one.result() for one in as_completed(_submitted(pool, make, jobs)))
        except BrokenProcessPool:
            reason = "a worker process died (out of memory, or a script without `if __name__ == '__main__':`)"
            raise GenerationError(f"{reason}; finished shards are kept") from None
        finally:
            for process in [*(pool._processes or {}).values()]:  # otherwise the pool lets them finish their shards
                process.kill()
            # a worker killed while sending leaves half a message; the reader stops only if no writer is left
            pool._result_queue._writer.close()  # type: ignore[attr-defined]


def _submitted(
    pool: ProcessPoolExecutor, make: Callable[..., tuple[Shard, Record]], jobs: Iterable[tuple[Shard, Attempts]]
) -> list[Future[tuple[Shard, Record]]]:
    """Submit jobs; this starts the workers, which inherit that Ctrl-C is blocked: only the main process handles it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(make, *job) for job in jobs]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _ray(
    make: Callable[..., tuple[Shard, Record]], workers: int | str, most: int, address: str | None
) -> Iterator[Runner]:
    from lrtasks.ray_cluster import connected, describe

    with connected(address) as ray:
        width = 2 * int(ray.cluster_resources().get("CPU", 0)) if workers == "auto" else int(workers)
        shared, task = ray.put(make), ray.remote(num_cpus=1, max_retries=RAY_RETRIES)(_call_there)
        begun: list[Any] = []

        def run(jobs: Iterable[tuple[Shard, Attempts]]) -> Iterator[tuple[Shard, Record]]:
            left = deque(jobs)
            while left or begun:
                while left and len(begun) < max(1, min(most, width)):
                    begun.append(task.remote(shared, *left.popleft()))
                (done,), begun[:] = ray.wait(begun)
                yield ray.get(done)

        try:
            yield run
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, (UsageError, GenerationError)):
                raise error.cause from None
            if describe(error).startswith("ModuleNotFoundError"):
                hint = "the machines of the Ray cluster need the packages that this one has"
                raise UsageError(f"{describe(error)}; {hint}") from None
            raise
        except ray.exceptions.RayError as error:
            lost = f"Ray lost the worker of a shard {RAY_RETRIES + 1} times; the last error: {describe(error)}"
            raise GenerationError(f"{lost}; finished shards are kept") from error
        finally:
            for reference in begun:
                ray.cancel(reference, force=True)


def _call_there(make: Callable[..., Any], *arguments: Any) -> Any:
    return make(*arguments)


def make_plan(
    task: Task, samples: int, split: Sequence[float], seed: int, format: str, shard_size: int | None
) -> Manifest:
    """Return the manifest of a dataset before any sample is stored.

    Raises:
        UsageError: for a number out of range, an unknown format, a format that cannot store the task's samples, or a
            task whose first samples do not fit its specs.
    """
    require_whole("samples", samples, 1, MAX_SAMPLES)
    require_known("format", format, FORMATS)
    require_format(format, task)
    if shard_size is not None:
        require_whole("shard_size", shard_size, 1, MAX_SAMPLES)
    task.key(seed, "train")
    counts = split_counts(int(samples), split)
    columns = layout(task)
    size = array_bytes(columns) if format == "npy" else sample_bytes(columns)
    per_shard = int(shard_size or max(1, min(LARGEST_SHARD, _SHARD_BYTES // size)))
    shards = sum(-(-count // per_shard) for count in counts.values())
    if shards > MAX_SHARDS:
        made = f"{samples:,} samples make {shards:,} shards of {per_shard:,}"
        raise UsageError(f"{made}; at most {MAX_SHARDS:,} are allowed")
    asked = {**task.identity(), "seed": int(seed), "counts": counts, "format": format, "shard_size": per_shard}
    source = file_source(type(task))
    return Manifest(**asked, columns=columns, shards=(), replaced=(), versions=_versions(), source=source)


def split_counts(samples: int, split: Sequence[float]) -> dict[str, int]:
    """Return the number of samples of each split.

    The numbers are rounded. A split with a fraction above 0 gets at least one sample; the largest split gets the rest.

    >>> split_counts(100_000, (0.96, 0.02, 0.02))
    {'train': 96000, 'val': 2000, 'test': 2000}
    >>> split_counts(10, (0.96, 0.02, 0.02))
    {'train': 8, 'val': 1, 'test': 1}

    Raises:
        UsageError: if the fractions are not three numbers of at least 0 that add up to 1, or there are too few samples.
    """
    rule = "three fractions of at least 0 that add up to 1 (train,val,test)"
    try:
        fractions = [float(fraction) for fraction in split]
    except (TypeError, ValueError) as error:
        raise UsageError(f"split takes {rule}, found {split!r}") from error
    listed = ",".join(f"{fraction:g}" for fraction in fractions)
    if len(fractions) != len(SPLITS) or min(fractions) < 0 or not abs(sum(fractions) - 1) <= 1e-6:
        raise UsageError(f"split takes {rule}, found {listed!r}")
    counts = [max(round(samples * fraction), int(fraction > 0)) for fraction in fractions]
    largest = fractions.index(max(fractions))
    counts[largest] += samples - sum(counts)
    if counts[largest] < 1:
        raise UsageError(f"{samples} samples are too few for the split {listed}: each part needs at least one")
    return dict(zip(SPLITS, counts, strict=True))


def _check_folder(store: Store, plan: Manifest) -> None:
    """Raise :class:`UsageError` if the folder contains anything but this dataset, finished or not; write nothing."""
    if store.root is not None and store.root.is_file():
        raise UsageError(f"{store.address} is a file; --out takes a folder")
    names = store.names() if store.root is None or store.root.exists() else []
    for name in (name for name in names if store.root is not None and (store.root / name).is_symlink()):
        raise UsageError(f"{name!r} in {store.address} is a symbolic link; choose another folder")
    # before the plan is written, the folder contains only the lock, which is an empty file
    own = {LOCK} if LOCK in names else set()
    with suppress(FileNotFoundError):  # another run may just have ended and removed it
        own = {name for name in own if not store.size(name)}
    if MANIFEST in names or PLAN in names:
        try:
            found = read_manifest(store).request() if MANIFEST in names else dict(json.loads(store.read(PLAN)))
        except UsageError:
            raise
        except (ValueError, TypeError, RecursionError):
            raise UsageError(f"{store.address} holds a damaged {PLAN}; choose another folder") from None
        asked = plan.request()
        sources = found.get("source"), asked.get("source")
        if found.get("task") == plan.task and all(sources) and sources[0] != sources[1]:
            raise UsageError(old_data(store.address, plan.task))
        unlike = differences(found, asked)
        if unlike:
            raise UsageError(f"{store.address} holds another dataset: {'; '.join(unlike)}; choose another folder")
        shards = [shard for split in plan.counts for shard in plan.planned(split)]
        own = {MANIFEST, PLAN, LOCK, *(_record_name(plan, shard) for shard in shards)}
        own.update(name for shard in shards for name in file_names(plan, shard))
        own.update(TABLES[plan.format].format(split=split) for split in plan.counts if plan.format in TABLES)
    partial = {PLAN.rpartition("/")[2], *(name.rpartition("/")[2] for name in own)}
    for name in names:
        if name not in own and partial_of(name) not in partial:
            raise UsageError(
                f"{store.address} holds {name!r}, which is not part of this dataset; choose another folder"
            )


def _finished(store: Store, *, quiet: bool) -> Manifest | None:
    """Return the manifest if the dataset is already complete, else ``None``; report problems on standard error."""
    if store.exists(MANIFEST):
        manifest = read_manifest(store)
        problems = find_problems(store, manifest)
        if not problems:
            if not quiet:
                sys.stderr.write(f"{store.address} holds this dataset already: verified and kept\n")
            return manifest
        for problem in problems:
            sys.stderr.write(f"{problem}: to be made again\n")
    return None


def _make(
    task: Task, plan: Manifest, shards: list[Shard], records: dict[Shard, Record], run: Runner, *, quiet: bool
) -> dict[Shard, Record]:
    """Make the shards that have no record yet, and replace duplicates; return the records of all shards."""
    if records and not quiet:
        sys.stderr.write(f"{len(records)} of {len(shards)} shards are done and unchanged: kept\n")
    todo: list[tuple[Shard, Attempts]] = [(shard, {}) for shard in shards if shard not in records]
    done = sum(shard.samples for shard in records)
    again, unsettled, taken = [], deque(shards), set[str]()

    def settle() -> None:
        """Find the duplicates of shards in order, up to the first shard without a record."""
        while unsettled and (shard := unsettled[0]) in records:
            attempts = _find_duplicates(task, plan.seed, unsettled.popleft(), records[shard].digests, taken)
            if attempts != records[shard].attempts:
                again.append((shard, attempts))

    settle()
    with Progress(task.name, "samples", sum(plan.counts.values()), done=done, quiet=quiet or not todo) as progress:
        for shard, record in run(todo):
            records[shard] = record
            done += shard.samples
            progress.update(done)
            settle()
    return records | dict(run(again))


def _kept(store: Store, plan: Manifest, shards: list[Shard]) -> dict[Shard, Record]:
    """Return the records of finished shards that these package versions wrote and whose files are unchanged."""

    def check(shard: Shard) -> Record | None:
        try:
            content = json.loads(store.read(_record_name(plan, shard)))
            content["attempts"] = {int(index): attempt for index, attempt in content["attempts"].items()}
            record = Record(**content)
            whole = len(record.digests) == shard.samples and [*record.files] == file_names(plan, shard)
            same = all(store.sha256(name) == digest for name, digest in record.files.items())
            return record if whole and same and record.versions == plan.versions else None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    with ThreadPoolExecutor(4) as threads:
        found = zip(shards, threads.map(check, shards), strict=True)
        return {shard: record for shard, record in found if record is not None}


def _find_duplicates(task: Task, seed: int, shard: Shard, digests: list[str | None], taken: set[str]) -> dict[int, int]:
    """Return the attempt for each index that must be drawn again; add the digests of the shard to ``taken``."""
    attempts = {}
    for index, digest in zip(shard.indices, digests, strict=True):
        attempt = 0
        while digest is not None and digest in taken:
            attempt += 1
            if attempt > MAX_ATTEMPTS:
                few = f"{task.name}: only {len(taken)} different samples were found"
                repeats = f"sample {index} of {shard.split} repeats one of them in {MAX_ATTEMPTS} attempts"
                raise UsageError(f"{few}: {repeats}; ask for fewer samples or longer ones")
            digest = _key_digest(task, draw(task, [index], seed, shard.split, attempt), 0)
        if digest is not None:
            taken.add(digest)
        if attempt:
            attempts[index] = attempt
    return attempts


def _conclude(store: Store, task: Task, plan: Manifest, shards: list[Shard], records: dict[Shard, Record]) -> Manifest:
    """Write the tables (for formats with tables) and then the manifest; return the manifest."""
    if plan.format in TABLES:
        final, header = [], table_header(plan, task)
        for split, count in plan.counts.items():
            parts = (store.read(part_name(plan, shard)) for shard in plan.planned(split))
            name = TABLES[plan.format].format(split=split)
            final.append(Shard(split, 0, count, {name: store.write(name, itertools.chain([header], parts))}))
    else:
        final = [dataclasses.replace(shard, files=records[shard].files) for shard in shards]
    replaced = [
        {"split": shard.split, "index": index, "attempt": attempt}
        for shard in shards
        for index, attempt in records[shard].attempts.items()
    ]
    manifest = dataclasses.replace(plan, shards=tuple(final), replaced=tuple(replaced))
    store.write(MANIFEST, [manifest.to_json()])
    _remove_parts(store, plan, shards)
    return manifest


def _remove_parts(store: Store, plan: Manifest, shards: Sequence[Shard]) -> None:
    """Remove the parts of finished tables."""
    if plan.format in TABLES:
        for shard in shards:
            store.remove(part_name(plan, shard))


def _key_digest(task: Task, batch: Batch, row: int) -> str | None:
    key = task.duplicate_key(batch, row)
    return None if key is None else hashlib.blake2b(key, digest_size=16).hexdigest()


def _record_name(plan: Manifest, shard: Shard) -> str:
    return f"{HIDDEN}/shards/{shard.split}-{shard.first // plan.shard_size:05d}.json"


def _versions() -> dict[str, str]:
    """Return the versions of the software on which the bytes of a shard depend."""
    found = {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
