"""Error analyses: the test score within each group of a breakdown, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrtasks.record import score_name
from lrtasks.results.report.content import Result

Label = str | int | float


@dataclass(frozen=True)
class Breakdown:
    """One breakdown of some results on one task.

    Attributes:
        name: what the score is broken down by.
        score: name of the score.
        labels: the groups, in order.
        elements: how many elements of the test set are in each group, where the runs agree on it.
        values: by a result's ``id``, its score in each group, ``None`` where it has none.
    """

    name: str
    score: str
    labels: tuple[Label, ...]
    elements: tuple[int | None, ...]
    values: dict[str, tuple[float | None, ...]]


def breakdowns(results: Sequence[Result]) -> list[Breakdown]:
    """All breakdowns that any of the results has."""
    names = dict.fromkeys(
        name for result in results for record in result.cell.records for name in record.filled_slices()
    )
    return [_breakdown(name, results) for name in names]


def _breakdown(name: str, results: Sequence[Result]) -> Breakdown:
    rows = {result.id: _rows(name, result) for result in results}
    found = [row for own in rows.values() for row in own]
    score = score_name(found)
    labels = _sorted(list(dict.fromkeys(row["label"] for row in found)))
    elements = [{row.get("elements") for row in found if row["label"] == label} for label in labels]
    values = {id_: tuple(_mean(own, label, score) for label in labels) for id_, own in rows.items() if own}
    return Breakdown(
        name, score, tuple(labels), tuple(counts.pop() if len(counts) == 1 else None for counts in elements), values
    )


def _rows(name: str, result: Result) -> list[dict[str, Any]]:
    return [row for record in result.cell.records for row in record.slices.get(name, [])]


def _mean(rows: Sequence[dict[str, Any]], label: Label, score: str) -> float | None:
    found = [row.get(score) for row in rows if row["label"] == label]
    values = [value for value in found if value is not None]
    return float(np.mean(values)) if values else None


def _sorted(labels: list[Label]) -> list[Label]:
    """Numbers by size; words as the runs have them."""
    return sorted(labels) if all(isinstance(label, (int, float)) for label in labels) else labels
