"""Runs of a fraction of a second, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toys import BUDGET

import lrtasks
from lrtasks.results import RunRecord

TASK = lrtasks.make("shift", length=16, shifts=2)
OUTCOME = (
    *("status", "notes", "task", "model", "preset", "budget", "seed"),
    *("scores", "baselines", "curve", "slices", "diagnostics"),
)
"""Fields of a record."""


def run(model: Any, out: Path, task: Any = TASK, *, workers: int = 0, **arguments: Any) -> RunRecord:
    """``lrtasks.evaluate`` on the CPU, at the budget of :mod:`toys` but for what is given."""
    budget = {**BUDGET, **arguments.pop("budget", {})}
    return lrtasks.evaluate(model, task, budget=budget, out=out, workers=workers, device="cpu", quiet=True, **arguments)


def folders(out: Path) -> list[Path]:
    """The folders of the runs below ``out``."""
    return sorted(path for path in out.rglob("*-seed*") if path.is_dir())


def outcome(record: RunRecord) -> dict[str, Any]:
    """What must not depend on how often a run was cut off, on who made the batches, or on its start."""
    task = {name: value for name, value in record.task.items() if name != "address"}
    return {**{name: getattr(record, name) for name in OUTCOME}, "task": task}
