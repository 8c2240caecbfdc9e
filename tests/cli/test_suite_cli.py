"""``lrtasks suite`` and ``lrtasks sweep``: what is run, what is refused, what is shown."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pretend import Pretend, settings_of

from lrtasks.cli.runs import print_solved
from lrtasks.run_config import RunConfig

Command = Callable[..., Any]
TINY = ("--length", 16, "--steps", 8, "--test-batches", 2)


def test_a_suite_runs_what_can_be_and_says_what_cannot(command: Command, pretend: Pretend) -> None:
    said = command("suite", "--models", "dlr,hyena,attention", "--tasks", "shift,pathfinder", "--seeds", 2)
    assert said.code == 0
    assert len(pretend.jobs) == 10
    skipped = [line for line in said.err.splitlines() if line.startswith("skipped")]
    reason = "hyena is a causal model: it cannot read in both directions (causal=False)"
    assert skipped == [f"skipped: hyena on pathfinder: {reason}"]
    assert "10 waiting; time left unknown" in said.err
    assert "hyena on shift seed 1: done, r2 0.970" in said.err
    for word in ("pathfinder", "shift", "dlr", "0.970"):
        assert word in said.out
    again = command("suite", "--models", "dlr,hyena,attention", "--tasks", "shift,pathfinder", "--seeds", 2)
    assert (again.code, again.out, len(pretend.jobs)) == (0, said.out, 10)


def test_a_run_that_fails_is_said_with_its_reason_and_its_cell(command: Command, pretend: Pretend) -> None:
    pretend.failing = {"dlr"}
    said = command("suite", "--models", "dlr,attention", "--tasks", "shift", *TINY)
    assert said.code == 1
    assert "\nlrtasks: dlr on shift length=16 steps=8 test_batches=2 seed 0: failed: killed by SIGKILL\n" in said.err
    assert "failed" in said.out
    assert "0.970" in said.out
    records = json.loads(command("suite", "--models", "dlr,attention", "--tasks", "shift", *TINY, "--json").out)
    assert [(record["model"]["name"], record["status"]) for record in records] == [
        ("dlr", "failed"),
        ("attention", "done"),
    ]
    said = command("suite", "--models", "dlr", "--tasks", "shift", *TINY, "--lr", "1e-3,3e-3", "--select", "val")
    assert (said.code, said.err.count("failed: killed by SIGKILL\n")) == (1, 2), "neither value could be selected"


def test_notes_on_own_models_are_said_once(command: Command, pretend: Pretend) -> None:
    pretend.notes = ["the model is not causal"]
    said = command("suite", "--models", "dlr,toys:plain", "--tasks", "shift,cumsum", "--seeds", 2, *TINY)
    notes = [line for line in said.err.splitlines() if "not causal" in line]
    assert notes == ["note: plain on shift, cumsum: the model is not causal"]


def test_a_file_and_the_options_that_win_over_it(command: Command, pretend: Pretend, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(
        'models = ["dlr"]\ntasks = ["shift"]\ntime_limit = 60\nsettings = { length = 16, steps = 4 }\n'
    )
    assert command("suite", "--file", "suite.toml").code == 0
    assert command("suite", "--file", "suite.toml", "--time-limit", 7, "--steps", 5, "--set", "length=32").code == 0
    assert [job.time_limit for job in pretend.jobs] == [60, 7]
    assert [settings_of(list(job.arguments)) for job in pretend.jobs] == [
        {"task.length": 16, "budget.steps": 4},
        {"task.length": 32, "budget.steps": 5},
    ]


@pytest.mark.parametrize("option", ["models", "tasks", "preset", "seeds"])
def test_options_that_a_file_would_hide_are_refused(
    command: Command, pretend: Pretend, tmp_path: Path, option: str
) -> None:
    (tmp_path / "suite.toml").write_text('models = ["dlr"]\ntasks = ["shift"]\n')
    value = {"models": "dss", "tasks": "mips", "preset": "paper", "seeds": 3}[option]
    said = command("suite", "--file", "suite.toml", f"--{option}", value)
    assert said.code == 2
    assert f"lrtasks: --{option} cannot be combined with --file" in said.err
    assert pretend.jobs == []


UNEQUAL = """
[[runs]]
model = "dlr"
task = "shift"
settings = { steps = 4 }
[[runs]]
model = "attention"
task = "shift"
settings = { steps = 8 }
"""


def test_unequal_budgets_have_to_be_asked_for(command: Command, pretend: Pretend, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_text(UNEQUAL)
    said = command("suite", "--file", "suite.toml")
    assert (said.code, said.out, pretend.jobs) == (2, "", [])
    assert said.err.startswith("lrtasks: unequal budgets on shift: steps is 4 for dlr and 8 for attention;")
    assert "--unequal-budgets" in said.err
    said = command("suite", "--file", "suite.toml", "--unequal-budgets")
    assert (said.code, len(pretend.jobs)) == (0, 2)
    assert "shift (steps=4)" in said.out
    (tmp_path / "suite.toml").write_text("unequal_budgets = true\n" + UNEQUAL)
    assert command("suite", "--file", "suite.toml").code == 0


def test_a_sweep_may_vary_the_budget(command: Command, pretend: Pretend) -> None:
    said = command("sweep", "--task", "shift", "--models", "dlr,attention", "--steps", "4,8", "--length", "16,32")
    assert (said.code, len(pretend.jobs)) == (0, 8)
    assert "shift (steps=4, length=16)" in said.out
    assert "largest steps with a scaled score of at least 0.95:\n  dlr: 8\n  attention: 8\n" in said.out
    assert "largest length with a scaled score of at least 0.95:\n  dlr: 32\n  attention: 32\n" in said.out


def test_a_sweep_with_rates_chosen_prints_the_trainable_length(command: Command, pretend: Pretend) -> None:
    options = ["--length", "16,32", "--lr", "1e-3,3e-3", "--select", "val", "--seeds", "2"]
    said = command("sweep", "--task", "shift", "--models", "dlr", *options)
    assert (said.code, len(pretend.jobs)) == (0, 6)
    assert said.out.endswith("\ntrainable length: largest length with a scaled score of at least 0.95:\n  dlr: 32\n")


def test_a_selection_with_equal_runs_is_refused_before_anything_runs(
    command: Command, pretend: Pretend, tmp_path: Path
) -> None:
    single = '\n[[runs]]\nmodel = "dlr"\ntask = "shift"\nseed = 1\n'  # seed 1 does not run at first
    settings = 'settings = { length = 16, steps = 4, lr = "1e-3,3e-3" }'
    (tmp_path / "suite.toml").write_text(f'models = "dlr"\ntasks = "shift"\nseeds = 2\n{settings}\n{single}')
    said = command("suite", "--file", "suite.toml", "--select", "val")
    assert (said.code, pretend.jobs) == (2, [])
    assert "seed 1 twice" in said.err


def test_an_interrupted_selection_has_one_column_for_each_model(
    command: Command, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend.stop_after = 3  # two rates of seed 0, then seed 1
    options = ("--lr", "1e-3,3e-3", "--select", "val", "--seeds", 3)
    assert "interrupted" in command("suite", "--tasks", "shift", "--models", "dlr", *options).err
    assert "0.970 (2/2, lr 0.001)" in command("table").out
    plain = command("suite", "--tasks", "shift", "--models", "dlr", "--lr", 1e-3, "--seeds", 2)
    assert "0.970 (2/2)" in plain.out, "the user asked for these runs directly"
    monkeypatch.setattr("lrtasks.cli.runs.print_plan", lambda runs, *_, **__: len(runs))
    assert command("suite", "--tasks", "shift", "--models", "dlr", *options, "--dry-run").code == 4, "planned runs"


@pytest.mark.parametrize("options", [("--lr", "1e-3,3e-3"), ("--quick",)])
def test_a_profile_takes_one_size_of_a_task(command: Command, pretend: Pretend, options: tuple[str, ...]) -> None:
    said = command("profile", "--model", "dlr", "--tasks", "shift", "--length", "16,32", *options)
    assert (said.code, pretend.jobs) == (2, [])
    assert said.err == "lrtasks: a profile takes one value of length, found several\n"


def test_a_setting_that_two_models_vary_is_summed_up_once(
    command: Command, pretend: Pretend, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("lrtasks.cli.runs.print_runs", lambda _, **how: shown.append(how))
    sizes = ("--set", "dlr.d_state=8,16", "--set", "s4d.d_state=4,8")
    said = command("sweep", "--task", "shift", "--models", "dlr,s4d", *sizes)
    assert (len(pretend.jobs), said.out.count("largest d_state with")) == (4, 1)
    assert said.out.endswith("  dlr: 16\n  s4d: 8\n")
    assert shown == [{"by_length": True}], "a sweep shows the scores on further tests, too"


def test_a_value_is_solved_if_the_scaled_scores_of_all_seeds_are_high(capsys: pytest.CaptureFixture[str]) -> None:
    runs, records = [], []
    for length, *scores in ((256, 0.96, 0.96), (128, 0.5, 1.0), (64, 0.98, 0.98), (32, 1.0, 1.0), (16, 1.0)):
        for seed, score in enumerate(scores):
            run = RunConfig.make("shift", "dlr", seed=seed, settings={"length": length})
            records.append(run.record("done"))
            records[-1].scores, records[-1].baselines = {"test": {"r2": score}}, {"guess": {"r2": 0.5}}
            runs.append(run if length > 16 else replace(run, model=replace(run.model, address="b.py:dlr")))
    print_solved("length", runs, records, 0.95)
    assert capsys.readouterr().out.endswith(":\n  dlr: 64\n  b.py:dlr: 16\n")
    print_solved("model.length", runs, records, 0.95)
    assert capsys.readouterr().out.endswith(":\n  dlr: none\n  b.py:dlr: none\n"), "it is the length of the task"


def test_a_sweep_over_words_lists_those_that_are_solved(command: Command, pretend: Pretend) -> None:
    said = command("sweep", "--task", "shift", "--models", "dlr", "--kernel", "real,prod")
    assert (said.code, len(pretend.jobs)) == (0, 2)
    assert "\nall values of kernel with a scaled score of at least 0.95:\n  dlr: real, prod\n" in said.out
    said = command("sweep", "--task", "shift", "--models", "dlr", "--glu", "true,false")
    assert "\nall values of glu with a scaled score of at least 0.95:\n  dlr: true, false\n" in said.out
    said = command("sweep", "--task", "shift", "--models", "dlr", "--glu", "true,false", "--solved", 0.98)
    assert said.out.endswith("at least 0.98:\n  dlr: none\n")


def test_lists_are_values_of_a_grid(command: Command, pretend: Pretend) -> None:
    said = command("sweep", "--task", "chomsky", "--models", "dlr", "--lengths", "[1,8],[1,16]", "--glu", "true,false")
    assert (said.code, len(pretend.jobs)) == (0, 4)
    assert "all values of lengths with a scaled score of at least 0.95:\n  dlr: [1, 8], [1, 16]\n" in said.out
    options = ("--set", "ranks=[4,4,4,4],[8,4,4,4]", "--select", "val", "--seeds", 2)
    said = command("suite", "--tasks", "shift", "--models", "rwkv7", *options, "--out", "selected")
    assert said.code == 0 and "0.970 (2/2, ranks [4, 4, 4, 4])" in said.out


@pytest.mark.parametrize("words", [("--out", "file"), ("--out", "file/runs"), ("--out", "file/runs", "--dry-run")])
def test_a_results_folder_that_cannot_be_made_is_a_mistake(
    command: Command, pretend: Pretend, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("mine")
    said = command("suite", "--models", "dlr", "--tasks", "shift", *words)
    assert (said.code, said.out, pretend.jobs) == (2, "", [])
    assert said.err.splitlines()[-1].endswith("is not a folder")


@pytest.mark.e2e
def test_a_terminal_shows_the_grid(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["suite", "--models", "attention", "--tasks", "cumsum,shift", "--val-batches", "1", "--device", "cpu"]
    command = [sys.executable, "-m", "lrtasks", *words, *map(str, TINY), "--out", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "PYTHONIOENCODING": "utf-8"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody holds the other end any more
                break
            if not chunk:
                break
            shown += chunk
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 0, text
    assert "attention on cumsum length=16" in text and " seed 0 " in text
    assert "1 done, 1 running" in text
    assert "2 done" in text
    score = json.loads(next(tmp_path.glob("shift/*/record.json")).read_text())["scores"]["test"]["r2"]
    assert f"{score:.3f}"[:5] in text
    assert "shift" in out


@pytest.mark.parametrize("words", ["eval --select val --lr 1e-3,1e-2 --model lstm", "suite --models lstm,gru"])
def test_torchrun_is_refused_for_several_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("lrtasks.suite.run.run_suite", lambda *_, **__: pytest.fail("a run has begun"))
    task = "--tasks" if "suite" in words else "--task"
    said = command(*words.split(), task, "shift", "--length", "32", "--steps", "2", "--out", tmp_path)
    assert said.code == 2
    assert "torchrun" in said.err
    assert list(tmp_path.iterdir()) == []
