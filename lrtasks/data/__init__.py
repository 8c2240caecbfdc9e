"""Stored datasets: write, check and read them.

import lrtasks.data

manifest = lrtasks.data.generate(lrtasks.make("shift", length=256), "data/shift", samples=10_000)
dataset = lrtasks.data.open_dataset("data/shift")
batch = dataset.batch(range(16), split="train")
"""

from lrtasks.data.export import read_tsv
from lrtasks.data.manifest import Manifest
from lrtasks.data.read import StoredDataset, info, open_dataset, verify
from lrtasks.data.write import generate
from lrtasks.generators.randomness import epoch_order

__all__ = ["Manifest", "StoredDataset", "epoch_order", "generate", "info", "open_dataset", "read_tsv", "verify"]
