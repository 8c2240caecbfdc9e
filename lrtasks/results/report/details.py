"""The details of one result: settings, scores, diagnostics, breakdowns and pictures of its runs."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lrtasks.record import MAX_BYTES, PANEL, RunRecord, score_name
from lrtasks.results.formats import number
from lrtasks.results.report.content import Result

Pairs = list[tuple[str, str]]

MAX_WIDTH = 720
"""Maximum width in pixels of a run's picture; wider pictures are made smaller."""


@dataclass(frozen=True)
class Breakdown:
    """One breakdown of some results on one task.

    Attributes:
        name: name of the breakdown.
        score: name of the score.
        labels: labels of the groups, in order.
        elements: number of test elements in each group; ``None`` if the runs have different numbers.
        values: by a result's ``id``, the mean score over seeds in each group, ``None`` where there is no score.
    """

    name: str
    score: str
    labels: tuple[str | int | float, ...]
    elements: tuple[int | None, ...]
    values: dict[str, tuple[float | None, ...]]


def breakdowns(results: Sequence[Result]) -> list[Breakdown]:
    """Return all breakdowns of the results; numeric labels are sorted, others keep the order of the runs."""
    rows = [
        (name, result.id, row["label"], score_name(group), row)
        for result in results
        for record in result.records
        for name, group in record.filled_slices().items()
        for row in group
    ]
    made = []
    for name in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == name]
        labels = list(dict.fromkeys(label for _, _, label, _, _ in own))
        if all(isinstance(label, int | float) for label in labels):
            labels.sort()
        score = own[0][3]
        elements = [{row.get("elements") for _, _, label, _, row in own if label == wanted} for wanted in labels]
        scores: dict[tuple[str, Any], list[float]] = {}
        for _, id_, label, _, row in own:
            if row.get(score) is not None:
                scores.setdefault((id_, label), []).append(row[score])
        means = {place: float(np.mean(values)) for place, values in scores.items()}
        values = {result.id: tuple(means.get((result.id, label)) for label in labels) for result in results}
        counts = tuple(next(iter(found)) if len(found) == 1 else None for found in elements)
        made.append(Breakdown(name, score, tuple(labels), counts, values))
    return made


def settings_of(result: Result) -> dict[str, Pairs]:
    """Return the settings of a result's runs: task, model and budget."""
    first = result.records[0]
    task = {"version": first.task["version"], "data": first.task.get("data"), **first.task["parameters"]}
    budget = {"preset": first.preset, **first.budget}
    return {"Task": pairs_of(task), "Model": pairs_of(first.model["parameters"]), "Budget": pairs_of(budget)}


def costs_of(record: RunRecord) -> Pairs:
    """Return the known costs of one run."""
    found = {**record.cost, **record.model}
    device = found.get("device", "")
    units = {
        "time per step": ("seconds_per_step", "s"),
        "training": ("seconds", "s"),
        "with evaluation": ("seconds_with_evaluation", "s"),
        "parameters": ("count", ""),
        "streaming state": ("state_bytes", "B"),
        f"peak memory{' of the process' if device.startswith('cpu') else ''}": ("peak_memory_bytes", "B"),
    }
    costs = {name: number(found.get(cost), unit=unit) for name, (cost, unit) in units.items()}
    return [(name, value) for name, value in {**costs, "device": device}.items() if value]


def scores_of(record: RunRecord) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Return the scores of one run as a table: splits and baselines as columns, score names as rows."""
    columns = {**record.scores, **{f"baseline: {name}": scores for name, scores in record.baselines.items()}}
    names = dict.fromkeys(name for scores in columns.values() for name in scores)
    return list(columns), [(name, [scores.get(name) for scores in columns.values()]) for name in names]


def predictions_of(folder: Path) -> str | None:
    """Return a run's picture of predictions, made smaller, as a data URI; ``None`` if no picture can be read."""
    path = folder / PANEL
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        with Image.open(path, formats=["PNG"]) as image:
            picture = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # a damaged picture must not prevent the report
    picture.thumbnail((MAX_WIDTH, 10 * MAX_WIDTH))
    return data_uri(picture)


def data_uri(picture: Image.Image) -> str:
    """Return a picture, reduced to 64 colours, as a data URI (PNG)."""
    buffer = io.BytesIO()
    picture.quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def pairs_of(settings: Mapping[str, Any]) -> Pairs:
    """Return names and texts of the settings that have a value."""
    return [(name, as_text(value)) for name, value in settings.items() if value is not None]


def as_text(value: Any) -> str:
    """Return a setting as JSON, but texts without quotes."""
    return value if isinstance(value, str) else json.dumps(value)
