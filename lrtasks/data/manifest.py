"""``manifest.json``: the description of a stored dataset, with the SHA-256 of its files.

The manifest is written last, so its presence means that the dataset is complete. It contains a digest of its own
content, which reveals an edit by hand.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lrtasks.data.columns import Column
from lrtasks.data.store import HIDDEN, Store
from lrtasks.errors import UsageError
from lrtasks.generators.base import SPLITS
from lrtasks.record import mismatch

SCHEMA = 1
MANIFEST = "manifest.json"
PLAN = f"{HIDDEN}/plan.json"
"""File that holds the request; it is written before the first shard and stays."""

_FORM: dict[str, Any] = {
    **dict.fromkeys(("task", "format"), str),
    **dict.fromkeys(("version", "seed", "shard_size"), int),
    "parameters": dict,
    "counts": dict.fromkeys(SPLITS, int),
    "columns": [dict.fromkeys(("name", "role", "kind", "dtype"), str)],
    "shards": [{"split": str, "first": int, "samples": int, "files": {None: str}}],
    "replaced": list,
    "versions": {None: str},
}
"""Types of the fields of a manifest, for :func:`lrtasks.record.mismatch`."""


@dataclass(frozen=True)
class Shard:
    """Consecutive samples of one split: index of the first sample, number of samples, SHA-256 of the files by name."""

    split: str
    first: int
    samples: int
    files: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def indices(self) -> range:
        """Return the indices of the samples."""
        return range(self.first, self.first + self.samples)


@dataclass(frozen=True)
class Manifest:
    """Content of ``manifest.json``; also the plan of an unfinished dataset, with empty ``shards`` and ``replaced``.

    Attributes:
        counts: number of samples by split.
        format: ``"parquet"``, ``"png"``, ``"npy"`` or ``"tsv"``.
        shard_size: samples per shard.
        columns: how a sample's arrays are stored.
        shards: the files, in order of split and index.
        replaced: duplicates that were drawn again, each ``{"split", "index", "attempt"}``.
        versions: versions of the packages that wrote the dataset.
        source: digest of the source file of a user's own task; ``None`` for a task of this package.
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
    source: str | None = None

    def planned(self, split: str) -> list[Shard]:
        """Return the shards of a split, computed from its number of samples, without files."""
        count, size = self.counts[split], self.shard_size
        return [Shard(split, first, min(size, count - first)) for first in range(0, count, size)]

    def files(self) -> list[tuple[str, str]]:
        """Return name and SHA-256 of every file that the manifest lists."""
        return [file for shard in self.shards for file in shard.files.items()]

    def fields(self, *names: str) -> dict[str, Any]:
        """Return some fields by name."""
        return {name: getattr(self, name) for name in names}

    def request(self) -> dict[str, Any]:
        """Return the request; two datasets with equal requests have the same samples in the same files."""
        return {**self._stream(), **self.fields("counts", "format", "shard_size")}

    def origin(self, shard: Shard) -> dict[str, Any]:
        """Return the description that a Parquet shard stores about itself."""
        return {**self._stream(), "split": shard.split, "first": shard.first}

    def _stream(self) -> dict[str, Any]:
        """Return what determines the samples; without ``source`` for a task of this package."""
        own = self.fields("task", "version", "parameters", "seed")
        return own if self.source is None else {**own, "source": self.source}

    def to_json(self) -> bytes:
        """Return the file's content with its digest; equal manifests give equal bytes."""
        content = dataclasses.asdict(self)
        if self.source is None:
            del content["source"]
        return (json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n").encode()

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the file, which stands for the dataset in the digests of runs."""
        return hashlib.sha256(self.to_json()).hexdigest()


def read_manifest(store: Store) -> Manifest:
    """Read and check ``manifest.json``.

    Raises:
        UsageError: if the file is missing, damaged, changed by hand, or of another schema.
    """
    try:
        data = store.read(MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{store.address} holds no finished dataset: there is no {MANIFEST} in it") from None
    where = f"{store.address.rstrip('/')}/{MANIFEST}"
    try:
        content = json.loads(data)
        digest, schema = content.pop("sha256"), content["schema"]
        if schema != SCHEMA:
            raise UsageError(f"{where} has schema {schema!r}; this version of lrtasks reads schema {SCHEMA}")
        if digest != _digest(content):
            raise UsageError(f"{where} was changed after it was written: its content does not match its sha256")
        if problem := mismatch(content, _FORM):
            raise ValueError(problem.lstrip(". "))
        content["columns"] = tuple(Column.from_json(entry) for entry in content["columns"])
        content["shards"] = tuple(Shard(**entry) for entry in content["shards"])
        manifest = Manifest(**{**content, "replaced": tuple(content["replaced"])})
        for split, count in manifest.counts.items():
            shards = [shard for shard in manifest.shards if shard.split == split]
            if [*(shard.first for shard in shards), count] != [0, *(shard.indices.stop for shard in shards)]:
                raise ValueError(f"the shards of {split} do not hold its {count} samples")
            if manifest.format == "parquet" and any(len(shard.files) != 1 for shard in shards):
                raise ValueError(f"each shard of {split} must have one file")
        return manifest
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"{where} cannot be read as a manifest: {type(error).__name__}: {error}") from error


def differences(found: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return one phrase for each difference between two nested dictionaries.

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


def old_data(address: str, task: str) -> str:
    """Return the message for samples of a user's own task whose source has changed since it drew them.

    The digests do not show what differs: the task's file, a file that it imports, or the rule of the digest.
    """
    other = f"{task} or a file that it imports was edited, or another version of lrtasks drew the samples"
    return f"{address} holds old data: {other}; generate them again in another folder"


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
