"""Training losses by the name that a task declares."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.errors import unknown
from lrtasks.spec import IGNORED

Loss = Callable[[Tensor, Tensor], Tensor]


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error over every element."""
    return F.mse_loss(output.float(), target)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over labelled positions; logits ``(batch, length, classes)``, labels ``(batch, length)``."""
    return F.cross_entropy(output.float().flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def balanced_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy weighted by the inverse of each class's count in the batch (DLR code, pathfinder).

    With weights 1/n_c the weighted mean is the mean over the classes present of their mean cross-entropies.
    """
    labels = target.flatten()
    counts = torch.bincount(labels[labels >= 0], minlength=output.shape[-1])
    weight = 1 / counts.clamp_min(1).float()
    return F.cross_entropy(output.float().flatten(0, 1), labels, weight=weight, ignore_index=IGNORED)


LOSSES: dict[str, Loss] = {
    "mse": mse,
    "cross-entropy": cross_entropy,
    "balanced-cross-entropy": balanced_cross_entropy,
}


def loss_named(name: str) -> Loss:
    """The loss called ``name``, one of :data:`LOSSES`.

    Raises:
        UsageError: if there is none.
    """
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return LOSSES[name]
