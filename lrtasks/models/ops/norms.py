"""Normalisations over features of ``(batch, length, d_model)``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lrtasks.errors import UsageError, unknown


class ScalarNorm(nn.Module):
    """``(s / std) (x - mean + m)`` per position with two learned scalars, population std and no epsilon (DLR code)."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.zeros(1))
        self.s = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(x, dim=-1, correction=0, keepdim=True)
        return (self.s / std) * (x - mean + self.m)


class ScaleNorm(nn.Module):
    """``g x / sqrt(mean(x²) + 1e-5)`` with a learned g: a scalar (SeqBoat code), or a number per channel (RMS norm).

    Args:
        gains: 1, or the number of channels.
    """

    def __init__(self, gains: int = 1) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(gains))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation per channel over batch and time; not causal in training.

    Raises:
        UsageError: in training on a single row of a single position, which has no variance.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[:-1].numel() == 1:
            raise UsageError("batch norm needs more than one row or position in training, found one of each")
        return super().forward(x.flatten(0, -2)).view_as(x)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda d_model: nn.LayerNorm(d_model, eps=1e-5),
    "scalar": lambda _: ScalarNorm(),
    "scale": lambda _: ScaleNorm(),
    "rms": lambda d_model: ScaleNorm(d_model),
    "batch": lambda d_model: BatchNorm(d_model, eps=1e-5, momentum=0.1),
    "none": lambda _: nn.Identity(),
}


def make_norm(kind: str, d_model: int) -> nn.Module:
    """Build the normalisation called ``kind``, one of :data:`NORMS`.

    Raises:
        UsageError: if there is none.
    """
    if kind not in NORMS:
        raise unknown("norm", kind, NORMS)
    return NORMS[kind](d_model)
