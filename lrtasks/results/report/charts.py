"""The page's charts: Altair makes one Vega-Lite specification for each kind, and the page's script adds the values.

This module needs the packages of the extra ``report``. The page contains the Vega script, so it needs no network.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.metrics import TEST_SOLVED
from lrtasks.record import RunRecord
from lrtasks.results.plots import LOWEST
from lrtasks.results.report.content import COSTS, Report, Result
from lrtasks.results.settings import any_object, key, owned, settings_in
from lrtasks.results.table import Row, length_of_test

DIGITS = 5
"""Values in the page are rounded to this number of digits."""


@functools.cache
def vega() -> str:
    """Return the JavaScript of Vega, Vega-Lite and Vega-Embed, which defines ``vegaEmbed`` in the page.

    Raises:
        UsageError: if the packages are missing.
    """
    try:
        import altair
        import vl_convert
    except ImportError as error:
        raise UsageError(f"the report needs the package {error.name}: pip install 'lrtasks[report]'") from None
    version = altair.SCHEMA_VERSION.rpartition(".")[0]
    return str(vl_convert.javascript_bundle(vl_version=version))  # type: ignore[call-arg]


@functools.cache
def specifications() -> dict[str, dict[str, Any]]:
    """Return Vega-Lite specifications by kind of chart; they read the data sets ``values`` and ``floor``."""
    scores = _lines("step", "score", "mean(y):Q")
    lengths = _lines("length", "test score", "y:Q", by_length=True)
    loss = _lines("step", "training loss", "y:Q", log_y=True)
    found = {"curve": scores, "run": scores, "loss": loss, "length": lengths, "further": lengths}
    return {**found, "efficiency": _points()}


def chart_data(report: Report) -> dict[str, Any]:
    """Return the data for the page's scripts: position, scores, costs, learning curves and text of each result."""
    # results of one column that are in different rows may differ in the settings of the model
    variants = {result.id: key(any_object(settings_in(result.cell["variant"]))) for result in report.results.values()}
    numbers = {variant: number for number, variant in enumerate(dict.fromkeys(variants.values()))}
    return {
        "rows": [
            {
                "label": row.label,
                "metric": row.cell["metric"],
                "floor": _floor(row.cell),
                "length": _length(report.in_row(place)[0]),
                "relative": _length(report.in_row(place)[0]) is None and _has_place(report.in_row(place)[0]),
                "floors": further_floors(report, place),
            }
            for place, row in enumerate(report.rows)
        ],
        "columns": [{"label": column.label, "id": column.id} for column in report.columns],
        "costs": {name: unit for name, (_, unit) in COSTS.items()},
        "solved": TEST_SOLVED,
        "lowest": LOWEST,
        "results": [
            {**_result(report, result), "variant": numbers[variants[result.id]]} for result in report.results.values()
        ],
        "specs": specifications(),
    }


def length_groups(report: Report, rows: list[int]) -> list[list[int]]:
    """Return groups of two or more rows of one task that differ only in their length."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        if _length(report.in_row(row)[0]) is not None:
            settings = re.sub(r"(^|, )length=[^,]*", "", report.rows[row].settings)
            groups.setdefault(settings, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def further_scores(result: Result) -> list[tuple[int, float]]:
    """Return length and median score of the test and of each further test at another length; empty if fewer than two.

    ``2x`` is twice the task's parameter ``length``. For a task without this parameter, the length counts as 1, and
    tests with absolute lengths stand alone. Tests on stored datasets have no place.
    """
    own, stored = _length(result) or 1, _stored(result)
    found = {own: result.score} if _has_place(result) else {}
    for test, score in owned("test.", result.cell).items():
        length = None if test in stored else length_of_test(test, own)
        if length is not None and score is not None:
            found.setdefault(length, score)
    scored = sorted((length, rounded) for length, score in found.items() if (rounded := _rounded(score)) is not None)
    return scored if len(scored) > 1 else []


def further_floors(report: Report, row: int) -> list[dict[str, Any]]:
    """Return the floor at each length of :func:`further_scores`; for a further test, the median over the runs."""
    results, cell = report.in_row(row), report.rows[row].cell
    own = _length(results[0]) or 1
    found = {own: [(cell["baseline"], cell["floor"])]} if cell["floor"] is not None and _has_place(results[0]) else {}
    for record in (record for result in results for record in result.records):
        stored = record.stored_tests()
        for test in record.further_baselines:
            length, best = None if test in stored else length_of_test(test, own), record.best_baseline(test)
            if length is not None and length != own and best is not None:
                found.setdefault(length, []).append(best)
    return [
        {"x": length, "name": f"floor: {bests[0][0]}", "y": _rounded(median(score for _, score in bests))}
        for length, bests in sorted(found.items())
    ]


def _floor(cell: Row) -> dict[str, Any] | None:
    return None if cell["floor"] is None else {"name": f"floor: {cell['baseline']}", "y": _rounded(cell["floor"])}


def _length(result: Result) -> int | None:
    length = result.records[0].task["parameters"].get("length")
    return length if isinstance(length, int) and length > 0 else None


def _has_place(result: Result) -> bool:
    """Return whether the length of the test itself is known in the unit of the further tests' lengths."""
    tests = {name for record in result.records for name in record.scores} - _stored(result)
    return _length(result) is not None or not any(name.isdecimal() for name in tests)


def _stored(result: Result) -> set[str]:
    """Return the names of the tests on stored datasets."""
    return {name for record in result.records for name in record.stored_tests()}


def _result(report: Report, result: Result) -> dict[str, Any]:
    words = [report.rows[result.row].label, report.columns[result.column].label]
    for record in result.records:
        words += [record.status, record.command, *record.notes]
    return {
        "id": result.id,
        "row": result.row,
        "column": result.column,
        "scaled": _rounded(result.scaled),
        "score": _rounded(result.score),
        "tests": further_scores(result),
        "costs": {name: _rounded(value) for name, value in result.costs.items()},
        "curves": [[record.seed, _curve(record)] for record in result.records if record.curve],
        "mean_curve": _mean_curve(result.records),
        "text": " ".join(dict.fromkeys(" ".join(words).lower().split())),
    }


def _curve(record: RunRecord) -> list[list[float | None]]:
    metric = record.task["metric"]
    return [[point["step"], _rounded(point.get(metric)), _rounded(point.get("loss"))] for point in record.curve]


def _mean_curve(records: Sequence[RunRecord]) -> list[list[float | None]]:
    """Return steps and mean validation scores of the runs that are done, as in a table; of all runs if none is done."""
    records = [record for record in records if record.status == "done"] or records
    found: list[list[float | None]] = []
    for step in sorted({point["step"] for record in records for point in record.curve}):
        scores = [score for record in records if (score := record.score_at(step)) is not None]
        found.append([step, _rounded(fmean(scores)) if scores else None])
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _lines(x: str, y: str, field: str, *, by_length: bool = False, log_y: bool = False) -> dict[str, Any]:
    import altair as alt

    shown = alt.selection_point(name="shown", fields=["name"], bind="legend")
    across = alt.Scale(type="log", nice=False) if by_length else alt.Scale(zero=True, nice=False)
    up = alt.Scale(type="log") if log_y else alt.Scale(domainMax=1)
    legend = alt.Legend(orient="bottom", labelLimit=240, symbolType="stroke")
    tips: dict[str, Any] = {"name:N": {"title": " "}, "x:Q": {"title": x, "format": ","}}
    tips["mean(value):Q" if "mean" in field else "value:Q"] = {"title": y, "format": ".4~g"}
    lines = alt.Chart(alt.NamedData("values")).mark_line(point=True, strokeWidth=1.75, clip=True)
    position = alt.X("x:Q", title=x, scale=across)
    lines = lines.encode(
        x=position,
        y=alt.Y(field, title=y, scale=up),
        color=alt.Color("name:N", title=None, legend=legend),
        detail="line:N" if by_length else "result:N",
        opacity=alt.condition(shown, alt.value(1), alt.value(0.06)),
        tooltip=[alt.Tooltip(name, **how) for name, how in tips.items()],
    ).add_params(shown)
    floor = alt.Chart(alt.NamedData("floor")).encode(y="y:Q")
    dashed: dict[str, Any] = {"strokeDash": [2, 3], "color": "gray", "strokeWidth": 1}
    floors = floor.mark_line(**dashed).encode(x=position) if by_length else floor.mark_rule(**dashed)
    words = floor.mark_text(align="right", dx=-2, dy=-6, fontSize=10)
    words = words.encode(x=position if by_length else alt.value("width"), text="name:N")
    return dict((lines + floors + words).properties(width="container", height=220).to_dict(validate=False))


def _points() -> dict[str, Any]:
    import altair as alt

    tips: dict[str, Any] = {"name:N": {"title": " "}, "y:Q": {"title": "scaled score", "format": ".2f"}}
    tips["cost:N"] = {"title": "cost"}
    wide = alt.Scale(type="log", nice=False, padding=30)
    base = alt.Chart(alt.NamedData("values")).encode(
        x=alt.X("x:Q", scale=wide),
        y=alt.Y("y:Q", title="scaled score", scale=alt.Scale(domainMin=-0.03)),
        tooltip=[alt.Tooltip(name, **how) for name, how in tips.items()],
    )
    colour = alt.Color("name:N", title=None, legend=alt.Legend(orient="bottom", labelLimit=240))
    points = base.mark_point(filled=True, size=110, opacity=1).encode(color=colour)
    names = base.mark_text(align="left", dx=9).encode(text="name:N")
    return dict((points + names).properties(width="container", height=330).to_dict(validate=False))
