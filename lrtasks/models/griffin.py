"""The recurrent block of Griffin and Hawk, with the real-gated linear recurrent unit (RG-LRU).

    r, i     recurrence gate and input gate, sigmoids of block-diagonal maps of the input (one block per head)
    log a    -8 r softplus(Lambda)
    h        a h + sqrt(1 - a²) (i x); at the first position h = i x
    output   linear( RG-LRU(conv(linear(x))) * gelu(linear(x)) )

Source: De et al., Griffin, arXiv:2402.19427, section 2.4, and the recurrentgemma package, whose initial weights are
used: softplus(Lambda) = -log radius, where the radius itself, not its eighth power, is drawn between 0.9 and 0.999.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, SMALL, TRACKING
from lrtasks.models.ops.layers import ShortConv, full_precision, hide
from lrtasks.models.ops.scans import diagonal_scan
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer, state_zeros

RATE = 8.0
RADII = (0.9, 0.999)
STEEPEST = 1000.0
"""Largest derivative of the square root in sqrt(1 - a²)."""


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
        return given / (4 * x).clamp_min(STEEPEST**-2).sqrt()


@full_precision
def rglru_coefficients(
    x: Tensor, recurrence: Tensor, entry: Tensor, Lambda: Tensor, first: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return a and b of ``h = a h + b`` from inputs ``(..., width)`` and the gates r and i before their sigmoids.

    ``first`` is True at the first position of a sequence, ``(..., 1)`` bool; None if no first position is included.
    """
    log_a = -RATE * recurrence.sigmoid() * F.softplus(Lambda)
    # 1 - exp(2 log a) would lose all digits near a = 1
    scale: Tensor = _BoundedRoot.apply(-torch.expm1(2 * log_a))  # type: ignore[no-untyped-call]
    entered, a = entry.sigmoid() * x, log_a.exp()
    if first is None:
        return a, entered * scale
    return torch.where(first, 0.0, a), entered * torch.where(first, 1.0, scale)


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


class RGLRU(RecurrentLayer):
    """The recurrent unit alone, on ``(batch, length, width)``; padding does not change the state.

    State: h ``(batch, width)``, and whether any position has been processed.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.input_gate, self.a_gate = HeadLinear(heads, width), HeadLinear(heads, width)
        squares = torch.empty(width).uniform_(RADII[0] ** 2, RADII[1] ** 2)
        self.Lambda = nn.Parameter(torch.log(squares.rsqrt() - 1))

    def initial_state(self, batch: int) -> tuple[Tensor, bool]:
        return state_zeros(self.Lambda, batch, len(self.Lambda)), False

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        h, started = state
        first = None
        if not started:
            valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
            first = (valid & (valid.cumsum(1) == 1)).unsqueeze(-1)
        a, b = rglru_coefficients(x, self.a_gate(x), self.input_gate(x), self.Lambda, first)
        self.show(decay=a)
        h = diagonal_scan(hide(a, mask, 1.0), hide(b, mask), h)
        return h.to(x.dtype), (h[:, -1], True)


class GriffinLayer(RecurrentLayer):
    """The block of the module docstring. State: the state of the unit, and the last inputs of the convolution."""

    def __init__(self, config: Griffin) -> None:
        super().__init__()
        d_model, width = config.d_model, config.width or config.d_model
        self.linear_y, self.linear_x = nn.Linear(d_model, width), nn.Linear(d_model, width)
        self.linear_out = nn.Linear(width, d_model)
        self.conv1d = ShortConv(width, bias=True, silu=False)
        self.rg_lru = RGLRU(width, config.heads)
        maps = (self.linear_y, self.linear_x, self.linear_out)
        for linear, variance in zip(maps, (1 / d_model, 1 / d_model, 2 / (config.layers * width)), strict=True):
            nn.init.normal_(linear.weight, std=math.sqrt(variance))
            nn.init.zeros_(linear.bias)
        nn.init.normal_(self.conv1d.weight, std=0.05)
        assert self.conv1d.bias is not None
        nn.init.zeros_(self.conv1d.bias)

    def initial_state(self, batch: int) -> Any:
        return self.rg_lru.initial_state(batch), self.conv1d.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        x, (memory, before) = hide(x, mask), state
        mixed, before = self.conv1d.run(self.linear_x(x), before, mask)
        h, memory = self.rg_lru.run(mixed, memory, mask)
        return self.linear_out(h * F.gelu(self.linear_y(x), approximate="tanh")), (memory, before)


@registry.register("rglru")
@dataclass(frozen=True)
class Griffin(RecurrentConfig):
    """Hawk: the recurrent blocks of Griffin, whose gated recurrence keeps one real number per channel.

    Source: De et al. (arXiv:2402.19427), section 2.4.
    """

    function: ClassVar[Literal["silu", "gelu"]] = "gelu"
    layer_class = GriffinLayer
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 84},
        "state-tracking": TRACKING,
        "paper": {**PAPER, "mlp_width": 384},
    }

    heads: int = parameter(4, "number of blocks in the block-diagonal maps of the gates", at_least=1, at_most=1024)
    width: int | None = parameter(None, "channels of the recurrence; none: d_model", at_least=1, at_most=65536)

    def check(self) -> None:
        self.divided(self.width or self.d_model, self.heads, "heads", "the width")
