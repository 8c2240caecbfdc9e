"""Training, validation and test batches of a run."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lightning.fabric import Fabric

from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import BatchStream, worker_count
from lrtasks.generators.base import SPLITS, Task

HELD_OUT_SEED = 0
"""Validation and test streams are the same for every run, whatever its seed."""


def make_streams(
    task: Task, budget: Budget, seed: int, data: str | Path | None, workers: int | str, fabric: Fabric
) -> tuple[loop.Streams, str | None]:
    """Streams of fresh samples, or of a stored dataset with its digest.

    Args:
        task: draws the samples, and says what a stored dataset must hold.
        budget: batch size and numbers of batches.
        seed: seeds the training stream.
        data: a stored dataset, or ``None`` for fresh samples.
        workers: background processes that make batches, or ``"auto"``.
        fabric: its processes share each training batch.

    Raises:
        UsageError: if the dataset cannot be read or does not fit.
    """
    size, count = budget.batch_size, worker_count(workers)
    share = {"rank": fabric.global_rank, "world": fabric.world_size}
    if data is None:
        train = BatchStream(task, seed, "train", size, samples=budget.train_samples, **share)
        val = BatchStream(task, HELD_OUT_SEED, "val", size), budget.val_batches
        test = BatchStream(task, HELD_OUT_SEED, "test", size), budget.test_batches
        return loop.Streams(train, val, test, count, budget.train_samples is not None), None
    if budget.train_samples is not None:
        raise UsageError("train_samples belongs to fresh samples; a stored dataset has its own size")
    from lrtasks.data import open_dataset

    dataset = open_dataset(str(data))
    dataset.check_task(task)
    for split in SPLITS:
        if not dataset.counts.get(split):
            raise UsageError(f"{data} has no {split} samples; generate it with a --split that leaves some")
    digest = hashlib.sha256(dataset.manifest.to_json()).hexdigest()
    samples = dataset.counts
    train = BatchStream(dataset, seed, "train", size, samples=samples["train"], **share)
    val = BatchStream(dataset, HELD_OUT_SEED, "val", size, samples=samples["val"]), -(-samples["val"] // size)
    test = BatchStream(dataset, HELD_OUT_SEED, "test", size, samples=samples["test"]), -(-samples["test"] // size)
    return loop.Streams(train, val, test, count, True), digest
