"""Format ``png``: pictures ``train/00000/000000.png`` and ``000000-mask.png``, and ``index.csv`` for each split.

The index holds the SHA-256 of every picture, so that the index's own SHA-256 in the manifest stands for all of them.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lrtasks.data import columns as table
from lrtasks.data.parts import part_name
from lrtasks.data.plan import Block, Plan
from lrtasks.data.store import Store
from lrtasks.spec import Batch

SUFFIX = "-sha256"


class PictureShard:
    """A folder of pictures, and the shard's part of the index."""

    def __init__(self, plan: Plan, block: Block, store: Store) -> None:
        self._plan, self._block, self._store = plan, block, store
        self._part = io.StringIO()
        self._rows = csv.writer(self._part, lineterminator="\n")

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        for row, index in enumerate(indices):
            cells: list[Any] = [index]
            for column in self._plan.columns:
                value = table.values_of(column, batch)[row]
                cells += self._picture(column, value, index) if column.kind.endswith("png") else [_cell(value)]
            self._rows.writerow(cells)

    def finish(self) -> dict[str, str]:
        data = self._part.getvalue().encode()
        name = part_name(self._block.split, self._block.number)
        self._store.write(name, data)
        return {name: hashlib.sha256(data).hexdigest()}

    def _picture(self, column: table.Column, value: Any, index: int) -> list[str]:
        ending = "" if column.role == "x" else f"-{column.name}"
        name = f"{self._block.split}/{self._block.number:05d}/{index:06d}{ending}.png"
        data = table.picture(column, value)
        self._store.write_unsynced(name, data)
        return [name, hashlib.sha256(data).hexdigest()]


def index_name(split: str) -> str:
    """The index of a split."""
    return f"{split}/index.csv"


def index_header(plan: Plan) -> bytes:
    """First line of an index."""
    names = [table.INDEX]
    for column in plan.columns:
        names += [column.name, f"{column.name}{SUFFIX}"] if column.kind.endswith("png") else [column.name]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(names)
    return line.getvalue().encode()


def listed_pictures(header: bytes, lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and SHA-256 of every picture that an index, or part of one, lists."""
    names = header.decode().strip().split(",")
    digests = [position for position, name in enumerate(names) if name.endswith(SUFFIX)]
    for cells in csv.reader(lines):
        for position in digests:
            yield cells[position - 1], cells[position]


def _cell(value: Any) -> Any:
    value = table.plain(value)
    return json.dumps(value) if isinstance(value, list) else value
