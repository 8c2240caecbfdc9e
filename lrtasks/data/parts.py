"""Formats with one text file per split: shards write parts of it, which are joined when all are there."""

from __future__ import annotations

from collections.abc import Iterator

from lrtasks.data.plan import Block
from lrtasks.data.store import HIDDEN, Store

PARTS = f"{HIDDEN}/parts"


def part_name(split: str, number: int) -> str:
    """File of a shard's part."""
    return f"{PARTS}/{split}-{number:05d}"


def joined(store: Store, header: bytes, blocks: list[Block]) -> Iterator[bytes]:
    """Header and parts, in order."""
    yield header
    for block in blocks:
        yield from store.chunks(part_name(block.split, block.number))
