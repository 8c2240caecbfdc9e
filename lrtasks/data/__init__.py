"""Stored datasets: write them, check them, read them.

manifest = lrtasks.data.generate(lrtasks.make("shift", length=256), "data/shift", samples=10_000)
dataset = lrtasks.data.open_dataset("data/shift")
batch = dataset.batch(range(16), split="train")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {
    "Manifest": "lrtasks.data.manifest",
    "StoredDataset": "lrtasks.data.reader",
    "epoch_order": "lrtasks.data.reader",
    "generate": "lrtasks.data.writer",
    "info": "lrtasks.data.checks",
    "open_dataset": "lrtasks.data.reader",
    "read_tsv": "lrtasks.data.tsv",
    "verify": "lrtasks.data.checks",
}

__all__ = ["Manifest", "StoredDataset", "epoch_order", "generate", "info", "open_dataset", "read_tsv", "verify"]

if TYPE_CHECKING:
    from lrtasks.data.checks import info, verify
    from lrtasks.data.manifest import Manifest
    from lrtasks.data.reader import StoredDataset, epoch_order, open_dataset
    from lrtasks.data.tsv import read_tsv
    from lrtasks.data.writer import generate


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'lrtasks.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
