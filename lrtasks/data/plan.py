"""What is to be made, cut into shards: the same for any number of workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lrtasks.data.columns import Column, array_bytes, layout, sample_bytes
from lrtasks.errors import UsageError, unknown
from lrtasks.generators.base import SPLITS, Task

FORMATS = ("parquet", "png", "npy", "tsv")
LARGEST_SHARD = 1000
_SHARD_BYTES = 2**26
_CHUNK_BYTES = 2**25
_ROW_GROUP_BYTES = 2**18


class Block(NamedTuple):
    """The samples of one shard: ``first`` and those after it, of shard ``number`` of ``split``."""

    split: str
    number: int
    first: int
    samples: int


@dataclass(frozen=True)
class Plan:
    """One dataset.

    Attributes:
        task: the task.
        seed: seed of its streams.
        counts: number of samples by split.
        format: one of :data:`FORMATS`.
        shard_size: samples per shard.
    """

    task: Task
    seed: int
    counts: dict[str, int]
    format: str
    shard_size: int

    def request(self) -> dict[str, Any]:
        """What the manifest says of it, JSON-ready."""
        identity = self.task.identity()
        return {
            **identity,
            "seed": self.seed,
            "counts": self.counts,
            "format": self.format,
            "shard_size": self.shard_size,
        }

    def blocks(self) -> Iterator[Block]:
        """All shards, in the order in which duplicates are settled."""
        for split, count in self.counts.items():
            for number, first in enumerate(range(0, count, self.shard_size)):
                yield Block(split, number, first, min(self.shard_size, count - first))

    def shards(self, split: str) -> int:
        """Number of shards of a split."""
        return -(-self.counts[split] // self.shard_size)

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """How samples are stored."""
        return layout(self.task)

    @property
    def row_group(self) -> int:
        """Rows per Parquet row group: what is read to get one sample, about a quarter of a MiB."""
        return max(1, min(64, _ROW_GROUP_BYTES // sample_bytes(self.columns)))

    @property
    def chunk(self) -> int:
        """Samples drawn at once, a multiple of the row group: bounds memory."""
        return self.row_group * max(1, _CHUNK_BYTES // (array_bytes(self.columns) * self.row_group))


def make_plan(
    task: Task,
    *,
    samples: int,
    split: Sequence[float],
    seed: int,
    format: str,
    shard_size: int | None,
) -> Plan:
    """Check what was asked for.

    Raises:
        UsageError: for a number out of range, an unknown format, or one that does not suit the task.
    """
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise UsageError(f"samples must be a whole number of at least 1, found {samples!r}")
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if format == "png" and task.image_shape() is None:
        raise UsageError(f"format png is for tasks of pictures, and {task.name} is none; use parquet or npy")
    if format == "tsv" and (task.input.kind, task.target.kind) != ("token", "token"):
        raise UsageError(f"format tsv is for tasks of tokens, and {task.name} is none; use parquet or npy")
    if shard_size is not None and shard_size < 1:
        raise UsageError(f"shard_size must be at least 1, found {shard_size}")
    task.key(seed, "train")
    counts = split_counts(samples, split)
    if shard_size is None:
        size = array_bytes(layout(task)) if format == "npy" else sample_bytes(layout(task))
        shard_size = max(1, min(LARGEST_SHARD, _SHARD_BYTES // size))
    return Plan(task, int(seed), counts, format, shard_size)


def split_counts(samples: int, split: Sequence[float]) -> dict[str, int]:
    """Number of samples of each split: rounded, at least one where the fraction is above 0, and what is left to train.

    >>> split_counts(100_000, (0.96, 0.02, 0.02))
    {'train': 96000, 'val': 2000, 'test': 2000}
    >>> split_counts(10, (0.96, 0.02, 0.02))
    {'train': 8, 'val': 1, 'test': 1}

    Raises:
        UsageError: if the fractions are not three numbers of at least 0 that add up to 1, or there are too few samples.
    """
    fractions = [float(fraction) for fraction in split]
    listed = ",".join(f"{fraction:g}" for fraction in fractions)
    if len(fractions) != len(SPLITS):
        raise UsageError(f"split takes three fractions (train,val,test), found {listed!r}")
    if not all(math.isfinite(fraction) and fraction >= 0 for fraction in fractions):
        raise UsageError(f"split takes fractions of at least 0, found {listed!r}")
    if abs(sum(fractions) - 1) > 1e-6:
        raise UsageError(f"split must add up to 1, found {listed!r}, which adds up to {sum(fractions):g}")
    counts = [max(round(samples * fraction), int(fraction > 0)) for fraction in fractions]
    largest = fractions.index(max(fractions))
    counts[largest] += samples - sum(counts)
    if counts[largest] < 1:
        raise UsageError(f"{samples} samples are too few for the split {listed}: each part needs at least one")
    return dict(zip(SPLITS, counts, strict=True))
