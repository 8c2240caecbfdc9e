"""The estimate of a training step's memory: parts, growth, and the error that names what to lower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lrtasks.errors import UsageError
from lrtasks.models import build, memory
from lrtasks.models.base import Backbone
from lrtasks.models.memory import available_bytes, estimate_bytes, require_memory
from lrtasks.spec import Spec

CPU = torch.device("cpu")


def outline(name: str = "dlr", length: int = 1024, **hyper: Any) -> Backbone:
    spec = Spec("real", length, 3)
    with torch.device("meta"):
        return build(name, spec, spec, **hyper)


@pytest.mark.parametrize("name", ["dlr", "dss", "s4d", "sgconv", "attention"])
def test_outline_allocates_nothing_and_gives_every_part(name: str) -> None:
    before = torch.random.get_rng_state()
    model = outline(name, length=1 << 20, d_model=4096)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(value.is_meta for value in model.parameters())
    needs = estimate_bytes(model, 16, CPU)
    count = sum(value.numel() for value in model.parameters())
    assert needs["parameters"] == 16 * count
    # the residual stream alone, twice
    assert needs["activations"] > 2 * 4 * 16 * (1 << 20) * 4096


def test_parts_grow_with_what_they_are_made_of() -> None:
    small = estimate_bytes(outline(), 2, CPU)
    assert estimate_bytes(outline(), 4, CPU)["activations"] == 2 * small["activations"]
    assert estimate_bytes(outline(length=4096), 2, CPU)["activations"] == 4 * small["activations"]
    assert estimate_bytes(outline(d_state=8192), 2, CPU)["parameters"] > 10 * small["parameters"]
    assert estimate_bytes(outline(d_state=65536), 2, CPU)["passing"] > small["passing"]


def test_kernel_at_a_million_positions_needs_under_two_gigabytes() -> None:
    assert (
        0.5e9
        < outline(length=1 << 20, d_model=32, d_state=4096).blocks[0].mixer.kernel.working_bytes(1 << 20, CPU)
        < 2e9
    )


@pytest.mark.parametrize(
    ("hyper", "batch", "words"),
    [
        ({}, 10**7, "lower batch_size, length, d_model or layers"),
        ({"d_state": 1 << 20, "d_model": 65536}, 1, "lower d_state, d_model or layers"),
    ],
    ids=str,
)
def test_error_says_how_much_and_what_to_lower(hyper: dict[str, Any], batch: int, words: str) -> None:
    with pytest.raises(UsageError, match=rf"needs about [\d.]+ GB .* {words}$"):
        require_memory(outline(**hyper), batch, CPU)


def test_what_fits_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(estimate_bytes(outline(), 16, CPU).values())
    monkeypatch.setattr(memory, "available_bytes", lambda _: total)
    require_memory(outline(), 16, CPU)
    monkeypatch.setattr(memory, "available_bytes", lambda _: total - 1)
    with pytest.raises(UsageError):
        require_memory(outline(), 16, CPU)
    # nothing is known, so nothing is refused
    monkeypatch.setattr(memory, "available_bytes", lambda _: None)
    require_memory(outline(), 10**7, CPU)


def test_available_memory_is_plausible() -> None:
    free = available_bytes(CPU)
    assert free is None or 1e7 < free < 1e14
