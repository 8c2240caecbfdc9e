"""Tasks × models from run records, with floors and the papers' figures beside ours.

Records are merged to one cell only if they differ in nothing but the seed. Where a cell would hold runs of several
budgets or settings, it is split: rows are labelled by what differs in task and budget, columns by what differs in the
model's own settings.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrtasks.errors import UsageError
from lrtasks.results.records import RunRecord
from lrtasks.results.reported import Figure, reported_figure

SHARED_BUDGET = ("steps", "batch_size", "train_samples", "val_batches", "test_batches", "stop_at", "precision")
"""Budget fields in which compared models must agree; the others (learning rate, ...) belong to a model's tuning."""


@dataclass(frozen=True)
class Cell:
    """All seeds of one task, budget and model."""

    records: tuple[RunRecord, ...]

    @property
    def metric(self) -> str:
        """Name of the headline score."""
        return str(self.records[0].task["metric"])

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs; one that is there twice has two different outcomes (on two machines, say)."""
        return [record.seed for record in self.records]

    def values(self, score: str) -> list[float]:
        """One test score of each seed that has it."""
        found = [record.scores.get("test", {}).get(score) for record in self.records]
        return [value for value in found if value is not None and math.isfinite(value)]

    @property
    def floor(self) -> tuple[str, float] | None:
        """Name and headline score of the best trivial predictor, from the first seed that has one."""
        floors = next((record.floors for record in self.records if record.floors), {})
        scored = [(name, scores[self.metric]) for name, scores in floors.items() if scores.get(self.metric) is not None]
        return max(scored, key=lambda item: item[1], default=None)

    @property
    def paper(self) -> Figure | None:
        """The paper's figure."""
        return reported_figure(self.records[0])

    def row(self) -> dict[str, Any]:
        """The cell as one flat entry, for CSV and JSON."""
        first, values, paper, floor = self.records[0], self.values(self.metric), self.paper, self.floor
        return {
            "task": first.task["name"],
            "task_version": first.task["version"],
            "task_parameters": first.task["parameters"],
            "model": first.model["name"],
            "model_parameters": first.model["parameters"],
            "preset": first.preset,
            "budget": first.budget,
            "metric": self.metric,
            "score": float(np.mean(values)) if values else None,
            "score_std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "batch_mean": _mean(self.values(f"{self.metric}_batch_mean")),
            "seeds": self.seeds,
            "statuses": [record.status for record in self.records],
            "floor": floor[1] if floor else None,
            "floor_name": floor[0] if floor else None,
            "paper": paper.value if paper else None,
            "paper_source": paper.source if paper else None,
            "paper_where": paper.where if paper else None,
            "parameter_count": first.model["count"],
            "state_bytes": first.model["state_bytes"],
            "seconds_per_step": _mean([r.cost["seconds_per_step"] for r in self.records if r.cost]),
        }

    def shown(self) -> str:
        """The cell's score as a reader wants it."""
        values = self.values(self.metric)
        if not values:
            return "/".join(sorted({record.status for record in self.records}))
        spread = f" ±{np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        others = Counter(record.status for record in self.records if record.status != "done")
        remarks = [f"{count} {status}" for status, count in sorted(others.items())]
        remarks += [f"seed {seed} {count} times" for seed, count in Counter(self.seeds).items() if count > 1]
        return f"{np.mean(values):.3f}{spread}" + (f" ({', '.join(remarks)})" if remarks else "")


@dataclass(frozen=True)
class Table:
    """A grid of cells with labelled rows and columns; cells may be missing."""

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: Mapping[tuple[int, int], Cell]

    def rows(self) -> list[dict[str, Any]]:
        """One flat entry per cell."""
        return [self.cells[key].row() for key in sorted(self.cells)]

    def grid(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of text: task, metric, floor, then for each model ours and the paper's."""
        has_paper = {column for (_, column), cell in self.cells.items() if cell.paper}
        header = ["task", "metric", "floor"]
        for column, label in enumerate(self.column_labels):
            header += [label, "paper"] if column in has_paper else [label]
        lines = []
        for row, label in enumerate(self.row_labels):
            present = [
                self.cells[row, column] for column in range(len(self.column_labels)) if (row, column) in self.cells
            ]
            floor = next((cell.floor for cell in present if cell.floor), None)
            line = [label, present[0].metric, f"{floor[1]:.3f} {floor[0]}" if floor else ""]
            for column in range(len(self.column_labels)):
                cell = self.cells.get((row, column))
                line.append(cell.shown() if cell else "")
                if column in has_paper:
                    line.append(f"{cell.paper.value:g}" if cell and cell.paper else "")
            lines.append(line)
        return header, lines

    def caption(self) -> str:
        """What the paper's figures are, as they are not measured under our conditions."""
        figures = [cell.paper for cell in self.cells.values() if cell.paper]
        sources = sorted({f"{figure.source} ({figure.where}, averaged over batches)" for figure in figures})
        return f"paper: {'; '.join(sources)}" if sources else ""

    def text(self) -> str:
        """The grid for a terminal, columns aligned."""
        header, lines = self.grid()
        widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
        body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in [header, *lines]
        ]
        return "\n".join([*body, *([self.caption()] if self.caption() else [])])

    def markdown(self) -> str:
        """The grid as a Markdown table."""
        header, lines = self.grid()
        rows = [header, ["---"] * len(header), *lines]
        body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
        return f"{body}\n\n{self.caption()}" if self.caption() else body

    def csv(self) -> str:
        """One line per cell; nested values are JSON."""
        rows = self.rows()
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: json.dumps(value) if isinstance(value, (dict, list)) else value for key, value in row.items()}
            )
        return buffer.getvalue().rstrip("\n")


def make_table(records: Sequence[RunRecord]) -> Table:
    """Arrange records as tasks × models; see the module's own words on what is merged. Copies of a record count once.

    Raises:
        UsageError: if there are none.
    """
    if not records:
        raise UsageError("a table needs at least one run record")
    records = list({record.to_json(): record for record in records}.values())
    row_settings: dict[str, dict[str, Any]] = {}
    column_settings: dict[str, dict[str, Any]] = {}
    grouped: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        row, column = _row(record), _column(record)
        row_key, column_key = json.dumps(row, sort_keys=True), json.dumps(column, sort_keys=True)
        row_settings[row_key], column_settings[column_key] = row, column
        grouped.setdefault((row_key, column_key), []).append(record)
    columns = _merge_columns(column_settings, grouped)
    row_labels = dict(zip(row_settings, _labels(list(row_settings.values())), strict=True))
    row_keys = sorted(row_settings, key=lambda key: _by_number(row_labels[key]))
    labels = sorted(set(columns.values()), key=_by_number)
    cells = {
        (row_keys.index(row_key), labels.index(columns[column_key])): Cell(
            tuple(sorted(members, key=lambda record: record.seed))
        )
        for (row_key, column_key), members in grouped.items()
    }
    return Table(tuple(row_labels[key] for key in row_keys), tuple(labels), cells)


def _row(record: RunRecord) -> dict[str, Any]:
    task = record.task
    parameters = {f"task {name}": value for name, value in task["parameters"].items()}
    shared = {name: record.budget.get(name) for name in SHARED_BUDGET}
    return _said({"name": task["name"], **parameters, "version": task["version"], "data": task.get("data"), **shared})


def _column(record: RunRecord) -> dict[str, Any]:
    model = record.model
    parameters = {f"model {name}": value for name, value in model["parameters"].items()}
    tuning = {name: value for name, value in record.budget.items() if name not in SHARED_BUDGET}
    return _said({"name": model["name"], **parameters, **tuning, "structure": model.get("structure")})


def _said(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what is none: a record from before a setting existed is one that does not use it."""
    return {name: value for name, value in settings.items() if value is not None}


def _merge_columns(settings: Mapping[str, Mapping[str, Any]], grouped: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """Label each column key; settings that never meet in one row (a preset's own for one task) share a column."""
    conflicts: dict[str, set[str]] = {}
    for row_key in {row for row, _ in grouped}:
        here = [column for row, column in grouped if row == row_key]
        for key in here:
            others = [other for other in here if settings[other]["name"] == settings[key]["name"]]
            conflicts.setdefault(key, set()).update(_differing([settings[other] for other in others]))
    by_name: dict[str, set[str]] = {}
    for key, names in conflicts.items():
        by_name.setdefault(settings[key]["name"], set()).update(names)
    return {key: _label(settings[key], sorted(by_name[settings[key]["name"]])) for key in settings}


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label rows by name and by what differs among those of one name."""
    labels = []
    for entry in settings:
        alike = [other for other in settings if other["name"] == entry["name"]]
        labels.append(_label(entry, sorted(_differing(alike))))
    return labels


def _by_number(label: str) -> list[tuple[float, str]]:
    """Sort key: runs of digits count as numbers, so that length=1024 comes after length=256."""
    return [(float(part) if part.isdigit() else math.inf, part) for part in re.split(r"(\d+)", label)]


def _differing(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    names = {name for entry in settings for name in entry}
    return {name for name in names if len({json.dumps(entry.get(name)) for entry in settings}) > 1}


def _label(entry: Mapping[str, Any], names: Iterable[str]) -> str:
    shown = ", ".join(f"{name.split(' ')[-1]}={entry.get(name)}" for name in names)
    return f"{entry['name']} ({shown})" if shown else str(entry["name"])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
