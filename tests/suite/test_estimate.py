"""What a dry run says: how many runs, and about how long they take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lrtasks.evaluation import loop
from lrtasks.evaluation.environment import device_name, make_fabric
from lrtasks.run_config import RunConfig
from lrtasks.suite import estimate
from lrtasks.suite.estimate import make_plan, seconds_per_step
from lrtasks.suite.expand import make_suite
from lrtasks.suite.select import planned

SETTINGS = {"length": 16, "d_model": 8, "layers": 1}


def config(model: str = "attention", seed: int = 0, **settings: Any) -> RunConfig:
    return RunConfig.make("cumsum", model, seed=seed, settings={**SETTINGS, **settings})


def test_a_selection_runs_the_other_seeds_at_one_value() -> None:
    content = {"models": ["attention", "dlr"], "tasks": ["cumsum"], "seeds": 3}
    suite = make_suite(content, {**SETTINGS, "lr": "1e-3,3e-3"})
    assert len(planned(suite, ())) == 12
    found = [(run.model.name, run.seed) for run in planned(suite, ("lr",))]
    assert sorted(found) == [(model, seed) for model in ("attention", "dlr") for seed in (0, 0, 1, 2)]


def test_a_finished_selection_is_planned_at_its_best_value(tmp_path: Path) -> None:
    content = {"models": ["attention"], "tasks": ["cumsum"], "seeds": 2}
    suite = make_suite(content, {**SETTINGS, "lr": "1e-3,3e-3"})
    for run in suite.runs:
        if run.seed == 0:
            assert [each.budget.lr for each in planned(suite, ("lr",), tmp_path)] == [0.001, 0.003, 0.001]
            record = run.record("done")
            record.scores = {"val": {"r2": run.budget.lr}}
            run.folder(tmp_path).mkdir(parents=True)
            record.write(run.folder(tmp_path))
    assert [each.budget.lr for each in planned(suite, ("lr",), tmp_path)] == [0.001, 0.003, 0.003]


def test_steps_of_earlier_runs_give_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "seconds_per_step", lambda *_: pytest.fail("nothing needs to be timed"))
    done, here = config(), device_name(make_fabric("cpu", "32").device)

    def write(run: RunConfig, seconds: float, device: str) -> None:
        record = run.record("done")
        record.cost = {"seconds_per_step": seconds, "device": device}
        run.folder(tmp_path).mkdir(parents=True)
        record.write(run.folder(tmp_path))

    write(done, 0.5, here)
    # runs with a step of another kind, or on another device
    write(config(seed=2), 9.0, "another device")
    for other in ({"batch_size": 8}, {"precision": "bf16"}, {"length": 32}, {"d_model": 16}):
        write(config(seed=2, **other), 9.0, here)
    left = config(seed=1, steps=100, eval_every=40, val_batches=3, test_batches=8, test_lengths=(32,))
    plan = make_plan([done, left], tmp_path, device="cpu")
    assert (plan.runs, plan.finished, plan.guessed) == (2, 1, 0)
    # 100 steps, three evaluations on 3 batches, 8 test batches and a quarter of them at the other length
    assert plan.seconds == 0.5 * (100 + 3 * 3 + 8 + 2)
    assert plan.lines()[0].startswith("2 runs, 1 finished earlier")


def test_an_interrupted_run_counts_with_what_is_left_of_it(tmp_path: Path) -> None:
    half = config(steps=100, eval_every=25, val_batches=3, test_batches=8, test_lengths=())
    record, folder = half.record(), half.folder(tmp_path)
    record.cost = {"seconds_per_step": 0.5, "device": device_name(make_fabric("cpu", "32").device)}
    record.curve = [{"step": step, "loss": 1.0, "r2": 0.5} for step in (25, 50, 75)]
    folder.mkdir(parents=True)
    record.write(folder)
    assert make_plan([half], tmp_path, device="cpu").seconds == 0.5 * (100 + 4 * 3 + 8), "it has no checkpoint"
    (folder / loop.CHECKPOINT).touch()
    assert make_plan([half], tmp_path, device="cpu").seconds == 0.5 * (25 + 3 + 8)
    assert make_plan([half], tmp_path, device="cpu", overwrite=True).seconds == 0.5 * (100 + 4 * 3 + 8)


def test_other_models_are_timed_until_the_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(estimate, "seconds_per_step", lambda run, _: asked.append(run.model.name) or 0.1)
    runs = [config(), config(seed=1), config("dlr"), config(lr=0.01)]
    plan = make_plan(runs, tmp_path, device="cpu")
    assert asked == ["attention", "dlr"]  # seed and learning rate do not change the time of a step
    assert plan.guessed == 0
    nothing = make_plan(runs, tmp_path, device="cpu", patience=-1)
    assert (nothing.seconds, nothing.guessed) == (None, 2)


def test_a_plan_says_why_no_step_could_be_timed(tmp_path: Path) -> None:
    runs = [RunConfig.make("cumsum", "toys:misshapen", settings={"length": 16}), config()]
    plan = make_plan(runs[:1], tmp_path, device="cpu")
    assert plan.seconds is None
    assert re.search(r"misshapen on cumsum.* output of forward in training must have shape", plan.lines()[-1])
    assert plan.error is not None and plan.error in make_plan(runs, tmp_path, device="cpu").lines()[-1]


def test_a_run_with_a_damaged_record_is_not_counted_as_finished(tmp_path: Path) -> None:
    (run,) = make_suite({"models": "dlr", "tasks": "cumsum"}, {"length": 16}).runs
    run.folder(tmp_path).mkdir(parents=True)
    (run.folder(tmp_path) / "record.json").write_text("{")
    plan = make_plan([run], tmp_path, device="cpu")
    assert (plan.runs, plan.finished, plan.seconds) == (1, 0, None)
    counts, refused = plan.lines()
    assert counts == "1 run, 0 finished earlier; nothing was run"
    assert refused.startswith(f"refused: {run.title()}: ") and "record.json is damaged" in refused


def test_a_step_is_timed_without_leaving_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seconds = seconds_per_step(config(), "cpu")
    assert 0 < seconds < 5
    assert not list(tmp_path.iterdir())

    def train(*_: Any, report: Callable[[loop.State], None], **__: Any) -> None:
        for step, taken in ((2, 10.0), (6, 12.0)):  # the first steps are slow
            report(loop.State(step=step, seconds=taken))

    monkeypatch.setattr(loop, "train", train)
    assert seconds_per_step(config(), "cpu") == 0.5


@pytest.mark.parametrize(
    "words",
    [
        ("suite", "--models", "attention", "--tasks", "cumsum"),
        ("eval", "--model", "attention", "--task", "cumsum"),
        ("profile", "--model", "attention", "--tasks", "cumsum", "--lr", 1e-3),
    ],
)
def test_the_command_runs_nothing(command: Callable[..., Any], tmp_path: Path, words: tuple[str, ...]) -> None:
    small = ("--length", 16, "--d-model", 8, "--seeds", 2, "--dry-run", "--device", "cpu")
    said = command(*words, *small, "--json")
    assert said.code == 0 and json.loads(said.out)["runs"] == 2
    assert json.loads(said.out)["seconds"] > 0
    assert command(*words, *small).out.startswith("2 runs, 0 finished earlier; nothing was run\n")
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_on_stored_samples_is_counted(command: Callable[..., Any]) -> None:
    assert (
        command("generate", "cumsum", "--length", 16, "--samples", 40, "--split", "0.5,0.25,0.25", "--out", "d").code
        == 0
    )
    words = ("eval", "--model", "attention", "--task", "cumsum", "--length", 16, "--d-model", 8, "--layers", 1)
    short = ("--data", "d", "--steps", 2, "--batch-size", 4, "--device", "cpu")
    assert command(*words, *short).code == 0
    assert command(*words, *short, "--dry-run").out.startswith("1 run, 1 finished earlier")
    assert command(*words, *short, "--overwrite", "--dry-run").out.startswith("1 run, 0 finished earlier")
