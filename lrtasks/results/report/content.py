"""The content of the report page: results by task and model, in the order in which the page shows them."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from lrtasks.record import MAX_BYTES, NOT_COMPARABLE, PANEL, STATUSES, RunRecord, score_name
from lrtasks.results.formats import number
from lrtasks.results.frame import make_frame
from lrtasks.results.table import CELL, Row, aggregate, arrange, plain_rows, unscored

COSTS = {
    "seconds_per_step": ("time per step", "s"),
    "state_bytes": ("streaming state", "B"),
    "parameter_count": ("parameters", ""),
    "peak_memory_bytes": ("peak device memory", "B"),
}
"""Costs of a result: column of the frame, title, unit. CPU peak memory is left out: the interpreter has most of it."""


Pairs = list[tuple[str, str]]
MAX_WIDTH = 720
"""Maximum width in pixels of a run's image of predictions; wider images are made smaller."""
STATES = {
    "diverged": ("div.", "diverged: loss, weights or predictions were not finite"),
    "failed": ("failed", "the run ended with an error"),
    "interrupted": ("stopped", "the process ended before the run was finished"),
    "running": ("running", "not finished"),
    "nan": ("NaN", "the score is not a number"),
    "unscored": ("none", "the record lacks the score"),
    "scored": ("–", "no floor to compare the score with"),
}
"""Texts of heat map cells without a scaled score, and their meanings."""


@dataclass(frozen=True)
class Result:
    """The result of one model on one task: a cell of the heat map.

    Attributes:
        id: name of the result's details within the page, made of letters, digits and dashes.
        cell: aggregate of the runs (:func:`lrtasks.results.table.aggregate`), which differ in nothing but the seed.
        runs: rows of the frame, one per run.
        scaled: scaled score; ``None`` without a score or without a floor.
        state: ``scored``, or the reason for a missing score: one of :data:`STATES`.
        score: median of the headline score over the seeds that have one.
    """

    id: str
    row: int
    column: int
    cell: Row
    runs: Sequence[Row]
    records: tuple[RunRecord, ...]
    folders: tuple[Path, ...]
    scaled: float | None
    state: str
    score: float | None

    @property
    def solved(self) -> str:
        """Solved seeds of all seeds (``2/3``), or all seeds without a scaled score (``×3``); empty for one seed."""
        solved, seeds = self.cell["solved"], self.cell["different_seeds"]
        if seeds == 1 or self.score is None:
            return ""
        return f"×{seeds}" if solved is None else f"{solved:.0f}/{seeds}"

    @cached_property
    def costs(self) -> dict[str, float]:
        """The known costs of :data:`COSTS`."""
        on_cpu = any(device.startswith("cpu") for device in self.cell["devices"])
        return {
            name: self.cell[name]
            for name in COSTS
            if self.cell[name] is not None and not (on_cpu and name == "peak_memory_bytes")
        }

    @property
    def remarks(self) -> list[str]:
        """Remarks on a score: runs of the cell that do not count in it, and whether it is not comparable."""
        if self.score is None:
            return []
        unfair = [NOT_COMPARABLE] if self.cell["not_causal"] else []
        return [*unscored(self.cell, "without a score", f" of {len(self.records)} runs "), *unfair]


@dataclass(frozen=True)
class Axis:
    """A task under one budget (a row of the heat map), or a model under one setting (a column).

    Attributes:
        id: name of its section or row within the page.
        label: name, and the settings that distinguish it from others of the same name.
        name: name of the task or model.
        cell: one of its cells, for what all of them share: a task's metric and floor.
    """

    id: str
    label: str
    name: str
    cell: Row

    @property
    def settings(self) -> str:
        """The text in brackets after the name in the label."""
        return self.label.removeprefix(self.name).strip().removeprefix("(").removesuffix(")")


@dataclass(frozen=True)
class Report:
    """Everything that the page shows.

    Attributes:
        rows: tasks, those with the highest scores first.
        columns: models, those with the highest scores first.
        results: results by number of row and column; a model without runs on a task has no entry.
        left_out: one line for each file that could not be read.
    """

    rows: Sequence[Axis]
    columns: Sequence[Axis]
    results: Mapping[tuple[int, int], Result]
    left_out: Sequence[str]

    @cached_property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status."""
        found = Counter(record.status for result in self.results.values() for record in result.records)
        return {status: found[status] for status in ("done", *STATUSES) if found[status]}

    @cached_property
    def devices(self) -> list[str]:
        """Devices on which the runs were timed."""
        return sorted({device for result in self.results.values() for device in result.cell["devices"]})

    @cached_property
    def costs(self) -> dict[str, tuple[str, str]]:
        """The costs of :data:`COSTS` that at least one result has."""
        known = {name for result in self.results.values() for name in result.costs}
        return {name: cost for name, cost in COSTS.items() if name in known}

    def states(self) -> list[str]:
        """Return the states of the cells without a scaled score, in the order of :data:`STATES`."""
        found = {result.state for result in self.results.values() if result.scaled is None}
        return [name for name in STATES if name in found]

    def in_row(self, *rows: int) -> list[Result]:
        """Return the results in some rows, best score first, results without a score last."""
        found = [result for (place, _), result in self.results.items() if place in rows]
        return sorted(found, key=lambda result: (result.score is None, -(result.score or 0.0)))

    def tasks(self) -> dict[str, list[int]]:
        """Return the numbers of the rows of each task, by the task's name."""
        found: dict[str, list[int]] = {}
        for place, row in enumerate(self.rows):
            found.setdefault(row.name, []).append(place)
        return found


def make_report(
    runs: Sequence[tuple[Path, RunRecord]], left_out: Sequence[str] = (), *, unequal_budgets: bool = False
) -> Report:
    """Arrange runs as tasks × models, best first in both directions (:func:`lrtasks.results.table.make_table`).

    Args:
        runs: folders and records, as :func:`lrtasks.results.frame.read_runs` returns them, with its lines ``left_out``.
        unequal_budgets: allow runs with unequal budgets on one task, in separate rows.

    Raises:
        UsageError: if runs on one task had unequal budgets and ``unequal_budgets`` does not allow it.
    """
    arranged = arrange(make_frame(runs), unequal_budgets=unequal_budgets)
    cells = aggregate(arranged)
    orders = {axis: _best_first(cells, axis) for axis in CELL}
    for axis, order in orders.items():
        cells[axis] = cells[axis].cat.reorder_categories(pd.Index(order, dtype=object))
    runs_of = {place: own.index for place, own in arranged.groupby(CELL, observed=True)}
    plain = dict(zip(arranged.index, plain_rows(arranged), strict=True))
    name, results = _namer(), {}
    for cell in plain_rows(cells.sort_values(CELL)):
        place = orders["row"].get_loc(cell["row"]), orders["column"].get_loc(cell["column"])
        own = runs_of[cell["row"], cell["column"]]
        folders, records = zip(*(runs[number] for number in own), strict=True)
        results[place] = Result(
            name(cell["row"], cell["column"]),
            *place,
            cell,
            [plain[number] for number in own],
            records,
            folders,
            cell["scaled_median"],
            "scored" if cell["scored"] else _state(records),
            cell["median"],
        )
    axes = []
    for axis, kind in zip(CELL, ("task", "model"), strict=True):
        shared = {result.cell[axis]: result.cell for result in results.values()}
        axes.append([Axis(name(kind, label), label, shared[label][kind], shared[label]) for label in orders[axis]])
    rows, columns = axes
    return Report(rows, columns, results, left_out)


def _best_first(cells: pd.DataFrame, axis: str) -> pd.Index:
    """Return the labels by decreasing sum of scaled scores, each limited to 0..1; a missing result adds nothing."""
    limited = cells["scaled_median"].clip(0, 1).fillna(0)
    # fsum is exact, so the order of the records does not change the sum
    sums = limited.groupby(cells[axis], observed=True).agg(math.fsum)
    return sums.sort_values(ascending=False, kind="stable").index.astype(object)


def _state(records: Sequence[RunRecord]) -> str:
    """Return the state of a cell without a score: the reason for the missing score."""
    statuses = {record.status for record in records}
    found = [status for status in ("diverged", "failed", "running", "interrupted") if status in statuses]
    has_one = any(record.task["metric"] in record.scores.get("test", {}) for record in records)
    return found[0] if found else "nan" if has_one else "unscored"


def _namer() -> Callable[..., str]:
    """Return a function that makes unique names within the page from letters, digits and dashes of its arguments."""
    taken = set[str]()

    def name(*parts: str) -> str:
        stem = "--".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") or "x" for part in parts)
        free = (text for text in (stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))) if text not in taken)
        taken.add(found := next(free))
        return found

    return name


def two_digits(value: float | None) -> str:
    """Return a scaled score with two decimals; any score below -1 is shown as ``< -1``.

    >>> two_digits(0.987), two_digits(-69.0), two_digits(None)
    ('0.99', '< -1', '')
    """
    return "< -1" if value is not None and value < -1 else number(value, 2)


# The details of one result


@dataclass(frozen=True)
class Slice:
    """One slice of some results on one task.

    Attributes:
        labels: labels of the groups, in order.
        elements: number of test elements in each group; ``None`` if the runs have different numbers.
        values: by a result's ``id``, the median score in each group over the runs that are done (over all runs, if none
            is done), ``None`` where there is no score.
    """

    name: str
    score: str
    labels: Sequence[str | int | float]
    elements: Sequence[int | None]
    values: Mapping[str, Sequence[float | None]]


def slices(results: Sequence[Result]) -> list[Slice]:
    """Return all slices of the results; numeric labels are sorted, others keep the order of the runs."""
    groups: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for result in results:
        # a run that failed after its test does not count in the score either
        done = [record for record in result.records if record.status == "done"]
        for record in done or result.records:
            for name, rows in record.filled_slices().items():
                groups.setdefault(name, []).extend((result.id, row) for row in rows)
    made = []
    for name, own in groups.items():
        labels = list(dict.fromkeys(row["label"] for _, row in own))
        if all(isinstance(label, int | float) for label in labels):
            labels.sort()
        score = score_name([own[0][1]])
        scores: dict[tuple[str, Any], list[float]] = {}
        counts: dict[Any, set[int | None]] = {}
        for id_, row in own:
            counts.setdefault(row["label"], set()).add(row.get("elements"))
            if row.get(score) is not None:
                scores.setdefault((id_, row["label"]), []).append(row[score])
        medians = {place: float(np.median(found)) for place, found in scores.items()}
        values = {result.id: [medians.get((result.id, label)) for label in labels] for result in results}
        elements = [next(iter(counts[label])) if len(counts[label]) == 1 else None for label in labels]
        made.append(Slice(name, score, labels, elements, values))
    return made


def settings_of(result: Result) -> dict[str, Pairs]:
    """Return the settings of a result's runs: task, model and budget."""
    runs = result.records
    tasks = [{"version": run.task["version"], "data": run.task.get("data"), **run.task["parameters"]} for run in runs]
    models, budgets = [run.model["parameters"] for run in runs], [{"preset": run.preset, **run.budget} for run in runs]
    return {"Task": pairs_of(*tasks), "Model": pairs_of(*models), "Budget": pairs_of(*budgets)}


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
    """Return a run's image of predictions, made smaller, as a data URI; ``None`` if no image can be read."""
    path = folder / PANEL
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        with Image.open(path, formats=["PNG"]) as stored:
            image = stored.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # a damaged image must not prevent the report
    image.thumbnail((MAX_WIDTH, 10 * MAX_WIDTH))
    return data_uri(image)


def data_uri(image: Image.Image) -> str:
    """Return an image, reduced to 64 colours, as a data URI (PNG)."""
    buffer = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def pairs_of(*settings: Mapping[str, Any]) -> Pairs:
    """Return names and texts of the settings of some runs that are not ``None``; different values make one text."""
    found: dict[str, dict[str, None]] = {}
    for name, value in (entry for own in settings for entry in own.items()):
        if value is not None:
            found.setdefault(name, {})[as_text(value)] = None
    return [(name, " or ".join(texts)) for name, texts in found.items()]


def as_text(value: Any) -> str:
    """Return a setting as JSON, but texts without quotes."""
    return value if isinstance(value, str) else json.dumps(value)
