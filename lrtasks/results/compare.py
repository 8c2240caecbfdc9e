"""Two sets of runs against each other, pair by pair.

On each task the differences of the pairs go into Student's paired test, whose sample are seeds. Over the tasks their
mean differences go into Wilcoxon's signed-rank test and the sign test, whose sample are tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrtasks.results.formats import Sheet
from lrtasks.results.pairing import Pair, Side, more_than_one_model, pair_runs
from lrtasks.results.settings import Settings, by_number, key, labels, shared_budget, task_settings, versions_note
from lrtasks.results.statistics import Estimate, estimate, holm, paired_t, sign_test, signed_rank

DIGITS = 12
"""Differences are rounded to so many, as what is beyond them would make equal ones unequal."""
ENOUGH_TASKS = 6
"""From so many tasks that differ on, the tests over tasks can give a p-value below 0.05."""


@dataclass(frozen=True)
class Difference:
    """The pairs of one task with one set of parameters and one budget.

    Attributes:
        label: the task as tables name it.
        model: the model of all runs, where pairs are of the same model.
        pairs: at least one, ordered by seed.
        p_holm: p-value of the paired test, corrected for the number of such tests in the comparison.
    """

    label: str
    model: str | None
    pairs: Sequence[Pair]
    p_holm: float | None = None

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.pairs[0][0].task["name"])

    @property
    def metric(self) -> str:
        """Name of the score that is compared."""
        return str(self.pairs[0][0].task["metric"])

    @property
    def scores(self) -> tuple[list[float], list[float]]:
        """Test scores of both sides, pair by pair."""
        a, b = ([float(record.headline() or 0.0) for record in side] for side in zip(*self.pairs, strict=True))
        return a, b

    @property
    def differences(self) -> list[float]:
        """First minus second score of each pair."""
        return [round(a - b, DIGITS) for a, b in zip(*self.scores, strict=True)]

    @property
    def mean(self) -> Estimate:
        """Mean difference with its interval over seeds."""
        found = estimate(self.differences)
        assert found is not None
        return found

    @property
    def p(self) -> float | None:
        """p-value of the paired test; ``None`` for fewer than two pairs, or equal differences."""
        return paired_t(self.differences)

    def content(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        mean, interval, first = self.mean, self.mean.interval, self.pairs[0][0]
        a, b = self.scores
        return {
            "task": self.task,
            "task_parameters": first.task["parameters"],
            "model": self.model,
            "budget": dict(shared_budget(first)),
            "metric": self.metric,
            "seeds": [record.seed for record, _ in self.pairs],
            "a": a,
            "b": b,
            "difference": mean.mean,
            "difference_low": interval[0] if interval else None,
            "difference_high": interval[1] if interval else None,
            "p": self.p,
            "p_holm": self.p_holm,
        }

    def line(self) -> list[str]:
        """Texts for a reader."""
        mean, interval = self.mean, self.mean.interval
        why = "too few pairs" if mean.count < 2 else "equal differences"
        return [
            self.label,
            self.metric,
            *(f"{sum(side) / len(side):z.3f}" for side in self.scores),
            f"{mean.mean:+.3f}",
            f"{interval[0]:+.3f} to {interval[1]:+.3f}" if interval else "",
            str(mean.count),
            why if self.p is None else f"{self.p:.2g}",
            "" if self.p_holm is None else f"{self.p_holm:.2g}",
        ]


@dataclass(frozen=True)
class Comparison:
    """What two sets of runs have in common, and how they differ there.

    Attributes:
        a: name of the first side.
        b: name of the second side.
        differences: one entry per task, parameters and budget, and per model where pairs are of the same model.
        left_out: why runs are in no pair, one line per reason.
    """

    a: str
    b: str
    differences: Sequence[Difference]
    left_out: Sequence[str]

    def by_task(self) -> dict[str, float]:
        """Mean difference of each task; one that is there with several parameters or models counts once."""
        found: dict[str, list[float]] = {}
        for entry in self.differences:
            found.setdefault(entry.task, []).append(entry.mean.mean)
        return {task: round(sum(means) / len(means), DIGITS) for task, means in found.items()}

    def overall(self) -> dict[str, Any]:
        """Tasks on which each side is better, and the tests over tasks."""
        differences = list(self.by_task().values())
        # differences of unlike scores have a direction, but cannot be ranked together
        alike = len({entry.metric for entry in self.differences}) == 1
        return {
            "tasks": len(differences),
            "a_better": sum(value > 0 for value in differences),
            "b_better": sum(value < 0 for value in differences),
            "p_signed_rank": signed_rank(differences) if alike else None,
            "p_sign": sign_test(differences),
        }

    def content(self) -> dict[str, Any]:
        """The comparison as plain data, for JSON."""
        entries = [entry.content() for entry in self.differences]
        return {
            "a": self.a,
            "b": self.b,
            "differences": entries,
            "overall": self.overall(),
            "left_out": list(self.left_out),
        }

    def sheet(self) -> Sheet:
        """One line per difference."""
        header = ["task", "metric", "A", "B", "A - B", "95 % interval", "pairs", "p", "p (Holm)"]
        lines = [entry.line() for entry in self.differences]
        if any(entry.model for entry in self.differences):
            header.insert(1, "model")
            for line, entry in zip(lines, self.differences, strict=True):
                line.insert(1, entry.model or "")
        return Sheet(header, lines)

    def notes(self) -> list[str]:
        """Who is compared, the outcome over the tasks, and what a reader must know."""
        notes = [f"A: {self.a}; B: {self.b}", self._over_tasks()]
        if any(entry.p is not None for entry in self.differences):
            notes.append("p: Student's paired test over seeds, two-sided; Holm: corrected for several tests")
        notes += versions_note(record for entry in self.differences for pair in entry.pairs for record in pair)
        return [*notes, *(f"left out: {reason}" for reason in self.left_out)]

    def _over_tasks(self) -> str:
        overall = self.overall()
        count = overall["tasks"]
        tasks = "task" if count == 1 else "tasks"
        said = [f"over {count} {tasks} A is better on {overall['a_better']}, B on {overall['b_better']}"]
        if overall["p_sign"] is None:
            return f"{said[0]}; too few tasks for a test"
        if overall["p_signed_rank"] is not None:
            said.append(f"Wilcoxon's signed-rank test p = {overall['p_signed_rank']:.2g}")
        said.append(f"sign test p = {overall['p_sign']:.2g}")
        differ = overall["a_better"] + overall["b_better"]
        if differ < ENOUGH_TASKS:
            said.append(f"with {differ} tasks that differ no p is below {2 / 2**differ:.2g}")
        return "; ".join(said)


def compare(a: Side, b: Side) -> Comparison:
    """Compare the headline test scores of the runs that can be paired (:func:`lrtasks.results.pairing.pair_runs`).

    Raises:
        UsageError: as ``pair_runs``.
    """
    pairs, left_out = pair_runs(a, b)
    by_model = more_than_one_model(a, b)
    settings: dict[str, Settings] = {}
    grouped: dict[tuple[str, str | None], list[Pair]] = {}
    for pair in pairs:
        row = {**task_settings(pair[0]), **shared_budget(pair[0])}
        settings[key(row)] = row
        grouped.setdefault((key(row), pair[0].model["name"] if by_model else None), []).append(pair)
    names = dict(zip(settings, labels(list(settings.values())), strict=True))
    found = [
        Difference(names[row_key], model, sorted(members, key=lambda pair: pair[0].seed))
        for (row_key, model), members in grouped.items()
    ]
    found.sort(key=lambda entry: (by_number(entry.label), entry.model or ""))
    corrected = holm([entry.p for entry in found])
    entries = [dataclasses.replace(entry, p_holm=p) for entry, p in zip(found, corrected, strict=True)]
    return Comparison(a.name, b.name, entries, left_out)
