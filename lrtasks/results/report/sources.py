"""What a report is made of: the records below some folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lrtasks.record import RunRecord
from lrtasks.results.frame import read_runs


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
    runs, left_out = read_runs(folders)
    return Sources(tuple(runs), tuple(left_out))
