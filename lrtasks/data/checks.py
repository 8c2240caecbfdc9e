"""Check stored datasets against their manifests, and describe them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lrtasks.data import journal
from lrtasks.data.columns import INDEX
from lrtasks.data.formats import origin
from lrtasks.data.manifest import MANIFEST, Manifest, Shard, is_inside, read_manifest
from lrtasks.data.pictures import listed_pictures
from lrtasks.data.store import HIDDEN, Store
from lrtasks.errors import UsageError

_THREADS = 4


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Name every problem of a dataset; an empty list if it is whole and unchanged.

    Args:
        path: folder or fsspec address.

    Raises:
        UsageError: if there is no such folder.
    """
    store = Store(path)
    store.check_readable()
    with store.explained():
        try:
            manifest = read_manifest(store)
        except UsageError as error:
            return [str(error) if not store.exists(journal.PLAN) or store.exists(MANIFEST) else _unfinished(store)]
        return find_problems(store, manifest)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a dataset is, JSON-ready: task, parameters, seed, counts, format, files, bytes, what was replaced, versions.

    Args:
        path: folder or fsspec address.

    Raises:
        UsageError: if it holds no finished dataset, or its manifest was changed.
    """
    store = Store(path)
    store.check_readable()
    with store.explained():
        if store.exists(journal.PLAN) and not store.exists(MANIFEST):
            raise UsageError(_unfinished(store))
        manifest = read_manifest(store)
        return {
            "path": store.address,
            **manifest.request(),
            "samples": sum(manifest.counts.values()),
            "shards": len(manifest.shards),
            "bytes": sum(store.size(name) for name in store.names()),
            "columns": [INDEX, *(column.name for column in manifest.columns)],
            "replaced": len(manifest.replaced),
            "versions": manifest.versions,
        }


def find_problems(store: Store, manifest: Manifest) -> list[str]:
    """Missing, changed and unlisted files, and shards of other data than the manifest says."""
    problems = changed_files(store, manifest)
    known = {MANIFEST, *(name for name, _ in manifest.files())}
    if not problems and manifest.format == "png":
        pictures = [picture for name, _ in manifest.files() for picture in _pictures(store, name)]
        outside = [name for name, _ in pictures if not is_inside(name)]
        problems += [f"an index names a file outside the dataset: {name!r}" for name in outside]
        problems += [] if outside else _changed(store, pictures)
        known |= {name for name, _ in pictures}
    if not problems and manifest.format == "parquet":
        problems += [problem for shard in manifest.shards for problem in _foreign(store, manifest, shard)]
    problems += [f"{name} is not in the manifest" for name in store.names() if name not in known]
    return problems


def changed_files(store: Store, manifest: Manifest) -> list[str]:
    """Files of the manifest that are missing or have another SHA-256."""
    return _changed(store, list(manifest.files()))


def _changed(store: Store, files: list[tuple[str, str]]) -> list[str]:
    def check(file: tuple[str, str]) -> str | None:
        name, digest = file
        try:
            found = store.sha256(name)
        except FileNotFoundError:
            return f"{name} is missing"
        return None if found == digest else f"{name} was changed: its SHA-256 is not the manifest's"

    with ThreadPoolExecutor(_THREADS) as threads:
        return [problem for problem in threads.map(check, files) if problem is not None]


def _pictures(store: Store, index: str) -> Iterator[tuple[str, str]]:
    header, *lines = store.read(index).decode().splitlines()
    return listed_pictures(header.encode(), lines)


def _foreign(store: Store, manifest: Manifest, shard: Shard) -> Iterator[str]:
    import pyarrow.parquet as pq

    for name in shard.files:
        with store.open(name) as file:
            parquet = pq.ParquetFile(file)
            described = json.loads(parquet.schema_arrow.metadata.get(b"lrtasks", b"null"))
            if described != origin(manifest.request(), shard.split, shard.first):
                yield f"{name} says that it holds other data than the manifest: {described}"
            elif parquet.metadata.num_rows != shard.samples:
                yield f"{name} has {parquet.metadata.num_rows} samples, the manifest says {shard.samples}"


def _unfinished(store: Store) -> str:
    if store.root is None:
        return f"{store.address} is unfinished; run the same generate again to finish it"
    done = len(list((store.root / HIDDEN / "shards").glob("*.json")))
    return f"{store.address} is unfinished ({done} shards are done); run the same generate again to finish it"
