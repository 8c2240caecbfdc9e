"""What the page says: results by task and model, in the order in which they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lrtasks.record import STATUSES, RunRecord
from lrtasks.results.report import readable
from lrtasks.results.table import Aggregate

SOLVED = 0.95
"""Score from which a task counts as solved, as in ``lrtasks sweep``."""


class Cost(NamedTuple):
    """What a cost is called, and how its values are shown."""

    label: str
    shown: Callable[[float | None], str]


COSTS = {
    "seconds_per_step": Cost("time per step", readable.seconds),
    "state_bytes": Cost("streaming state", readable.size),
    "count": Cost("parameters", readable.count),
    "peak_memory_bytes": Cost("peak memory", readable.size),
}
"""What a result costs, by the names of the records."""

MEASURED = ("seconds_per_step", "peak_memory_bytes")
"""Those that depend on the machine."""


class State(NamedTuple):
    """What stands in a cell that has no score above floor: a short word, and what it means."""

    word: str
    meaning: str


STATES = {
    "diverged": State("div.", "diverged: the loss stopped being a number"),
    "failed": State("failed", "the run ended with an error"),
    "running": State("running", "not finished"),
    "interrupted": State("stopped", "interrupted before its end"),
    "nan": State("NaN", "the score is no number"),
    "unscored": State("none", "the record lacks the score"),
    "scored": State(readable.NONE, "no floor below 1 to compare the score with"),
}


@dataclass(frozen=True)
class Cell(Aggregate):
    """An aggregate with the records of its runs."""

    records: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Result:
    """What one model reached on one task: a cell of the table.

    Attributes:
        id: name of its details within the page, made of letters, digits and dashes.
        row: number of its :class:`TaskRow`.
        column: number of its :class:`ModelColumn`.
        cell: the runs, which differ in nothing but the seed.
        floor: name and headline score of the best trivial predictor.
        above: score above floor; ``None`` without a score, a floor, or room above it.
        state: ``scored``, or why there is no score: one of :data:`STATES`.
        costs: mean over the seeds of each of :data:`COSTS` that is known.
    """

    id: str
    row: int
    column: int
    cell: Cell
    floor: tuple[str, float] | None
    above: float | None
    state: str
    costs: Mapping[str, float]

    @property
    def score(self) -> float | None:
        """Mean of the headline score over the seeds that have one."""
        return self.cell.score.mean if self.cell.score else None

    @property
    def half_width(self) -> float | None:
        """Half the width of the score's interval over seeds; ``None`` with one seed."""
        return self.cell.score.half_width if self.cell.score else None

    @property
    def remarks(self) -> list[str]:
        """What the score hides: runs of the cell that ended otherwise."""
        if self.score is None:
            return []
        others = Counter(record.outcome() for record in self.cell.records)
        del others["done"]
        words = {outcome: "without a score" if outcome == "no score" else outcome for outcome in sorted(others)}
        return [f"{others[outcome]} of {len(self.cell.records)} runs {said}" for outcome, said in words.items()]


@dataclass(frozen=True)
class TaskRow:
    """A row of the heat map: a task under one budget.

    Attributes:
        id: name of its section within the page.
        label: name, and the settings that tell it from other rows of the task.
        name: the task's name.
        metric: name of the headline score.
        floor: name and headline score of the best trivial predictor of any of its runs.
    """

    id: str
    label: str
    name: str
    metric: str
    floor: tuple[str, float] | None

    @property
    def settings(self) -> str:
        """The part of the label after the name."""
        return _settings(self.label, self.name)


@dataclass(frozen=True)
class ModelColumn:
    """A column of the heat map: a model under one setting.

    Attributes:
        id: name of its row in the table of models.
        label: name, and the settings that tell it from other columns of the model.
        name: the model's name.
        mean: mean over its tasks of the score above floor, each limited to 0..1; ``None`` if it has none.
        above: number of tasks in that mean.
        scored: number of tasks with a score.
        solved: number of tasks with a score of at least :data:`SOLVED`.
        costs: median over its tasks of each of :data:`COSTS` that is known.
    """

    id: str
    label: str
    name: str
    mean: float | None
    above: int
    scored: int
    solved: int
    costs: Mapping[str, float]

    @property
    def settings(self) -> str:
        """The part of the label after the name."""
        return _settings(self.label, self.name)


@dataclass(frozen=True)
class Report:
    """All that the page shows.

    Attributes:
        rows: tasks, the ones that models do best first.
        columns: models, the ones that do best first.
        results: by number of row and column; what was not run is missing.
        folders: by a record's JSON, the folder of its run.
        left_out: one line for each file that could not be read.
    """

    rows: tuple[TaskRow, ...]
    columns: tuple[ModelColumn, ...]
    results: Mapping[tuple[int, int], Result]
    folders: Mapping[str, Path]
    left_out: tuple[str, ...]

    @property
    def statuses(self) -> dict[str, int]:
        """Number of runs by status."""
        found = Counter(record.status for result in self.results.values() for record in result.cell.records)
        return {status: found[status] for status in ("done", *STATUSES) if found[status]}

    @property
    def devices(self) -> list[str]:
        """What the runs were timed on."""
        records = (record for result in self.results.values() for record in result.cell.records)
        return sorted({str(record.cost["device"]) for record in records if record.cost.get("device")})

    def states(self) -> dict[str, State]:
        """The states of the cells without a score above floor."""
        found = {result.state for result in self.results.values() if result.above is None}
        return {name: state for name, state in STATES.items() if name in found}

    def in_row(self, row: int) -> list[Result]:
        """The results on one task, best score first, those without a score last."""
        found = [result for (number, _), result in sorted(self.results.items()) if number == row]
        return sorted(found, key=lambda result: (result.score is None, -(result.score or 0.0)))

    def in_column(self, column: int) -> list[Result]:
        """The results of one model, in the order of the tasks."""
        return [result for (_, number), result in sorted(self.results.items()) if number == column]

    def tasks(self) -> dict[str, list[int]]:
        """Numbers of the rows of each task, by its name."""
        found: dict[str, list[int]] = {}
        for number, row in enumerate(self.rows):
            found.setdefault(row.name, []).append(number)
        return found


def _settings(label: str, name: str) -> str:
    """What a label says in brackets after the name."""
    return label.removeprefix(name).strip().removeprefix("(").removesuffix(")")
