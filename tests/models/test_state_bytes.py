"""Bytes of the streaming state at the end of the input: declared growth against steps through all positions."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lrtasks.models import base, build, names
from lrtasks.models.base import Backbone, offered, parameter_count, state_bytes
from lrtasks.spec import Spec

LENGTH = 40


def stepped(model: Backbone) -> int:
    """The definition: the size of the last state, without what two sequences share."""
    model.eval()
    x = torch.zeros(1, dtype=torch.int64)
    state = model.initial_state(1)
    shared = 2 * base._bytes(state) - base._bytes(model.initial_state(2))
    with torch.no_grad():
        for _ in range(model.input.length):
            _, state = model.step(x, state)
    return base._bytes(state) - shared


def built(name: str, length: int = LENGTH, **hyper: Any) -> Backbone:
    torch.manual_seed(0)
    hyper = hyper if name == "hybrid" else {"layers": 2, **hyper}
    return build(name, Spec("token", length, 5), Spec("token", 1, 2, pooled=True), d_model=8, **hyper)


@pytest.mark.parametrize("name", names())
def test_equals_stepping_through(name: str) -> None:
    model = built(name)
    found, training = state_bytes(model), model.training
    assert (found, training) == (stepped(model), True)


# lengths at both ends of a chunk, and shorter than one
@pytest.mark.parametrize("length", [5, 7, 8, 9, 14, 15, 21, 22])
def test_a_cache_that_shrinks_at_each_chunk(length: int) -> None:
    model = built("local-attention", length, chunk=7)
    assert state_bytes(model) == stepped(model)


def test_local_attention_keeps_two_chunks_however_long_the_input() -> None:
    row = 2 * 2 * 8 * 4  # keys and values, layers, d_model, float32
    assert [state_bytes(built("local-attention", length)) for length in (1024, 16384, 65536)] == [
        1024 * row,
        2048 * row,
        2048 * row,
    ]


def test_a_long_cache_takes_no_steps() -> None:
    model, start = built("transformer", 1 << 20), time.process_time()
    assert state_bytes(model) == 2 * 2 * 8 * 4 << 20
    assert time.process_time() - start < 2


class Remembers(nn.Module):
    """Keeps its last ``most`` inputs, and does not declare this growth."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, 0, 3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.cat((state, torch.zeros(len(x), 1, 3)), 1)[:, -self.most :]


def remembering(most: int, length: int) -> Backbone:
    return Backbone(Spec("token", length, 5), Spec("token", 1, 2, pooled=True), 8, [Remembers(most)], causal=True)


def test_growth_that_nothing_declares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(offered(remembering(30, 40), "cache_bytes"))
    assert state_bytes(remembering(30, 40)) == 30 * 12
    monkeypatch.setattr(base, "PROBED", 20)
    assert state_bytes(remembering(100, 40)) == 40 * 12
    assert state_bytes(remembering(10, 40)) == 10 * 12


class Cache:
    """A state with tensors as attributes, a part that all sequences share, and itself."""

    def __init__(self, batch: int) -> None:
        self.last, self.shared = deque([torch.zeros(batch, 3)]), torch.zeros(100)
        self.itself = self


class Caches(Remembers):
    def initial_state(self, batch: int) -> Any:
        return Cache(batch)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        state.last.append(torch.zeros(len(x), 3))
        if len(state.last) > self.most:
            state.last.popleft()
        return x, state


def test_a_state_that_is_an_object_with_tensors_is_counted() -> None:
    model = Backbone(Spec("token", LENGTH, 5), Spec("token", 1, 2, pooled=True), 8, [Caches(30)], causal=True)
    assert state_bytes(model) == 30 * 12


class OneRow(Remembers):
    """Starts from one row, which stands for all rows of the batch."""

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(1, 3)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return x, state + x[:, :3]


def test_a_state_that_starts_as_one_row_is_not_shared() -> None:
    model = Backbone(Spec("token", LENGTH, 5), Spec("token", 1, 2, pooled=True), 8, [OneRow(1)], causal=True)
    assert state_bytes(model) == 12


def test_parameter_count_leaves_out_frozen_values_and_counts_complex_ones_twice() -> None:
    module = nn.Linear(3, 2)  # 6 weights and 2 biases
    module.bias.requires_grad_(False)
    module.poles = nn.Parameter(torch.zeros(5, dtype=torch.complex64))
    assert parameter_count(module) == 16
