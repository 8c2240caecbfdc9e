"""The loop: one for every task and model. It reads top to bottom; nothing here knows a task or a model by name."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint
from lrtasks.evaluation.budget import Budget
from lrtasks.evaluation.loader import BatchStream, Loaded, load
from lrtasks.evaluation.losses import loss_named
from lrtasks.evaluation.optimiser import make_optimiser, set_rate
from lrtasks.evaluation.progress import Progress
from lrtasks.evaluation.scoring import Scorer, make_scorer
from lrtasks.generators.base import Task
from lrtasks.models.base import offered

CHECKPOINT = "checkpoint.pt"
WEIGHTS = "weights.pt"
SECONDS_BETWEEN_CHECKPOINTS = 60.0
STEPS_BETWEEN_LOOKS = 20
"""The loss is brought to the host this often: a look at every step would make a GPU wait."""


class DivergedError(Exception):
    """The training loss stopped being a finite number."""


@dataclass
class State:
    """Where a run stands, apart from weights and optimiser: what a checkpoint adds to them."""

    step: int = 0
    seconds: float = 0.0
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
    title: str,
    quiet: bool,
    on_evaluation: Callable[[State], None],
) -> State:
    """Train ``model`` in place, from the last checkpoint in ``folder`` if there is one.

    Args:
        fabric: device, precision and processes.
        model: module on ``(batch, length[, channels])``.
        task: says which loss and which score.
        budget: how long and how.
        streams: where batches come from.
        folder: where checkpoints go.
        title: shown with the progress.
        quiet: show no progress.
        on_evaluation: called after each evaluation.

    Returns:
        The final state; ``model`` holds the weights to be tested.

    Raises:
        DivergedError: when the loss is no longer finite; the message names the step.
    """
    loss_function = loss_named(task.loss)
    wrapped, optimiser = fabric.setup(model, make_optimiser(model, budget))
    state = _resume(folder / CHECKPOINT, model, optimiser, fabric)
    last = state.step if _solved(state, budget) else budget.steps
    batches = load(streams.train, range(state.step, last), workers=streams.workers)
    last_saved = last_look = time.monotonic()
    with Progress(title, budget.steps, done=state.step, quiet=quiet or not fabric.is_global_zero) as progress:
        running = torch.tensor(state.loss_sum, dtype=torch.float64, device=fabric.device)
        model.train()
        for batch in batches:
            set_rate(optimiser, budget.rate(state.step))
            batch = _to_device(batch, fabric.device)
            output = forward(wrapped, batch)
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
            if evaluating or state.step % STEPS_BETWEEN_LOOKS == 0:
                state.loss_sum = running.item()
                now = time.monotonic()
                state.seconds, last_look = state.seconds + now - last_look, now
                if not math.isfinite(state.loss_sum):
                    raise DivergedError(f"the loss was no longer finite at step {state.step}")
                progress.update(state.step, _shown(state, task))
            if evaluating:
                _evaluate_and_note(fabric, model, task, streams, state, folder)
                running.zero_()
                on_evaluation(state)
            if evaluating or time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
                state.loss_sum = running.item()
                _save(folder / CHECKPOINT, model, optimiser, state, fabric)
                last_saved = time.monotonic()
            if evaluating:
                # neither evaluation nor saving counts as training time
                last_look = time.monotonic()
                if _solved(state, budget):
                    break
    if streams.finite:
        fabric.barrier()
        model.load_state_dict(checkpoint.load(folder / WEIGHTS)["model"])
    return state


def score(fabric: Fabric, model: nn.Module, task: Task, stream: BatchStream, count: int, workers: int) -> Scorer:
    """Score ``model`` on the first ``count`` batches of ``stream``, in evaluation mode."""
    scorer = make_scorer(task)
    for batch, prediction in predictions(fabric, model, task, stream, count, workers):
        scorer.update(prediction, batch.batch)
    return scorer


def predictions(
    fabric: Fabric, model: nn.Module, task: Task, stream: BatchStream, count: int, workers: int
) -> Iterator[tuple[Loaded, np.ndarray]]:
    """Yield batches with what ``model`` predicts for them: real values, or the most likely class."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), fabric.autocast():
            for batch in load(stream, range(count), workers=workers):
                output = forward(model, _to_device(batch, fabric.device)).float()
                prediction = output if task.target.kind == "real" else output.argmax(-1)
                yield batch, prediction.cpu().numpy()
    finally:
        model.train(training)


def forward(model: nn.Module, batch: Loaded) -> Tensor:
    """Call ``model``, with the padding mask if there is one and the model takes it."""
    inner = getattr(model, "_forward_module", model)
    inner = getattr(inner, "module", inner)
    if batch.mask is not None and "mask" in inspect.signature(inner.forward).parameters:
        output: Tensor = model(batch.x, mask=batch.mask)
    else:
        output = model(batch.x)
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
    val = score(fabric, model, task, *streams.val, streams.workers).scores()
    state.curve.append({"step": state.step, "loss": state.loss_sum / state.loss_count, **val})
    state.loss_sum, state.loss_count = 0.0, 0
    headline = val[task.metric]
    if streams.finite and headline > state.best and fabric.is_global_zero:
        checkpoint.save(folder / WEIGHTS, {"model": model.state_dict(), "step": state.step})
    state.best = max(state.best, headline)


def _solved(state: State, budget: Budget) -> bool:
    return budget.stop_at is not None and state.best >= budget.stop_at


def _extra_losses(model: nn.Module) -> Tensor | float:
    return sum(sum(losses().values()) for _, losses in offered(model, "extra_losses"))


def _to_device(batch: Loaded, device: torch.device) -> Loaded:
    if device.type == "cpu":
        return batch
    mask = None if batch.mask is None else batch.mask.to(device, non_blocking=True)
    return Loaded(batch.x.to(device, non_blocking=True), batch.y.to(device, non_blocking=True), mask, batch.batch)


def _shown(state: State, task: Task) -> dict[str, float]:
    shown = {"loss": state.loss_sum / state.loss_count} if state.loss_count else {}
    return {**shown, f"val {task.metric}": state.curve[-1][task.metric]} if state.curve else shown


def _save(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, fabric: Fabric) -> None:
    if not fabric.is_global_zero:
        return
    generators = {"cpu": torch.get_rng_state()}
    if fabric.device.type == "cuda":
        generators["cuda"] = torch.cuda.get_rng_state(fabric.device)
    checkpoint.save(
        path,
        {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "state": vars(state), "random": generators},
    )


def _resume(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, fabric: Fabric) -> State:
    if not path.exists():
        return State()
    saved = checkpoint.load(path)
    try:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state = State(**saved["state"])
        torch.set_rng_state(saved["random"]["cpu"])
        if fabric.device.type == "cuda" and "cuda" in saved["random"]:
            torch.cuda.set_rng_state(saved["random"]["cuda"], fabric.device)
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise UsageError(f"{path} does not fit this run ({first}); remove it to start again") from None
    return state
