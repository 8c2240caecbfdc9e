"""Parts that many models share: normalisations, linear maps with normal weights, feed-forward maps, padding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError, unknown
from lrtasks.models.ops.short_conv import canon_layer

WEIGHT_STD = 0.02
"""Standard deviation of the linear maps and the biases by distance of MEGA and the models that build on it."""


def require_causal(causal: bool) -> None:
    """Raise :class:`UsageError` for a module that is not causal: it has no streaming form."""
    if not causal:
        raise UsageError("a bidirectional model has no streaming form; build it with causal=True")


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """``(batch, length, d)`` with zeros at padding, whatever stood there, NaN included.

    Args:
        x: the signal.
        mask: ``(batch, length)`` bool, False at padding, or None.
    """
    return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)


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
    """Build the normalisation over features called ``kind``, one of :data:`NORMS`.

    Raises:
        UsageError: if there is none of that name.
    """
    if kind not in NORMS:
        raise unknown("norm", kind, NORMS)
    return NORMS[kind](d_model)


def normal_(tensor: Tensor, std: float, *, truncated: bool) -> Tensor:
    """Fill with normal draws of standard deviation ``std``; if ``truncated``, cut them at two deviations."""
    if truncated:
        return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)
    return nn.init.normal_(tensor, std=std)


def linear(inputs: int, outputs: int, *, truncated: bool) -> nn.Linear:
    """A linear map with normal weights of standard deviation 0.02 (cut at 0.04 if ``truncated``) and zero bias."""
    layer = nn.Linear(inputs, outputs)
    normal_(layer.weight, WEIGHT_STD, truncated=truncated)
    with torch.no_grad():
        layer.bias.zero_()
    return layer


class FeedForward(nn.Module):
    """``W_2 dropout(f(W_1 x + b_1)) + b_2`` at each position (Vaswani et al., arXiv:1706.03762, section 3.3).

    Args:
        d_model: width of input and output, ``(..., d_model)``.
        width: width in between.
        function: f.
        dropout: rate in between.
        make_linear: builds a linear map from its two widths.
        canon: a canon layer before f.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        function: Callable[[Tensor], Tensor] = F.gelu,
        dropout: float = 0.0,
        make_linear: Callable[[int, int], nn.Linear] = nn.Linear,
        *,
        canon: bool = False,
    ) -> None:
        super().__init__()
        self.function = function
        self.hidden = make_linear(d_model, width)
        self.out = make_linear(width, d_model)
        self.dropout = nn.Dropout(dropout)
        self.canon = canon_layer(width) if canon else None

    def forward(self, x: Tensor, mask: Tensor | None = None, *_: Any) -> Tensor:
        """Map each position by itself, but for a canon layer; other arguments of attention are ignored."""
        hidden = self.hidden(x)
        return self._finish(hidden if self.canon is None else self.canon(hidden, mask))

    def initial_state(self, batch: int) -> Tensor | None:
        """The last inputs of the canon layer; a map of single positions has no state."""
        return None if self.canon is None else self.canon.initial_state(batch)

    def step(self, x: Tensor, state: Tensor | None, *_: Any) -> tuple[Tensor, Tensor | None]:
        """One position ``(batch, d_model)``."""
        hidden = self.hidden(x)
        if self.canon is not None and state is not None:
            hidden, state = self.canon.step(hidden, state)
        return self._finish(hidden), state

    def _finish(self, hidden: Tensor) -> Tensor:
        y: Tensor = self.out(self.dropout(self.function(hidden)))
        return y


def silu_feedforward(d_model: int, width: int, dropout: float = 0.0, *, truncated: bool) -> FeedForward:
    """The feed-forward map of MEGA: SiLU, and weights as :func:`linear` draws them."""
    return FeedForward(d_model, width, F.silu, dropout, functools.partial(linear, truncated=truncated))
