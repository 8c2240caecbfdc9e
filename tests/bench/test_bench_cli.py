"""``lrtasks bench`` from the shell: real measurements, small ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lrtasks.bench import run
from lrtasks.bench.measure import Case
from lrtasks.bench.run import all_models

Command = Callable[..., Any]
SMALL = ("bench", "--models", "s4d", "--d-model", "8", "--layers", "1", "--repeats", "1", "--out", "out")


@pytest.mark.e2e
def test_measured_once_and_shown_in_every_form(command: Command) -> None:
    said = command(*SMALL, "--length", "16", "--json")
    assert said.code == 0
    content = json.loads(said.out)
    assert [(row["model"], row["length"]) for row in content["rows"]] == [("transformer", 16), ("s4d", 16)]
    for row in content["rows"]:
        assert row["reasons"] == {}
        assert row["training_seconds"] > 0 and row["inference_seconds"] > 0
        assert row["relative_training_speed"] > 0
        assert row["state_bytes"] > 0 and row["parameters"] > 0
    files = {file: file.stat().st_mtime_ns for file in Path("out").iterdir()}
    assert len(files) == 2
    for form in ("text", "markdown", "csv", "latex", "html"):
        again = command(*SMALL, "--length", "16", "--format", form)
        assert again.code == 0 and "s4d" in again.out
    assert {file: file.stat().st_mtime_ns for file in Path("out").iterdir()} == files
    shown = command("bench", "--show", "--out", "out", "--json")
    assert json.loads(shown.out) == content


@pytest.mark.e2e
def test_a_model_that_cannot_be_is_recorded_and_not_tried_again(command: Command) -> None:
    words = (*SMALL, "--length", "16", "--models", "hyena", "--bidirectional")
    said = command(*words, "--json")
    assert said.code == 1
    transformer, hyena = json.loads(said.out)["rows"]
    assert transformer["reasons"] == {} and transformer["state_bytes"] is None
    assert set(hyena["reasons"]) == {"training", "inference", "sizes"}
    assert "hyena is a causal model" in hyena["reasons"]["training"]
    again = command(*words)
    assert "hyena at 16: no training nor inference nor sizes: hyena is a causal model" in again.out


def test_all_stands_beside_other_names(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from torch import nn\n\ndef mine(d_model):\n    return nn.Identity()\n")
    measured, limits = list[str](), dict[str, float]()

    def note(cases: Sequence[Case], _: Path, *, time_limit: float) -> Iterator[dict[str, Any]]:
        measured.extend(case.model for case in cases)
        given = cases[0].settings
        limits.update({"time-limit": time_limit} | {name: getattr(given, name) for name in ("repeats", "patience")})
        return iter(())

    monkeypatch.setattr(run, "run_bench", note)
    options = ("--time-limit", 7, "--repeats", 3, "--patience", 4)
    command("bench", "--models", "all,mine.py:mine", "--length", 16, *options)
    assert set(measured) == {*all_models(), "mine.py:mine"}
    assert limits == {"time-limit": 7, "repeats": 3, "patience": 4}


PRINTS = """
from torch import nn

class Prints(nn.Linear):
    def __init__(self, d_model):
        super().__init__(d_model, d_model)
        print("built")

    def forward(self, x):
        print("called")
        return super().forward(x)
"""


@pytest.mark.e2e
def test_output_of_a_layer_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    words = [sys.executable, "-m", "lrtasks", *SMALL, "--length", "16", "--models", "s4d, prints.py:Prints", "--json"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert [row["model"] for row in json.loads(said.stdout)["rows"]] == ["transformer", "s4d", "Prints"]
    assert "called" in said.stderr


WRONG = """
from torch import nn

class Wrong(nn.Linear):
    def __init__(self, d_model):
        super().__init__(d_model, d_model)

    def forward(self, x):
        return super().forward(x), None
"""


@pytest.mark.e2e
def test_a_layer_that_can_be_built_but_not_timed_was_not_measured(command: Command) -> None:
    Path("wrong.py").write_text(WRONG)
    said = command(*SMALL, "--length", "16", "--models", "wrong.py:Wrong")
    assert said.code == 1
    assert "Wrong at 16: no training nor inference: Wrong.forward returned a tuple" in said.out


@pytest.mark.e2e
def test_a_killed_bench_goes_on(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lrtasks", *SMALL, "--length", "16,32", "--json"]
    out = tmp_path / "out"
    first = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(out.glob("*.json"))) < 1:
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    finished = {file: file.stat().st_mtime_ns for file in out.glob("*.json")}
    assert 1 <= len(finished) < 4
    second = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert len(json.loads(second.stdout)["rows"]) == len(list(out.glob("*.json"))) == 4
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert not list(out.glob(".*.json*"))
