"""The loop: one for every task and model. It reads top to bottom; nothing here knows a task or a model by name."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from lrtasks.budget import Budget
from lrtasks.errors import UsageError, first_line
from lrtasks.evaluation import checkpoint
from lrtasks.evaluation.batches import BatchStream, Loaded, load
from lrtasks.evaluation.losses import loss_named
from lrtasks.evaluation.optimiser import make_optimiser, set_rate
from lrtasks.evaluation.scoring import Scorer, make_scorer
from lrtasks.generators.base import Task
from lrtasks.models.base import offered, takes_mask
from lrtasks.progress import Progress

CHECKPOINT = "checkpoint.pt"
WEIGHTS = "weights.pt"
SECONDS_BETWEEN_CHECKPOINTS = 60.0
STEPS_BETWEEN_LOOKS = 20
"""The loss is brought to the host, and checked, this often."""


class DivergedError(Exception):
    """The training loss or the weights stopped being finite numbers."""


@dataclass
class State:
    """Where a run stands, apart from weights and optimiser: what a checkpoint adds to them.

    Attributes:
        step: optimiser steps done.
        seconds: time spent training; evaluations and checkpoints do not count.
        seconds_with_evaluation: the same with them.
        loss_sum: sum of the losses since the last evaluation.
        loss_count: number of steps since then.
        curve: one entry per evaluation: ``step``, ``loss`` and the validation scores.
        best: best validation score so far.
    """

    step: int = 0
    seconds: float = 0.0
    seconds_with_evaluation: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf


@dataclass
class Streams:
    """Training, validation and test batches; ``val`` and ``test`` come with their number of batches."""

    train: BatchStream
    val: tuple[BatchStream, int]
    test: tuple[BatchStream, int]
    workers: int
    finite: bool
    """Whether training goes through a finite set: then the test is taken at the best validation score."""


def train(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    budget: Budget,
    streams: Streams,
    folder: Path,
    *,
    seed: int,
    title: str,
    quiet: bool,
    report: Callable[[State], None],
) -> State:
    """Train ``model`` in place, from the last checkpoint in ``folder`` if there is one.

    Args:
        fabric: device, precision and processes.
        model: module on ``(batch, length[, channels])``.
        task: says which loss and which score.
        budget: how long and how.
        streams: where batches come from.
        folder: where checkpoints go.
        seed: seeds what is random inside the model (dropout).
        title: shown with the progress.
        quiet: show no progress.
        report: called at the start and after each evaluation.

    Returns:
        The final state; ``model`` holds the weights to be tested.

    Raises:
        DivergedError: when loss or weights are no longer finite; the message names the step.
        UsageError: if the model's output does not fit the task, or a checkpoint cannot be read.
    """
    loss_function, masked = loss_named(task.loss), takes_mask(model)
    wrapped, optimiser = fabric.setup(model, make_optimiser(model, budget))
    state = _resume(folder / CHECKPOINT, model, optimiser)
    report(state)
    last = state.step if _solved(state, budget) else budget.steps
    numbers = range(state.step, last)
    batches = load(streams.train, numbers, workers=streams.workers, pin=fabric.device.type == "cuda")
    # the sum stays on the device: a look at every step would make it wait
    running = torch.tensor(state.loss_sum, dtype=torch.float64, device=fabric.device)
    model.train()
    watch = _Watch(state)
    last_saved = time.monotonic()
    show = Progress(title, "steps", budget.steps, done=state.step, quiet=quiet or not fabric.is_global_zero)
    with closing(batches), show as progress:
        for batch in batches:
            _seed_step(seed, state.step, fabric.global_rank)
            set_rate(optimiser, budget.rate(state.step))
            batch = _to_device(batch, fabric.device)
            output = forward(wrapped, batch, masked)
            if state.step == 0:
                check_output(output, batch.y, task)
            loss = loss_function(output, batch.y) + _extra_losses(model)
            fabric.backward(loss)
            if budget.clip:
                fabric.clip_gradients(wrapped, optimiser, max_norm=budget.clip, error_if_nonfinite=False)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            running += loss.detach()
            state.step += 1
            state.loss_count += 1

            evaluating = state.step % budget.eval_every == 0 or state.step == budget.steps
            looking = evaluating or state.step % STEPS_BETWEEN_LOOKS == 0
            saving = evaluating or time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
            if looking:
                running = torch.as_tensor(fabric.all_reduce(running, reduce_op="mean"))
                state.loss_sum = running.item()
                if not math.isfinite(state.loss_sum):
                    raise DivergedError(f"the loss was no longer finite at step {state.step}")
                progress.update(state.step, _shown(state, task))
            if evaluating or saving:
                state.loss_sum = running.item()
                watch.lap(training=True)
                if evaluating:
                    _evaluate_and_note(fabric, model, task, streams, state, folder)
                    running.zero_()
                    report(state)
                watch.lap(training=False)
                _save(folder / CHECKPOINT, model, optimiser, state, fabric)
                last_saved = time.monotonic()
                watch.lap(training=False)
            if evaluating and _solved(state, budget):
                break
    if streams.finite:
        fabric.barrier()
        model.load_state_dict(checkpoint.load(folder / WEIGHTS)["model"])
    return state


class _Watch:
    """Adds the time that passes to a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._since = time.monotonic()

    def lap(self, *, training: bool) -> None:
        """Add the time since the last call; ``training`` says what it was spent on."""
        now = time.monotonic()
        passed, self._since = now - self._since, now
        self._state.seconds_with_evaluation += passed
        if training:
            self._state.seconds += passed


def score(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    stream: BatchStream,
    count: int,
    workers: int,
    *,
    slices: bool = True,
) -> Scorer:
    """Score ``model`` on the first ``count`` batches of ``stream``, in evaluation mode."""
    scorer = make_scorer(task, slices=slices)
    for batch, prediction in predictions(fabric, model, task, stream, count, workers):
        scorer.update(prediction, batch.batch)
    return scorer


def predictions(
    fabric: Fabric, model: nn.Module, task: Task, stream: BatchStream, count: int, workers: int
) -> Iterator[tuple[Loaded, np.ndarray]]:
    """Yield batches with what ``model`` predicts for them: real values, or the most likely class."""
    training, masked = model.training, takes_mask(model)
    batches = load(stream, range(count), workers=workers, pin=fabric.device.type == "cuda")
    model.eval()
    try:
        with closing(batches), torch.no_grad(), fabric.autocast():
            for batch in batches:
                output = forward(model, _to_device(batch, fabric.device), masked).float()
                prediction = output if task.target.kind == "real" else output.argmax(-1)
                yield batch, prediction.cpu().numpy()
    finally:
        model.train(training)


def forward(model: nn.Module, batch: Loaded, masked: bool) -> Tensor:
    """Call ``model``, with the padding mask if there is one and it takes it (:func:`takes_mask`)."""
    output: Tensor = model(batch.x, mask=batch.mask) if masked and batch.mask is not None else model(batch.x)
    return output


def check_output(output: Any, target: Tensor, task: Task) -> None:
    """Raise :class:`UsageError` unless a model's output fits the task's target."""
    expected = (len(target), task.target.length, task.target.width)
    if not isinstance(output, Tensor):
        raise UsageError(f"the model must return one tensor of shape {expected}, found {type(output).__name__}")
    if tuple(output.shape) != expected:
        raise UsageError(f"the model returned shape {tuple(output.shape)}; task {task.name} needs {expected}")


def _evaluate_and_note(
    fabric: Fabric, model: nn.Module, task: Task, streams: Streams, state: State, folder: Path
) -> None:
    """Add a point to the curve and, on a finite training set, keep the weights if they are the best."""
    if not all(bool(value.isfinite().all()) for value in model.parameters()):
        raise DivergedError(f"the weights were no longer finite at step {state.step}")
    val = score(fabric, model, task, *streams.val, streams.workers, slices=False).scores()
    # processes must not part ways over the last bits of a score
    val = fabric.broadcast(val)
    state.curve.append({"step": state.step, "loss": state.loss_sum / state.loss_count, **val})
    state.loss_sum, state.loss_count = 0.0, 0
    best = len(state.curve) == 1 or val[task.metric] > state.best
    if streams.finite and best and fabric.is_global_zero:
        checkpoint.save(folder / WEIGHTS, {"model": model.state_dict(), "step": state.step})
    state.best = max(state.best, val[task.metric])


def _solved(state: State, budget: Budget) -> bool:
    return budget.stop_at is not None and state.best >= budget.stop_at


def _extra_losses(model: nn.Module) -> Tensor | float:
    return sum(sum(losses().values()) for _, losses in offered(model, "extra_losses"))


def _seed_step(seed: int, step: int, rank: int) -> None:
    """Make what is random inside a model a function of seed, step and process, as the data are."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)


def _to_device(batch: Loaded, device: torch.device) -> Loaded:
    if device.type == "cpu":
        return batch
    mask = None if batch.mask is None else batch.mask.to(device, non_blocking=True)
    return Loaded(batch.x.to(device, non_blocking=True), batch.y.to(device, non_blocking=True), mask, None)


def _shown(state: State, task: Task) -> dict[str, float]:
    shown = {"loss": state.loss_sum / state.loss_count} if state.loss_count else {}
    return {**shown, f"val {task.metric}": state.curve[-1][task.metric]} if state.curve else shown


def _save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, fabric: Fabric) -> None:
    if fabric.is_global_zero:
        content = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "state": vars(state)}
        checkpoint.save(path, content)


def _resume(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    if not path.exists():
        return State()
    saved = checkpoint.load(path)
    try:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        return State(**saved["state"])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise UsageError(f"{path} does not fit this run ({reason}); remove {path.parent} to start it again") from None
