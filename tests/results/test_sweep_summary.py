"""What a sweep says at its end."""

from __future__ import annotations

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
