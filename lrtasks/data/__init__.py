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
    from lrtasks.data.export import read_tsv
    from lrtasks.data.manifest import Manifest
    from lrtasks.data.read import StoredDataset, info, open_dataset, verify
    from lrtasks.data.write import generate
    from lrtasks.generators.randomness import epoch_order

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Manifest": "lrtasks.data.manifest:Manifest",
        "StoredDataset": "lrtasks.data.read:StoredDataset",
        "epoch_order": "lrtasks.generators.randomness:epoch_order",
        "generate": "lrtasks.data.write:generate",
        "info": "lrtasks.data.read:info",
        "open_dataset": "lrtasks.data.read:open_dataset",
        "read_tsv": "lrtasks.data.export:read_tsv",
        "verify": "lrtasks.data.read:verify",
    },
)
