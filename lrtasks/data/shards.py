"""Make one shard, a function of (plan, block, attempts) alone: draw its samples, write its files, note it as done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from lrtasks.data.columns import samples_of
from lrtasks.data.duplicates import fingerprints
from lrtasks.data.formats import WRITERS
from lrtasks.data.journal import Record, versions, write_record
from lrtasks.data.plan import Block, Plan
from lrtasks.data.store import Store
from lrtasks.generators.base import Split, stack
from lrtasks.spec import Batch


def make_shard(plan: Plan, store: Store, block: Block, attempts: Mapping[int, int]) -> Record:
    """Write a shard in which some indices are drawn again.

    Args:
        plan: the dataset.
        store: where it goes.
        block: which samples.
        attempts: attempt of each index that is a replacement.

    Raises:
        UsageError: if the disk is full or the address cannot be written.
    """
    digests: list[bytes | None] = []
    with store.explained():
        writer = WRITERS[plan.format](plan, block, store)
        end = block.first + block.samples
        for start in range(block.first, end, plan.chunk):
            indices = range(start, min(start + plan.chunk, end))
            batch = plan.task.batch(indices, plan.seed, cast(Split, block.split))
            digests += fingerprints(plan.task, batch)
            writer.add(_replaced(plan, block.split, batch, indices, attempts), indices)
        record = Record(writer.finish(), dict(attempts), tuple(digests), versions())
        write_record(store, block, record)
    return record


def _replaced(plan: Plan, split: str, batch: Batch, indices: range, attempts: Mapping[int, int]) -> Batch:
    again = [index for index in indices if index in attempts]
    if not again:
        return batch
    samples = samples_of(batch)
    for index in again:
        drawn = plan.task.batch([index], plan.seed, cast(Split, split), attempt=attempts[index])
        samples[index - indices.start] = samples_of(drawn)[0]
    return stack(samples)
