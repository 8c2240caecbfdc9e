"""Runs of a fraction of a second, and their folders and records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from toys import BUDGET

import lrtasks
from lrtasks.results import RunRecord

TASK = lrtasks.make("shift", length=16, shifts=2)
OWN_LENGTHS = {"test_lengths": None}
OUTCOME = (
    *("status", "notes", "task", "model", "preset", "budget", "seed"),
    *("scores", "baselines", "curve", "slices", "diagnostics"),
)
"""Fields of a record that :func:`outcome` compares."""


def run(model: Any, out: Path, task: Any = TASK, *, workers: int = 0, **arguments: Any) -> RunRecord:
    """Run ``lrtasks.evaluate`` on the CPU with the budget of :mod:`toys`, changed by ``budget`` if given.

    There are no tests at other lengths, which take half the time; ``budget=OWN_LENGTHS`` asks for those of the task.
    """
    budget = {**BUDGET, "test_lengths": (), **arguments.pop("budget", {})}
    return lrtasks.evaluate(model, task, budget=budget, out=out, workers=workers, device="cpu", quiet=True, **arguments)


@contextmanager
def cut_off(
    monkeypatch: pytest.MonkeyPatch, function: str, by: type[BaseException] = KeyboardInterrupt
) -> Iterator[None]:
    """Within the context, the function of this address raises ``by`` where it is called, and that ends the context."""

    def ended(*_: Any, **__: Any) -> None:
        raise by("ended")

    with monkeypatch.context() as patch, pytest.raises(by):
        patch.setattr(function, ended)
        yield


def folders(out: Path) -> list[Path]:
    """Return the run folders below ``out``."""
    return sorted(path for path in out.rglob("*-seed*") if path.is_dir())


def outcome(record: RunRecord) -> dict[str, Any]:
    """Return the parts of a record that must not depend on interruptions, on workers, or on how the run was started."""
    task = {name: value for name, value in record.task.items() if name != "address"}
    return {**{name: getattr(record, name) for name in OUTCOME}, "task": task}
