"""What the page says about one task: a sample, scores over length, and for each row its curves and breakdowns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lrtasks.results.report.content import Report, Result, TaskRow
from lrtasks.results.report.curves import Curves, length_curves, score_curves
from lrtasks.results.report.samples import Sample, draw_sample
from lrtasks.results.report.slices import Breakdown, breakdowns


@dataclass(frozen=True)
class Variant:
    """The task under one budget.

    Attributes:
        number: number of its row.
        row: that row.
        results: what each model reached, best first.
        curves: validation scores of all of them while training, means over seeds.
        breakdowns: test scores of all of them by group.
    """

    number: int
    row: TaskRow
    results: list[Result]
    curves: Curves | None
    breakdowns: list[Breakdown]


@dataclass(frozen=True)
class TaskSection:
    """All about one task; ``sample`` is a text where there is none, which says why."""

    name: str
    sample: Sample | str
    lengths: list[Curves]
    variants: list[Variant]


def task_sections(report: Report) -> list[TaskSection]:
    """The sections of all tasks, in the order of their first rows."""
    return [_section(report, name, numbers) for name, numbers in report.tasks().items()]


def _section(report: Report, name: str, numbers: Sequence[int]) -> TaskSection:
    variants = [_variant(report, number) for number in numbers]
    parameters = variants[0].results[0].cell.records[0].task["parameters"]
    return TaskSection(name, draw_sample(name, parameters), length_curves(report, name), variants)


def _variant(report: Report, number: int) -> Variant:
    results = report.in_row(number)
    names = {result.id: report.columns[result.column].label for result in results}
    return Variant(number, report.rows[number], results, score_curves(results, names), breakdowns(results))
