"""Selection on validation: seed 0 at every value, the other seeds at the best one, the test stream unseen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lrtasks.errors import UsageError
from lrtasks.record import RunRecord, read_records
from lrtasks.results import frame
from lrtasks.results.table import make_table
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import Suite, make_suite
from lrtasks.suite.select import require_selectable, run_selected


def suite_of(seeds: int = 2, **settings: object) -> Suite:
    given = {"length": 16, "steps": 4, "lr": "0.001,0.01,0.1", **settings}
    return make_suite({"models": "dlr,attention", "tasks": "cumsum", "seeds": seeds}, given)


class Runner:
    """Gives every run a validation score by its rate, and the opposite test score."""

    def __init__(self, out: Path, best: dict[str, float]) -> None:
        self.out, self.best, self.calls = out, best, list[list[RunConfig]]()

    def __call__(self, runs: Sequence[RunConfig]) -> list[RunRecord]:
        self.calls.append(list(runs))
        records = []
        for run in runs:
            record = run.record("done")
            score = 0.9 if run.budget.lr == self.best[run.model.name] else 0.5
            record.scores = {"val": {"r2": score}, "test": {"r2": 1.4 - score}}
            folder = run.folder(self.out.absolute())
            folder.mkdir(parents=True, exist_ok=True)
            record.write(folder)
            records.append(record)
        return records


def test_each_model_gets_its_best_rate_and_the_other_seeds_at_it(tmp_path: Path) -> None:
    suite, runner = suite_of(seeds=3), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    runs, records = run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
    first, second = runner.calls
    assert [run.seed for run in first] == [0] * 6
    assert {(run.model.name, run.budget.lr, run.seed) for run in second} == {
        *(("dlr", 0.1, seed) for seed in (1, 2)),
        *(("attention", 0.01, seed) for seed in (1, 2)),
    }
    assert {(run.model.name, run.budget.lr) for run in runs} == {("dlr", 0.1), ("attention", 0.01)}
    assert len(records) == 6 and all(record.selection["chosen"] for record in records)
    stored = [record for _, record in read_records(tmp_path)[0]]
    assert len(stored) == 10, "all runs stay"
    assert sum(record.selection["chosen"] for record in stored) == 6
    assert all(record.selection["values"] == {"lr": [0.001, 0.01, 0.1]} for record in stored)


def test_each_length_gets_a_rate_of_its_own(tmp_path: Path) -> None:
    class ByLength(Runner):
        def __call__(self, runs: Sequence[RunConfig]) -> list[RunRecord]:
            records = super().__call__(runs)
            for run, record in zip(runs, records, strict=True):
                record.scores["val"]["r2"] = -abs(run.budget.lr - {16: 0.001, 32: 0.1}[run.task.input.length])
            return records

    suite = suite_of(seeds=2, length="16,32")
    assert require_selectable(suite, "val") == ("lr",)
    runs, _ = run_selected(suite, ("lr",), ByLength(tmp_path, {"dlr": 1.0, "attention": 1.0}), tmp_path)
    assert len(runs) == 8
    assert {(run.task.input.length, run.budget.lr) for run in runs} == {(16, 0.001), (32, 0.1)}


def test_the_table_has_one_cell_per_model_with_its_rate(tmp_path: Path) -> None:
    suite, runner = suite_of(), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
    table = make_table(frame(tmp_path)).scores()
    assert table.header[3:] == ["attention", "dlr"]
    assert [cell.split(" (")[1] for cell in table.lines[0][3:]] == ["lr 0.01)", "lr 0.1)"]


def test_a_tie_goes_to_the_run_that_was_solved_earlier(tmp_path: Path) -> None:
    class Tied(Runner):
        def __call__(self, runs: Sequence[RunConfig]) -> list[RunRecord]:
            records = super().__call__(runs)
            for run, record in zip(runs, records, strict=True):
                record.scores["val"]["r2"] = 1.0
                record.steps_to_solve = {0.001: 40, 0.01: 20, 0.1: None}[run.budget.lr]
            return records

    suite = suite_of(seeds=1)
    runs, _ = run_selected(suite, suite.varied, Tied(tmp_path, {"dlr": 0.1, "attention": 0.1}), tmp_path)
    assert {run.budget.lr for run in runs} == {0.01}


@pytest.mark.parametrize(
    ("settings", "by", "message"),
    [
        ({"lr": 0.1, "length": "16,32"}, "val", "--select needs a setting of model or budget with several values"),
        ({"lr": 0.1, "steps": "4,8"}, "val", "steps is the same for all compared models and cannot be selected"),
        ({}, "test", "unknown stream to select on 'test'"),
    ],
)
def test_what_cannot_be_selected_is_refused(settings: dict[str, object], by: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        require_selectable(suite_of(**settings), by)
