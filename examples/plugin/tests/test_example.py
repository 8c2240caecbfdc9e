"""What a package like this one should test of itself: the contracts, and the task and the model by plain means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lrtasks_example.gated_recurrence import scan

import lrtasks
from lrtasks.generators import Spec

BITS, SIGNAL = Spec("token", 37, 2), Spec("real", 37, 3)


@pytest.mark.parametrize("parameters", [{"length": 32}, {"length": 33, "density": 0.1}])
def test_the_task_keeps_the_contract(parameters: dict[str, float]) -> None:
    lrtasks.check_task(lrtasks.make("parity", **parameters))


def test_the_worked_example() -> None:
    task = lrtasks.make("parity", length=5)
    batch = task.batch(range(100))
    (row,) = np.flatnonzero((batch.x == [0, 1, 1, 0, 1]).all(axis=1))[:1]
    assert batch.y[row].tolist() == [0, 1, 0, 0, 1]
    assert task.slices(batch)["ones"][row].tolist() == [0, 1, 2, 2, 2]
    assert task.text(batch, row) == "0 1 1 0 1\n0 1 0 0 1"


@pytest.mark.parametrize("gates", ["positive", "signed"])
@pytest.mark.parametrize("spec", [BITS, SIGNAL], ids=["tokens", "signals"])
def test_the_model_keeps_the_contract(spec: Spec, gates: str) -> None:
    lrtasks.check_model("gated-recurrence", input=spec, target=spec, d_model=8, layers=2, gates=gates)


def test_the_scan_is_the_recurrence() -> None:
    a, b = torch.randn(2, 3, 13, 4, dtype=torch.float64)
    start = torch.randn(3, 4, dtype=torch.float64)
    decay, sums = scan(a, b)
    state = start
    for t in range(13):
        state = a[:, t] * state + b[:, t]
        assert torch.allclose(decay[:, t] * start + sums[:, t], state)


def test_signed_gates_flip_and_positive_ones_do_not() -> None:
    task = lrtasks.make("parity", length=16)
    x = torch.from_numpy(task.batch(range(4)).x)
    shares = {}
    for gates in ("positive", "signed"):
        model = lrtasks.models.build("gated-recurrence", task.input, task.target, d_model=8, gates=gates)
        model(x)
        shares[gates] = model.blocks[0].mixer.diagnostics()["flips"]
    assert shares["positive"] == 0 < shares["signed"]
