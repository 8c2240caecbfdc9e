"""What is behind one result: settings, scores, command and environment of each of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lrtasks.record import RunRecord
from lrtasks.results.report.content import COSTS, Report, Result
from lrtasks.results.report.curves import Curves, loss_curves, run_curves
from lrtasks.results.report.pictures import predictions_panel
from lrtasks.results.report.readable import NONE, number, seconds, setting
from lrtasks.results.report.scale import above_floor
from lrtasks.results.report.slices import Breakdown, breakdowns

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Diagnostic:
    """One value that a module reports: a number, or the numbers of an array, one line for each row."""

    module: str
    name: str
    value: str
    array: str | None = None


@dataclass(frozen=True)
class Run:
    """One run of a result.

    Attributes:
        record: its record.
        score: its headline score.
        above: that score above floor.
        splits: the columns of its table of scores: splits, then floors.
        scores: name of each score, and its value in each column.
        costs: name and readable value.
        environment: name and value.
        diagnostics: what the model's modules report.
        panel: its picture of predictions as a data URI, or ``None``.
    """

    record: RunRecord
    score: float | None
    above: float | None
    splits: tuple[str, ...]
    scores: tuple[tuple[str, tuple[float | None, ...]], ...]
    costs: Pairs
    environment: Pairs
    diagnostics: list[Diagnostic]
    panel: str | None


@dataclass(frozen=True)
class Details:
    """All runs of one result, and what they share."""

    result: Result
    settings: dict[str, Pairs]
    charts: list[Curves]
    breakdowns: list[Breakdown]
    runs: list[Run]


def details(report: Report, result: Result) -> Details:
    """The details of one result, with the pictures that its runs left in their folders."""
    first = result.cell.records[0]
    budget = {"preset": first.preset, **first.budget}
    task = {"version": first.task["version"], "data": first.task.get("data"), **first.task["parameters"]}
    settings = {"Task": _pairs(task), "Model": _pairs(first.model["parameters"]), "Budget": _pairs(budget)}
    charts = [run_curves(result, report.columns[result.column].label), loss_curves(result)]
    return Details(
        result,
        settings,
        [chart for chart in charts if chart is not None],
        breakdowns([result]),
        [_run(report, result, record) for record in result.cell.records],
    )


def _run(report: Report, result: Result, record: RunRecord) -> Run:
    score = record.headline()
    columns = {**record.scores, **{f"floor: {name}": scores for name, scores in record.baselines.items()}}
    names = dict.fromkeys(name for scores in columns.values() for name in scores)
    return Run(
        record,
        score,
        above_floor(score, result.floor[1]) if score is not None and result.floor else None,
        tuple(columns),
        tuple((name, tuple(scores.get(name) for scores in columns.values())) for name in names),
        _costs(record),
        _pairs(record.environment),
        list(_diagnostics(record.diagnostics)),
        predictions_panel(report.folders[record.to_json()]),
    )


def _costs(record: RunRecord) -> Pairs:
    cost, model = record.cost, record.model
    found = {
        **{kind.label: kind.shown({**model, **cost}.get(name)) for name, kind in COSTS.items()},
        "training": seconds(cost.get("seconds")),
        "with evaluation": seconds(cost.get("seconds_with_evaluation")),
        "device": cost.get("device"),
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, NONE)]


def _pairs(settings: Mapping[str, Any]) -> Pairs:
    return [(name, setting(value)) for name, value in settings.items() if value is not None]


def _diagnostics(reported: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for module, values in reported.items():
        for name, value in values.items() if isinstance(values, dict) else [("", values)]:
            if isinstance(value, list):
                rows = list(_rows(value))
                yield Diagnostic(module, name, f"{sum(map(len, rows))} values", "\n".join(map(_joined, rows)))
            else:
                yield Diagnostic(module, name, number(value))


def _rows(array: list[Any]) -> Iterator[list[Any]]:
    """The innermost lists of nested ones."""
    if any(isinstance(item, list) for item in array):
        for item in array:
            yield from _rows(item if isinstance(item, list) else [item])
    else:
        yield array


def _joined(row: list[Any]) -> str:
    return "  ".join(map(number, row))
