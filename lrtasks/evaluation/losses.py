"""Training losses by the name that a task declares."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.errors import unknown
from lrtasks.spec import IGNORED

Loss = Callable[..., Tensor]
"""Of ``(output, target)``; of ``(output, target, whole)`` it is what samples add to the loss of a batch whose targets
are ``whole``."""


def mse(output: Tensor, target: Tensor, whole: Tensor | None = None) -> Tensor:
    """Mean squared error over every element."""
    loss = F.mse_loss(output.float(), target)
    return loss if whole is None else loss * (target.numel() / whole.numel())


def cross_entropy(output: Tensor, target: Tensor, whole: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over labelled positions; logits ``(batch, length, classes)``, labels ``(batch, length)``."""
    logits, labels = output.float().flatten(0, 1), target.flatten()
    if whole is None:
        return F.cross_entropy(logits, labels, ignore_index=IGNORED)
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum") / (whole != IGNORED).sum()


def balanced_cross_entropy(output: Tensor, target: Tensor, whole: Tensor | None = None) -> Tensor:
    """Cross-entropy weighted by the inverse of each class's count in the batch (DLR code, pathfinder).

    With weights 1/n_c the weighted mean is the mean over the classes present of their mean cross-entropies.
    """
    logits, labels = output.float().flatten(0, 1), target.flatten()
    counted = labels if whole is None else whole.flatten()
    counts = torch.bincount(counted[counted >= 0], minlength=output.shape[-1])
    weight = 1 / counts.clamp_min(1).float()
    if whole is None:
        return F.cross_entropy(logits, labels, weight=weight, ignore_index=IGNORED)
    return F.cross_entropy(logits, labels, weight=weight, ignore_index=IGNORED, reduction="sum") / (counts > 0).sum()


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
