"""Mamba (Gu and Dao, arXiv:2312.00752, section 3): a selective state space, diagonal, N states per channel.

    u, z      halves of a linear map of the input, each ``d_inner`` wide; u after silu(conv(.))
    dt        step of each channel, softplus of a linear map of u through rank R
    B, C      how an input enters the states and leaves them, linear maps of u
    h         exp(dt A) h + dt B u,  A = -exp(A_log)
    output    linear((C h + D u) * silu(z))

With ``eigenvalues="negative"`` the transition is 2 exp(dt A) - 1, in (-1, 1) (Grazzi et al., arXiv:2411.12537). Start
and names as in state-spaces/mamba.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.selective_scan import selective_scan, selective_scan_step
from lrtasks.models.ops.short_conv import ShortConv
from lrtasks.models.recurrent import PAPER, PAPER_MQAR, SMALL, TRACKING, RecurrentConfig, state_zeros, step_bias

State = tuple[Tensor, Tensor]
"""h ``(batch, d_inner, N)``, and the last inputs of the convolution."""


class MambaLayer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        d_inner: channels.
        d_state: N.
        rank: R; None for d_model / 16, rounded up.
        negative: let the transitions be negative.
    """

    def __init__(
        self, d_model: int, d_inner: int, d_state: int, rank: int | None = None, *, negative: bool = False
    ) -> None:
        super().__init__()
        rank = rank or math.ceil(d_model / 16)
        self.sizes, self.negative = [rank, d_state, d_state], negative
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv1d = ShortConv(d_inner, bias=True)
        self.x_proj = nn.Linear(d_inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, d_inner)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(step_bias(d_inner))
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"A_log": {"weight_decay": 0.0}}

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.out_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        u, z = self.in_proj(zero_padding(x, mask)).chunk(2, -1)
        u = self.conv1d(u)
        dt, A, B, C = self._inputs(u)
        y, _ = selective_scan(u, dt, A, B, C, mask=mask, negative=self.negative)
        return self._finish(y, u, z)

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        return state_zeros(self.A_log, batch, *self.A_log.shape), self.conv1d.initial_state(batch)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        h, before = state
        u, z = self.in_proj(x).chunk(2, -1)
        u, before = self.conv1d.step(u, before)
        dt, A, B, C = self._inputs(u)
        y, h = selective_scan_step(u, dt, B, C, A, h, self.negative)
        return self._finish(y, u, z), (h, before)

    def _inputs(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dt, B, C = torch.split(self.x_proj(u), self.sizes, -1)
        step, A = _discretised(F.linear(dt, self.dt_proj.weight), self.dt_proj.bias, self.A_log)
        return step, A, B, C

    def _finish(self, y: Tensor, u: Tensor, z: Tensor) -> Tensor:
        out: Tensor = self.out_proj((y + self.D * u).to(z.dtype) * F.silu(z))
        return out


@full_precision
def _discretised(raw: Tensor, bias: Tensor, A_log: Tensor) -> tuple[Tensor, Tensor]:
    """dt and A."""
    return F.softplus(raw + bias), -A_log.exp()


@registry.register("mamba")
@dataclass(frozen=True)
class Mamba(RecurrentConfig):
    """Mamba: a selective state space with d_state numbers per channel, each with its own decay.

    Sources: Gu and Dao (arXiv:2312.00752), section 3; negative eigenvalues, Grazzi et al. (arXiv:2411.12537).
    """

    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 13},
        "recall-64k": {**SMALL, "d_state": 61},
        "state-tracking": {**TRACKING, "eigenvalues": "negative"},
        "paper": {**PAPER, "eigenvalues": "negative", "budget.weight_decay": 0.0},
        "paper/mqar": {**PAPER_MQAR, "eigenvalues": "positive"},
    }

    mlp: bool = parameter(False, "a gated feed-forward map after each mixer")
    expand: int = parameter(2, "inner channels, in d_model", at_least=1, at_most=64)
    d_state: int = parameter(16, "states N per channel", at_least=1, at_most=1 << 12)
    rank: int | None = parameter(None, "rank of the step's map; none for d_model / 16, rounded up", at_least=1)
    eigenvalues: Literal["positive", "negative"] = parameter("positive", "transitions in (0, 1), or between -1 and 1")

    def layer(self, index: int) -> MambaLayer:
        inner, negative = self.expand * self.d_model, self.eigenvalues == "negative"
        return MambaLayer(self.d_model, inner, self.d_state, self.rank, negative=negative)
