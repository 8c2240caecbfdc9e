"""``manifest.json``: what a stored dataset is, and the SHA-256 of every file in it.

It is written last, so its presence says that the dataset is whole. It carries a digest of its own content, so that an
edit by hand shows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lrtasks.data.columns import Column
from lrtasks.data.store import Store
from lrtasks.errors import UsageError

SCHEMA = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """Consecutive samples of one split: number of the first, how many, and SHA-256 of their files by name."""

    split: str
    first: int
    samples: int
    files: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """Content of ``manifest.json``.

    Attributes:
        task: name of the task.
        version: version of the task.
        parameters: all parameters of the task.
        seed: seed of the streams.
        counts: number of samples by split.
        format: ``"parquet"``, ``"png"``, ``"npy"`` or ``"tsv"``.
        shard_size: samples per shard.
        columns: how a sample's arrays are stored.
        shards: the files, in order of split and index.
        replaced: duplicates that were drawn again, each ``{"split", "index", "attempt"}``.
        versions: packages that wrote the dataset.
        schema: version of this layout.
    """

    task: str
    version: int
    parameters: dict[str, Any]
    seed: int
    counts: dict[str, int]
    format: str
    shard_size: int
    columns: tuple[Column, ...]
    shards: tuple[Shard, ...]
    replaced: tuple[dict[str, Any], ...]
    versions: dict[str, str]
    schema: int = SCHEMA

    def files(self) -> Iterator[tuple[str, str]]:
        """Name and SHA-256 of every file."""
        for shard in self.shards:
            yield from shard.files.items()

    def of_split(self, split: str) -> list[Shard]:
        """Shards of one split, in order."""
        return [shard for shard in self.shards if shard.split == split]

    def request(self) -> dict[str, Any]:
        """What was asked for: two datasets with equal requests have the same samples in the same files."""
        names = ("task", "version", "parameters", "seed", "counts", "format", "shard_size")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> bytes:
        """The file's content, digest included; equal manifests give equal bytes."""
        content = dataclasses.asdict(self)
        return (json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n").encode()


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Write ``manifest.json`` atomically."""
    store.write(MANIFEST, manifest.to_json())


def read_manifest(store: Store) -> Manifest:
    """Read and check ``manifest.json``.

    Raises:
        UsageError: if it is missing, was changed by hand, or is not one of this version.
    """
    try:
        data = store.read(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{store.address} holds no finished dataset: there is no {MANIFEST} in it") from None
    where = f"{store.address.rstrip('/')}/{MANIFEST}"
    try:
        content = json.loads(data)
        digest = content.pop("sha256")
        schema = content["schema"]
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{where} cannot be read as a manifest: {type(error).__name__}: {error}") from error
    if schema != SCHEMA:
        raise UsageError(f"{where} has schema {schema!r}; this version of lrtasks reads schema {SCHEMA}")
    if digest != _digest(content):
        raise UsageError(f"{where} was changed after it was written: its content does not fit its sha256")
    try:
        columns = tuple(Column.from_json(entry) for entry in content.pop("columns"))
        shards = tuple(Shard(**entry) for entry in content.pop("shards"))
        replaced = tuple(content.pop("replaced"))
        manifest = Manifest(**content, columns=columns, shards=shards, replaced=replaced)
        for name, _ in manifest.files():
            if not is_inside(name):
                raise UsageError(f"{where} names a file outside the dataset: {name!r}")
        _check_counts(manifest, where)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{where} cannot be read as a manifest: {type(error).__name__}: {error}") from error
    return manifest


def is_inside(name: str) -> bool:
    """Whether a relative name stays in its folder.

    >>> is_inside("train/00000.png"), is_inside("../secret"), is_inside("/etc/passwd"), is_inside("a\\\\..\\\\b")
    (True, False, False, False)
    """
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name


def differences(found: dict[str, Any], asked: dict[str, Any], prefix: str = "") -> list[str]:
    """Where two nested dictionaries differ, one phrase each.

    >>> differences({"seed": 0, "parameters": {"length": 8}}, {"seed": 0, "parameters": {"length": 16}})
    ['parameters.length is 8 there, 16 here']
    """
    phrases = []
    for name in sorted({*found, *asked}):
        there, here = found.get(name), asked.get(name)
        if isinstance(there, dict) and isinstance(here, dict):
            phrases += differences(there, here, f"{prefix}{name}.")
        elif there != here:
            phrases.append(f"{prefix}{name} is {there!r} there, {here!r} here")
    return phrases


def _check_counts(manifest: Manifest, where: str) -> None:
    for split, count in manifest.counts.items():
        first = 0
        for shard in manifest.of_split(split):
            if shard.first != first:
                raise UsageError(f"{where}: the {split} shards have a gap or an overlap at sample {first}")
            first += shard.samples
        if first != count:
            raise UsageError(f"{where}: {split} has {count} samples, but its shards hold {first}")


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
