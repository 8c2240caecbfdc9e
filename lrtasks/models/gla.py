"""Gated linear attention and RetNet: a sum of outer products that forgets, per key channel, per head or at fixed rates.

    q, k, v   linear maps of the input, with ``conv`` after silu(conv(.))
    S <- diag(exp(g)) S + k v^T;  y = linear(rms(S^T q / sqrt(K)) * silu(gate(x)))
    g         channel: logsigmoid(W2 W1 x + b) / 16 for each key channel (GLA)
              head: the same for each head
              fixed: log(1 - 2^(-5-h)) for head h (RetNet), with rotary positions on q and k

Sources: GLA, Yang et al., arXiv:2312.06635, section 4; RetNet, Sun et al., arXiv:2307.08621, section 2. Names and start
are those of the layers of flash-linear-attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.channel_decay import channel_decay, channel_decay_step
from lrtasks.models.ops.chunked import full_precision
from lrtasks.models.ops.head_norms import GatedRMSNorm
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.positions import rotate_halves
from lrtasks.models.ops.scalar_decay import scalar_decay, scalar_decay_step
from lrtasks.models.ops.short_conv import ShortConv
from lrtasks.models.recurrent import PAPER, PAPER_MQAR, SMALL, TRACKING, RecurrentConfig, state_zeros

Decay = Literal["channel", "head", "fixed"]
DIVISOR = 16
"""What the log decay of GLA is divided by, so that it starts near 0."""

State = tuple[Tensor, list[Tensor], int]
"""S ``(batch, heads, K, V)``, the last inputs of the convolutions, and the position of the next input."""


class GLALayer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        heads: heads.
        d_key: K of a head.
        d_value: V of a head.
        decay: per key channel, per head, or fixed.
        rank: of the map that gives the decay.
        conv: short convolutions of q, k and v.
    """

    fixed: Tensor

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_key: int,
        d_value: int,
        *,
        decay: Decay = "channel",
        rank: int = 16,
        conv: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.d_key, self.d_value, self.decay = heads, d_key, d_value, decay
        keys, values = heads * d_key, heads * d_value
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.k_proj = nn.Linear(d_model, keys, bias=False)
        self.v_proj = nn.Linear(d_model, values, bias=False)
        self.g_proj = nn.Linear(d_model, values, bias=False)
        self.convs = conv
        if conv:
            self.q_conv1d, self.k_conv1d, self.v_conv1d = (ShortConv(size) for size in (keys, keys, values))
        if decay == "fixed":
            rates = torch.log1p(-(2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))))
            self.register_buffer("fixed", rates, persistent=False)
        else:
            outputs = keys if decay == "channel" else heads
            self.gk_proj = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, outputs))
        self.g_norm_swish_gate = GatedRMSNorm(d_value)
        self.o_proj = nn.Linear(values, d_model, bias=False)

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.o_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        x = zero_padding(x, mask)
        mixed = [proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        if self.convs:
            mixed = [conv(value) for conv, value in zip(self._convolutions(), mixed, strict=True)]
        q, k, v, g = self._inputs(x, mixed, torch.arange(x.shape[1], device=x.device))
        op = channel_decay if self.decay == "channel" else scalar_decay
        y, _ = op(q, k, v, g, mask=mask)
        return self._finish(x, y)

    def initial_state(self, batch: int) -> State:
        """Nothing stored."""
        S = state_zeros(self.o_proj.weight, batch, self.heads, self.d_key, self.d_value)
        return S, [conv.initial_state(batch) for conv in self._convolutions()], 0

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        S, before, position = state
        mixed = [proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj)]
        if self.convs:
            stepped = zip(self._convolutions(), mixed, before, strict=True)
            mixed, before = map(list, zip(*(conv.step(value, last) for conv, value, last in stepped), strict=True))
        at = torch.tensor([position], device=x.device)
        q, k, v, g = self._inputs(x.unsqueeze(1), [value.unsqueeze(1) for value in mixed], at)
        op = channel_decay_step if self.decay == "channel" else scalar_decay_step
        y, S = op(q[:, 0], k[:, 0], v[:, 0], g[:, 0], S)
        return self._finish(x, y), (S, before, position + 1)

    def _convolutions(self) -> list[ShortConv]:
        return [self.q_conv1d, self.k_conv1d, self.v_conv1d] if self.convs else []

    def _inputs(self, x: Tensor, mixed: list[Tensor], positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q (scaled), k, v ``(batch, length, heads, .)`` and g at these positions."""
        q, k, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in mixed)
        if self.decay == "fixed":
            q, k = (rotate_halves(value.transpose(1, 2), positions).transpose(1, 2) for value in (q, k))
            g = self.fixed.to(torch.promote_types(x.dtype, torch.float32)).expand(q.shape[:3])
        else:
            g = _log_decay(self.gk_proj(x))
            g = torch.unflatten(g, -1, (self.heads, -1)) if self.decay == "channel" else g
        return q * self.d_key**-0.5, k, v, g

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        gate = torch.unflatten(self.g_proj(x), -1, y.shape[-2:])
        out: Tensor = self.o_proj(self.g_norm_swish_gate(y, gate).flatten(-2))
        return out


@full_precision
def _log_decay(raw: Tensor) -> Tensor:
    return F.logsigmoid(raw) / DIVISOR


@registry.register("gla")
@dataclass(frozen=True)
class GLA(RecurrentConfig):
    """Gated linear attention: a sum of key-value products with an input-dependent decay per key channel.

    Source: Yang et al. (arXiv:2312.06635), section 4.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 76},
        "recall-16k": {**SMALL, "heads": 2, "expand_k": 1.0, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "expand_k": 4.0, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_k": 1.0},
        "paper": {**PAPER, "heads": 4},
        "paper/mqar": {**PAPER_MQAR, "heads": 2},
    }

    heads: int = parameter(4, "heads", at_least=1, at_most=1024)
    expand_k: float = parameter(0.5, "width of all keys, in d_model", above=0, at_most=64)
    expand_v: float = parameter(1.0, "width of all values, in d_model", above=0, at_most=64)
    decay: Literal["channel", "head", "fixed"] = parameter(
        "channel", "one decay per key channel, per head, or fixed ones per head"
    )
    rank: int = parameter(16, "rank of the map that gives the decay", at_least=1, at_most=65536)
    conv: bool = parameter(False, "short convolutions of queries, keys and values")

    def check(self) -> None:
        self._widths()

    def layer(self, index: int) -> GLALayer:
        return GLALayer(self.d_model, self.heads, *self._widths(), decay=self.decay, rank=self.rank, conv=self.conv)

    def _widths(self) -> tuple[int, int]:
        """K and V of a head."""
        keys, values = (round(self.d_model * factor) for factor in (self.expand_k, self.expand_v))
        return self.divided(keys, self.heads, "heads"), self.divided(values, self.heads, "heads")


@registry.register("retnet")
@dataclass(frozen=True)
class RetNet(GLA):
    """RetNet: linear attention with rotary positions and a fixed decay per head.

    Source: Sun et al. (arXiv:2307.08621), section 2.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "expand_v": 1.0, "mlp_width": 64},
        "recall-16k": {**SMALL, "heads": 2, "expand_k": 0.5, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "expand_k": 2.0, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_v": 1.0},
        "paper": {**PAPER, "heads": 4},
        "paper/mqar": {**PAPER_MQAR, "heads": 2},
    }

    expand_k: float = parameter(1.0, "width of all keys, in d_model", above=0, at_most=64)
    expand_v: float = parameter(2.0, "width of all values, in d_model", above=0, at_most=64)
    decay: Literal["channel", "head", "fixed"] = parameter(
        "fixed", "one decay per key channel, per head, or fixed ones per head"
    )

    def check(self) -> None:
        d_key, _ = self._widths()
        if self.decay == "fixed":
            self.divided(d_key, 2, "the pairs of rotary positions, 2 wide,")
