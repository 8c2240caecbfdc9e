"""Files of one shard in each format. A writer takes the samples piece by piece and names its files at the end."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from lrtasks.data import columns as table
from lrtasks.data.pictures import PictureShard
from lrtasks.data.plan import Block, Plan
from lrtasks.data.store import Store
from lrtasks.data.tsv import TsvShard
from lrtasks.spec import Batch


class ShardWriter(Protocol):
    """Writes one shard."""

    def __init__(self, plan: Plan, block: Block, store: Store) -> None: ...

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        """Take the next samples."""

    def finish(self) -> dict[str, str]:
        """Write what is not yet written; SHA-256 by name of the files that stand for the shard."""


class ParquetShard:
    """One Parquet file, ``train-00000-of-00096.parquet``; the same samples give the same bytes."""

    def __init__(self, plan: Plan, block: Block, store: Store) -> None:
        import pyarrow.parquet as pq

        self._plan, self._store = plan, store
        self._name = f"{shard_name(plan, block)}.parquet"
        self._buffer = io.BytesIO()
        described = json.dumps(origin(plan.request(), block.split, block.first), sort_keys=True)
        self._schema = table.schema(plan.columns, {"lrtasks": described})
        # signals and pictures repeat nothing that a dictionary could hold, and zstd finds the rest
        self._writer = pq.ParquetWriter(
            self._buffer, self._schema, compression="zstd", use_dictionary=False, write_statistics=[table.INDEX]
        )

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        rows = table.encode(self._plan.columns, batch, indices, self._schema)
        self._writer.write_table(rows, row_group_size=self._plan.row_group)

    def finish(self) -> dict[str, str]:
        self._writer.close()
        return _written(self._store, self._name, self._buffer.getvalue())


class NpyShard:
    """One array file per column that is rectangular, ``train-00000-of-00096.x.npy``, and the metadata as JSON lines."""

    def __init__(self, plan: Plan, block: Block, store: Store) -> None:
        self._plan, self._store = plan, store
        self._stem = shard_name(plan, block)
        self._arrays: dict[str, list[np.ndarray]] = {}
        self._meta: list[str] = []

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        described = [column for column in self._plan.columns if column.role == "meta"]
        for column in self._plan.columns:
            if column.role != "meta":
                self._arrays.setdefault(column.role, []).append(table.values_of(column, batch))
        for row, index in enumerate(indices):
            values = {column.name: table.plain(table.values_of(column, batch)[row]) for column in described}
            self._meta.append(json.dumps({table.INDEX: index, **values}) + "\n")

    def finish(self) -> dict[str, str]:
        files: dict[str, str] = {}
        for role, parts in self._arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, np.concatenate(parts), allow_pickle=False)
            files |= _written(self._store, f"{self._stem}.{role}.npy", buffer.getvalue())
        return files | _written(self._store, f"{self._stem}.meta.jsonl", "".join(self._meta).encode())


WRITERS: dict[str, type[ShardWriter]] = {
    "parquet": ParquetShard,
    "npy": NpyShard,
    "png": PictureShard,
    "tsv": TsvShard,
}


def shard_name(plan: Plan, block: Block) -> str:
    """File name of a shard without its ending; Hugging Face ``datasets`` reads the split from it."""
    return f"{block.split}-{block.number:05d}-of-{plan.shards(block.split):05d}"


def origin(request: dict[str, Any], split: str, first: int) -> dict[str, Any]:
    """What a Parquet shard says of itself, so that a manifest for other data shows."""
    names = ("task", "version", "parameters", "seed")
    return {**{name: request[name] for name in names}, "split": split, "first": first}


def _written(store: Store, name: str, data: bytes) -> dict[str, str]:
    store.write(name, data)
    return {name: hashlib.sha256(data).hexdigest()}
