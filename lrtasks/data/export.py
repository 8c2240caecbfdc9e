"""The files of a shard in each format, and the tables that some formats keep for each split.

``png``: images such as ``train/00000/000000.png`` and ``000000-mask.png``, and an index such as ``train/index.csv``
for each split. The index holds the SHA-256 of every image, and the manifest holds the SHA-256 of the index. The
manifest therefore protects all images.

``tsv``: one table for each split, named ``basic_train.tsv`` etc. as in the Long Range Arena; the task defines the
columns (:meth:`lrtasks.generators.base.Task.to_row`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from lrtasks.data import columns as table
from lrtasks.data.columns import INDEX, Column
from lrtasks.data.manifest import Manifest, Shard
from lrtasks.data.store import HIDDEN, Store
from lrtasks.errors import UsageError
from lrtasks.generators.base import Task
from lrtasks.spec import Batch, Sample

Chunks = Iterable[tuple[range, Batch]]
"""Samples of a shard with their indices, in order and a few at a time."""

FORMATS = ("parquet", "png", "npy", "tsv")
TABLES = {"png": "{split}/index.csv", "tsv": "basic_{split}.tsv"}
"""File name of a split's table, for each format that has tables; each shard makes a part of the table."""

_SHA256 = "-sha256"


def file_names(plan: Manifest, shard: Shard) -> list[str]:
    """Return the names of a shard's files. Hugging Face ``datasets`` reads the split from the Parquet file names."""
    number = shard.first // plan.shard_size
    stem = f"{shard.split}-{number:05d}-of-{-(-plan.counts[shard.split] // plan.shard_size):05d}"
    if plan.format == "parquet":
        return [f"{stem}.parquet"]
    if plan.format == "npy":
        return [*(f"{stem}.{column.role}.npy" for column in _arrays(plan)), f"{stem}.meta.jsonl"]
    endings = ["" if column.role == "x" else f"-{column.name}" for column in plan.columns if column.is_image]
    endings = endings if plan.format == "png" else []
    images = [f"{shard.split}/{number:05d}/{index:06d}{ending}.png" for index in shard.indices for ending in endings]
    return [*images, part_name(plan, shard)]


def part_name(plan: Manifest, shard: Shard) -> str:
    """Return the file name of the shard's part of its split's table."""
    return f"{HIDDEN}/parts/{shard.split}-{shard.first // plan.shard_size:05d}"


def table_header(plan: Manifest, task: Task) -> bytes:
    """Return the first line of a table."""
    line = io.StringIO()
    if plan.format == "tsv":
        _tsv_writer(line, task, task.batch([0])).writeheader()
    else:
        names = [INDEX]
        for column in plan.columns:
            names += [column.name, column.name + _SHA256] if column.is_image else [column.name]
        csv.writer(line, lineterminator="\n").writerow(names)
    return line.getvalue().encode()


def listed_images(index: bytes) -> list[tuple[str, str]]:
    """Return name and SHA-256 of every image in the content of an ``index.csv``."""
    csv.field_size_limit(2**31 - 1)
    header, *rows = csv.reader(io.StringIO(index.decode(), newline=""))  # splitlines would break a text in two
    places = [place for place, name in enumerate(header) if name.endswith(_SHA256)]
    return [(row[place - 1], row[place]) for row in rows for place in places]


def read_tsv(path: str | os.PathLike[str], task: Task) -> Iterator[Sample]:
    """Yield the samples of a table as samples of ``task``; any program can write a table with these columns.

    Args:
        path: the file, a local path or an fsspec address.
        task: task of the samples; its specs define length, vocabulary and classes.

    Raises:
        UsageError: for unknown tokens, labels out of range, sequences that are too long, lists of different lengths, or
            a missing column (the message names the line); or if there is no such file.
    """
    require_format("tsv", task)
    folder, slash, name = os.fspath(path).rpartition("/")
    store = Store(folder or slash or ".")
    with store.explained():
        if not store.exists(name):
            raise UsageError(f"there is no file {path}")
    with store.explained(), store.open(name) as binary:
        text = io.TextIOWrapper(binary, "utf-8", newline="")
        csv.field_size_limit(2**31 - 1)
        rows = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            for number, row in enumerate(rows, 2):
                try:
                    yield task.from_row(row)
                except UsageError as error:
                    raise UsageError(f"{path}, line {number}: {error}") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{path} is not a table in UTF-8: {error}") from None


def require_format(name: str, task: Task) -> None:
    """Raise :class:`UsageError` if a format cannot store the samples of a task."""
    if name == "png" and task.image_shape() is None:
        raise UsageError(f"format png is for image tasks, and {task.name} is not one; use parquet or npy")
    if name == "tsv" and (task.input.kind, task.target.kind) != ("token", "token"):
        raise UsageError(f"format tsv is for tasks of tokens, and {task.name} is not one; use parquet or npy")


def contents(plan: Manifest, task: Task, shard: Shard, chunks: Chunks) -> Iterator[bytes]:
    """Yield the content of each file of a shard, in the order of :func:`file_names`."""
    if plan.format == "parquet":
        return _parquet(plan, shard, chunks)
    if plan.format == "npy":
        return _npy(plan, chunks)
    return _png(plan, shard, chunks) if plan.format == "png" else _tsv(task, chunks)


def _parquet(plan: Manifest, shard: Shard, chunks: Chunks) -> Iterator[bytes]:
    buffer = io.BytesIO()
    schema = table.schema(plan.columns, {"lrtasks": json.dumps(plan.origin(shard), sort_keys=True)})
    # signals and images have no repeated values for a dictionary, and zstd compresses the other columns
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": [INDEX]}
    with pq.ParquetWriter(buffer, schema, **options) as writer:
        for indices, batch in chunks:
            rows = table.encode(plan.columns, batch, indices, schema)
            writer.write_table(rows, row_group_size=table.row_group(plan.columns))
    yield buffer.getvalue()


def _npy(plan: Manifest, chunks: Chunks) -> Iterator[bytes]:
    parts: list[list[np.ndarray]] = []
    lines = []
    for indices, batch in chunks:
        parts.append([column.values(batch) for column in _arrays(plan)])
        meta = {column.name: column.values(batch) for column in plan.columns if column.role == "meta"}
        for row, index in enumerate(indices):
            values = {name: _plain(entries[row]) for name, entries in meta.items()}
            lines.append(_json({INDEX: index, **values}) + "\n")
    for arrays in zip(*parts, strict=True):
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate(arrays), allow_pickle=False)
        yield buffer.getvalue()
    yield "".join(lines).encode()


def _png(plan: Manifest, shard: Shard, chunks: Chunks) -> Iterator[bytes]:
    names, text = iter(file_names(plan, shard)), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for indices, batch in chunks:
        columns = [(column, column.values(batch)) for column in plan.columns]
        for row, index in enumerate(indices):
            cells: list[Any] = [index]
            for column, values in columns:
                if column.is_image:
                    image = column.png(values[row])
                    yield image
                    cells += [next(names), hashlib.sha256(image).hexdigest()]
                else:
                    value = _plain(values[row])
                    cells.append(_json(value) if isinstance(value, list) else value)
            writer.writerow(cells)
    yield text.getvalue().encode()


def _tsv(task: Task, chunks: Chunks) -> Iterator[bytes]:
    text = io.StringIO()
    for indices, batch in chunks:
        writer = _tsv_writer(text, task, batch)
        for row, index in enumerate(indices):
            writer.writerow({**task.to_row(batch, row), "Id": index})
    yield text.getvalue().encode()


def _arrays(plan: Manifest) -> list[Column]:
    return [column for column in plan.columns if column.role != "meta"]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _json(value: Any) -> str:
    """Return strict JSON, with null for numbers that are not finite."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))


def _tsv_writer(text: io.StringIO, task: Task, batch: Batch) -> csv.DictWriter[str]:
    return csv.DictWriter(text, [*task.to_row(batch, 0), "Id"], delimiter="\t", lineterminator="\n")
