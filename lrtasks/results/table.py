"""Tasks × models from a frame of runs, with floors, costs and the papers' figures beside the scores.

Runs are aggregated only if they differ in nothing but the seed. Rows are labelled by what differs in task and budget,
columns by what differs in the model's own settings.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lrtasks.budget import SHARED_BUDGET
from lrtasks.errors import UsageError
from lrtasks.results.formats import TextTable, number
from lrtasks.results.settings import Settings, as_given, distinguishing, key, label, labels, owned, place
from lrtasks.results.statistics import Estimate, bootstrap, estimate

if TYPE_CHECKING:
    import pandas as pd

Run = Mapping[str, Any]
"""One row of the frame, ``None`` where the run has no value."""


@dataclass(frozen=True)
class Aggregate:
    """All runs of one task, budget and model, ordered by seed."""

    runs: tuple[Run, ...]

    @property
    def metric(self) -> str:
        """Name of the headline score."""
        return str(self.runs[0]["metric"])

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs; one that is there twice has two different outcomes (on two machines, say)."""
        return [run["seed"] for run in self.runs]

    def values(self, column: str) -> list[float]:
        """The value of each seed that has one; a seed that is there twice counts once, with the mean of both."""
        by_seed: dict[int, list[float]] = {}
        for run in self.runs:
            if run[column] is not None:
                by_seed.setdefault(run["seed"], []).append(run[column])
        return [float(np.mean(values)) for values in by_seed.values()]

    def median_of(self, column: str) -> float | None:
        """Median over the seeds of a column; ``None`` if no seed has a value."""
        values = self.values(column)
        return float(np.median(values)) if values else None

    def first(self, column: str) -> Any:
        """The first value of a column that all runs share; ``None`` if no run came as far."""
        return next((run[column] for run in self.runs if run[column] is not None), None)

    @cached_property
    def score(self) -> Estimate | None:
        """The mean of the headline score with its interval over seeds."""
        return estimate(self.values("score"))

    @cached_property
    def median(self) -> float | None:
        """The median of the headline score over seeds: with two humps a mean is the score of none of them."""
        return self.median_of("score")

    @cached_property
    def median_interval(self) -> tuple[float, float] | None:
        """The median's interval by bootstrap over seeds and test samples."""
        values, errors = self.values("score"), self.values("score_error")
        return bootstrap(values, errors if len(errors) == len(values) else None)

    def shows_mean(self, wanted: bool) -> bool:
        """Whether the mean is shown: if wanted, of a single seed, or without a scaled score."""
        return wanted or self.solved is None or len(set(self.seeds)) == 1

    def centre(self, *, mean: bool = False) -> tuple[float, float]:
        """The score that is shown, the median over seeds or the mean, and the lower end of its interval."""
        assert self.score is not None and self.median is not None
        shown, interval = (
            (self.score.mean, self.score.interval) if self.shows_mean(mean) else (self.median, self.median_interval)
        )
        return shown, interval[0] if interval else shown

    @cached_property
    def solved(self) -> tuple[int, int] | None:
        """How many seeds have solved the task on the test stream, of how many; ``None`` without a scaled score."""
        values = self.values("solved")
        return (sum(value == 1 for value in values), len(set(self.seeds))) if values else None

    @cached_property
    def floor(self) -> tuple[str, float] | None:
        """Name and headline score of the best trivial baseline, from the first seed that has one."""
        return next(((run["baseline"], run["floor"]) for run in self.runs if run["floor"] is not None), None)

    @property
    def paper(self) -> float | None:
        """The paper's figure, if the paper's run was made as these were."""
        first = self.runs[0]
        return None if first["paper_differs"] else first["paper"]

    @property
    def devices(self) -> list[str]:
        """The devices on which the runs were timed."""
        return sorted({run["device"] for run in self.runs if run["device"] is not None})

    def cost(self, column: str) -> float | None:
        """Mean over the seeds; ``None`` over different machines: it would be the cost of none of them."""
        return _mean([run[column] for run in self.runs if run[column] is not None]) if len(self.devices) < 2 else None

    @property
    def unscored(self) -> list[Run]:
        """The runs that have no part in the score."""
        return [run for run in self.runs if run["score"] is None]

    def row(self) -> dict[str, Any]:
        """The aggregate as one flat entry, for CSV and JSON."""
        first, score, floor, values = self.runs[0], self.score, self.floor, self.values("score")
        low, high = (score and score.interval) or (None, None)
        median_low, median_high = self.median_interval or (None, None)
        return {
            **{name: first[name] for name in ("task", "task_version")},
            "task_parameters": owned("task ", json.loads(first["setup"])),
            "model": first["model"],
            "model_parameters": owned("model ", json.loads(first["variant"])),
            "preset": first["preset"],
            "budget": owned("budget.", first),
            "metric": self.metric,
            "score": score.mean if score else None,
            "score_low": low,
            "score_high": high,
            "score_std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "median": self.median,
            "median_low": median_low,
            "median_high": median_high,
            "solved": self.solved[0] if self.solved else None,
            "scaled_score": _mean(self.values("scaled_score")),
            "generalisation_length": self.median_of("generalisation_length"),
            **{name: _mean(self.values(name)) for name in ("batch_mean", "batch_std")},
            "seeds": self.seeds,
            "statuses": [run["status"] for run in self.runs],
            "floor": floor[1] if floor else None,
            "floor_name": floor[0] if floor else None,
            **{name: first[name] for name in ("paper", "paper_source", "paper_where", "paper_differs")},
            **{name: None if (count := self.first(name)) is None else int(count) for name in COUNTS},
            "seconds_per_step": self.cost("seconds_per_step"),
            "devices": self.devices,
        }

    def shown(self, *, mean: bool = False) -> str:
        """The score for a reader: of several seeds the median and how many solved the task, or the mean and interval.

        Runs that have no part in it are named, and settings that were selected.
        """
        if self.score is None:
            return "/".join(sorted({run["outcome"] for run in self.runs}))
        means = self.shows_mean(mean)
        width = self.score.half_width if means else None
        others = Counter("no score" if run["status"] == "done" else run["status"] for run in self.unscored)
        remarks = [] if means or self.solved is None else ["{}/{}".format(*self.solved)]
        remarks += [f"{name} {as_given(value)}" for name, value in json.loads(self.runs[0]["selected"] or "{}").items()]
        remarks += [f"{count} {outcome}" for outcome, count in sorted(others.items())]
        remarks += [f"seed {seed} {count} times" for seed, count in Counter(self.seeds).items() if count > 1]
        shown = number(self.centre(mean=mean)[0], 3) + ("" if width is None else f" ±{number(width, 3)}")
        return shown + (f" ({', '.join(remarks)})" if remarks else "")

    def refuses(self, test: str) -> bool:
        """Whether the model could not run on a further test."""
        return any(test in (run["not_possible"] or "").split(",") for run in self.runs)


COUNTS = ("parameter_count", "state_bytes")


@dataclass(frozen=True)
class Table:
    """A grid of aggregates with labelled rows and columns; cells may be missing.

    Cells of several seeds show the median and how many seeds solved the task, or with ``mean`` the mean ± its interval.
    """

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    cells: Mapping[tuple[int, int], Aggregate]
    mean: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """One flat entry per aggregate."""
        return [cell.row() for cell in self.cells.values()]

    @cached_property
    def columns(self) -> list[list[Aggregate]]:
        """The aggregates of each model, in the order of the rows."""
        found: list[list[Aggregate]] = [[] for _ in self.column_labels]
        for (_, column), cell in self.cells.items():
            found[column].append(cell)
        return found

    def scores(self) -> TextTable:
        """Task, metric, floor, then for each model our score and the paper's."""
        has_paper = [any(cell.paper is not None for cell in column) for column in self.columns]
        header, joined, best = ["task", "metric", "floor"], set[int](), set[tuple[int, int]]()
        for name, paper in zip(self.column_labels, has_paper, strict=True):
            header += [name, "paper"] if paper else [name]
            joined |= {len(header) - 1} if paper else set()
        lines: list[list[str]] = []
        for row, name in enumerate(self.row_labels):
            cells = [self.cells.get((row, column)) for column in range(len(self.column_labels))]
            present = [cell for cell in cells if cell]
            floor = next((cell.floor for cell in present if cell.floor), None)
            leading = _best(cells, floor[1] if floor else -math.inf, mean=self.mean)
            line = [name, present[0].metric, f"{number(floor[1], 3)} {floor[0]}" if floor else ""]
            for column, (cell, paper) in enumerate(zip(cells, has_paper, strict=True)):
                best |= {(row, len(line))} if column in leading else set()
                line.append(cell.shown(mean=self.mean) if cell else "")
                line += [number(cell.paper) if cell else ""] if paper else []
            lines.append(line)
        return TextTable(header, lines, frozenset(joined), frozenset(best))

    def costs(self) -> TextTable:
        """For each model the range of its costs over the rows."""
        lines = []
        for name, cells in zip(self.column_labels, self.columns, strict=True):
            counts, states = (_range(cell.first(column) for cell in cells) for column in COUNTS)
            times = [run["seconds_per_step"] for cell in cells for run in cell.runs]
            speeds = _range(None if seconds is None else 1e3 * seconds for seconds in times)
            devices = "; ".join(sorted({device for cell in cells for device in cell.devices}))
            lines.append([name, counts, states or ("none" if counts else ""), speeds, devices])
        return TextTable(["model", "parameters", "state bytes", "ms per step", "device"], lines)

    def by_length(self) -> TextTable | None:
        """For each task and model the median score on the test and each further test; ``None`` without any.

        The last column has the generalisation length.
        """
        first = next(iter(self.cells.values())).runs[0]
        names = [name.removeprefix("test.") for name in first if name.startswith("test.")]
        takes = {
            place: [name for name in names if cell.refuses(name) or cell.values(f"test.{name}")]
            for place, cell in self.cells.items()
        }
        tests = sorted({name for taken in takes.values() for name in taken}, key=test_order)
        lines = []
        for (row, column), cell in self.cells.items():
            if takes[row, column]:
                medians = [
                    "not possible" if cell.refuses(name) else number(cell.median_of(f"test.{name}"), 3)
                    for name in tests
                ]
                reached = cell.median_of("generalisation_length")
                words = [self.row_labels[row], self.column_labels[column], number(cell.median, 3), *medians]
                lines.append([*words, "none" if reached is None else f"{reached:,.0f}"])
        header = ["task", "model", "test", *tests, "generalisation length"]
        return TextTable(header, lines) if lines else None

    def notes(self) -> list[str]:
        """What a reader must know about the figures."""
        scored = [cell for cell in self.cells.values() if cell.score]
        counts = {cell.score.count for cell in scored if cell.score}
        several = sorted(counts - {1})
        means = self.mean or any(cell.solved is None for cell in scored)
        notes = []
        if not self.mean and any(cell.solved and len(set(cell.seeds)) > 1 for cell in scored):
            notes.append("0.980 (2/3): the median over 3 seeds, of which 2 have a scaled score of at least 0.95")
        if several and means:
            seeds = f"{several[0]} to {several[-1]}" if len(several) > 1 else f"{several[0]}"
            notes.append(f"±: half the 95 % interval of the mean over {seeds} seeds (Student t)")
        if 1 in counts and means:
            notes.append("without ±: a single seed, which has no interval")
        versions = versions_note(run for cell in self.cells.values() for run in cell.runs)
        return [*notes, *versions, *paper_notes(self.cells.values())]

    def tables(self, *, transpose: bool = False, by_length: bool = False) -> list[TextTable]:
        """Scores, with the models as rows if asked for, costs, and if asked for the scores on further tests."""
        scores, further = self.scores(), self.by_length() if by_length else None
        return [scores.transposed() if transpose else scores, self.costs(), *([further] if further else [])]


def _best(cells: Sequence[Aggregate | None], floor: float, *, mean: bool) -> set[int]:
    """Numbers of the cells that show the best score, and of those within its interval or shown equal.

    None if there is nothing to choose from, or nothing above the floor.
    """
    centres = {place: cell.centre(mean=mean) for place, cell in enumerate(cells) if cell and cell.score}
    if len(centres) < 2 or max(centres.values())[0] <= floor:
        return set()
    top, least = max(centres.values(), key=lambda centre: centre[0])
    least = min(round(top, 3), least)
    return {place for place, (centre, _) in centres.items() if round(centre, 3) >= least or centre >= least}


def length_of_test(name: str, trained: int) -> int | None:
    """Length of a further test: ``512``, or ``4x`` the length of training; ``None`` if it is none of lengths."""
    number = name.removesuffix("x")
    return int(number) * (trained if name.endswith("x") else 1) if number.isdecimal() else None


def test_order(name: str) -> tuple[bool, int, str]:
    """Sort key of further tests: those at other lengths by their length, then the others by name.

    >>> sorted(["sparse", "16x", "2x"], key=test_order)
    ['2x', '16x', 'sparse']
    """
    length = length_of_test(name, 1)
    return (True, 0, name) if length is None else (False, length, "")


def make_table(runs: pd.DataFrame, *, unequal_budgets: bool = False, mean: bool = False) -> Table:
    """Arrange a frame of runs as tasks × models.

    Args:
        runs: at least one row of :func:`lrtasks.results.frame`.
        unequal_budgets: allow runs on one task that differ in the shared part of their budgets
            (:data:`lrtasks.budget.SHARED_BUDGET`), in rows of their own.
        mean: show the mean over seeds with its interval, not the median.

    Raises:
        UsageError: if there are no runs, or budgets are unequal where they must not be.
    """
    if not len(runs):
        raise UsageError("a table needs at least one run record")
    if not unequal_budgets:
        require_equal_budgets(runs)
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in plain_rows(runs.sort_values("seed", kind="stable")):
        grouped.setdefault((run["setup"], run["variant"]), []).append(run)
    setups = list(dict.fromkeys(runs["setup"]))
    row_of = dict(zip(setups, labels([json.loads(setup) for setup in setups]), strict=True))
    column_of = _merge_columns(runs[["setup", "variant"]].drop_duplicates().itertuples(index=False))
    rows, columns = (
        {text: i for i, (text, _) in enumerate(sorted(dict(found.values()).items(), key=lambda entry: entry[1]))}
        for found in (row_of, column_of)
    )
    cells = {
        (rows[row_of[setup][0]], columns[column_of[variant][0]]): Aggregate(tuple(members))
        for (setup, variant), members in grouped.items()
    }
    return Table(tuple(rows), tuple(columns), dict(sorted(cells.items())), mean)


def _merge_columns(grouped: Iterable[tuple[str, str]]) -> dict[str, tuple[str, Any]]:
    """Label and order of each variant; variants that never meet in one row (a preset's own for one task) share them."""
    settings: dict[str, Settings] = {}
    together: dict[tuple[str, str], list[Settings]] = {}
    for setup, variant in grouped:
        entry = settings.setdefault(variant, json.loads(variant))
        together.setdefault((entry["name"], setup), []).append(entry)
    names: dict[str, set[str]] = {}
    for (name, _), entries in together.items():
        names.setdefault(name, set()).update(distinguishing(entries))
    return {
        variant: (label(entry, shown), place(entry, shown))
        for variant, entry in settings.items()
        for shown in [sorted(names[entry["name"]])]
    }


def plain_rows(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame without the parameters of task and model, ``None`` where there is no value.

    ``index`` is the row's index in the frame.
    """
    runs = runs.reset_index()
    plain = runs[[name for name in runs if not name.startswith(("task.", "model."))]].astype(object)
    found: list[dict[str, Any]] = plain.where(plain.notna(), None).to_dict("records")
    return found


def require_equal_budgets(runs: pd.DataFrame) -> None:
    """Check that runs on one task with the same parameters had the same shared budget.

    Raises:
        UsageError: if not; the message names two runs, the field and both values.
    """
    first: dict[str, tuple[Run, Settings]] = {}
    for run in plain_rows(runs.drop_duplicates("setup")[["setup", "model", "seed"]]):
        settings = json.loads(run["setup"])
        budget = {name: settings.pop(name, None) for name in SHARED_BUDGET}
        other, others = first.setdefault(key(settings), (run, budget))
        for name in SHARED_BUDGET:
            if others[name] != budget[name]:
                raise UsageError(
                    f"unequal budgets on {settings['name']}: {name} is {others[name]} for {run_name(other)} and "
                    f"{budget[name]} for {run_name(run)}; a table that holds both has to be asked for "
                    "(--unequal-budgets)"
                )


def run_name(run: Run) -> str:
    """Model and seed, for a message."""
    return f"{run['model']} seed {run['seed']}"


def versions_note(runs: Iterable[Run]) -> list[str]:
    """A note on figures that several versions of lrtasks have made; none if it was one."""
    versions = {str(run["version"]) for run in runs if run["version"] is not None}
    listed = " and ".join(sorted(versions, key=lambda version: [int(part) for part in re.findall(r"\d+", version)]))
    return [f"made by lrtasks {listed}, whose models may differ"] if len(versions) > 1 else []


def paper_notes(cells: Iterable[Aggregate]) -> list[str]:
    """Sources of the papers' figures that stand beside scores; and figures of other lengths, sizes or budgets."""
    beside: set[str] = set()
    elsewhere: dict[str, dict[str, dict[str, None]]] = {}
    for first in (cell.runs[0] for cell in cells):
        source = f"{first['paper_source']} ({first['paper_where']})"
        if first["paper_differs"]:
            tasks = elsewhere.setdefault(source, {})
            tasks.setdefault(first["task"], {})[f"{first['model']} {number(first['paper'])}"] = None
        elif first["paper"] is not None:
            beside.add(source)
    notes = [f"paper: {'; '.join(sorted(beside))}"] if beside else []
    return notes + [
        f"not comparable: {source}: {'; '.join(f'{task}: ' + ', '.join(figures) for task, figures in tasks.items())}"
        for source, tasks in sorted(elsewhere.items())
    ]


def _range(values: Iterable[float | None]) -> str:
    """One value, or the least and the greatest."""
    found = [value for value in values if value is not None]
    ends = dict.fromkeys([number(min(found)), number(max(found))] if found else [])
    return " – ".join(ends)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
