"""What a report is made of: the records below some folders, each checked for what the page reads from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.record import FILE, RunRecord, read_records

LARGEST = 1e100
"""No score, loss or cost comes near it, and what is computed from smaller numbers stays finite."""


@dataclass(frozen=True)
class Sources:
    """Records and where they lie.

    Attributes:
        runs: ``(folder, record)`` pairs; a folder counts once, however many of the given folders hold it.
        left_out: one line for each file that is no record.
    """

    runs: tuple[tuple[Path, RunRecord], ...]
    left_out: tuple[str, ...]


def read_sources(folders: Sequence[Path]) -> Sources:
    """Read all records below ``folders``.

    Raises:
        UsageError: if a folder is missing or there is no record below any.
    """
    runs: dict[Path, tuple[Path, RunRecord]] = {}
    left_out: dict[str, None] = {}
    for folder in folders:
        found, problems = read_records(folder)
        left_out.update(dict.fromkeys(problems))
        for path, record in found:
            problem = _problem(record)
            if problem is None:
                runs.setdefault(path.resolve(), (path, record))
            else:
                left_out[f"{path / FILE} is not a run record: {problem}"] = None
    if not runs:
        remark = f" ({len(left_out)} could not be read: {next(iter(left_out))})" if left_out else ""
        raise UsageError(f"no run records below {', '.join(str(folder) for folder in folders)}{remark}")
    return Sources(tuple(runs.values()), tuple(left_out))


def _problem(record: RunRecord) -> str | None:
    """What keeps a record from being shown, beyond what was checked when it was read."""
    length = record.task["parameters"].get("length")
    checks = {
        "task": length is None or (_is_number(length) and length > 0),
        "model": all(_is_number(record.model[name]) for name in ("count", "state_bytes")),
        "budget": _is_number(record.budget.get("steps")),
        "scores": all(map(_is_numbers, record.scores.values())),
        "floors": all(map(_is_numbers, record.baselines.values())),
        "curve": all(_is_numbers(point) and point.get("step") is not None for point in record.curve),
        "slices": all(isinstance(rows, list) and all(map(_is_slice, rows)) for rows in record.slices.values()),
        "cost": _is_numbers({name: value for name, value in record.cost.items() if name != "device"}),
        "notes": all(isinstance(note, str) for note in record.notes),
    }
    broken = next((name for name, holds in checks.items() if not holds), None)
    return None if broken is None else f"{broken!r} has entries of another form, or numbers beyond {LARGEST:g}"


def _is_slice(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("label"), (str, int, float))
        and any(name not in ("label", "elements") for name in row)
        and _is_numbers({name: value for name, value in row.items() if name != "label"})
    )


def _is_numbers(values: Any) -> bool:
    return isinstance(values, Mapping) and all(map(_is_number, values.values()))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and abs(value) < LARGEST)
