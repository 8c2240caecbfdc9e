"""Mamba-2 (Dao and Gu, Transformers are SSMs, arXiv:2405.21060, sections 5 to 7): SSD, one decay per head.

    z, x, B, C, dt   parts of a linear map of the input; x, B and C after silu(conv(.))
    N, P             states per channel (d_state), channels per head (head_dim)
    dt               step softplus(dt + dt_bias), one per head
    S <- exp(-exp(A_log) dt) S + B (dt x)^T;  y = S^T C + D x
    output           linear(rms(y * silu(z))), or with ``norm_before_gate`` linear(rms(y) * silu(z))

B and C are shared by the heads of a group. Start and names as in state-spaces/mamba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision
from lrtasks.models.ops.head_norms import GatedRMSNorm
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.scalar_decay import scalar_decay, scalar_decay_step
from lrtasks.models.ops.short_conv import ShortConv
from lrtasks.models.recurrent import (
    PAPER,
    PAPER_MQAR,
    SMALL,
    TRACKING,
    RecurrentConfig,
    log_uniform,
    state_zeros,
    step_bias,
)

State = tuple[Tensor, Tensor]
"""S ``(batch, heads, N, P)``, and the last inputs of the convolution."""


class Mamba2Layer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        d_inner: channels of x and z.
        d_state: N.
        head_dim: P, a divisor of ``d_inner``.
        groups: of heads that share B and C.
        norm_before_gate: normalise, then gate.
    """

    def __init__(
        self,
        d_model: int,
        d_inner: int,
        d_state: int,
        head_dim: int,
        *,
        groups: int = 1,
        norm_before_gate: bool = False,
    ) -> None:
        super().__init__()
        heads = d_inner // head_dim
        self.head_dim, self.groups, self.d_state = head_dim, groups, d_state
        mixed = d_inner + 2 * groups * d_state
        self.sizes = (d_inner, mixed, heads)
        self.in_proj = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.conv1d = ShortConv(mixed, bias=True)
        self.dt_bias = nn.Parameter(step_bias(heads))
        self.A_log = nn.Parameter(log_uniform(heads, 1, 16))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedRMSNorm(d_inner, gate_first=not norm_before_gate, groups=groups)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.out_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        z, mixed, dt = self.in_proj(zero_padding(x, mask)).split(self.sizes, -1)
        inputs, v, g, B, C = self._inputs(self.conv1d(mixed), dt)
        y, _ = scalar_decay(C, B, v, g, mask=mask)
        return self._finish(y, inputs, z)

    def initial_state(self, batch: int) -> State:
        """Nothing stored."""
        S = state_zeros(self.A_log, batch, len(self.A_log), self.d_state, self.head_dim)
        return S, self.conv1d.initial_state(batch)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        S, before = state
        z, mixed, dt = self.in_proj(x).split(self.sizes, -1)
        mixed, before = self.conv1d.step(mixed, before)
        inputs, v, g, B, C = self._inputs(mixed, dt)
        shared = len(self.A_log) // self.groups
        B, C = (value.repeat_interleave(shared, -2) for value in (B, C))
        y, S = scalar_decay_step(C, B, v, g, S)
        return self._finish(y, inputs, z), (S, before)

    def _inputs(self, mixed: Tensor, dt: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """x and dt x ``(..., heads, P)``, g ``(..., heads)``, B and C ``(..., groups, N)``."""
        states = self.groups * self.d_state
        x, B, C = torch.split(mixed, [self.sizes[0], states, states], -1)
        B, C = (torch.unflatten(value, -1, (self.groups, -1)) for value in (B, C))
        x = torch.unflatten(x, -1, (-1, self.head_dim))
        v, g = _discretised(x, dt, self.dt_bias, self.A_log)
        return x, v, g, B, C

    def _finish(self, y: Tensor, x: Tensor, z: Tensor) -> Tensor:
        out: Tensor = self.out_proj(self.norm((y + self.D.unsqueeze(-1) * x).flatten(-2), z))
        return out


@full_precision
def _discretised(x: Tensor, dt: Tensor, bias: Tensor, A_log: Tensor) -> tuple[Tensor, Tensor]:
    """dt x and the log decay."""
    dt = F.softplus(dt + bias)
    return dt.unsqueeze(-1) * x, -A_log.exp() * dt


@registry.register("mamba2")
@dataclass(frozen=True)
class Mamba2(RecurrentConfig):
    """Mamba-2: a state of d_state numbers per channel, with one decay per head that depends on the input.

    Source: Dao and Gu (arXiv:2405.21060), sections 5 to 7.
    """

    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 12},
        "recall-64k": {**SMALL, "d_state": 58},
        "state-tracking": {**TRACKING, "head_dim": 32},
        "paper": {**PAPER, "d_state": 64, "head_dim": 64},
        "paper/mqar": {**PAPER_MQAR, "d_state": 16, "head_dim": 64},
    }

    mlp: bool = parameter(False, "a gated feed-forward map after each mixer")
    expand: int = parameter(2, "inner channels, in d_model", at_least=1, at_most=64)
    d_state: int = parameter(32, "states N per channel", at_least=1, at_most=1 << 16)
    head_dim: int = parameter(16, "channels P of a head", at_least=1, at_most=65536)
    groups: int = parameter(1, "groups of heads that share B and C", at_least=1, at_most=1024)
    norm_before_gate: bool = parameter(False, "normalise, then gate, instead of the other way round")

    def check(self) -> None:
        heads = self.divided(self.expand * self.d_model, self.head_dim, "head_dim")
        self.divided(heads, self.groups, "groups")

    def layer(self, index: int) -> Mamba2Layer:
        return Mamba2Layer(
            self.d_model,
            self.expand * self.d_model,
            self.d_state,
            self.head_dim,
            groups=self.groups,
            norm_before_gate=self.norm_before_gate,
        )
