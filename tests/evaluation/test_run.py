"""Runs from names to record."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toys import BUDGET, Constant, Labels, Net, Reporting, Segments, Unmakeable, droppy, misshapen, plain

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.evaluation import loop
from lrtasks.evaluation.run import LOCK
from lrtasks.files import held
from lrtasks.models.base import state_bytes
from lrtasks.results import RunRecord, read_record

TASK = lrtasks.make("shift", length=16, shifts=2)


def run(model: Any, out: Path, task: Any = TASK, *, workers: int = 0, **arguments: Any) -> RunRecord:
    budget = {**BUDGET, **arguments.pop("budget", {})}
    return lrtasks.evaluate(model, task, budget=budget, out=out, workers=workers, device="cpu", quiet=True, **arguments)


def folders(out: Path) -> list[Path]:
    return sorted(path for path in out.rglob("*-seed*") if path.is_dir())


def outcome(record: RunRecord) -> dict[str, Any]:
    """What must not depend on how often a run was cut off, or on who made the batches."""
    return {name: getattr(record, name) for name in ("status", "scores", "curve", "floors", "slices", "diagnostics")}


def test_a_run_leaves_a_record_and_the_weights(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, hyper={"d_model": 8, "d_state": 4})
    (folder,) = folders(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["record.json", "weights.pt"]
    assert outcome(read_record(folder)) == outcome(record)
    assert record.status == "done"
    assert record.task == {"name": "shift", "version": 1, "parameters": TASK.parameters(), "metric": "r2", "data": None}
    assert record.model["name"] == "dlr"
    built = lrtasks.models.build("dlr", TASK.input, TASK.target, d_model=8, d_state=4)
    assert record.model["count"] == sum(value.numel() for value in built.parameters())
    assert record.model["state_bytes"] == state_bytes(built)
    assert [point["step"] for point in record.curve] == [4, 8, 12]
    assert record.scores["val"] == {
        key: value for key, value in record.curve[-1].items() if key not in ("step", "loss")
    }
    assert set(record.scores["test"]) == {"r2", "r2_batch_mean", "r2_batch_std"}
    assert set(record.floors) == {"constant", "copy"}
    assert set(record.slices) == {"position", "shift"}
    assert 0 < record.cost["seconds"] <= record.cost["seconds_with_evaluation"]
    assert record.cost["seconds_per_step"] == pytest.approx(record.cost["seconds"] / 12)
    assert record.environment["torch"] == torch.__version__
    saved = torch.load(folder / "weights.pt", weights_only=True)
    assert saved["step"] == 12 and "decoder.weight" in saved["model"]


def test_training_learns(tmp_path: Path) -> None:
    record = run(plain, tmp_path, Labels(), budget={"steps": 60, "eval_every": 60})
    assert record.scores["test"]["accuracy"] > 0.95 > 0.5 > record.floors["majority"]["accuracy"]


def test_segmentation(tmp_path: Path) -> None:
    record = run(plain, tmp_path, Segments(), budget={"steps": 60, "eval_every": 60})
    assert record.headline() == record.scores["test"]["macro_f1"] > 0.95


def test_the_same_run_has_the_same_outcome_whoever_makes_the_batches(tmp_path: Path) -> None:
    one, other = (run(droppy, tmp_path / str(workers), workers=workers) for workers in (0, 2))
    assert outcome(one) == outcome(other)


def test_a_finished_run_is_not_carried_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(plain, tmp_path)
    monkeypatch.setattr(loop, "train", None)
    assert outcome(run(plain, tmp_path)) == outcome(first)
    assert len(folders(tmp_path)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"hyper": {"width": 9}},
        {"budget": {"lr": 0.03}},
        {"budget": {"test_batches": 4}},
        {"task": lrtasks.make("shift", length=16, shifts=3)},
        {"model": droppy},
    ],
)
def test_another_run_has_another_folder(tmp_path: Path, other: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"model": plain, "task": TASK, **other}
    run(plain, tmp_path)
    run(arguments.pop("model"), tmp_path, **arguments)
    assert len(folders(tmp_path)) == 2


def test_two_modules_of_one_class_have_two_folders(tmp_path: Path) -> None:
    for width in (4, 5):
        run(Net(TASK.input, TASK.target, width), tmp_path)
    assert len(folders(tmp_path)) == 2


@pytest.mark.parametrize("model", ["toys:plain", plain, Net(TASK.input, TASK.target)])
def test_ways_to_give_a_model(tmp_path: Path, model: Any) -> None:
    record = run(model, tmp_path)
    assert record.status == "done"
    assert record.model["count"] == sum(value.numel() for value in Net(TASK.input, TASK.target).parameters())


def test_a_module_is_trained_in_place(tmp_path: Path) -> None:
    module = Net(TASK.input, TASK.target)
    before = module.decoder.weight.detach().clone()
    run(module, tmp_path)
    saved = torch.load(folders(tmp_path)[0] / "weights.pt", weights_only=True)["model"]
    assert not torch.equal(module.decoder.weight, before)
    assert torch.equal(module.decoder.weight, saved["decoder.weight"])


def test_held_out_streams_are_the_same_for_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, list[Tensor]] = {0: [], 1: []}
    real = loop.forward
    for seed, batches in seen.items():

        def spy(model: nn.Module, batch: Any, masked: bool, batches: list[Tensor] = batches) -> Tensor:
            batches.append(batch.x)
            return real(model, batch, masked)

        monkeypatch.setattr(loop, "forward", spy)
        run(plain, tmp_path, seed=seed, budget={"steps": 4})
    # four training batches, two of validation, three of test
    alike = [torch.equal(one, other) for one, other in zip(seen[0], seen[1], strict=True)]
    assert alike == [False] * 4 + [True] * 5


def test_diverging_is_recorded(tmp_path: Path) -> None:
    record = run("toys:exploding", tmp_path, hyper={"healthy": 5})
    assert record.status == "diverged"
    assert record.notes == ["the loss was no longer finite at step 8"]
    assert [point["step"] for point in record.curve] == [4]
    assert "test" not in record.scores
    (folder,) = folders(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["record.json"]
    assert outcome(read_record(folder)) == outcome(record)


def test_weights_that_diverge_at_the_last_step_are_noticed(tmp_path: Path) -> None:
    class Steep(Net):
        def forward(self, x: Tensor) -> Tensor:
            zero = self.decoder.bias - self.decoder.bias
            return super().forward(x) + zero.sqrt()  # a value of 0, and no gradient

    record = run(Steep(TASK.input, TASK.target), tmp_path, budget={"steps": 1})
    assert record.status == "diverged"
    assert record.notes == ["the weights were no longer finite at step 1"]


def test_diverging_leaves_other_runs_alone(tmp_path: Path) -> None:
    run(plain, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    run("toys:exploding", tmp_path)
    assert len(folders(tmp_path)) == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_score_that_does_not_exist_is_null(tmp_path: Path) -> None:
    record = run(plain, tmp_path, Constant())
    text = (folders(tmp_path)[0] / "record.json").read_text()
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert record.status == "done"


def test_an_output_of_the_wrong_shape(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"returned shape \(4, 16, 3\); task shift needs \(4, 16, 2\)"):
        run(misshapen, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_no_tensor(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must return one tensor of shape \(4, 16, 2\), found tuple"):
        run(nn.GRU(3, 2, batch_first=True), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_task_that_cannot_draw_its_samples(tmp_path: Path, workers: int) -> None:
    with pytest.raises(UsageError, match=r"^these parameters leave nothing to draw$"):
        run(plain, tmp_path, Unmakeable(), workers=workers)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**63, "0", 1.5])
def test_bad_seeds_are_found_before_anything_is_built(tmp_path: Path, seed: Any) -> None:
    def never(*_: Any, **__: Any) -> nn.Module:
        raise AssertionError

    with pytest.raises(UsageError, match="seed must be a whole number"):
        run(never, tmp_path, seed=seed)


def test_a_bug_in_a_model_is_recorded_and_raised(tmp_path: Path) -> None:
    class Buggy(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError):
        run(Buggy(TASK.input, TASK.target), tmp_path)
    record = read_record(folders(tmp_path)[0])
    assert (record.status, record.notes) == ("failed", ["ZeroDivisionError: oh"])


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_said_in_one_line(tmp_path: Path, error: Exception) -> None:
    class Hungry(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    with pytest.raises(UsageError, match="not enough memory for this run; choose a smaller batch_size"):
        run(Hungry(TASK.input, TASK.target), tmp_path)


def test_a_worker_that_dies_is_said_in_one_line(tmp_path: Path) -> None:
    class Deadly(Labels):
        def sample(self, rng: np.random.Generator) -> Any:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(UsageError, match=r"a background process that makes batches died .*; try --workers 0"):
        run(plain, tmp_path, Deadly(), workers=1)


def half_way(out: Path, monkeypatch: pytest.MonkeyPatch, model: Any = plain) -> Path:
    """Start a run and interrupt it after its second evaluation; return its folder."""
    real = loop._evaluate_and_note

    def interrupted(fabric: Any, module: nn.Module, task: Any, streams: Any, state: loop.State, folder: Path) -> None:
        if state.step == 12:
            raise KeyboardInterrupt
        real(fabric, module, task, streams, state, folder)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_evaluate_and_note", interrupted)
        run(model, out)
    (folder,) = folders(out)
    return folder


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = half_way(tmp_path, monkeypatch, droppy)
    running = read_record(folder)
    assert (running.status, len(running.curve)) == ("running", 2)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.pt", "record.json"]
    assert outcome(run(droppy, tmp_path)) == outcome(run(droppy, tmp_path / "unbroken"))


def test_a_schedule_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUDGET, "schedule", "cosine")
    monkeypatch.setitem(BUDGET, "warmup_steps", 6)
    half_way(tmp_path, monkeypatch)
    assert outcome(run(plain, tmp_path)) == outcome(run(plain, tmp_path / "unbroken"))


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint", None])
def test_a_corrupted_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    folder = half_way(tmp_path, monkeypatch)
    path = folder / loop.CHECKPOINT
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with pytest.raises(UsageError, match=r"checkpoint\.pt cannot be read .*; remove .*-seed0 to start this run again"):
        run(plain, tmp_path)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before


@pytest.mark.parametrize("content", [[1], {"model": {}}])
def test_a_checkpoint_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any) -> None:
    folder = half_way(tmp_path, monkeypatch)
    torch.save(content, folder / loop.CHECKPOINT)
    with pytest.raises(
        UsageError, match=r"checkpoint\.pt (is not a checkpoint|does not fit this run).*; remove .*-seed0"
    ):
        run(plain, tmp_path)


def test_a_corrupted_record(tmp_path: Path) -> None:
    run(plain, tmp_path)
    record = folders(tmp_path)[0] / "record.json"
    record.write_bytes(record.read_bytes()[:-20])
    before = record.read_bytes()
    with pytest.raises(UsageError, match=r"record\.json is damaged"):
        run(plain, tmp_path)
    assert record.read_bytes() == before


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/runs"])
def test_an_output_folder_that_cannot_be(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match=r"the results folder .* cannot be made"):
        run(plain, tmp_path / out)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_run_that_another_process_works_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = half_way(tmp_path, monkeypatch)

    def busy(path: Path, what: str) -> Any:
        assert path == folder / LOCK
        raise UsageError(f"another process is working on {what}")

    monkeypatch.setattr("lrtasks.evaluation.run.held", busy)
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    with pytest.raises(UsageError, match="another process is working on the run in"):
        run(plain, tmp_path)
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before


def test_a_run_that_another_process_finished_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(path: Path, what: str) -> Any:
        monkeypatch.setattr("lrtasks.evaluation.run.held", held)
        finished.append(run(plain, tmp_path))
        monkeypatch.setattr(loop, "train", None)
        return held(path, what)

    finished: list[RunRecord] = []
    monkeypatch.setattr("lrtasks.evaluation.run.held", slow)
    assert outcome(run(plain, tmp_path)) == outcome(finished[0])


def test_extra_losses_enter_the_loss_and_diagnostics_the_record(tmp_path: Path) -> None:
    module = nn.Sequential(Reporting(TASK.input, TASK.target))
    record = run(module, tmp_path, budget={"lr": 1.0, "steps": 40, "eval_every": 20})
    # the extra loss pulls the bias to 7, 3 · 2 · 49 away from it at the start
    assert 10 < record.curve[0]["loss"] < 300
    assert record.diagnostics == {"0": {"bias": pytest.approx(module[0].decoder.bias.mean().item())}}
    assert record.diagnostics["0"]["bias"] > 4


def test_the_curve_shows_the_mean_loss_since_the_last_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    real = loop.loss_named

    def spy(name: str) -> Any:
        def loss(output: Tensor, target: Tensor) -> Tensor:
            value = real(name)(output, target)
            losses.append(value.item())
            return value

        return loss

    monkeypatch.setattr(loop, "loss_named", spy)
    record = run(plain, tmp_path)
    expected = [np.mean(losses[start : start + 4]) for start in (0, 4, 8)]
    assert [point["loss"] for point in record.curve] == pytest.approx(expected)


def test_stop_at(tmp_path: Path) -> None:
    budget = {"steps": 400, "eval_every": 5, "stop_at": 0.9, "lr": 0.005}
    record = run(plain, tmp_path, Labels(), budget=budget)
    scores = [point["accuracy"] for point in record.curve]
    assert record.status == "done"
    assert record.curve[-1]["step"] < 400
    assert scores[-1] >= 0.9 > max(scores[:-1])


def test_a_solved_run_that_was_cut_off_in_its_test_trains_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"steps": 400, "eval_every": 10, "stop_at": 0.9}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("lrtasks.evaluation.run.floor_scores", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run(plain, tmp_path, Labels(), budget=budget)
    resumed = run(plain, tmp_path, Labels(), budget=budget)
    assert outcome(resumed) == outcome(run(plain, tmp_path / "unbroken", Labels(), budget=budget))


def test_bf16(tmp_path: Path) -> None:
    kinds: set[torch.dtype] = set()

    class Seeing(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            kinds.add(out.dtype)
            return out

    record = run(Seeing(TASK.input, TASK.target), tmp_path, budget={"precision": "bf16"})
    assert kinds == {torch.bfloat16}
    exact = run(Net(TASK.input, TASK.target), tmp_path)
    assert record.status == "done"
    assert math.isclose(record.headline() or 0, exact.headline() or 0, abs_tol=0.5)


def test_learning_rates_follow_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    real = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *arguments: Any) -> Any:
        rates.extend(group["lr"] for group in self.param_groups)
        return real(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run(plain, tmp_path, budget={"warmup_steps": 4, "lr": 0.1})
    assert rates == pytest.approx([0.025, 0.05, 0.075] + [0.1] * 9)


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: dict[float, list[float]] = {0.0: [], 0.01: []}
    real = torch.optim.AdamW.step
    for clip, found in norms.items():

        def step(self: torch.optim.AdamW, *arguments: Any, found: list[float] = found) -> Any:
            gradients = [value.grad for group in self.param_groups for value in group["params"]]
            found.append(float(torch.cat([value.flatten() for value in gradients]).norm()))
            return real(self, *arguments)

        monkeypatch.setattr(torch.optim.AdamW, "step", step)
        run(Net(TASK.input, TASK.target), tmp_path, budget={"clip": clip})
    assert min(norms[0.0]) > 0.011
    assert max(norms[0.01]) == pytest.approx(0.01, rel=1e-3)


def test_a_finite_training_set_is_tested_at_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the middle one of three evaluations is made the best
    real, calls = loop.score, []

    def score(*arguments: Any, **options: Any) -> Any:
        scorer = real(*arguments, **options)
        if options.get("slices") is False and len(calls) < 3:
            calls.append(scorer)
            scores = {**scorer.scores(), "r2": [0.1, 0.3, 0.2][len(calls) - 1]}
            monkeypatch.setattr(scorer, "scores", lambda: scores)
        return scorer

    monkeypatch.setattr(loop, "score", score)
    module = Net(TASK.input, TASK.target)
    record = run(module, tmp_path, budget={"train_samples": 8})
    saved = torch.load(folders(tmp_path)[0] / "weights.pt", weights_only=True)
    assert saved["step"] == 8
    assert torch.equal(module.decoder.weight, saved["model"]["decoder.weight"])
    assert record.scores["val"]["r2"] == 0.3
    for split in ("train", "test"):
        batch = TASK.batch(range(8 if split == "train" else 12), split=split)  # type: ignore[arg-type]
        with torch.no_grad():
            error = ((module(torch.from_numpy(batch.x)).numpy() - batch.y) ** 2).mean()
        # in training, every step goes through half the set: twelve steps see all of it
        tolerance = 0.05 if split == "train" else 1e-6
        assert record.scores[split]["r2"] == pytest.approx(1 - error / batch.y.var(), abs=tolerance)


def test_a_stored_dataset(tmp_path: Path) -> None:
    from lrtasks.data import generate, open_dataset

    path = str(tmp_path / "data")
    generate(TASK, path, samples=50, split=(0.6, 0.2, 0.2), workers=1)
    dataset = open_dataset(path)
    module = Net(TASK.input, TASK.target)
    record = run(module, tmp_path / "runs", data=path)
    assert record.task["data"]
    assert set(record.scores) == {"val", "train", "test"}
    # the test goes through the whole split, its last batch being what is left
    batch = dataset.batch(range(dataset.counts["test"]), split="test")
    with torch.no_grad():
        error = ((module(torch.from_numpy(batch.x)).numpy() - batch.y) ** 2).mean()
    assert record.scores["test"]["r2"] == pytest.approx(1 - error / batch.y.var(), abs=1e-6)
    with pytest.raises(UsageError, match="holds data of another task"):
        run(plain, tmp_path / "runs", lrtasks.make("shift", length=16, shifts=4), data=path)
    with pytest.raises(UsageError, match="train_samples belongs to fresh samples"):
        run(plain, tmp_path / "runs", data=path, budget={"train_samples": 8})


def test_the_command_repeats_the_run(tmp_path: Path) -> None:
    record = run("dlr", tmp_path, "shift", parameters={"length": np.int64(16)}, hyper={"d_state": 4, "kernel": "prod"})
    command = record.command.replace("'", "")
    assert command.startswith("lrtasks eval --model dlr --task shift --preset small --seed 0")
    for words in (
        "--set task.length=16",
        "--set model.d_state=4",
        '--set model.kernel="prod"',
        "--set budget.steps=12",
    ):
        assert words in command
    own = run(plain, tmp_path, hyper={"width": 3}).command
    assert own.startswith(
        "lrtasks.evaluate(plain, Shift(length=16, shifts=2), preset='small', seed=0, hyper={'width': 3}"
    )


def test_the_callers_random_numbers_go_on(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    run(droppy, tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_mode_is_left_again(tmp_path: Path) -> None:
    modes: list[bool] = []

    class Watching(Net):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return super().forward(x)

    run(Watching(TASK.input, TASK.target), tmp_path, budget={"steps": 8})
    assert modes == [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2 + [False] * 3


def test_the_padding_mask_reaches_models_that_take_it(tmp_path: Path) -> None:
    given: list[Tensor | None] = []

    class Masked(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            given.append(mask)
            return super().forward(x)

    class Padded(Labels):
        def sample(self, rng: np.random.Generator) -> Any:
            return super().sample(rng)._replace(mask=np.arange(self.length) < 7)

    model = Masked(Labels().input, Labels().target)
    run(model, tmp_path, Padded())
    assert all(mask is not None and mask.sum(1).tolist() == [7] * 4 for mask in given)
    assert run(plain, tmp_path, Padded()).status == "done"  # and is kept from those that do not


def test_a_segmentation_run_leaves_a_panel_of_predictions(tmp_path: Path) -> None:
    task = lrtasks.make("pathfinder", res=64, dashes=3, distractors=1)
    run("dlr", tmp_path, task, hyper={"d_model": 4, "d_state": 4}, budget={"steps": 2, "batch_size": 2})
    (folder,) = folders(tmp_path)
    assert (folder / "predictions.png").stat().st_size > 1000


def test_a_run_that_cannot_fit_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs about .* GB .* lower .*batch_size"):
        run("dlr", tmp_path, "shift", parameters={"length": 2**20}, hyper={"d_model": 4096}, budget={"batch_size": 256})
    assert not folders(tmp_path)


def test_warnings_of_the_model_are_notes_of_the_record(tmp_path: Path) -> None:
    record = run("mega-chunk", tmp_path, hyper={"d_model": 8, "chunk": 5})
    assert [note for note in record.notes if "chunk 5 does not divide the length 16" in note] == record.notes
    assert len(record.notes) == 1


def test_what_a_model_says_in_training_is_a_note_of_every_seed(tmp_path: Path) -> None:
    hyper = {"d_model": 8, "window": 4, "codebook": 4096}
    for seed in (0, 1):
        with pytest.warns(UserWarning, match="codes will stay empty"):
            record = run("longvq", tmp_path, hyper=hyper, seed=seed)
        assert [note for note in record.notes if "codebook of 4096 codes is larger" in note] == record.notes
        assert len(record.notes) == 1
