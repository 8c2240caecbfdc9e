"""The training loop for every task and model. No code here depends on a task's or a model's name."""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint
from lrtasks.evaluation.batches import Loaded, Replay, Streams, load
from lrtasks.evaluation.environment import flushed_denormals, seed_all
from lrtasks.evaluation.optimiser import make_loss, make_optimiser, set_rate
from lrtasks.evaluation.scoring import Scorer
from lrtasks.generators.base import Task
from lrtasks.metrics import VAL_SOLVED, scaled_score
from lrtasks.models.base import Backbone, extra_losses, output_misfit, recompute_blocks, takes_mask
from lrtasks.progress import Progress
from lrtasks.run_config import RunConfig
from lrtasks.spec import IGNORED, Spec

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECKPOINT = "checkpoint.pt"
WEIGHTS = "weights.pt"
SECONDS_BETWEEN_CHECKPOINTS = 60.0
LOG_EVERY = 20
"""Number of steps between two copies of the loss to the host, where it is checked."""


class DivergedError(Exception):
    """Raised when the training loss, the weights or the predictions are no longer finite."""


@dataclass
class State:
    """Progress of a run, stored in a checkpoint together with the weights and the optimiser.

    Attributes:
        step: optimiser steps done.
        seconds: time spent on training, without evaluations and checkpoints.
        seconds_with_evaluation: time spent on training, evaluations and checkpoints.
        loss_sum: sum of the losses of the ``loss_count`` steps since the last evaluation.
        curve: one entry per evaluation: ``step``, ``loss`` and the validation scores.
        best: best validation score so far.
        notes: the notes of the record, which a resumed run keeps.
        peak_memory_bytes: peak memory of this process and of earlier processes of the run.
    """

    step: int = 0
    seconds: float = 0.0
    seconds_with_evaluation: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)
    best: float = -math.inf
    notes: list[str] = field(default_factory=list)
    peak_memory_bytes: int = 0


def train(
    fabric: Fabric,
    model: nn.Module,
    config: RunConfig,
    streams: Streams,
    folder: Path,
    *,
    digest: str,
    floor: float | None,
    quiet: bool,
    report: Callable[[State], None],
) -> State:
    """Train ``model`` in place and return the final state. Continue from the checkpoint in ``folder`` if there is one.

    Args:
        model: module on ``(batch, length[, channels])``; afterwards it holds the weights to be tested.
        folder: folder of the checkpoints, which store the run's ``digest``.
        floor: the best baseline's validation score if the run stops when the task is solved, else ``None``.
        report: called at the start and after each evaluation.

    Raises:
        DivergedError: if loss, weights or predictions are no longer finite.
        UsageError: if the model's output does not fit the task, or if a checkpoint cannot be read or belongs to another
            run.
    """
    task, budget, seed = config.task, config.budget, config.seed
    loss_function, masked = make_loss(task.loss, budget, fabric.device), takes_mask(model)
    selects = type(model) is Backbone and task.target.kind == "token" and not task.target.pooled
    if budget.checkpoint_blocks:
        recompute_blocks(model)
    try:
        wrapped, optimiser = fabric.setup(model, make_optimiser(model, budget))
    except RuntimeError as error:
        if "torch.compile" not in str(error):
            raise
        must = "import lightning_fabric before torch.compile, or pass the model itself"
        raise UsageError(f"the model was compiled in an unknown way: {must}") from error
    checkpoint.require_readable(model.state_dict())
    state = _resume(folder / CHECKPOINT, model, optimiser, budget, digest)
    report(state)
    last = state.step if _solved(state, config, floor) else budget.steps
    numbers = range(state.step, last)
    batches = load(streams.train, numbers, workers=streams.workers, pin=fabric.device.type == "cuda")
    # the sum stays on the device: reading it at every step would make the device wait
    running = torch.tensor(state.loss_sum, dtype=torch.float64, device=fabric.device)
    model.train()
    since = last_saved = time.monotonic()

    def lap(*, training: bool) -> None:
        """Add the time since the last call to the seconds of ``state``."""
        nonlocal since
        before, since = since, time.monotonic()
        state.seconds_with_evaluation += since - before
        state.seconds += (since - before) * training

    quiet = quiet or not fabric.is_global_zero
    with closing(batches), Progress(config.title(), "steps", budget.steps, done=state.step, quiet=quiet) as progress:
        for batch in batches:
            seed_step(seed, state.step, fabric.global_rank)
            set_rate(optimiser, budget.rate(state.step))
            # on the CPU: a GPU would have to finish the previous step before the number of places is known
            places = [labelled(part.y) if selects else None for part in _split(batch, budget.accumulate)]
            batch = to_device(batch, fabric.device)
            before = None
            if state.step == numbers.start:
                lap(training=True)
                before = _hidden_state(model), batch.x.clone()
                lap(training=False)
            parts = _split(batch, budget.accumulate)
            with flushed_denormals():
                for number, (part, at) in enumerate(zip(parts, places, strict=True), start=1):
                    with fabric.no_backward_sync(wrapped, enabled=number < len(parts)):
                        x, target = part.x, task.target
                        if at is None:
                            output = forward(wrapped, part, masked)
                        else:
                            at = at.to(fabric.device, non_blocking=True)
                            output = forward(wrapped, part, masked, places=at)
                            part = part._replace(y=part.y.flatten()[at].unsqueeze(0))
                            x, target = x[:1], replace(target, length=len(at))
                        if before is not None and number == 1:
                            check_output(output, x, task, target=target, training=True)
                            lap(training=True)
                            _check_unchanged(model, batch, *before)
                            lap(training=False)
                        # after the first step, an extra loss is not finite because training has diverged
                        extra = extra_losses(model, fabric.device, finite=state.step == 0) / len(parts)
                        loss = loss_function(output, part.y, batch.y) + extra
                        fabric.backward(loss)
                        if state.step == 0 and number == 1 and config.model.source:
                            _check_trained(model, loss, optimiser)
                    running += loss.detach()
                if budget.clip:
                    fabric.clip_gradients(wrapped, optimiser, max_norm=budget.clip, error_if_nonfinite=False)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            state.step += 1
            state.loss_count += 1

            evaluating = state.step % budget.eval_every == 0 or state.step == budget.steps
            looking = evaluating or state.step % LOG_EVERY == 0
            saving = evaluating or time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS
            if looking:
                running = torch.as_tensor(fabric.all_reduce(running, reduce_op="mean"))
                state.loss_sum = running.item()
                if not math.isfinite(state.loss_sum):
                    raise DivergedError(f"the loss was no longer finite at step {state.step}")
            if evaluating or saving:
                state.loss_sum = running.item()
                lap(training=True)
                if evaluating:
                    best = _evaluate_and_note(fabric, model, task, streams, state)
                    running.zero_()
                    report(state)
                    # after the record: a finished run's record never stands beside the weights of its repetition
                    if streams.finite and best and fabric.is_global_zero:
                        checkpoint.save(folder / WEIGHTS, {"model": model.state_dict(), "step": state.step})
                lap(training=False)
                _save(folder / CHECKPOINT, model, optimiser, state, fabric, digest)
                last_saved = time.monotonic()
                lap(training=False)
            if looking:
                progress.update(state.step, _shown(state, task))
            if evaluating and _solved(state, config, floor):
                break
    if streams.finite:
        fabric.barrier()
        model.load_state_dict(checkpoint.load(folder / WEIGHTS)["model"])
    return state


def score(fabric: Fabric, model: nn.Module, task: Task, batches: Replay, *, slices: bool = True) -> Scorer:
    """Score ``model`` on ``batches``, in evaluation mode."""
    scorer = Scorer(task, slices=slices)
    for batch, prediction in predictions(fabric, model, task, batches):
        scorer.update(prediction, batch.batch)
    return scorer


def predictions(fabric: Fabric, model: nn.Module, task: Task, batches: Replay) -> Iterator[tuple[Loaded, np.ndarray]]:
    """Yield each batch with the predictions of ``model``: real values, or the most likely classes."""
    training, masked = model.training, takes_mask(model)
    model.eval()
    try:
        loaded = batches.load(pin=fabric.device.type == "cuda")
        with closing(loaded), torch.no_grad(), fabric.autocast():
            for batch in loaded:
                moved = to_device(batch, fabric.device)
                with flushed_denormals():
                    output = forward(model, moved, masked)
                check_output(output, moved.x, task, training=False)
                output = output.float()
                if not output.isfinite().all():
                    count = int((~output.isfinite()).sum())
                    raise DivergedError(f"predictions are not finite numbers ({count} of them)")
                prediction = output if task.target.kind == "real" else output.argmax(-1)
                yield batch, prediction.cpu().numpy()
    finally:
        model.train(training)


def forward(model: nn.Module, batch: Loaded, masked: bool, **options: Tensor) -> Tensor:
    """Call ``model``; pass the padding mask if there is one and ``masked`` is true (:func:`takes_mask`)."""
    if masked and batch.mask is not None:
        options = {"mask": batch.mask, **options}
    return model(batch.x, **options)


def check_output(output: Any, x: Tensor, task: Task, *, target: Spec | None = None, training: bool) -> None:
    """Raise :class:`UsageError` unless a model's output for ``x`` fits ``target`` (default: the task's target)."""
    problem = output_misfit(output, x, task.input, target or task.target)
    if problem:
        mode = "training" if training else "evaluation"
        raise UsageError(f"output of forward in {mode} {problem} (task {task.name})")
    if training and not output.requires_grad:
        off, lost = "gradients are off (torch.no_grad or inference_mode)", "it was detached, or no weight is trained"
        raise UsageError(f"forward returned an output without a gradient: {lost if torch.is_grad_enabled() else off}")


def _check_unchanged(model: nn.Module, batch: Loaded, state: dict[str, Tensor], x: Tensor) -> None:
    """Raise :class:`UsageError` if the forward pass changed its input; warn if it changed state not in state_dict."""
    if not torch.equal(x, batch.x):
        raise UsageError("forward changes its input in place; work on a copy")
    changed = [
        name
        for name, value in _hidden_state(model).items()
        # the forward pass may have moved a table to another device, which is no change
        if name not in state or not torch.equal(state[name].to(value.device), value)
    ]
    if changed:
        state_of = f"state outside state_dict() changed in a forward pass ({', '.join(changed[:5])})"
        warnings.warn(f"{state_of}: a resumed run resets it and may give other scores", stacklevel=2)


def _check_trained(model: nn.Module, loss: Tensor, optimiser: torch.optim.Optimizer) -> None:
    """Warn of a user's parameters that no gradient reaches, and of tensors with gradients that are not trained.

    This is called after the backward pass: a function may have a backward pass of its own, which the graph of ``loss``
    does not show (``torch.utils.checkpoint`` with ``use_reentrant=True``).
    """
    reached, seen, nodes = list[Tensor](), set[Any](), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
            if not node.next_functions and hasattr(node, "variable"):
                reached.append(node.variable)
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    known = {id(value) for value in reached}
    idle = [name for name, value in parameters.items() if id(value) not in known and value.grad is None]
    if idle:
        more = f" and {len(idle) - 5} more" if len(idle) > 5 else ""
        warnings.warn(f"in the first step, no gradient reaches {', '.join(idle[:5])}{more}", stacklevel=2)
    trained = {id(value) for group in optimiser.param_groups for value in group["params"]}
    strange = [str(tuple(value.shape)) for value in reached if id(value) not in trained]
    if strange:
        named = f"tensors of shape {', '.join(strange[:5])} have gradients, but are not trained"
        hint = "register them in the constructor, with nn.Parameter, nn.ModuleList or nn.ParameterList"
        warnings.warn(f"{named}; {hint}", stacklevel=2)


def _hidden_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state that a user's own modules keep outside ``state_dict``, as bytes by name.

    This state is numbers, strings, dense tensors and torch's random generators, but not a tensor with a gradient
    function: such a tensor is a result of one forward pass, for example an extra loss.
    """
    kept = set(model.state_dict())
    found = {}
    for prefix, module in model.named_modules():
        if type(module).__module__.split(".")[0] in ("torch", "lrtasks", "lightning_fabric"):
            continue
        if f"{prefix}._extra_state".lstrip(".") in kept:
            continue  # get_extra_state stores what the module needs
        for name, value in {**vars(module), **module._buffers}.items():
            path = f"{prefix}.{name}".lstrip(".")
            if isinstance(value, torch.Generator):
                found[path] = value.get_state()
            elif isinstance(value, Tensor):
                if value.grad_fn is None and value.layout == torch.strided and path not in kept:
                    plain = value.detach().resolve_conj().resolve_neg().flatten()
                    # a column of a matrix has gaps between its numbers, which its bytes must not have
                    found[path] = plain.clone(memory_format=torch.contiguous_format).view(torch.uint8)
            elif isinstance(value, (bool, int, float, str)) and name != "training":
                found[path] = torch.tensor([*repr(value).encode()], dtype=torch.uint8)
    return found


def _evaluate_and_note(fabric: Fabric, model: nn.Module, task: Task, streams: Streams, state: State) -> bool:
    """Evaluate and add a point to the curve; return whether its score is the best so far."""
    if not all(bool(value.isfinite().all()) for value in model.parameters()):
        raise DivergedError(f"the weights were no longer finite at step {state.step}")
    val = score(fabric, model, task, streams.val, slices=False).scores()
    # all processes must take the same decisions, even if the last bits of their scores differ
    val = fabric.broadcast(val)
    state.curve.append({"step": state.step, "loss": state.loss_sum / state.loss_count, **val})
    state.loss_sum, state.loss_count = 0.0, 0
    best = len(state.curve) == 1 or val[task.metric] > state.best
    state.best = max(state.best, val[task.metric])
    return best


def _solved(state: State, config: RunConfig, floor: float | None) -> bool:
    """Return whether validation has reached ``stop_at``, or :data:`VAL_SOLVED` (scaled) at the last two evaluations."""
    if config.budget.stop_at is not None and state.best >= config.budget.stop_at:
        return True
    return steps_to_solve(state.curve[-2:], config.task.metric, floor) is not None


def steps_to_solve(curve: Sequence[Mapping[str, Any]], metric: str, floor: float | None) -> int | None:
    """Return the step of the first of two consecutive evaluations that reach :data:`VAL_SOLVED`, or ``None``.

    ``floor`` is the best baseline's score on validation.
    """
    for first, second in pairwise(curve):
        if floor is not None and min(scaled_score(point[metric], floor) for point in (first, second)) >= VAL_SOLVED:
            return int(first["step"])
    return None


def labelled(y: Tensor) -> Tensor | None:
    """Return the labelled positions as indices into the flat batch; ``None`` if none or at least half are labelled."""
    places = (y.flatten() != IGNORED).nonzero().squeeze(1)
    return places if 0 < 2 * len(places) < y.numel() else None


def _split(batch: Loaded, count: int) -> list[Loaded]:
    """Split a batch into ``count`` parts with about equal numbers of samples."""
    masks = [None] * count if batch.mask is None else batch.mask.tensor_split(count)
    parts = zip(batch.x.tensor_split(count), batch.y.tensor_split(count), masks, strict=True)
    return [Loaded(*part, None) for part in parts]


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed all random generators, so that a model's random numbers depend only on seed, step and process."""
    digest = hashlib.blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest()
    seed_all(int.from_bytes(digest, "little") >> 1)


def to_device(batch: Loaded, device: torch.device) -> Loaded:
    """Return a batch of the CPU on ``device``."""
    if device.type == "cpu":
        return batch
    mask = None if batch.mask is None else batch.mask.to(device, non_blocking=True)
    return Loaded(batch.x.to(device, non_blocking=True), batch.y.to(device, non_blocking=True), mask, None)


def _shown(state: State, task: Task) -> dict[str, float]:
    """Return the mean loss since the last evaluation (without steps: the last loss) and the last validation score."""
    last = state.curve[-1] if state.curve else {}
    loss = state.loss_sum / state.loss_count if state.loss_count else last["loss"]
    return {"loss": loss, **({f"val {task.metric}": last[task.metric]} if last else {})}


def _save(
    path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, state: State, fabric: Fabric, digest: str
) -> None:
    if fabric.is_global_zero:
        content = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "state": vars(state)}
        checkpoint.save(path, {"run": digest, **content})


def _resume(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, budget: Budget, digest: str) -> State:
    if not path.exists():
        return State()
    saved, again = checkpoint.load(path), f"remove {path.parent} to start it again"
    if saved.get("run") != digest:
        raise UsageError(f"{path} belongs to another run ({saved.get('run')}, this one is {digest}); remove it")
    try:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        state = State(**saved["state"])
        for name, default in vars(State()).items():
            if type(found := getattr(state, name)) is not type(default):
                raise TypeError(f"{name} is {found!r}")
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise UsageError(f"{path} does not fit this run ({checkpoint.misfit(error)}); {again}") from None
    if not 0 < state.step <= budget.steps:
        raise UsageError(f"{path} is at step {state.step} of {budget.steps}; {again}")
    return state
