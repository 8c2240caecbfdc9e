"""Format ``tsv``: one table per split, ``basic_train.tsv`` and so on, named as in the Long Range Arena.

ListOps has the columns of the Long Range Arena (``Source``, ``Target``) and of the DLR paper's code (``SubTree...``,
``Id``): the expression without round brackets, its value, and for each operator, in post-order, value, length, height,
opening token and position of the closing bracket. Other tasks of tokens have ``Source``, the ids of the input without
padding, ``Target``, the labels that are not ignored, and ``TargetInds``, their positions. Blanks separate list entries.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lrtasks.data.parts import part_name
from lrtasks.data.plan import Block, Plan
from lrtasks.data.store import Store
from lrtasks.errors import UsageError
from lrtasks.generators.base import Task
from lrtasks.spec import IGNORED, Batch, Sample

LISTOPS_COLUMNS = (
    "Source",
    "Target",
    "SubTreeEvals",
    "SubTreeLengths",
    "SubTreeHeights",
    "SubTreeOps",
    "SubTreeInds",
    "Id",
)
TOKEN_COLUMNS = ("Source", "Target", "TargetInds", "Id")


class TsvShard:
    """The shard's part of its split's table."""

    def __init__(self, plan: Plan, block: Block, store: Store) -> None:
        self._task, self._block, self._store = plan.task, block, store
        self._part = io.StringIO()
        self._rows = csv.DictWriter(self._part, columns_of(plan.task), delimiter="\t", lineterminator="\n")

    def add(self, batch: Batch, indices: Sequence[int]) -> None:
        for row, index in enumerate(indices):
            self._rows.writerow({**_cells(self._task, batch, row), "Id": index})

    def finish(self) -> dict[str, str]:
        data = self._part.getvalue().encode()
        name = part_name(self._block.split, self._block.number)
        self._store.write(name, data)
        return {name: hashlib.sha256(data).hexdigest()}


def table_name(split: str) -> str:
    """The table of a split."""
    return f"basic_{split}.tsv"


def columns_of(task: Task) -> tuple[str, ...]:
    """Names of the columns."""
    return LISTOPS_COLUMNS if _is_listops(task) else TOKEN_COLUMNS


def table_header(task: Task) -> bytes:
    """First line of a table."""
    return ("\t".join(columns_of(task)) + "\n").encode()


def read_tsv(path: str | os.PathLike[str], task: Task) -> Iterator[Sample]:
    """Yield the samples of a table, of this program or with the same columns from another, as ``task`` presents them.

    Args:
        path: the file, local or at an address of fsspec's.
        task: what the table holds: its specs give length, vocabulary and classes.

    Raises:
        UsageError: naming the line, for unknown tokens, labels out of range, sequences that are too long, lists that do
            not fit each other, or a missing column.
    """
    folder, _, name = os.fspath(path).rpartition("/")
    store = Store(folder or ".")
    with store.explained(), store.open(name) as binary:
        text = io.TextIOWrapper(binary, "utf-8", newline="")
        csv.field_size_limit(2**31 - 1)
        rows = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, row in enumerate(rows, 2):
            try:
                yield _sample(task, row)
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None


def _is_listops(task: Task) -> bool:
    from lrtasks.generators.tasks.listops import ListOps

    return isinstance(task, ListOps)


def _cells(task: Task, batch: Batch, row: int) -> dict[str, str]:
    if _is_listops(task):
        from lrtasks.generators.listops import grammar

        return grammar.subtree_columns(batch.x[row])
    tokens = batch.x[row] if batch.mask is None else batch.x[row][batch.mask[row]]
    places = np.flatnonzero(batch.y[row] != IGNORED)
    return {
        "Source": " ".join(map(str, tokens.tolist())),
        "Target": " ".join(map(str, batch.y[row][places].tolist())),
        "TargetInds": " ".join(map(str, places.tolist())),
    }


def _sample(task: Task, row: Mapping[str, str | None]) -> Sample:
    x = np.zeros(task.input.length, np.int64)
    y = np.full(task.target.length, IGNORED)
    if _is_listops(task):
        from lrtasks.generators.listops import grammar

        tokens = grammar.parse(_cell(row, "Source"))
        x += grammar.PAD
        if task.target.length == 1:
            values, places = _numbers(row, "Target"), np.zeros(1, np.int64)
        else:
            values, places = _numbers(row, "SubTreeEvals"), _numbers(row, "SubTreeInds")
            closing = np.flatnonzero(tokens == grammar.CLOSE)
            if not np.array_equal(np.sort(places), closing):
                raise UsageError("SubTreeInds must be the positions of the closing brackets")
    else:
        tokens = _numbers(row, "Source")
        values, places = _numbers(row, "Target"), _numbers(row, "TargetInds")
        _check_range("token", tokens, task.input.width)
    if len(tokens) > len(x):
        raise UsageError(f"a sequence of {len(tokens)} tokens, where {task.name} has at most {len(x)}")
    if len(values) != len(places):
        raise UsageError(f"{len(values)} labels for {len(places)} positions")
    _check_range("label", values, task.target.width)
    _check_range("position", places, min(len(y), len(tokens)))
    x[: len(tokens)] = tokens
    y[places] = values
    mask = np.arange(len(x)) < len(tokens)
    return Sample(x, y, None if mask.all() and not _is_listops(task) else mask)


def _cell(row: Mapping[str, str | None], name: str) -> str:
    cell = row.get(name)
    if cell is None:
        raise UsageError(f"there is no column {name!r}; found {', '.join(filter(None, row))}")
    return cell


def _numbers(row: Mapping[str, str | None], name: str) -> np.ndarray:
    words = _cell(row, name).split()
    try:
        return np.array([int(word) for word in words], np.int64)
    except (ValueError, OverflowError):
        raise UsageError(f"{name} must be whole numbers separated by blanks, found {_cell(row, name)[:60]!r}") from None


def _check_range(what: str, numbers: np.ndarray, width: int) -> None:
    outside = numbers[(numbers < 0) | (numbers >= width)]
    if outside.size:
        raise UsageError(f"{what} {outside[0]} is out of range; allowed: 0..{width - 1}")
