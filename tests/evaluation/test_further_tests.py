"""Further tests: the trained model at other lengths, scaled scores, and when a run was solved."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_runs import OWN_LENGTHS, run
from torch import Tensor, nn
from toys import Net

import lrtasks
from lrtasks.data import generate, open_dataset
from lrtasks.errors import UsageError
from lrtasks.evaluation import batches, further_tests
from lrtasks.evaluation.batches import HELD_OUT_SEED, BatchStream, Replay
from lrtasks.evaluation.further_tests import FurtherTest, note_summary
from lrtasks.evaluation.loop import steps_to_solve
from lrtasks.evaluation.scoring import BASELINE_BATCHES, Scorer, baseline_scores
from lrtasks.metrics import scaled_score
from lrtasks.record import RunRecord, read_record
from lrtasks.results.analysis import slice_tables
from lrtasks.run_config import RunConfig

TASK = lrtasks.make("cumsum", length=16)
SMALL = {"d_model": 8, "d_state": 4}


def test_a_model_is_scored_at_the_tasks_own_lengths(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, TASK, hyper=SMALL, budget=OWN_LENGTHS)
    assert {"2x", "4x", "8x"} <= set(record.scores)
    for name in ("test", "2x", "4x", "8x"):
        floor = record.floor(name)
        assert floor is not None
        assert record.scaled[name] == pytest.approx(scaled_score(record.scores[name]["r2"], floor))


def test_lengths_can_be_chosen(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, TASK, hyper=SMALL, seed=1, budget={"test_lengths": (8, 20), "test_batches": 8})
    assert set(record.scores) == {"val", "test", "8", "20"}
    for length, size in ((8, 8), (20, 3)):  # about as many positions per batch as in training; a quarter of the batches
        task = TASK.at_length(length)
        train = Replay(BatchStream(task, 1, "train", size), BASELINE_BATCHES, 0)
        test = Replay(BatchStream(task, HELD_OUT_SEED, "test", size), 2, 0)
        assert record.further_baselines[str(length)] == baseline_scores(task, train, test)
    with pytest.raises(UsageError, match="has no tests at other lengths"):
        run("dlr", tmp_path, lrtasks.make("select-fixed", length=16, marks=2), budget={"test_lengths": 32})
    with pytest.raises(UsageError, match="test_lengths must be at least 1"):
        run("dlr", tmp_path, TASK, budget={"test_lengths": "0"})


def test_a_model_has_its_own_specs_again_after_tests_at_other_lengths(tmp_path: Path) -> None:
    model = lrtasks.models.build("dlr", TASK.input, TASK.target, **SMALL)
    run(model, tmp_path, TASK, budget={"test_lengths": (8,)})
    assert (model.input, model.target) == (TASK.input, TASK.target)


def test_each_test_has_its_own_standard_error(tmp_path: Path) -> None:
    module = Net(TASK.input, TASK.target)
    record = run(module, tmp_path, TASK, budget={"test_lengths": (8,)})
    expected = {}
    for name, task, size, count in (("test", TASK, 4, 3), ("8", TASK.at_length(8), 8, 1)):
        scorer = Scorer(task)
        for batch in Replay(BatchStream(task, HELD_OUT_SEED, "test", size), count, 0):
            with torch.no_grad():
                scorer.update(module(torch.from_numpy(batch.x)).numpy(), batch)
        expected[name] = scorer.error()
    assert record.errors == pytest.approx(expected)


def test_stored_samples_are_further_tests(tmp_path: Path) -> None:
    store(lrtasks.make("cumsum", length=24), tmp_path / "long")
    store(lrtasks.make("word-problem", length=8), tmp_path / "other")
    store(TASK, tmp_path / "untested", split=(0, 1, 0))
    long, other = str(tmp_path / "long"), str(tmp_path / "other")
    record = run("dlr", tmp_path, TASK, hyper=SMALL, budget={"test_lengths": (8,), "test_data": (long,)})
    assert set(record.scores) == {"val", "test", "8", "long"}
    assert record.scaled["long"] is not None and record.floor("long") is not None
    for addresses, message in (
        ((other,), "other needs another model"),
        ((str(tmp_path / "nowhere"),), "nowhere"),
        ((long, f"{long}/"), "two tests are called 'long'"),
        ((str(tmp_path / "untested"),), "untested has no test samples"),
    ):
        with pytest.raises(UsageError, match=message):
            run("dlr", tmp_path, TASK, budget={"test_data": addresses})


def store(task: lrtasks.Task, folder: Path, split: tuple[int, int, int] = (0, 0, 1)) -> None:
    generate(task, folder, samples=5, split=split, workers=1)


class Fixed(Net):
    """A model for one length."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 16:
            raise RuntimeError("made for 16 positions")
        return super().forward(x)


def test_a_model_that_cannot_run_at_a_length_says_so(tmp_path: Path) -> None:
    record = run(Fixed, tmp_path, TASK, budget=OWN_LENGTHS)
    assert record.status == "done"
    assert record.scores["2x"] == {} and record.scaled["2x"] is None
    line = r"test 2x: not possible: RuntimeError: made for 16 positions \(line \d+ of test_further_tests\.py\)"
    assert any(re.fullmatch(line, note) for note in record.notes)
    assert "test" in record.scores


class CumSum(nn.Module):
    """Solves the task at every length."""

    def __init__(self, input: Any, target: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight[0]))

    def forward(self, x: Tensor) -> Tensor:
        t = x.new_tensor(range(1, x.shape[1] + 1))
        return self.scale * (x[:, :, 0].cumsum(1) / t.sqrt())[..., None]


def test_the_generalisation_length_ends_at_the_first_length_that_is_not_solved(tmp_path: Path) -> None:
    record = run(CumSum, tmp_path, TASK, budget={"lr": 1e-9, "test_lengths": (8, 32, 64)})
    assert [round(record.scaled[name] or 0, 3) for name in ("test", "8", "32", "64")] == [1, 1, 1, 1]
    assert record.generalisation_length == 64
    assert record.steps_to_solve == 4
    stopped = run(CumSum, tmp_path, TASK, budget={"lr": 1e-9, "stop_solved": True})
    assert [point["step"] for point in stopped.curve] == [4, 8]
    continued = run(CumSum, tmp_path, TASK, budget={"lr": 1e-9, "stop_solved": False})
    assert [point["step"] for point in continued.curve] == [4, 8, 12]
    assert continued.steps_to_solve == 4


def scored(**scores: float) -> RunRecord:
    """A record with these R² of its tests, of which ``test`` is the trained one; all floors are 0."""
    record = RunRecord("", {"metric": "r2"}, {}, "small", {}, 0, {})
    record.scores = {name: {"r2": score} for name, score in scores.items()}
    record.baselines = {"constant": {"r2": 0.0}}
    record.further_baselines = dict.fromkeys([name for name in scores if name != "test"], record.baselines)
    return record


@pytest.mark.parametrize(
    ("scores", "lengths", "expected"),
    [
        # without the trained length, longer ones do not count
        ({"test": 0.2, "8": 1.0, "32": 1.0}, {"8": 8, "32": 32}, None),
        ({"test": 0.9, "8": 1.0, "32": 1.0}, {"8": 8, "32": 32}, 32),
        # nor does one beyond a length that is not solved, in any order
        ({"test": 1.0, "32": 0.89, "64": 1.0}, {"32": 32, "64": 64}, 16),
        ({"test": 1.0, "32": 0.89, "64": 1.0}, {"64": 64, "32": 32}, 16),
        # a test with another distribution is no length, though it is longer
        ({"test": 1.0, "sparse": 0.2, "32": 1.0}, {"sparse": 24, "32": 32}, 32),
    ],
)
def test_which_tests_count_as_a_generalisation_length(
    scores: dict[str, float], lengths: dict[str, int], expected: int | None
) -> None:
    record = scored(**scores)
    further = {name: FurtherTest(TASK.at_length(length)) for name, length in lengths.items()}
    note_summary(TASK, further, record, None)
    assert record.generalisation_length == expected


def test_each_test_has_its_own_floor() -> None:
    record = scored(**{"test": 0.9, "32": 0.9})
    record.further_baselines = {"32": {"constant": {"r2": 0.0}, "copy": {"r2": 0.5}}}
    note_summary(TASK, {"32": FurtherTest(TASK.at_length(32))}, record, None)
    assert record.scaled == pytest.approx({"test": 0.9, "32": 0.8})


def test_tests_with_the_padded_length_of_the_trained_one_do_not_hide_it() -> None:
    task = lrtasks.make("listops", setting="small", min_length=6, max_length=12, max_depth=3, max_args=2)
    further = {name: FurtherTest(test) for name, test in task.tests().items()}
    assert [test.task.input.length for test in further.values()][:2] == [task.input.length] * 2
    record = RunRecord("", {"metric": "accuracy"}, {}, "small", {}, 0, {})
    record.scores = {"test": {"accuracy": 1.0}, "2x": {"accuracy": 0.5}, "4x": {}, "8x": {}}
    record.baselines = {"majority": {"accuracy": 0.1}}
    record.further_baselines = dict.fromkeys(further, record.baselines)
    note_summary(task, further, record, None)
    assert record.generalisation_length == task.input.length


def test_further_tests_have_slices(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, TASK, hyper=SMALL, budget={"test_lengths": 32})
    assert [row["label"] for row in record.further_slices["32"]["position"]] == [*range(0, 32, 4)]
    (folder,) = tmp_path.glob("cumsum/*")
    again = read_record(folder)
    assert again.further_slices == record.further_slices
    assert [table.header[0] for table in slice_tables(again)] == ["position", "position (32)"]


@pytest.mark.parametrize(
    ("curve", "expected"), [([0.5, 1.0, 0.5, 1.0, 1.0], 4), ([0.99, 0.99], 1), ([1.0], None), ([0.9, 0.98, 0.98], None)]
)
def test_solved_is_twice_in_a_row(curve: list[float], expected: int | None) -> None:
    points = [{"step": step, "loss": 0.0, "r2": value} for step, value in enumerate(curve, 1)]
    assert steps_to_solve(points, "r2", 0.0) == expected


def test_the_steps_to_solve_are_measured_from_the_floor_on_validation() -> None:
    record = scored(test=1.0)
    record.curve = [{"step": step, "loss": 0.0, "r2": 0.992} for step in (4, 8)]
    for floor, expected in ((0.0, 4), (0.5, None)):
        note_summary(TASK, {}, record, floor)
        assert record.steps_to_solve == expected


def test_the_content_of_a_test_set_identifies_a_run_and_not_its_address(tmp_path: Path) -> None:
    where = tmp_path / "set"

    def digest(address: str) -> str:
        return RunConfig.make(TASK, "gru", settings={"test_data": (address,)}).digest

    generate(TASK, where, samples=20, split=(0, 0, 1), workers=1)
    first = digest(str(where))
    assert digest(f"{where}/") == first
    shutil.rmtree(where)
    generate(TASK, where, samples=21, split=(0, 0, 1), workers=1)
    assert digest(str(where)) != first


def test_a_stored_test_with_a_number_as_name_does_not_count_as_a_length(tmp_path: Path) -> None:
    generate(TASK, tmp_path / "64", samples=20, split=(0, 0, 1), workers=1)
    further = {"32": FurtherTest(TASK.at_length(32)), "64": FurtherTest(TASK, open_dataset(tmp_path / "64"))}
    record = scored(**{"test": 0.99, "32": 0.99, "64": 0.2})
    note_summary(TASK, further, record, None)
    assert record.generalisation_length == 32


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), RuntimeError("DataLoader worker (pid 3) is killed")])
def test_a_worker_that_dies_in_a_further_test_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Lost:
        def __init__(self, *_: Any, num_workers: int, **__: Any) -> None:
            self.workers = num_workers

        def __iter__(self) -> Any:
            if self.workers:
                raise error
            return iter(())

    store(lrtasks.make("cumsum", length=24), tmp_path / "long")
    budget = {"test_lengths": (), "test_data": (str(tmp_path / "long"),)}
    real = further_tests.score_further

    def score_further(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(batches, "DataLoader", Lost)
            real(*arguments)

    monkeypatch.setattr("lrtasks.evaluation.run.score_further", score_further)
    with pytest.raises(UsageError, match=r"a background process that makes batches died .*; try --workers 0"):
        run("dlr", tmp_path, TASK, hyper=SMALL, budget=budget, workers=1)
    monkeypatch.undo()
    assert set(run("dlr", tmp_path, TASK, hyper=SMALL, budget=budget).scores) == {"val", "test", "long"}


def test_a_test_set_that_is_lost_or_replaced_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = tmp_path / "long"
    store(lrtasks.make("cumsum", length=24), address)
    config = RunConfig.make(TASK, "dlr", settings={"test_data": (str(address),)})
    budget = {"test_lengths": (), "test_data": (str(address),)}
    real = further_tests.score_further

    def score_further(*arguments: Any) -> None:
        address.rename(tmp_path / "moved")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("lrtasks.evaluation.run.score_further", score_further)
        with pytest.raises(UsageError, match="long cannot be read"):
            run("dlr", tmp_path, TASK, hyper=SMALL, budget=budget)
    (tmp_path / "moved").rename(address)
    assert set(run("dlr", tmp_path, TASK, hyper=SMALL, budget=budget).scores) == {"val", "test", "long"}
    shutil.rmtree(address)
    generate(lrtasks.make("cumsum", length=24), address, samples=6, split=(0, 0, 1), workers=1)
    with pytest.raises(UsageError, match="long was replaced by another dataset"):
        further_tests.further_tests(config)
