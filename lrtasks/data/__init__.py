"""Stored datasets: write them, check them, read them.

manifest = lrtasks.data.generate(lrtasks.make("shift", length=256), "data/shift", samples=10_000)
dataset = lrtasks.data.open_dataset("data/shift")
batch = dataset.batch(range(16), split="train")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__all__ = ["Manifest", "StoredDataset", "epoch_order", "generate", "info", "open_dataset", "read_tsv", "verify"]

if TYPE_CHECKING:
    from lrtasks.data.checks import info, verify
    from lrtasks.data.manifest import Manifest
    from lrtasks.data.reader import StoredDataset, epoch_order, open_dataset
    from lrtasks.data.tsv import read_tsv
    from lrtasks.data.writer import generate

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Manifest": "lrtasks.data.manifest:Manifest",
        "StoredDataset": "lrtasks.data.reader:StoredDataset",
        "epoch_order": "lrtasks.data.reader:epoch_order",
        "generate": "lrtasks.data.writer:generate",
        "info": "lrtasks.data.checks:info",
        "open_dataset": "lrtasks.data.reader:open_dataset",
        "read_tsv": "lrtasks.data.tsv:read_tsv",
        "verify": "lrtasks.data.checks:verify",
    },
)
