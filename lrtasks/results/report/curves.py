"""Learning curves and scores over length, for one task or one result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from lrtasks.record import RunRecord
from lrtasks.results.report.axes import Axis, axis_for
from lrtasks.results.report.charts import Series, line_chart, score_axis
from lrtasks.results.report.content import Report, Result
from lrtasks.results.report.readable import score
from lrtasks.results.settings import key, shared_budget, task_settings

SIZE = "length"
"""The task parameter over which scores are drawn."""


@dataclass(frozen=True)
class Curves:
    """A chart and the values it is drawn from.

    Attributes:
        title: what it shows.
        x_label: what the columns of the table are.
        svg: the chart.
        places: the x values, the columns of the table.
        rows: for each line its name, the result to which it leads and its value at each place, ``None`` where it has
            none.
    """

    title: str
    x_label: str
    svg: Markup
    places: tuple[float, ...]
    rows: tuple[tuple[str, str | None, tuple[float | None, ...]], ...]


def score_curves(results: Sequence[Result], names: Mapping[str, str]) -> Curves | None:
    """Validation scores over training steps of some results on one task, means over seeds; ``None`` if there are none.

    Args:
        results: results of one row.
        names: by a result's ``id``, what its line is called.
    """
    metric = next((result.cell.metric for result in results), "")
    series = [Series(names[result.id], _means(result, metric), result.column, result.id) for result in results]
    several = any(len(result.cell.records) > 1 for result in results)
    title = f"Validation {metric} while training{', mean over seeds' if several else ''}"
    return _score_curves(title, series, results)


def run_curves(result: Result, name: str) -> Curves | None:
    """Validation scores over training steps of each run of a result called ``name``; ``None`` if there are none."""
    metric = result.cell.metric
    series = [
        Series(_run_name(name, result, record), _points(record, metric), number)
        for number, record in enumerate(result.cell.records)
    ]
    return _score_curves(f"Validation {metric} while training", series, [result])


def _score_curves(title: str, series: Sequence[Series], results: Sequence[Result]) -> Curves | None:
    series = [line for line in series if any(y is not None for _, y in line.points)]
    if not series:
        return None
    floor = next((result.floor for result in results if result.floor), None)
    marks = {f"floor: {floor[0]}": floor[1]} if floor else {}
    return _curves(title, series, "step", results[0].cell.metric, marks, _steps(series))


def loss_curves(result: Result) -> Curves | None:
    """Training loss over steps of each run of a result, on a logarithmic axis; ``None`` if there is none above 0."""
    series = [
        Series(_run_name("loss", result, record), [(x, _positive(y)) for x, y in _points(record, "loss")], number)
        for number, record in enumerate(result.cell.records)
    ]
    series = [line for line in series if any(y is not None for _, y in line.points)]
    if not series:
        return None
    svg = line_chart(
        series,
        description=f"Training loss over {_steps(series).high:g} steps",
        x_label="step",
        y_label="training loss",
        x=_steps(series),
        y=axis_for((y for line in series for _, y in line.points if y is not None), log=True),
    )
    return _with_values("Training loss", "step", svg, series)


def length_curves(report: Report, name: str) -> list[Curves]:
    """Test scores over the length of a task, for the runs of this task that differ in length alone."""
    groups: dict[str, dict[int, list[tuple[float, Result]]]] = {}
    for result in report.results.values():
        record = result.cell.records[0]
        length = record.task["parameters"].get(SIZE)
        if record.task["name"] == name and isinstance(length, int) and length > 0 and result.score is not None:
            groups.setdefault(_apart_from_length(record), {}).setdefault(result.column, []).append((length, result))
    drawn = []
    for columns in groups.values():
        if max(len(points) for points in columns.values()) > 1:
            drawn.append(_length_chart(report, columns))
    return drawn


def _length_chart(report: Report, columns: Mapping[int, Sequence[tuple[float, Result]]]) -> Curves:
    series = [
        Series(report.columns[column].label, [(x, result.score) for x, result in sorted(points, key=_length)], column)
        for column, points in sorted(columns.items())
    ]
    results = [result for points in columns.values() for _, result in points]
    floors = [result.floor for result in results if result.floor]
    # a floor that changes with the length is no one level
    level = {f"floor: {floors[0][0]}": floors[0][1]} if floors and _steady(floors) else {}
    metric = results[0].cell.metric
    lengths = sorted({x for points in columns.values() for x, _ in points})
    return _curves(f"Test {metric} over length", series, SIZE, metric, level, axis_for(lengths, log=True), lengths)


def _length(point: tuple[float, Result]) -> float:
    return point[0]


def _steady(floors: Sequence[tuple[str, float]]) -> bool:
    values = [value for _, value in floors]
    return len({name for name, _ in floors}) == 1 and max(values) - min(values) < 0.02


def _apart_from_length(record: RunRecord) -> str:
    """Task and budget without the length, as text."""
    settings = {**task_settings(record), **shared_budget(record)}
    return key({name: value for name, value in settings.items() if name != f"task {SIZE}"})


def _curves(
    title: str,
    series: Sequence[Series],
    x_label: str,
    metric: str,
    marks: Mapping[str, float],
    x: Axis,
    x_ticks: Sequence[float] | None = None,
) -> Curves:
    best = max(series, key=lambda line: -math.inf if _last(line) is None else _last(line))
    lines = "1 line" if len(series) == 1 else f"{len(series)} lines"
    svg = line_chart(
        series,
        description=f"{title}: {lines}; the highest at its end is {best.label} with {score(_last(best))}",
        x_label=x_label,
        y_label=metric,
        x=x,
        y=score_axis(series, marks),
        x_ticks=x_ticks,
        marks=marks,
    )
    return _with_values(title, x_label, svg, series)


def _with_values(title: str, x_label: str, svg: Markup, series: Sequence[Series]) -> Curves:
    places = sorted({x for line in series for x, _ in line.points})
    rows = []
    for line in series:
        values = dict(line.points)
        rows.append((line.label, line.result, tuple(values.get(place) for place in places)))
    return Curves(title, x_label, svg, tuple(places), tuple(rows))


def _points(record: RunRecord, name: str) -> list[tuple[float, float | None]]:
    return [(point["step"], point.get(name)) for point in record.curve]


def _means(result: Result, name: str) -> list[tuple[float, float | None]]:
    """At each step the mean over the runs that have a value there."""
    found: dict[float, list[float]] = {}
    for record in result.cell.records:
        for step, value in _points(record, name):
            found.setdefault(step, []).extend([] if value is None else [value])
    return [(step, float(np.mean(values)) if values else None) for step, values in sorted(found.items())]


def _run_name(name: str, result: Result, record: RunRecord) -> str:
    return name if len(result.cell.records) == 1 else f"{name}, seed {record.seed}"


def _last(line: Series) -> Any:
    return line.points[-1][1]


def _steps(series: Sequence[Series]) -> Axis:
    return Axis(0, max(1, *(x for line in series for x, _ in line.points)))


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None
