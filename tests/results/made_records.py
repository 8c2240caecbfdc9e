"""Run records made up for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lrtasks.budget import Budget
from lrtasks.results import RunRecord
from lrtasks.results.frame import make_frame
from lrtasks.results.table import Table, make_table

SETTINGS = {"layers": 1, "kernel": "real", "eigenvalues": "complex", "real_weight": False, "glu": False}
COST = {"seconds_per_step": 0.01, "seconds": 1.0, "peak_memory_bytes": 1, "device": "cpu"}


def made(
    *,
    task: str = "shift",
    length: int = 256,
    model: str = "dlr",
    hyper: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
    score: float | None = 0.9,
    floor: float = 0.2,
    source: str | None = None,
    **changes: Any,
) -> RunRecord:
    """A finished run with one headline score; ``changes`` replaces whole fields."""
    scores: dict[str, Any] = {"test": {"r2": score, "r2_batch_mean": score}} if score is not None else {}
    fields: dict[str, Any] = {
        "command": "lrtasks eval",
        "task": {"name": task, "version": 1, "parameters": {"length": length}, "metric": "r2", "data": None},
        "model": {
            "name": model,
            "parameters": SETTINGS | (hyper or {}),
            "version": None if source else 1,
            "source": source,
            "count": 100,
            "state_bytes": 64,
        },
        "preset": "small",
        "budget": Budget(**(budget or {})).parameters(),
        "seed": 0,
        "environment": {},
        "status": "done",
        "scores": scores,
        "baselines": {"constant": {"r2": 0.0}, "copy": {"r2": floor}} if score is not None else {},
        "cost": COST,
    }
    return RunRecord(**{**fields, **changes})


def stored(record: RunRecord, folder: Path) -> Path:
    """Write the record into ``folder``, which is made where there is none, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder)
    return folder


def framed(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the frame of records that are in no folder."""
    return make_frame([(None, record) for record in records])


def tabled(records: Sequence[RunRecord], **options: Any) -> Table:
    """Return the table of records that are in no folder."""
    return make_table(framed(records), **options)
