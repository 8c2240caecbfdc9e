"""What is timed and what is counted: the model's own step, its own peak, both in turn with the Transformer."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lrtasks.bench import PHASES, UNFUSED, Phase, measure
from lrtasks.bench.measure import Case, PeakMemory, Settings, cost, kernel_entry, run_in_process, sizes
from lrtasks.errors import UsageError
from lrtasks.models import build
from lrtasks.spec import Spec

MEGABYTE = 1 << 20
CPU = torch.device("cpu")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much is resident")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Give back the number of threads, which a measurement sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def case(model: str, length: int, **changes: Any) -> Case:
    return Case(model, length, Settings.make(**{"d_model": 8, "layers": 1, "repeats": 3, **changes}))


def peak(model: str, length: int, phase: str = "training", **changes: Any) -> int:
    """Peak of a measurement in its own process."""
    found = run_in_process(cost, case(model, length, repeats=1, **changes), phase, False, time_limit=120)
    value: int = found["peak_bytes"]
    return value


@pytest.mark.parametrize("phase", ["training", "inference"])
def test_both_models_are_timed_as_often(phase: Phase) -> None:
    figures = cost(case("seqboat", 32), phase, True)
    for clock in ("cpu_seconds", "wall_seconds"):
        assert len(figures[clock]) == len(figures[f"baseline_{clock}"]) == 3
        assert min(figures[clock]) > 0 and min(figures[f"baseline_{clock}"]) > 0
    assert ("diagnostics" in figures) == (phase == "training")


def test_alone_there_is_no_baseline() -> None:
    figures = cost(case("transformer", 32, threads=3), "inference", False)
    assert set(figures) == {"peak_bytes", "cpu_seconds", "wall_seconds"}
    assert torch.get_num_threads() == 3


def test_no_repeat_begins_when_patience_ends() -> None:
    figures = cost(case("transformer", 16, repeats=1000, patience=0.05), "inference", True)
    assert 1 <= len(figures["cpu_seconds"]) < 1000


def test_models_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def prepared(case: Case, _: str) -> tuple[Any, Any]:
        return torch.nn.Identity(), lambda: order.append(case.model)

    monkeypatch.setattr(measure, "_prepare", prepared)
    cost(case("seqboat", 32), "inference", True)
    # a short step of each warms up; then one step of each that does not count, and the timed ones
    both = ["transformer", "seqboat"]
    assert order == [*both, "seqboat", "seqboat", "transformer", "transformer", *["seqboat", "transformer"] * 2]


def test_training_changes_the_model_and_leaves_no_gradients() -> None:
    model, run = measure._prepare(case("longvq", 32), "training")
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    run()
    assert model.training
    assert all(value.grad is None for value in model.parameters())
    changed = [name for name, value in model.named_parameters() if not torch.equal(value, before[name])]
    assert changed == list(before)
    again = measure._prepare(case("longvq", 32), "training")[0]
    assert all(torch.equal(value, before[name]) for name, value in again.named_parameters()), "the same start each time"


def test_a_step_computes_without_denormal_numbers_as_in_a_run() -> None:
    seen = list[bool]()
    model, step = measure._prepare(case("transformer", 16), "training")
    model.register_forward_hook(lambda *_: seen.append(bool(torch.full((1,), 2.0**-130) * 1.0 == 0)))
    step()
    assert seen == [True]


def test_extra_losses_are_part_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, run = measure._prepare(case("longvq", 32), "training")
    calls: list[Tensor] = []
    codebook = next(module for module in model.modules() if hasattr(module, "extra_losses"))
    losses = codebook.extra_losses  # type: ignore[operator]
    monkeypatch.setattr(codebook, "extra_losses", lambda: calls.append(losses()) or losses())
    run()
    assert len(calls) == 1


def test_inference_is_in_evaluation_mode_and_records_no_gradients() -> None:
    model, run = measure._prepare(case("seqboat", 32, batch=3), "inference")
    seen: list[tuple[bool, bool, int]] = []
    model.register_forward_hook(
        lambda _, given, __: seen.append((model.training, torch.is_inference_mode_enabled(), len(given[0])))
    )
    run()
    assert seen == [(False, True, 3)]


def test_sizes_are_those_of_the_model() -> None:
    built = build("mega", Spec("token", 32, 256), Spec("token", 1, 2, pooled=True), d_model=8, layers=1)
    found = sizes(case("mega", 32))
    assert found["parameters"] == sum(value.numel() for value in built.parameters())
    assert found["state_bytes"] is not None
    assert sizes(case("mega", 32, bidirectional=True))["state_bytes"] is None


def test_an_output_that_does_not_fit_the_task_is_not_timed(tmp_path: Path) -> None:
    code = "from torch import nn\n\ndef every(input, target):\n    return nn.Embedding(input.width, target.width)\n"
    (tmp_path / "every.py").write_text(code)
    for phase in PHASES:
        with pytest.raises(UsageError, match="output must have shape"):
            cost(case(f"{tmp_path / 'every.py'}:every", 32), phase, False)


@on_linux
def test_the_peak_is_what_was_taken_and_given_back() -> None:
    memory = PeakMemory(CPU)
    with mmap.mmap(-1, 64 * MEGABYTE) as taken:  # new pages, whatever the allocator has kept
        for _ in range(64):
            taken.write(bytes([1]) * MEGABYTE)
    # Linux counts pages in batches
    assert 63 * MEGABYTE < (memory.above_start() or 0) < 72 * MEGABYTE
    later = PeakMemory(CPU).above_start()
    assert later is not None and later < 8 * MEGABYTE


@on_linux
@pytest.mark.e2e
def test_the_unfused_transformer_holds_its_weights_of_attention() -> None:
    array = 4 * 4 * 1024 * 1024  # heads, bytes, queries, keys
    assert peak(UNFUSED, 1024) - peak("transformer", 1024) > 2 * array
    assert peak(UNFUSED, 1024, "inference") - peak("transformer", 1024, "inference") > array


@pytest.mark.e2e
@on_linux
@pytest.mark.parametrize("model", ["seqboat", "gla"])
def test_what_is_loaded_on_first_use_is_not_the_model_s(model: str) -> None:
    # a forward pass at 64 positions takes 4 MB; the modules that seqboat imports take 15 MB more, Numba 130 MB
    assert peak(model, 64, "inference") < 12 * MEGABYTE


@on_linux
def test_training_holds_the_optimiser_s_moments() -> None:
    width = 512
    parameters = run_in_process(sizes, case("transformer", 32, d_model=width), time_limit=120)["parameters"]
    # values, gradients and two moments (less what the process had at hand), against values alone
    assert peak("transformer", 32, d_model=width) > 0.8 * 4 * 4 * parameters
    assert peak("transformer", 32, "inference", d_model=width) < 1.5 * 4 * parameters + 8 * MEGABYTE


@on_linux
def test_what_the_system_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (kernel_entry("self/status", "VmRSS") or "").endswith("kB")
    assert kernel_entry("self/status", "VmNothing") is None and kernel_entry("no/file", "VmRSS") is None
    monkeypatch.setattr(measure, "kernel_entry", lambda *_: "7 kB")
    assert measure._resident_bytes("VmRSS") == 7 * 1024
