"""Measuring one case, in a process that does nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from lrtasks.bench.case import BASELINE, CLASSES, UNFUSED, VOCABULARY, Bench, Case
from lrtasks.bench.resident import PeakMemory
from lrtasks.budget import Budget
from lrtasks.evaluation.optimiser import make_optimiser
from lrtasks.models.base import Backbone, offered, state_bytes

Phase = Literal["training", "inference"]
PHASES: tuple[Phase, ...] = ("training", "inference")
WARM_UP = 32
"""Positions of the sequence that loads libraries before memory is counted."""

CLOCKS = ("cpu_seconds", "wall_seconds")

Run = Callable[[], None]


def clock_of(device: str) -> str:
    """The clock that counts: CPU time on a CPU, which other processes disturb little, elapsed time on a GPU."""
    return CLOCKS[0] if device == "cpu" else CLOCKS[1]


def sizes(case: Case) -> dict[str, int | None]:
    """``parameters`` and ``state_bytes`` of one sequence (None without a streaming form)."""
    model = case.build()
    return {"parameters": sum(value.numel() for value in model.parameters()), "state_bytes": state_bytes(model)}


def cost(case: Case, phase: Phase, paired: bool) -> dict[str, Any]:
    """Peak memory of the model alone, then times of the model and of the Transformer in turn.

    Args:
        case: what is measured.
        phase: ``training``: forward, loss, backward and optimiser step; ``inference``: forward in evaluation mode.
        paired: whether the Transformer is timed, too.

    Returns:
        ``peak_bytes``, above the process before the model was built; ``cpu_seconds`` and ``wall_seconds``, one per
        repeat, and with ``paired`` as many of ``baseline_cpu_seconds`` and ``baseline_wall_seconds``; after training
        the model's ``diagnostics``, if it has any.

    Raises:
        UsageError: if the model cannot be built.
    """
    torch.set_num_threads(case.bench.settings.threads)
    device = torch.device(case.bench.device)
    _warm_up(case.bench, phase)
    memory = PeakMemory(device)
    model, run = _made(case, phase)
    run()  # allocates the optimiser's moments, starts codebooks, loads what the model needs
    own = [_timed(run, device)]
    figures: dict[str, Any] = {"peak_bytes": memory.above_start()}
    runs, times = [run], [own]
    if paired:
        _, other = _made(case.baseline, phase)
        other()
        runs, times = [run, other], [own, [_timed(other, device)]]
    _repeat(runs, times, case.bench, device)
    for prefix, measured in zip(("", "baseline_"), times, strict=False):
        for name, repeats in zip(CLOCKS, zip(*measured, strict=True), strict=True):
            figures[prefix + name] = list(repeats)
    found = {name or "model": report() for name, report in offered(model, "diagnostics")}
    return {**figures, "diagnostics": found} if found and phase == "training" else figures


def _repeat(runs: list[Run], times: list[list[tuple[float, float]]], bench: Bench, device: torch.device) -> None:
    """Go on in turn, so that what slows the machine down for a while slows all of them down."""
    clock, spent = CLOCKS.index(clock_of(device.type)), 0.0
    while len(times[0]) < bench.settings.repeats and spent < bench.settings.patience:
        for run, measured in zip(runs, times, strict=True):
            measured.append(_timed(run, device))
            spent += measured[-1][clock]


def _made(case: Case, phase: Phase) -> tuple[Backbone, Run]:
    """The model, and what is timed: one training step, or one forward pass."""
    torch.manual_seed(0)
    device, batch = torch.device(case.bench.device), case.bench.settings.batch
    model = case.build().to(device)
    x = torch.randint(VOCABULARY, (batch, case.length), device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    run = _training_step(model, x, labels) if phase == "training" else _forward_pass(model, x)

    def unfused() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            run()

    return model, unfused if case.model == UNFUSED else run


def _training_step(model: Backbone, x: Tensor, labels: Tensor) -> Run:
    model.train()
    optimiser = make_optimiser(model, Budget())

    def step() -> None:
        loss = cross_entropy(model(x)[:, 0], labels)
        for _, losses in offered(model, "extra_losses"):
            loss = loss + sum(losses().values())
        torch.autograd.backward(loss)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _forward_pass(model: Backbone, x: Tensor) -> Run:
    model.eval()

    @torch.inference_mode()
    def infer() -> None:
        model(x)

    return infer


def _timed(run: Run, device: torch.device) -> tuple[float, float]:
    """What :data:`CLOCKS` say: CPU time of this process's threads, and elapsed time."""
    _wait(device)
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    _wait(device)
    return time.process_time() - cpu, time.perf_counter() - wall


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _warm_up(bench: Bench, phase: Phase) -> None:
    """Load what torch loads when first used, so that it does not count as the model's memory."""
    _, run = _made(Case(bench, BASELINE, WARM_UP), phase)
    run()
    torch.fft.irfft(torch.fft.rfft(torch.zeros(WARM_UP, device=bench.device)))
