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

    def centre(self, *, mean: bool = False) -> float:
        """The score that is shown, where there is one: the median over seeds or the mean."""
        assert self.score is not None and self.median is not None
        return self.score.mean if self.shows_mean(mean) else self.median

    def least(self, *, mean: bool = False) -> float:
        """The lower end of the interval of :meth:`centre`; the score itself without one."""
        assert self.score is not None
        interval = self.score.interval if self.shows_mean(mean) else self.median_interval
        return interval[0] if interval else self.centre(mean=mean)

    def median_of(self, column: str) -> float | None:
        """Median over the seeds of a column; ``None`` if no seed has a value."""
        values = self.values(column)
        return float(np.median(values)) if values else None

    @cached_property
    def solved(self) -> tuple[int, int] | None:
        """How many seeds have a scaled score of at least 0.95, of how many; ``None`` without a scaled score."""
        values = self.values("solved")
        return (sum(value == 1 for value in values), len(set(self.seeds))) if values else None

    def values(self, column: str) -> list[float]:
        """The value of each seed that has one; a seed that is there twice counts once, with the mean of both."""
        by_seed: dict[int, list[float]] = {}
        for run in self.runs:
            if run[column] is not None:
                by_seed.setdefault(run["seed"], []).append(run[column])
        return [float(np.mean(values)) for values in by_seed.values()]

    @cached_property
    def floor(self) -> tuple[str, float] | None:
        """Name and headline score of the best trivial baseline, from the first seed that has one."""
        return next(((run["baseline"], run["floor"]) for run in self.runs if run["floor"] is not None), None)

    @property
    def paper(self) -> float | None:
        """The paper's figure, if the paper's run was made as these were."""
        first = self.runs[0]
        return None if first["paper_differs"] else first["paper"]

    def first(self, column: str) -> Any:
        """The first value of a column that all runs share; ``None`` if no run came as far."""
        return next((run[column] for run in self.runs if run[column] is not None), None)

    @property
    def devices(self) -> list[str]:
        """The devices on which the runs were timed."""
        return sorted({run["device"] for run in self.runs if run["device"] is not None})

    def cost(self, column: str) -> float | None:
        """Mean over the seeds; ``None`` over different machines: it would be the cost of none of them."""
        return _mean([run[column] for run in self.runs if run[column] is not None]) if len(self.devices) < 2 else None

    def row(self) -> dict[str, Any]:
        """The aggregate as one flat entry, for CSV and JSON."""
        first, score, floor = self.runs[0], self.score, self.floor
        setup, variant = json.loads(first["setup"]), json.loads(first["variant"])
        values, counts = self.values("score"), {name: self.first(name) for name in ("parameter_count", "state_bytes")}
        low, high = score.interval or (None, None) if score else (None, None)
        median_low, median_high = self.median_interval or (None, None)
        return {
            "task": first["task"],
            "task_version": first["task_version"],
            "task_parameters": owned("task ", setup),
            "model": first["model"],
            "model_parameters": owned("model ", variant),
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
            "batch_mean": _mean(self.values("batch_mean")),
            "batch_std": _mean(self.values("batch_std")),
            "seeds": self.seeds,
            "statuses": [run["status"] for run in self.runs],
            "floor": floor[1] if floor else None,
            "floor_name": floor[0] if floor else None,
            "paper": first["paper"],
            "paper_source": first["paper_source"],
            "paper_where": first["paper_where"],
            "paper_differs": first["paper_differs"],
            **{name: None if count is None else int(count) for name, count in counts.items()},
            "seconds_per_step": self.cost("seconds_per_step"),
            "devices": self.devices,
        }

    def shown(self, *, mean: bool = False) -> str:
        """The score for a reader: of several seeds the median and how many solved the task, or the mean and interval.

        Runs that have no part in it are named, and settings that were selected.
        """
        score = self.score
        if score is None:
            return "/".join(sorted({run["outcome"] for run in self.runs}))
        mean = self.shows_mean(mean)
        spread = "" if score.half_width is None or not mean else f" ±{number(score.half_width, 3)}"
        others = Counter("no score" if run["status"] == "done" else run["status"] for run in self.unscored())
        selected = json.loads(self.runs[0]["selected"] or "{}")
        remarks = [] if mean or self.solved is None else ["{}/{}".format(*self.solved)]
        remarks += [f"{name} {as_given(value)}" for name, value in selected.items()]
        remarks += [f"{count} {outcome}" for outcome, count in sorted(others.items())]
        remarks += [f"seed {seed} {count} times" for seed, count in Counter(self.seeds).items() if count > 1]
        shown = number(self.centre(mean=mean), 3)
        return f"{shown}{spread}" + (f" ({', '.join(remarks)})" if remarks else "")

    def refuses(self, test: str) -> bool:
        """Whether the model could not run on a further test."""
        return any(test in (run["not_possible"] or "").split(",") for run in self.runs)

    def takes(self, test: str) -> bool:
        """Whether a further test is part of these runs."""
        return self.refuses(test) or bool(self.values(f"test.{test}"))

    def unscored(self) -> list[Run]:
        """The runs that have no part in the score."""
        return [run for run in self.runs if run["score"] is None]


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
        header = ["task", "metric", "floor"]
        joined = set()
        for name, paper in zip(self.column_labels, has_paper, strict=True):
            header.append(name)
            if paper:
                joined.add(len(header))
                header.append("paper")
        lines: list[list[str]] = []
        best: set[tuple[int, int]] = set()
        for row, name in enumerate(self.row_labels):
            cells = [self.cells.get((row, column)) for column in range(len(self.column_labels))]
            present = [cell for cell in cells if cell]
            floor = next((cell.floor for cell in present if cell.floor), None)
            leading = _best(cells, floor[1] if floor else -math.inf, mean=self.mean)
            line = [name, present[0].metric, f"{number(floor[1], 3)} {floor[0]}" if floor else ""]
            for column, (cell, paper) in enumerate(zip(cells, has_paper, strict=True)):
                if column in leading:
                    best.add((row, len(line)))
                line.append(cell.shown(mean=self.mean) if cell else "")
                if paper:
                    line.append(number(cell.paper) if cell else "")
            lines.append(line)
        return TextTable(header, lines, frozenset(joined), frozenset(best))

    def costs(self) -> TextTable:
        """For each model the range of its costs over the rows."""
        lines = []
        for name, cells in zip(self.column_labels, self.columns, strict=True):
            counts, states = ([cell.first(column) for cell in cells] for column in ("parameter_count", "state_bytes"))
            times = [run["seconds_per_step"] for cell in cells for run in cell.runs]
            lines.append(
                [
                    name,
                    _range(counts),
                    _range(states) or ("none" if _range(counts) else ""),
                    _range([None if seconds is None else 1e3 * seconds for seconds in times]),
                    "; ".join(sorted({device for cell in cells for device in cell.devices})),
                ]
            )
        return TextTable(["model", "parameters", "state bytes", "ms per step", "device"], lines)

    def by_length(self) -> TextTable | None:
        """For each task and model the median score on the test and each further test; ``None`` without any.

        The last column has the generalisation length.
        """
        names = [name[5:] for cell in self.cells.values() for run in cell.runs for name in run if name[:5] == "test."]
        found = [cell for cell in self.cells.values() if any(cell.takes(name) for name in dict.fromkeys(names))]
        tests = sorted({name for cell in found for name in names if cell.takes(name)}, key=test_order)
        label = {id(cell): place for place, cell in self.cells.items()}
        lines = []
        for cell in found:
            row, column = label[id(cell)]
            reached = cell.median_of("generalisation_length")
            scores = [
                "not possible" if cell.refuses(name) else number(cell.median_of(f"test.{name}"), 3) for name in tests
            ]
            words = [self.row_labels[row], self.column_labels[column], number(cell.median, 3), *scores]
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
        return [
            *notes,
            *versions_note(run for cell in self.cells.values() for run in cell.runs),
            *paper_notes(self.cells.values()),
        ]

    def tables(self, *, transpose: bool = False, by_length: bool = False) -> list[TextTable]:
        """Scores, with the models as rows if asked for, costs, and if asked for the scores on further tests."""
        further = self.by_length() if by_length else None
        return [
            self.scores().transposed() if transpose else self.scores(),
            self.costs(),
            *([further] if further else []),
        ]


def _best(cells: Sequence[Aggregate | None], floor: float, *, mean: bool) -> set[int]:
    """Numbers of the cells that show the best score, and of those within its interval or shown equal.

    None if there is nothing to choose from, or nothing above the floor.
    """
    centres = {place: cell.centre(mean=mean) for place, cell in enumerate(cells) if cell and cell.score}
    if len(centres) < 2 or max(centres.values()) <= floor:
        return set()
    top = max(centres, key=lambda place: centres[place])
    leader = cells[top]
    assert leader is not None
    least = min(round(centres[top], 3), leader.least(mean=mean))
    return {place for place, centre in centres.items() if round(centre, 3) >= least or centre >= least}


def test_order(name: str) -> tuple[bool, float, str]:
    """Sort key of further tests: those at other lengths by their length, then the others by name.

    >>> sorted(["sparse", "16x", "2x"], key=test_order)
    ['2x', '16x', 'sparse']
    """
    length = name.removesuffix("x")
    return (False, float(length), "") if length.isdecimal() else (True, 0.0, name)


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
    for run in plain_rows(runs):
        grouped.setdefault((run["setup"], run["variant"]), []).append(run)
    setups = list(dict.fromkeys(setup for setup, _ in grouped))
    row_of = dict(zip(setups, labels([json.loads(setup) for setup in setups]), strict=True))
    column_of = _merge_columns(grouped)
    row_labels, column_labels = (sorted(dict(found.values()).items(), key=_order) for found in (row_of, column_of))
    rows, columns = ({text: i for i, (text, _) in enumerate(found)} for found in (row_labels, column_labels))
    cells = {
        (rows[row_of[setup][0]], columns[column_of[variant][0]]): Aggregate(tuple(sorted(members, key=_seed)))
        for (setup, variant), members in grouped.items()
    }
    return Table(tuple(rows), tuple(columns), dict(sorted(cells.items())), mean)


def plain_rows(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame without the parameters of task and model, ``None`` where there is no value.

    ``index`` is the row's index in the frame.
    """
    runs = runs.reset_index()
    wanted = [name for name in runs.columns if not name.startswith(("task.", "model."))]
    columns = []
    for name in wanted:
        missing = runs[name].isna()
        columns.append([None if no else value for value, no in zip(runs[name].tolist(), missing, strict=True)])
    return [dict(zip(wanted, values, strict=True)) for values in zip(*columns, strict=True)]


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
    for cell in cells:
        first = cell.runs[0]
        if first["paper"] is None:
            continue
        source = f"{first['paper_source']} ({first['paper_where']})"
        if not first["paper_differs"]:
            beside.add(source)
            continue
        tasks = elsewhere.setdefault(source, {})
        tasks.setdefault(first["task"], {})[f"{first['model']} {number(first['paper'])}"] = None
    notes = [f"paper: {'; '.join(sorted(beside))}"] if beside else []
    return notes + [
        f"not comparable: {source}: {'; '.join(f'{task}: ' + ', '.join(figures) for task, figures in tasks.items())}"
        for source, tasks in sorted(elsewhere.items())
    ]


def _merge_columns(grouped: Iterable[tuple[str, str]]) -> dict[str, tuple[str, Any]]:
    """Label and order of each variant; variants that never meet in one row (a preset's own for one task) share them."""
    by_row: dict[str, list[str]] = {}
    settings: dict[str, Settings] = {}
    for setup, variant in grouped:
        by_row.setdefault(setup, []).append(variant)
        if variant not in settings:
            settings[variant] = json.loads(variant)
    conflicts: dict[str, set[str]] = {}
    for variants in by_row.values():
        alike: dict[str, list[Settings]] = {}
        for variant in variants:
            alike.setdefault(settings[variant]["name"], []).append(settings[variant])
        for name, entries in alike.items():
            conflicts.setdefault(name, set()).update(distinguishing(entries))
    names = {name: sorted(found) for name, found in conflicts.items()}
    return {
        variant: (label(entry, names[entry["name"]]), place(entry, names[entry["name"]]))
        for variant, entry in settings.items()
    }


def _order(labelled: tuple[str, Any]) -> Any:
    return labelled[1]


def _seed(run: Run) -> int:
    return int(run["seed"])


def _range(values: Iterable[float | None]) -> str:
    """One value, or the least and the greatest."""
    found = [value for value in values if value is not None]
    if not found:
        return ""
    least, greatest = number(min(found)), number(max(found))
    return least if least == greatest else f"{least} – {greatest}"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
