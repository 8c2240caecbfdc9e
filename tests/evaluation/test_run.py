"""Runs from names to record."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from quick_runs import OWN_LENGTHS, TASK, cut_off, folders, outcome, run
from torch import Tensor, nn
from toys import BUDGET, Labels, Net, Segments, droppy, plain

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import HELD_OUT_SEED, BatchStream, Replay
from lrtasks.evaluation.environment import make_fabric
from lrtasks.evaluation.scoring import BASELINE_BATCHES, baseline_scores
from lrtasks.models.base import state_bytes
from lrtasks.results import read_record


def test_a_run_leaves_a_record_and_the_weights(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, hyper={"d_model": 8, "d_state": 4})
    (folder,) = folders(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["record.json", "weights.pt"]
    assert outcome(read_record(folder)) == outcome(read_record(str(folder / "record.json"))) == outcome(record)
    assert record.status == "done"
    assert {key: record.task[key] for key in ("name", "version", "parameters", "metric", "data")} == {
        "name": "shift",
        "version": 1,
        "parameters": TASK.parameters(),
        "metric": "r2",
        "data": None,
    }
    assert record.model["name"] == "dlr"
    built = lrtasks.models.build("dlr", TASK.input, TASK.target, d_model=8, d_state=4)
    assert record.model["count"] == sum(value.numel() for value in built.parameters())
    assert lrtasks.load_model(folder / "record.json").state_dict().keys() == built.state_dict().keys()
    assert record.model["state_bytes"] == state_bytes(built)
    assert [point["step"] for point in record.curve] == [4, 8, 12]
    assert record.scores["val"] == {
        key: value for key, value in record.curve[-1].items() if key not in ("step", "loss")
    }
    assert set(record.scores["test"]) == {"r2", "r2_batch_mean", "r2_batch_std"}
    assert set(record.baselines) == {"constant", "copy"}
    assert set(record.slices) == {"position", "shift"}
    assert 0 < record.cost["seconds"] <= record.cost["seconds_with_evaluation"]
    assert record.cost["seconds_per_step"] == pytest.approx(record.cost["seconds"] / 12)
    assert torch.__version__.startswith(record.environment["torch"])
    saved = torch.load(folder / "weights.pt", weights_only=True)
    assert saved["step"] == 12 and "decoder.weight" in saved["model"]


@pytest.fixture
def restless() -> Iterator[None]:
    """Let Python change between threads often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_fabric_is_launched_in_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[Any] = []
    most: list[int] = []

    def launch(self: Any) -> None:
        inside.append(self)
        time.sleep(0.02)
        most.append(len(inside))
        inside.remove(self)

    monkeypatch.setattr("lightning_fabric.Fabric.launch", launch)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: make_fabric("cpu", "32"), range(4)))
    assert most == [1] * 4


@pytest.mark.usefixtures("restless")
def test_runs_in_threads_are_the_runs_one_by_one(tmp_path: Path) -> None:
    expected = [outcome(run(droppy, tmp_path / "one", seed=seed)) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        records = [*pool.map(lambda seed: run(droppy, tmp_path / "threads", seed=seed), range(4))]
    assert [outcome(record) for record in records] == expected


def test_the_progress_ends_with_the_last_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = lrtasks.evaluate(plain, TASK, budget=BUDGET, out=tmp_path, workers=0, device="cpu")
    last = record.curve[-1]
    assert f"12/12  loss {last['loss']:.4g}  val r2 {last['r2']:.4g}  " in capsys.readouterr().err
    assert f"{last['r2']:.4g}" != f"{record.curve[-2]['r2']:.4g}"


def test_training_learns(tmp_path: Path) -> None:
    record = run(plain, tmp_path, Labels(), budget={"steps": 60, "eval_every": 60})
    assert record.scores["test"]["accuracy"] > 0.95 > 0.5 > record.baselines["majority"]["accuracy"]


def test_segmentation(tmp_path: Path) -> None:
    record = run(plain, tmp_path, Segments(), budget={"steps": 60, "eval_every": 60})
    assert record.headline() == record.scores["test"]["macro_f1"] > 0.95


def test_the_same_run_has_the_same_outcome_whoever_makes_the_batches(tmp_path: Path) -> None:
    one, other = (run(droppy, tmp_path / str(workers), workers=workers, budget=OWN_LENGTHS) for workers in (0, 2))
    assert outcome(one) == outcome(other)


def test_a_finished_run_is_not_carried_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(plain, tmp_path)
    monkeypatch.setattr(loop, "train", None)
    assert outcome(run(plain, tmp_path)) == outcome(first)
    assert len(folders(tmp_path)) == 1


def test_a_complex_parameter_counts_as_two_numbers(tmp_path: Path) -> None:
    class Complex(Net):
        def __init__(self, *specs: Any) -> None:
            super().__init__(*specs)
            self.gain = torch.nn.Parameter(torch.ones(3, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.gain.prod().abs()

    counts = [run(cls(TASK.input, TASK.target), tmp_path).model["count"] for cls in (Net, Complex)]
    assert counts[1] - counts[0] == 6


def test_held_out_streams_are_the_same_for_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, list[Tensor]] = {0: [], 1: []}
    real = loop.forward
    for seed, batches in seen.items():

        def spy(model: nn.Module, batch: Any, masked: bool, batches: list[Tensor] = batches) -> Tensor:
            batches.append(batch.x)
            return real(model, batch, masked)

        monkeypatch.setattr(loop, "forward", spy)
        run(plain, tmp_path, seed=seed, budget={"steps": 4, **OWN_LENGTHS})
    # four training batches, two of validation, three of test, one of each further test, five passes of one batch
    # that show whether the model is causal
    alike = [torch.equal(one, other) for one, other in zip(seen[0], seen[1], strict=True)]
    assert alike == [False] * 4 + [True] * (5 + 3 + 5)


def test_floors_are_those_of_the_test_stream_and_a_run_stops_by_that_of_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Replay(BatchStream(TASK, 1, "train", BUDGET["batch_size"]), BASELINE_BATCHES, 0)
    floors = {}
    for split in ("val", "test"):
        stream = BatchStream(TASK, HELD_OUT_SEED, split, BUDGET["batch_size"])  # type: ignore[arg-type]
        floors[split] = baseline_scores(TASK, train, Replay(stream, BUDGET[f"{split}_batches"], 0))
    given: list[float] = []
    real = loop.train

    def spy(*arguments: Any, floor: float, **options: Any) -> Any:
        given.append(floor)
        return real(*arguments, floor=floor, **options)

    monkeypatch.setattr(loop, "train", spy)
    record = run(plain, tmp_path, seed=1, budget={"stop_solved": True})
    assert record.baselines == floors["test"]
    assert given == [max(scores["r2"] for scores in floors["val"].values())]


def test_a_stored_dataset(tmp_path: Path) -> None:
    from lrtasks.data import generate, open_dataset

    path = str(tmp_path / "data")
    generate(TASK, path, samples=50, split=(0.6, 0.2, 0.2), workers=1)
    dataset = open_dataset(path)
    module = Net(TASK.input, TASK.target)
    record = run(module, tmp_path / "runs", data=path)
    assert record.task["data"] == dataset.manifest.digest
    assert {"val", "train", "test"} <= set(record.scores)
    # the test goes through the whole split, its last batch being what is left
    batch = dataset.batch(range(dataset.counts["test"]), split="test")
    with torch.no_grad():
        error = ((module(torch.from_numpy(batch.x)).numpy() - batch.y) ** 2).mean()
    assert record.scores["test"]["r2"] == pytest.approx(1 - error / batch.y.var(), abs=1e-6)
    with pytest.raises(UsageError, match="holds data of another task"):
        run(plain, tmp_path / "runs", lrtasks.make("shift", length=16, shifts=4), data=path)
    with pytest.raises(UsageError, match="train_samples belongs to fresh samples"):
        run(plain, tmp_path / "runs", data=path, budget={"train_samples": 8})
    generate(TASK, tmp_path / "untested", samples=4, split=(0.5, 0.5, 0), workers=1)
    with pytest.raises(UsageError, match="untested has no test samples; generate it with a --split that leaves some"):
        run(plain, tmp_path / "runs", data=tmp_path / "untested")


def test_the_callers_random_numbers_go_on(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(droppy, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_segmentation_run_leaves_a_panel_of_predictions(tmp_path: Path) -> None:
    task = lrtasks.make("pathfinder", res=64, dashes=3, distractors=1)
    run("dlr", tmp_path, task, hyper={"d_model": 4, "d_state": 4}, budget={"steps": 2, "batch_size": 2})
    (folder,) = folders(tmp_path)
    assert (folder / "predictions.png").stat().st_size > 1000


def test_warnings_of_the_model_are_notes_of_the_record(tmp_path: Path) -> None:
    record = run("mega-chunk", tmp_path, hyper={"d_model": 8, "chunk": 5})
    assert [note for note in record.notes if "chunk 5 does not divide the length 16" in note] == record.notes
    assert len(record.notes) == 1


def test_what_a_model_says_in_training_is_a_note_of_every_seed(tmp_path: Path) -> None:
    hyper = {"d_model": 8, "window": 4, "codebook": 256}
    for seed in (0, 1):
        with pytest.warns(UserWarning, match="codes will stay empty"):
            record = run("longvq", tmp_path, hyper=hyper, seed=seed)
        assert [note for note in record.notes if "codebook of 256 codes is larger" in note] == record.notes
        assert len(record.notes) == 1


class Random(Net):
    """Draws from torch's, NumPy's and Python's own generators, as modules of users do."""

    drawn: ClassVar[list[tuple[float, ...]]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.drawn.append((torch.rand(()).item(), float(np.random.normal()), random.random()))
            x = x + 0.1 * sum(self.drawn[-1])
        return super().forward(x)


def test_random_numbers_are_the_runs_own_and_new_at_each_step(tmp_path: Path) -> None:
    before = random.getstate()
    first = run(Random, tmp_path / "a")
    assert random.getstate() == before
    random.seed(99)
    np.random.seed(99)
    assert run(Random, tmp_path / "b").scores == first.scores
    run(Random, tmp_path / "b", seed=1)
    own, again, other = (Random.drawn[start : start + 12] for start in (0, 12, 24))
    assert own == again
    assert [len(set(numbers)) for numbers in zip(*[*own, *other], strict=True)] == [24] * 3


class DrawsWithNumpy(nn.Module):
    """A mixer whose initial weights come from NumPy, and with random numbers in evaluation, too."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.from_numpy(np.random.randn(d_model, d_model)).float() / d_model)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + 0.1 * torch.randn_like(x)


def test_each_process_has_random_numbers_of_its_own() -> None:
    drawn = []
    for rank in (0, 1, 0):
        loop.seed_step(5, 3, rank)
        drawn.append((torch.rand(1).item(), np.random.random(), random.random()))
    assert drawn[0] == drawn[2] and not set(drawn[0]) & set(drawn[1])


def test_the_seed_sets_weights_that_numpy_draws(tmp_path: Path) -> None:
    np.random.seed(5)
    first = run(DrawsWithNumpy, tmp_path / "one", seed=1)
    again = run(DrawsWithNumpy, tmp_path / "two", seed=1)
    assert outcome(first) == outcome(again)
    assert outcome(run(DrawsWithNumpy, tmp_path / "one", seed=2)) != outcome(first)


def test_random_numbers_of_the_test_do_not_depend_on_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(DrawsWithNumpy, tmp_path / "whole")
    with cut_off(monkeypatch, "lrtasks.evaluation.run._Run._test"):
        run(DrawsWithNumpy, tmp_path / "cut")
    assert outcome(run(DrawsWithNumpy, tmp_path / "cut")) == outcome(whole)
