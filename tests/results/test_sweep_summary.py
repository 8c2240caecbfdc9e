"""What a sweep says at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_records import made

from lrtasks.cli.runs import print_solved
from lrtasks.run_config import RunConfig


def test_a_sweep_names_the_largest_value_that_each_model_solves(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {("dlr", 64): (0.99, 0.98), ("dlr", 128): (0.96, 0.99), ("dlr", 32): (0.99, 0.99), ("dss", 64): (0.1, 0.2)}
    runs = [RunConfig.make("shift", model, seed=s, settings={"length": n}) for model, n in scores for s in (0, 1)]
    found = [scores[run.model.name, run.task.input.length][run.seed] for run in runs]
    records = [
        made(model=run.model.name, seed=run.seed, score=score, floor=0.5)
        for run, score in zip(runs, found, strict=True)
    ]
    print_solved("length", runs, records, 0.95)
    assert capsys.readouterr().out.splitlines()[-2:] == ["  dlr: 64", "  dss: none"]


def test_values_that_are_not_numbers_are_all_named(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [RunConfig.make("shift", "dlr", settings={"kernel": kernel}) for kernel in ("real", "prod", "sum")]
    records = [made(model="dlr", score=score, floor=0.5) for score in (0.99, 0.98, 0.6)]
    print_solved("model.kernel", runs, records, 0.95)
    title, reached = capsys.readouterr().out.splitlines()[-2:]
    assert title.startswith("all values of kernel ") and reached == "  dlr: real, prod"


def test_settings_of_two_mixers_are_not_one_setting(capsys: pytest.CaptureFixture[str]) -> None:
    given = [{"gla.heads": own, "attention.heads": other} for own in (1, 2) for other in (2, 4)]
    layers = {"layers": "gla:1,attention:1"}
    runs = [RunConfig.make("shift", "hybrid", settings={**layers, **settings}) for settings in given]
    records = [made(model="hybrid", score=score, floor=0.5) for score in (0.1, 0.1, 0.99, 0.99)]
    for name, reached in (("gla.heads", "2"), ("attention.heads", "none"), ("model.attention.heads", "none")):
        print_solved(name, runs, records, 0.95)
        assert capsys.readouterr().out.splitlines()[-1] == f"  hybrid: {reached}"


def test_a_parameter_of_the_model_is_not_that_of_the_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\n\nclass Mine(nn.Linear):\n    def __init__(self, d_model, length=1):\n"
        "        super().__init__(d_model, d_model)\n"
    )
    given = [{"task.length": length, "model.length": own} for length in (16, 32) for own in (1, 2)]
    runs = [RunConfig.make("shift", f"{file}:Mine", settings=settings) for settings in given]
    records = [made(model="Mine", score=score, floor=0.5) for score in (0.99, 0.1, 0.99, 0.1)]
    for name, reached in (("task.length", "none"), ("model.length", "1")):
        print_solved(name, runs, records, 0.95)
        assert capsys.readouterr().out.splitlines()[-1] == f"  Mine: {reached}"


def test_two_models_of_one_name_have_a_line_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs, records = [], []
    for folder, score in (("p", 0.99), ("q", 0.1)):
        file = tmp_path / folder / "net.py"
        file.parent.mkdir()
        file.write_text("import torch\nclass Net(torch.nn.Linear):\n    def __init__(self, d_model): ...\n")
        for length in (32, 64):
            runs.append(RunConfig.make("shift", f"{file}:Net", settings={"length": length}))
            records.append(made(model="Net", score=score, floor=0.5))
    print_solved("length", runs, records, 0.95)
    said = capsys.readouterr().out.splitlines()[-2:]
    assert said == [f"  {tmp_path}/p/net.py:Net: 64", f"  {tmp_path}/q/net.py:Net: none"]
