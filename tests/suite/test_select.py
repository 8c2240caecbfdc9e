"""Selection on validation: seed 0 at every value, the other seeds at the best one, the test stream unseen."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from lrtasks.errors import UsageError
from lrtasks.files import held
from lrtasks.record import LOCK, RunRecord, read_record, read_records
from lrtasks.results import frame
from lrtasks.results.settings import variant_of
from lrtasks.results.table import make_table
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import Suite, make_suite
from lrtasks.suite.select import OnEnd, planned, require_selectable, run_selected


def suite_of(seeds: int = 2, **settings: object) -> Suite:
    given = {"length": 16, "steps": 4, "lr": "0.001,0.01,0.1", **settings}
    return make_suite({"models": "dlr,attention", "tasks": "cumsum", "seeds": seeds}, given)


class Runner:
    """Gives every run a validation score by its rate and the opposite test score; ``change`` may edit its record."""

    def __init__(self, out: Path, best: dict[str, float], change: OnEnd = lambda *_: None) -> None:
        self.out, self.best, self.change, self.calls = out, best, change, list[list[RunConfig]]()

    def __call__(self, runs: Sequence[RunConfig], on_end: OnEnd = lambda *_: None) -> list[RunRecord]:
        self.calls.append(list(runs))
        records = []
        for run in runs:
            record = run.record("done")
            score = 0.9 if run.budget.lr == self.best[run.model.name] else 0.5
            record.scores = {"val": {"r2": score}, "test": {"r2": 1.4 - score}}
            self.change(run, record)
            folder = run.folder(self.out.absolute())
            folder.mkdir(parents=True, exist_ok=True)
            record.write(folder)
            records.append(record)
            on_end(run, record)
        return records


def test_each_model_gets_its_best_rate_and_the_other_seeds_at_it(tmp_path: Path) -> None:
    suite, runner = suite_of(seeds=3), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    runs, records, _ = run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
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


def test_the_choice_is_noted_as_each_run_ends(tmp_path: Path) -> None:
    def stopped(run: RunConfig, _: RunRecord) -> None:
        if run.seed == 2:
            raise KeyboardInterrupt

    runner = Runner(tmp_path, {"dlr": 0.1, "attention": 0.1}, stopped)
    with pytest.raises(KeyboardInterrupt):
        run_selected(suite_of(seeds=3), ("lr",), runner, tmp_path)
    assert [cell["different_seeds"] for cell in make_table(frame(tmp_path)).cells] == [1, 2]


def test_each_length_gets_a_rate_of_its_own(tmp_path: Path) -> None:
    def by_length(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"]["r2"] = -abs(run.budget.lr - {16: 0.001, 32: 0.1}[run.task.input.length])

    suite = suite_of(seeds=2, length="16,32")
    owned = make_suite({"models": "dlr", "tasks": "cumsum"}, {"task.length": "16,32", "lr": "0.1,0.2"})
    assert require_selectable(suite, "val") == require_selectable(owned, "val") == ("lr",)
    runs, _, _ = run_selected(suite, ("lr",), Runner(tmp_path, {"dlr": 1.0, "attention": 1.0}, by_length), tmp_path)
    assert len(runs) == 8
    assert {(run.task.input.length, run.budget.lr) for run in runs} == {(16, 0.001), (32, 0.1)}


def test_two_settings_are_chosen_together(tmp_path: Path) -> None:
    def by_both(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"]["r2"] = float((run.budget.lr, run.model.parameters["d_state"]) == (0.1, 8))

    given = {"length": 16, "steps": 4, "lr": "0.01,0.1", "d_state": "4,8"}
    suite = make_suite({"models": "dlr", "tasks": "cumsum", "seeds": 2}, given)
    runner = Runner(tmp_path, {"dlr": 1.0}, by_both)
    runs, records, _ = run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
    assert [(run.budget.lr, run.model.parameters["d_state"], run.seed) for run in runs] == [(0.1, 8, 0), (0.1, 8, 1)]
    assert all(record.selection["values"] == {"lr": [0.01, 0.1], "d_state": [4, 8]} for record in records)


def test_the_table_has_one_cell_per_model_with_its_rate(tmp_path: Path) -> None:
    suite, runner = suite_of(), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
    table = make_table(frame(tmp_path)).scores()
    assert table.header[3:] == ["attention", "dlr"]
    assert [cell.split(" (")[1] for cell in table.lines[0][3:]] == ["lr 0.01)", "lr 0.1)"]


def test_a_tie_goes_to_the_run_that_was_solved_earlier(tmp_path: Path) -> None:
    def tied(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"]["r2"] = 1.0 - 1e-5 * (run.budget.lr == 0.01)  # equal to four decimals
        record.steps_to_solve = {0.001: 40, 0.01: 20, 0.1: None}[run.budget.lr]

    suite = suite_of(seeds=1)
    runs, _, _ = run_selected(suite, suite.varied, Runner(tmp_path, {"dlr": 0.1, "attention": 0.1}, tied), tmp_path)
    assert {run.budget.lr for run in runs} == {0.01}


def test_a_fourth_decimal_of_the_score_counts_more_than_the_steps(tmp_path: Path) -> None:
    def close(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"]["r2"] = 0.9921 if run.budget.lr == 0.01 else 0.992
        record.steps_to_solve = 40 if run.budget.lr == 0.01 else 20

    suite = suite_of(seeds=1)
    runs, _, _ = run_selected(suite, suite.varied, Runner(tmp_path, {"dlr": 0.1, "attention": 0.1}, close), tmp_path)
    assert {run.budget.lr for run in runs} == {0.01}


def test_a_second_selection_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for length, rates, best in ((32, "0.1,1.0", 0.1), (16, "0.001,0.01", 0.01), (16, "0.1,1.0", 1.0)):
        suite = suite_of(lr=rates, length=length)
        run_selected(suite, ("lr",), Runner(tmp_path, {"dlr": best, "attention": best}), tmp_path)
    stored = [record for _, record in read_records(tmp_path)[0]]
    chosen = [record for record in stored if record.selection["chosen"]]
    assert {(record.task["parameters"]["length"], record.budget["lr"]) for record in chosen} == {(32, 0.1), (16, 1.0)}
    table = make_table(frame(tmp_path))
    assert [cell["different_seeds"] for cell in table.cells] == [2] * 4
    assert [cell.split(" (")[1] for cell in table.scores().lines[0][3:]] == ["lr 1.0)"] * 2


def test_a_selection_with_fewer_seeds_keeps_the_other_seeds_at_the_same_value(tmp_path: Path) -> None:
    for seeds, rates, best in ((3, "0.01,0.1", 0.1), (1, "0.01,0.1", 0.1), (1, "0.01,0.1,1.0", 0.1)):
        runner = Runner(tmp_path, {"dlr": best, "attention": best})
        run_selected(suite_of(seeds, lr=rates), ("lr",), runner, tmp_path)
        table = make_table(frame(tmp_path))
        assert [cell["different_seeds"] for cell in table.cells] == [3, 3]
        assert frame(tmp_path)["candidates"].tolist() == [len(rates.split(","))] * 6
    run_selected(suite_of(1, lr="0.1,1.0"), ("lr",), Runner(tmp_path, {"dlr": 1.0, "attention": 1.0}), tmp_path)
    assert [cell["different_seeds"] for cell in make_table(frame(tmp_path)).cells] == [1, 1]


def test_a_selection_of_more_settings_takes_the_place_of_one_of_fewer(tmp_path: Path) -> None:
    def decayed(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"]["r2"] += run.budget.weight_decay
        folder = run.folder(tmp_path)
        record.selection = read_record(folder).selection if folder.exists() else {}

    runner = Runner(tmp_path, {"dlr": 0.1, "attention": 0.1}, decayed)
    run_selected(suite_of(3, lr="0.01,0.1"), ("lr",), runner, tmp_path)
    suite = suite_of(3, lr="0.01,0.1", weight_decay="0.0,0.5")
    run_selected(suite, ("lr", "weight_decay"), runner, tmp_path)
    assert frame(tmp_path)["budget.weight_decay"].tolist() == [0.5] * 6


def test_a_finished_selection_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, runner = suite_of(), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    before = run_selected(suite, ("lr",), runner, tmp_path)[1]
    monkeypatch.setattr(RunRecord, "write", lambda *_: pytest.fail("a record is written"))

    def stored(runs: Sequence[RunConfig], _: OnEnd) -> list[RunRecord]:
        return [read_record(run.folder(tmp_path)) for run in runs]

    assert run_selected(suite, ("lr",), stored, tmp_path)[1] == before


def test_runs_in_a_read_only_folder_are_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, runner = suite_of(), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})
    runner(suite.runs)

    def refused(_: RunRecord, folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    def stored(runs: Sequence[RunConfig], _: OnEnd) -> list[RunRecord]:
        return [read_record(run.folder(tmp_path)) for run in runs]

    monkeypatch.setattr(RunRecord, "write", refused)
    chosen = run_selected(suite, ("lr",), stored, tmp_path)[1]
    assert {(record.model["name"], record.budget["lr"]) for record in chosen} == {("dlr", 0.1), ("attention", 0.01)}


def test_a_note_keeps_what_another_command_wrote_since(tmp_path: Path) -> None:
    """A second command trains the same runs again (``--overwrite``), while the first one notes its selection."""
    suite = suite_of(seeds=1)

    class Raced(Runner):
        def __call__(self, runs: Sequence[RunConfig], on_end: OnEnd) -> list[RunRecord]:
            records = super().__call__(runs, on_end)
            for run in runs:
                newer = read_record(run.folder(tmp_path))
                newer.scores["test"] = {"r2": 0.75}
                newer.write(run.folder(tmp_path))
            return records

    run_selected(suite, ("lr",), Raced(tmp_path, {"dlr": 0.1, "attention": 0.01}), tmp_path)
    stored = [record for _, record in read_records(tmp_path)[0]]
    assert {record.scores["test"]["r2"] for record in stored} == {0.75}
    assert sum(record.selection["chosen"] for record in stored) == 2


def test_a_run_that_was_not_chosen_stays_among_plain_runs(tmp_path: Path) -> None:
    runner = Runner(tmp_path, {"dlr": 0.1, "attention": 0.1})
    runner(suite_of(seeds=3, lr=0.001).runs)
    run_selected(suite_of(seeds=1), ("lr",), runner, tmp_path)
    table = make_table(frame(tmp_path))
    found = {(cell["column"], cell["different_seeds"]) for cell in table.cells}
    plain, selected = "lr=0.001", "lr=selected"
    assert {seeds for column, seeds in found if plain in column} == {3}, found
    assert {seeds for column, seeds in found if selected in column} == {1}, found


@pytest.mark.parametrize("spoiled", ["garbage", "another run's", "of another status", "held"])
def test_a_record_that_is_not_the_runs_own_is_left_alone(tmp_path: Path, spoiled: str) -> None:
    suite, runner = suite_of(seeds=1), Runner(tmp_path, {"dlr": 0.1, "attention": 0.1})
    folder, other = (run.folder(tmp_path.absolute()) for run in suite.runs[:2])

    class Spoiling(Runner):
        def __call__(self, runs: Sequence[RunConfig], on_end: OnEnd) -> list[RunRecord]:
            records = super().__call__(runs, on_end)
            content = (other / "record.json").read_text() if spoiled == "another run's" else "garbage"
            if spoiled == "of another status":
                replace(records[0], status="failed").write(folder)
            elif spoiled != "held":
                (folder / "record.json").write_text(content)
            return records

    spoiling = Spoiling(tmp_path, runner.best)
    with held(folder / LOCK, "it") if spoiled == "held" and not folder.mkdir(parents=True) else nullcontext():
        run_selected(suite, ("lr",), spoiling, tmp_path)
    if spoiled == "garbage":
        assert (folder / "record.json").read_text() == spoiled
    else:
        assert read_record(folder).selection == {}


def test_a_run_that_failed_is_given_back(tmp_path: Path) -> None:
    def failing(run: RunConfig, record: RunRecord) -> None:
        record.status = {0.001: "failed", 0.01: "diverged"}.get(run.budget.lr, "done")

    suite = suite_of(seeds=2)
    runner = Runner(tmp_path, {"dlr": 0.01, "attention": 0.01}, failing)
    chosen, records, failed = run_selected(suite, ("lr",), runner, tmp_path)
    assert {run.budget.lr for run in chosen} == {0.1} and len(chosen) == 4
    assert [record.status for record in records] == ["done"] * 4
    assert [(record.budget["lr"], record.status) for record in failed.values()] == [(0.001, "failed")] * 2


def test_refused_runs_leave_no_folders(tmp_path: Path) -> None:
    suite = suite_of()

    def refuse(runs: Sequence[RunConfig], _: OnEnd) -> list[RunRecord]:
        return [run.record("refused") for run in runs]

    run_selected(suite, require_selectable(suite, "val"), refuse, tmp_path)
    assert not any(tmp_path.iterdir())


def test_no_other_seed_runs_if_the_first_finished_at_no_value(tmp_path: Path) -> None:
    def failing(run: RunConfig, record: RunRecord) -> None:
        record.status = "failed" if run.model.name == "dlr" else "done"

    runner = Runner(tmp_path, {"dlr": 0.01, "attention": 0.01}, failing)
    chosen, records, _ = run_selected(suite_of(seeds=3), ("lr",), runner, tmp_path)
    assert [(run.model.name, run.seed) for run in runner.calls[1]] == [("attention", 1), ("attention", 2)]
    assert [(run.model.name, record.status) for run, record in zip(chosen, records, strict=True)] == [
        ("dlr", "failed"),
        *[("attention", "done")] * 3,
    ]


def test_a_negative_score_is_better_than_none(tmp_path: Path) -> None:
    def poor(run: RunConfig, record: RunRecord) -> None:
        record.scores = {"val": {"r2": -0.5}} if run.budget.lr == 0.01 else {}
        record.status = "done" if run.budget.lr == 0.01 else "failed"

    chosen, _, _ = run_selected(
        suite_of(seeds=1), ("lr",), Runner(tmp_path, {"dlr": 1, "attention": 1}, poor), tmp_path
    )
    assert {run.budget.lr for run in chosen} == {0.01}


def test_nothing_is_chosen_while_another_process_works_on_a_candidate(tmp_path: Path) -> None:
    def shared(run: RunConfig, record: RunRecord) -> None:
        if (run.model.name, run.budget.lr) == ("dlr", 0.1):
            record.status = "running"

    suite = suite_of(lr="0.01,0.1")
    runner = Runner(tmp_path, {"dlr": 0.01, "attention": 0.01}, shared)
    runs, records, failed = run_selected(suite, ("lr",), runner, tmp_path)
    assert [(run.model.name, run.budget.lr, run.seed) for run in runs] == [
        ("dlr", 0.01, 0),
        *(("attention", 0.01, seed) for seed in (0, 1)),
    ]
    assert [record.status for record in failed.values()] == ["running"]
    noted = {record.model["name"] for _, record in read_records(tmp_path)[0] if record.selection}
    assert noted == {"attention"}
    assert not records[0].selection


def test_a_chosen_run_that_failed_is_not_among_those_at_other_values(tmp_path: Path) -> None:
    def failing(_: RunConfig, record: RunRecord) -> None:
        record.status = "failed"

    runner = Runner(tmp_path, {"dlr": 1, "attention": 1}, failing)
    chosen, _, failed = run_selected(suite_of(seeds=1), ("lr",), runner, tmp_path)
    assert {run.budget.lr for run in chosen} == {0.001}
    assert sorted(record.budget["lr"] for record in failed.values()) == [0.01, 0.01, 0.1, 0.1]


def test_settings_of_a_mixer_and_of_the_one_model_can_be_selected(tmp_path: Path) -> None:
    given = {"length": 16, "steps": 4, "gated_deltanet.heads": "2,4"}
    suite = make_suite({"models": "hybrid", "tasks": "cumsum", "seeds": 2}, given)
    runs, records, _ = run_selected(suite, require_selectable(suite, "val"), Runner(tmp_path, {"hybrid": 1}), tmp_path)
    assert len(runs) == 2 and records[0].selection["values"] == {"gated_deltanet.heads": [2, 4]}
    assert [row["selected"] for _, row in frame(tmp_path).iterrows()] == ['{"gated_deltanet.heads": 2}'] * 2
    (row,) = make_table(frame(tmp_path)).rows()
    assert row["selected"] == {"gated_deltanet.heads": 2}
    suite = make_suite({"models": "dlr", "tasks": "cumsum"}, {"length": 16, "dlr.d_state": "8,16"})
    runs, records, _ = run_selected(suite, require_selectable(suite, "val"), Runner(tmp_path, {"dlr": 1}), tmp_path)
    assert len(runs) == 1 and records[0].selection["values"] == {"d_state": [16, 8]}


def sized(d_model: int, length: int = 2) -> nn.Module:
    return nn.Linear(d_model, d_model * length)


def test_a_setting_of_a_model_with_the_name_of_a_task_parameter_can_be_selected() -> None:
    runs = [RunConfig.make("cumsum", sized, settings={"model.length": length}) for length in (2, 3)]
    assert require_selectable(Suite(runs, varied=("model.length", "task.length")), "val") == ("model.length",)


def test_values_of_a_budget_field_that_records_may_lack_belong_to_one_selection(tmp_path: Path) -> None:
    suite = make_suite({"models": "dlr", "tasks": "cumsum", "seeds": 2}, {"lr": 0.1, "accumulate": "1,2"})
    runs, records, _ = run_selected(suite, require_selectable(suite, "val"), Runner(tmp_path, {"dlr": 0.1}), tmp_path)
    assert [run.seed for run in runs] == [0, 1] and records[0].budget.get("accumulate") is None
    (variant,) = {variant_of(record).get("accumulate") for _, record in read_records(tmp_path)[0]}
    assert variant == "selected"
    assert set(frame(tmp_path)["selected"]) == {'{"accumulate": 1}'}


@pytest.mark.parametrize(
    ("settings", "by", "message"),
    [
        ({"lr": 0.1, "length": "16,32"}, "val", "--select needs a setting of model or budget with several values"),
        ({"dlr.d_state": "8,16"}, "val", "dlr.d_state belongs to one model and cannot be selected beside others"),
        ({"lr": 0.1, "steps": "4,8"}, "val", "steps is the same for all compared models and cannot be selected"),
        ({}, "test", "unknown stream to select on 'test'"),
    ],
)
def test_what_cannot_be_selected_is_refused(settings: dict[str, object], by: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        require_selectable(suite_of(**settings), by)


def test_a_later_parameter_with_its_default_can_be_selected(tmp_path: Path) -> None:
    """The identity of a run leaves out such a value, but it is one of the values that are compared."""

    def without_convolution_is_best(run: RunConfig, record: RunRecord) -> None:
        record.scores["val"] = {"r2": 0.5 if run.model.parameters.get("conv") else 0.9}

    given = {"length": 16, "steps": 4, "conv": "true,false"}
    suite = make_suite({"models": "transformer", "tasks": "cumsum", "seeds": 2}, given)
    runner = Runner(tmp_path, {"transformer": 0.1}, without_convolution_is_best)
    _, records, _ = run_selected(suite, ("conv",), runner, tmp_path)
    assert len(records) == 2
    (one,) = frame(tmp_path)["selected"].unique()
    assert one == '{"conv": false}'


def test_a_failed_seed_of_an_earlier_choice_leaves_the_table(tmp_path: Path) -> None:
    def failing(run: RunConfig, record: RunRecord) -> None:
        if run.seed == 1 and run.budget.lr == 0.1:
            record.status = "failed"

    for rates, best in (("0.01,0.1", 0.1), ("0.1,1.0", 1.0)):
        runner = Runner(tmp_path, {"dlr": best, "attention": best}, failing)
        run_selected(suite_of(lr=rates), ("lr",), runner, tmp_path)
    assert [cell["statuses"] for cell in make_table(frame(tmp_path)).cells] == [["done", "done"]] * 2


def test_runs_on_a_read_only_file_system_are_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, runner = suite_of(), Runner(tmp_path, {"dlr": 0.1, "attention": 0.01})

    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("lrtasks.suite.select.held", refused)
    assert len(run_selected(suite, ("lr",), runner, tmp_path)[1]) == 4


def test_a_plan_has_as_many_runs_as_the_selection(tmp_path: Path) -> None:
    runs = [
        {"model": "dlr", "task": "cumsum", "seed": seed, "settings": {"d_state": size}}
        for size, seeds in ((4, (0, 1)), (8, (0, 1)), (16, (1,)))
        for seed in seeds
    ]
    suite = make_suite({"runs": runs}, {"lr": "0.01,0.1"})
    runner = Runner(tmp_path, {"dlr": 0.1})
    run_selected(suite, ("lr",), runner, tmp_path)
    assert len(planned(suite, ("lr",))) == sum(map(len, runner.calls)) == 8


def stepped(d_model: int, steps: int = 1, clip: float = 1.0) -> nn.Module:
    return nn.Sequential(*(nn.Linear(d_model, d_model) for _ in range(steps)), nn.Hardtanh(-clip, clip))


def test_arguments_with_the_names_of_budget_fields() -> None:
    address = f"{__file__}:stepped"
    suite = make_suite({"models": address, "tasks": "cumsum"}, {"model.steps": "1,2"})
    assert require_selectable(suite, "val") == ("model.steps",)
    suite = make_suite({"models": address, "tasks": "cumsum"}, {"budget.clip": "1,2", "model.clip": 5})
    with pytest.raises(UsageError, match="has an argument clip, and so has the budget; rename the argument"):
        require_selectable(suite, "val")


def test_models_of_a_suite_may_vary_different_settings(tmp_path: Path) -> None:
    sizes = {"model": "dlr", "task": "cumsum", "settings": {"d_state": "4,8"}}
    rates = {"model": "attention", "task": "cumsum", "settings": {"lr": "0.01,0.1"}}
    suite = make_suite({"runs": [sizes, rates]}, {})
    runner = Runner(tmp_path, {"dlr": 0.1, "attention": 0.1})
    chosen, records, _ = run_selected(suite, require_selectable(suite, "val"), runner, tmp_path)
    assert [record.selection["values"].get("d_state") for record in records] == [[4, 8], None]
    assert [run.budget.lr for run in chosen if run.model.name == "attention"] == [0.1]
