"""The recurrent block of Griffin and Hawk, with the real-gated linear recurrent unit (RG-LRU).

    r, i     gates of recurrence and input, sigmoids of block-diagonal maps of the input (one block per head)
    log a    -8 r softplus(Lambda)
    h        a h + sqrt(1 - a²) (i x); at the first position h = i x
    output   linear( RG-LRU(conv(linear(x))) * gelu(linear(x)) )

Source: De et al., Griffin, arXiv:2402.19427, section 2.4, and the recurrentgemma package, whose start is kept: there
softplus(Lambda) = -log radius with the radius itself, not its eighth power, drawn between 0.9 and 0.999.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision, hide
from lrtasks.models.ops.diagonal_scan import diagonal_scan, diagonal_scan_step
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.short_conv import ShortConv
from lrtasks.models.recurrent import PAPER, SMALL, TRACKING, Activation, RecurrentConfig, state_zeros

RATE = 8.0
RADII = (0.9, 0.999)
STEEPEST = 1000.0
"""Largest derivative of the square root in sqrt(1 - a²)."""

State = tuple[Tensor, Tensor, bool]
"""h ``(batch, width)``, the last inputs of the convolution, and whether a position has passed."""


class _BoundedRoot(torch.autograd.Function):
    """Square root whose derivative is at most :data:`STEEPEST`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = given / (4 * x).clamp_min(STEEPEST**-2).sqrt()
        return gradient


@full_precision
def rglru_coefficients(
    x: Tensor, recurrence: Tensor, entry: Tensor, Lambda: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """a and b of ``h = a h + b``.

    Args:
        x: inputs, ``(..., width)``.
        recurrence: gate r before its sigmoid, shaped as x.
        entry: gate i before its sigmoid, shaped as x.
        Lambda: ``(width,)``.
        first: where the sequence begins, ``(..., 1)`` bool.
    """
    log_a = -RATE * recurrence.sigmoid() * F.softplus(Lambda)
    # 1 - exp(2 log a) would lose all digits near a = 1
    scale: Tensor = _BoundedRoot.apply(-torch.expm1(2 * log_a))  # type: ignore[no-untyped-call]
    b = entry.sigmoid() * x * torch.where(first, 1.0, scale)
    return torch.where(first, 0.0, log_a.exp()), b


class HeadLinear(nn.Module):
    """A linear map whose matrix is block-diagonal, with one block per head, on ``(..., width)``."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        size = width // heads
        self.weight = nn.Parameter(torch.randn(heads, size, size) / math.sqrt(size))  # (heads, in, out)
        self.bias = nn.Parameter(torch.zeros(heads, size))

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"bias": {"weight_decay": 0.0}}

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.unflatten(x, -1, (len(self.weight), -1))
        return (torch.einsum("...hi,hio->...ho", parts, self.weight) + self.bias).flatten(-2)


class RGLRU(nn.Module):
    """The recurrent unit alone, on ``(batch, length, width)``.

    Args:
        width: channels.
        heads: blocks of the gates' maps.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_gate, self.a_gate = HeadLinear(heads, width), HeadLinear(heads, width)
        squares = torch.empty(width).uniform_(RADII[0] ** 2, RADII[1] ** 2)
        self.Lambda = nn.Parameter(torch.log(squares.rsqrt() - 1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """h at all positions; padding writes nothing and decays nothing."""
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        a, b = self._coefficients(x, (valid & (valid.cumsum(1) == 1)).unsqueeze(-1))
        return diagonal_scan(hide(a, mask, 1.0), hide(b, mask)).to(x.dtype)

    def step(self, x: Tensor, h: Tensor, first: bool) -> tuple[Tensor, Tensor]:
        """One position ``(batch, width)``."""
        a, b = self._coefficients(x, torch.tensor([first], device=x.device))
        y, h = diagonal_scan_step(a, b, h)
        return y.to(x.dtype), h

    def _coefficients(self, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        return rglru_coefficients(x, self.a_gate(x), self.input_gate(x), self.Lambda, first)


class GriffinLayer(nn.Module):
    """The recurrent block of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        width: channels of the recurrence, a multiple of ``heads``.
        heads: blocks of the gates' maps.
        layers: number of layers in the stack, for the start of the output map.
    """

    def __init__(self, d_model: int, width: int, heads: int, layers: int = 1) -> None:
        super().__init__()
        self.linear_y, self.linear_x = nn.Linear(d_model, width), nn.Linear(d_model, width)
        self.linear_out = nn.Linear(width, d_model)
        self.conv1d = ShortConv(width, bias=True, activation="none")
        self.rg_lru = RGLRU(width, heads)
        for linear, variance in (
            (self.linear_y, 1 / d_model),
            (self.linear_x, 1 / d_model),
            (self.linear_out, 2 / (layers * width)),
        ):
            nn.init.normal_(linear.weight, std=math.sqrt(variance))
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.conv1d.weight, std=0.05)
        assert self.conv1d.bias is not None
        nn.init.zeros_(self.conv1d.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        x = zero_padding(x, mask)
        h = self.rg_lru(self.conv1d(self.linear_x(x), mask), mask)
        return self._finish(h, x)

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        h = state_zeros(self.linear_out.weight, batch, self.linear_out.in_features)
        return h, self.conv1d.initial_state(batch), False

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        h, before, started = state
        mixed, before = self.conv1d.step(self.linear_x(x), before)
        y, h = self.rg_lru.step(mixed, h, not started)
        return self._finish(y, x), (h, before, True)

    def _finish(self, h: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.linear_out(h * F.gelu(self.linear_y(x), approximate="tanh"))
        return y


@registry.register("rglru")
@dataclass(frozen=True)
class Griffin(RecurrentConfig):
    """Hawk: the recurrent blocks of Griffin, whose gated recurrence keeps one real number per channel.

    Source: De et al. (arXiv:2402.19427), section 2.4.
    """

    function: ClassVar[Activation] = "gelu"
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 84},
        "state-tracking": TRACKING,
        "paper": {**PAPER, "mlp_width": 384},
    }

    heads: int = parameter(4, "blocks of the gates' maps", at_least=1, at_most=1024)
    width: int | None = parameter(None, "channels of the recurrence; none for d_model", at_least=1, at_most=65536)

    def check(self) -> None:
        self.divided(self.width or self.d_model, self.heads, "heads")

    def layer(self, index: int) -> GriffinLayer:
        return GriffinLayer(self.d_model, self.width or self.d_model, self.heads, self.layers)
