"""Runs that were cut off, and folders that another process works in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from quick_runs import cut_off, folders, outcome, run
from torch import nn
from toys import BUDGET, Labels, droppy, plain

from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint, loop
from lrtasks.evaluation.run import LOCK
from lrtasks.files import held
from lrtasks.results import RunRecord, read_record


def half_way(out: Path, monkeypatch: pytest.MonkeyPatch, model: Any = plain) -> Path:
    """Start a run and interrupt it after its second evaluation; return its folder."""
    real = loop._evaluate_and_note

    def interrupted(fabric: Any, module: nn.Module, task: Any, streams: Any, state: loop.State) -> bool:
        if state.step == 12:
            raise KeyboardInterrupt
        return real(fabric, module, task, streams, state)

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


class Routed(nn.Module):
    """A whole model that uses one map in its first steps, and another one later."""

    def __init__(self, input: Any, target: Any) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(input.width, target.width) for _ in range(2))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        used: torch.Tensor = self.maps[int(self.calls > 2)](x)
        return used


def test_the_first_step_of_a_resumed_process_is_not_that_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_way(tmp_path, monkeypatch, Routed)
    assert outcome(run(Routed, tmp_path)) == outcome(run(Routed, tmp_path / "unbroken"))


def test_a_resumed_run_records_the_peak_memory_of_its_earlier_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = [2000, 1000]
    monkeypatch.setattr("lrtasks.evaluation.environment.peak_memory_bytes", lambda _: peaks[0])
    half_way(tmp_path, monkeypatch)
    del peaks[0]
    assert run(plain, tmp_path).cost["peak_memory_bytes"] == 2000


def test_a_run_goes_on_from_a_step_between_two_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.seed_step

    def interrupted(seed: int, step: int, rank: int) -> None:
        if step == 10:
            raise KeyboardInterrupt
        real(seed, step, rank)

    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "seed_step", interrupted)
        run(droppy, tmp_path)
    (folder,) = folders(tmp_path)
    assert checkpoint.load(folder / loop.CHECKPOINT)["state"]["step"] == 10
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


@pytest.mark.parametrize(
    ("content", "message"),
    [([1], r"checkpoint\.pt is damaged or holds something else; remove .*-seed0"), ({"model": {}}, "to another run")],
)
def test_a_checkpoint_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, message: str
) -> None:
    folder = half_way(tmp_path, monkeypatch)
    torch.save(content, folder / loop.CHECKPOINT)
    with pytest.raises(UsageError, match=message):
        run(plain, tmp_path)


def test_a_flipped_bit_in_a_checkpoint_or_weights_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = half_way(tmp_path, monkeypatch) / loop.CHECKPOINT
    whole = file.read_bytes()
    state = checkpoint.load(file)
    stored = state["model"]["decoder.weight"].numpy().tobytes()
    place = whole.index(stored) + 5
    file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(UsageError, match=r"checkpoint\.pt (is damaged|cannot be read)"):
        run(plain, tmp_path)


class Code:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / loop.CHECKPOINT, {"model": Code(tmp_path / "made")})
    with pytest.raises(UsageError, match=r"checkpoint\.pt cannot be read"):
        checkpoint.load(tmp_path / loop.CHECKPOINT)
    assert not (tmp_path / "made").exists()


def test_a_new_checkpoint_does_not_write_into_the_earlier_file(tmp_path: Path) -> None:
    file, earlier = tmp_path / loop.CHECKPOINT, tmp_path / "earlier.pt"
    checkpoint.save(file, {"step": 1})
    earlier.hardlink_to(file)
    checkpoint.save(file, {"step": 2})
    assert (checkpoint.load(earlier), checkpoint.load(file)) == ({"step": 1}, {"step": 2})


def test_a_checkpoint_or_record_of_another_run_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = half_way(tmp_path, monkeypatch) / loop.CHECKPOINT
    record = run(plain, tmp_path / "other", seed=1)
    (other,) = folders(tmp_path / "other")
    content = checkpoint.load(file)
    checkpoint.save(other / loop.CHECKPOINT, content)
    (other / "record.json").unlink()
    with pytest.raises(UsageError, match=r"checkpoint\.pt belongs to another run"):
        run(plain, tmp_path / "other", seed=1)
    record.write(file.parent)
    with pytest.raises(UsageError, match=r"record\.json belongs to another run"):
        run(plain, tmp_path)


def test_a_corrupted_record(tmp_path: Path) -> None:
    run(plain, tmp_path)
    record = folders(tmp_path)[0] / "record.json"
    record.write_bytes(record.read_bytes()[:-20])
    before = record.read_bytes()
    with pytest.raises(UsageError, match=r"record\.json is damaged"):
        run(plain, tmp_path)
    assert record.read_bytes() == before


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


def test_a_solved_run_that_was_cut_off_in_its_test_trains_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"steps": 400, "eval_every": 10, "stop_at": 0.9}
    with cut_off(monkeypatch, "lrtasks.evaluation.run.note_summary"):
        run(plain, tmp_path, Labels(), budget=budget)
    resumed = run(plain, tmp_path, Labels(), budget=budget)
    assert outcome(resumed) == outcome(run(plain, tmp_path / "unbroken", Labels(), budget=budget))


@pytest.mark.parametrize("by", [KeyboardInterrupt, RuntimeError])
def test_an_overwritten_run_is_kept_until_the_first_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: type[BaseException]
) -> None:
    before = run(plain, tmp_path)
    (folder,) = folders(tmp_path)
    with cut_off(monkeypatch, "lrtasks.evaluation.loop._evaluate_and_note", by):
        run(plain, tmp_path, overwrite=True)
    assert outcome(read_record(folder)) == outcome(before)
    assert (folder / loop.WEIGHTS).exists()


def test_a_run_that_overwrites_and_is_interrupted_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(plain, tmp_path)
    (folder,) = folders(tmp_path)
    with cut_off(monkeypatch, "lrtasks.evaluation.run.note_summary"):
        run(plain, tmp_path, overwrite=True)
    assert (folder / loop.CHECKPOINT).exists()
    began: list[int] = []
    resume = loop._resume
    monkeypatch.setattr(loop, "_resume", lambda *a: [state := resume(*a), began.append(state.step)][0])
    assert outcome(run(plain, tmp_path, overwrite=True)) == outcome(before)
    assert began[0] > 0


def test_a_failed_run_that_is_overwritten_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = half_way(tmp_path, monkeypatch)
    record = read_record(folder)
    record.status = "failed"
    record.write(folder)
    began: list[int] = []
    resume = loop._resume
    monkeypatch.setattr(loop, "_resume", lambda *a: [state := resume(*a), began.append(state.step)][0])
    run(plain, tmp_path, overwrite=True)
    assert began == [0]


def test_a_new_run_keeps_no_weights_and_figures_of_an_earlier_one(tmp_path: Path) -> None:
    how: dict[str, Any] = {"hyper": {"healthy": 0}, "overwrite": True}
    old = run("toys:exploding", tmp_path, **how)
    (folder,) = folders(tmp_path)
    (folder / "analysis").mkdir()
    left = [folder / name for name in (loop.WEIGHTS, "predictions.png", "analysis/curve.png")]
    for path in left:
        path.touch()
    assert outcome(run("toys:exploding", tmp_path, hyper=how["hyper"])) == outcome(old)
    assert all(path.exists() for path in left), "a finished run is not changed"
    run("toys:exploding", tmp_path, **how)
    assert [path.name for path in folder.iterdir()] == ["record.json"]


def test_a_finished_run_keeps_no_log_of_an_earlier_failure(tmp_path: Path) -> None:
    run("attention", tmp_path, hyper={"d_model": 8})
    (folder,) = folders(tmp_path)
    (folder / "log.txt").write_text("a failure under a suite")
    run("attention", tmp_path, hyper={"d_model": 8}, overwrite=True)
    assert not (folder / "log.txt").exists()


def test_a_new_run_keeps_the_best_weights_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        run(plain, tmp_path, Labels(), budget={"train_samples": 8, "steps": 4}, overwrite=True)
    assert (folders(tmp_path)[0] / loop.WEIGHTS).exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        *(
            (wrong, f"does not fit this run .{next(iter(wrong))} is .*; remove .* to start")
            for wrong in ({"step": "x"}, {"step": 2.5}, {"curve": 3}, {"seconds": None})
        ),
        *(({"step": step}, rf"checkpoint\.pt is at step {step} of 12; remove .* to start") for step in (0, 13)),
    ],
    ids=str,
)
def test_a_checkpoint_with_a_value_of_another_type_or_an_impossible_step_is_refused(
    wrong: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = loop.checkpoint.save

    def save_wrong(path: Path, content: dict[str, Any]) -> None:
        save(path, content if "state" not in content else {**content, "state": {**content["state"], **wrong}})

    monkeypatch.setattr(loop.checkpoint, "save", save_wrong)
    with cut_off(monkeypatch, "lrtasks.evaluation.run.note_summary"):
        run(plain, tmp_path)
    with pytest.raises(UsageError, match=message):
        run(plain, tmp_path)


class Counting(nn.Module):
    """A layer with state outside ``state_dict()``."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(d_model, d_model), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return self.linear(x) * (1 + self.calls / 100)


def test_a_run_that_was_cut_off_in_its_test_keeps_the_notes_of_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cut_off(monkeypatch, "lrtasks.evaluation.run._Run._test"):
        run(Counting, tmp_path)
    (note,) = run(Counting, tmp_path).notes
    assert note.endswith("a resumed run resets it and may give other scores")


def test_the_weights_of_a_run_that_overwrites_never_stand_beside_the_record_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plain, tmp_path, train_samples=64)
    (folder,) = folders(tmp_path)
    before = (folder / loop.WEIGHTS).read_bytes()
    with cut_off(monkeypatch, "lrtasks.record.RunRecord.write"):
        run(plain, tmp_path, train_samples=64, overwrite=True)
    assert read_record(folder).status == "done"
    weights = folder / loop.WEIGHTS
    assert not weights.exists() or weights.read_bytes() == before
