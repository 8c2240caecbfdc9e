"""What a sweep says at its end."""

from __future__ import annotations

import pytest
from made_records import made

from lrtasks.cli.sweep import print_solved
from lrtasks.suite.suite import Entry


def test_a_sweep_names_the_largest_value_that_each_model_solves(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {("dlr", 64): (0.99, 0.97), ("dlr", 128): (0.5, 0.99), ("dss", 64): (0.1, 0.2), ("dss", 128): (0.1, 0.2)}
    entries = [Entry(model, "shift", "small", seed, {"length": n}) for model, n in scores for seed in (0, 1)]
    records = [made(model=e.model, seed=e.seed, score=scores[e.model, e.settings["length"]][e.seed]) for e in entries]
    print_solved("length", entries, records, 0.95)
    assert capsys.readouterr().out.splitlines()[-2:] == ["  dlr: 64", "  dss: none"]
