"""Training losses by name, and the optimiser: AdamW over the parameter groups that modules declare."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.models.base import parameter_options
from lrtasks.spec import IGNORED

Loss = Callable[..., Tensor]
"""A function of ``(output, target, whole)`` that returns the contribution of some samples to the loss of a batch;
``target`` has the targets of these samples, ``whole`` all targets of the batch."""


def mse(output: Tensor, target: Tensor, whole: Tensor) -> Tensor:
    """Return the mean squared error over all elements."""
    return F.mse_loss(output.float(), target) * (target.numel() / whole.numel())


def cross_entropy(output: Tensor, target: Tensor, whole: Tensor) -> Tensor:
    """Return the mean cross-entropy over labelled positions; 0 if no position of the batch is labelled.

    ``output`` holds logits ``(batch, length, classes)``, ``target`` labels ``(batch, length)``.
    """
    logits, labels = output.float().flatten(0, 1), target.flatten()
    count = (whole != IGNORED).sum().clamp_min(1)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / count


def balanced_cross_entropy(output: Tensor, target: Tensor, whole: Tensor) -> Tensor:
    """Return the cross-entropy weighted by the inverse of each class's count in the batch (DLR code, pathfinder).

    With the weights 1/n_c, the result is the mean of the classes' mean cross-entropies, over the classes in the batch;
    0 if no position of the batch is labelled.
    """
    logits, labels = output.float().flatten(0, 1), target.flatten()
    counted = whole.flatten()
    counts = torch.bincount(counted[counted >= 0], minlength=output.shape[-1])
    weight = 1 / counts.clamp_min(1).float()
    classes = (counts > 0).sum().clamp_min(1)
    return F.cross_entropy(logits, labels, weight=weight, ignore_index=IGNORED, reduction="sum") / classes


def weighted_cross_entropy(output: Tensor, target: Tensor, whole: Tensor, *, weights: Tensor) -> Tensor:
    """Return the mean cross-entropy over labelled positions, each with the weight of its class.

    ``weights`` has shape ``(classes,)``. The result is the sum of the weighted losses over the sum of the weights; 0 if
    no position of the batch is labelled.
    """
    logits, labels = output.float().flatten(0, 1), target.flatten()
    counted = whole.flatten()
    total = (weights[counted.clamp_min(0)] * (counted != IGNORED)).sum()
    loss = F.cross_entropy(logits, labels, weight=weights, ignore_index=IGNORED, reduction="sum")
    return loss / total.clamp_min(weights.min())


LOSSES: dict[str, Loss] = {
    "mse": mse,
    "cross-entropy": cross_entropy,
    "balanced-cross-entropy": balanced_cross_entropy,
}


def make_loss(name: str, budget: Budget, device: torch.device) -> Loss:
    """Return the loss called ``name``, or the cross-entropy with the fixed class weights of the budget."""
    if budget.class_weights is None:
        return LOSSES[name]
    return partial(weighted_cross_entropy, weights=torch.tensor(budget.class_weights, device=device))


def make_optimiser(model: nn.Module, budget: Budget) -> torch.optim.AdamW:
    """Return AdamW with one parameter group per learning rate and weight decay.

    Modules declare these values for their own parameters in ``parameter_options()``; the default is the budget's value.
    Each group keeps its starting rate as ``base_lr``; :func:`set_rate` multiplies it by the schedule's factor.

    Raises:
        UsageError: if there are no parameters to train, or a module declares options of a parameter it does not have.
    """
    declared = parameter_options(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for value in model.parameters():
        if value.requires_grad:
            options = declared.get(id(value), {})
            lr = options.get("lr", budget.lr) * options.get("lr_factor", 1.0)
            key = (lr, options.get("weight_decay", budget.weight_decay))
            groups.setdefault(key, []).append(value)
    if not groups:
        raise UsageError("the model has no parameters to train")
    parameters = [
        {"params": values, "lr": lr, "base_lr": lr, "weight_decay": decay} for (lr, decay), values in groups.items()
    ]
    trained = [value for group in groups.values() for value in group]
    fused = all(value.is_floating_point() and value.device.type in ("cpu", "cuda") for value in trained)  # not complex
    return torch.optim.AdamW(parameters, lr=budget.lr, betas=budget.betas, fused=fused or None)


def set_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to its starting rate times ``factor``."""
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * factor
