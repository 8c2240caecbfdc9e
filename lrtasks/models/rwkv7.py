"""RWKV-7 (Peng et al., arXiv:2503.14456): a generalised delta rule with a decay per key channel.

    x_c      x + (x_before - x) mu_c for c in r, w, k, v, a, g: a mix with the previous position
    r, k, v  linear maps of x_r, x_k and x_v; after the first layer v <- v + (v_first - v) sigmoid(low rank of x_v),
             where v_first is v in the first layer
    w        log decay, -exp(-1/2) sigmoid(low rank of x_w with tanh)
    a        erase strength, sigmoid(low rank of x_a);  g  gate, low rank of x_g with sigmoid
    kk       k k_k, normalised to norm 1 in each head;  k <- k (1 + (a - 1) k_a)
    S <- diag(exp(w)) S - (kk a) (kk^T S) + k v^T,   o = groupnorm(S^T r) + (sum over the head of r k r_k) v
    output   linear(o g)

``allow_neg_eigval`` doubles the erase strength; the paper's proofs assume this, but its models do not have it. Initial
weights and names are as in flash-linear-attention. RWKV's feed-forward map is ``W_v relu(W_k x_k)²``
(``channel_mixing``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING, Block, ResidualBlock, Stack, computed
from lrtasks.models.ops import fla
from lrtasks.models.ops.delta_rule import low_rank_rule
from lrtasks.models.ops.layers import Recurrent, at_least_float32, hide
from lrtasks.models.recurrent import KernelConfig, RecurrentLayer, state_zeros
from lrtasks.spec import Spec

MIXED = "rwkvag"


class LowRank(nn.Module):
    """``up(function(down(x)))``; ``down`` starts at 0 (so the output starts constant), ``up`` orthogonal, times 0.1.

    ``bias`` is the initial bias, ``(d_model,)``; None for no bias.
    """

    def __init__(self, d_model: int, rank: int, function: Callable[[Tensor], Tensor], bias: Tensor | None) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(d_model, rank, bias=False), nn.Linear(rank, d_model, bias=bias is not None)
        self.function = function
        nn.init.zeros_(self.down.weight)
        nn.init.orthogonal_(self.up.weight, gain=0.1)
        if bias is not None:
            with torch.no_grad():
                self.up.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.function(self.down(x)))


class RWKV7Layer(RecurrentLayer):
    """The time mixing of the module docstring. State: S ``(batch, heads, K, V)``, and the last input.

    ``index`` is the layer's place in the stack, from 0; ``first`` tells whether it is the first RWKV-7 layer, whose
    values v the later ones receive.
    """

    def __init__(self, config: RWKV7, index: int, first: bool) -> None:
        super().__init__()
        d_model, heads, layers = config.d_model, config.heads, config.layers
        self.heads, self.allow_neg_eigval = heads, config.allow_neg_eigval
        self.rule = fla.on(config.op_backend, low_rank_rule)
        # the ranks of the source are multiples of 32 near these multiples of sqrt(d_model)
        ranks = (max(32, round(c * math.sqrt(d_model) / 32) * 32) for c in (2.5, 2.5, 1.7, 5.0))
        rank_w, rank_a, rank_v, rank_g = config.ranks or ranks
        early, late = 1 - index / layers, index / max(layers - 1, 1)
        channel = torch.arange(d_model)
        for name, power in zip(MIXED, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            mix = 1 - (channel / d_model) ** (power * early)
            self.register_parameter(f"x_{name}", nn.Parameter(mix))
        line = channel / max(d_model - 1, 1)
        width = d_model // heads
        middle = (width - 1) / 2
        zigzag = (channel % width - middle) / max(middle, 0.5)
        zigzag = zigzag * zigzag.abs()
        self.k_k = nn.Parameter(0.71 - 0.1 * (line - 0.5))
        self.k_a = nn.Parameter(torch.full((d_model,), 1.02))
        self.r_k = nn.Parameter(torch.full((heads, width), -0.04))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        for proj, gain in ((self.r_proj, 1.0), (self.k_proj, 0.1), (self.v_proj, 1.0)):
            nn.init.orthogonal_(proj.weight, gain=gain)
        nn.init.zeros_(self.o_proj.weight)
        decay = -5.5 + 6 * line ** (1 + late**0.3) + 2.5 * zigzag
        self.w_lora = LowRank(d_model, rank_w, torch.tanh, decay)
        self.a_lora = LowRank(d_model, rank_a, nn.Identity(), -0.19 + 0.3 * zigzag + 0.4 * (line - 0.5))
        self.v_lora = None
        if config.v_residual and not first:
            self.v_lora = LowRank(d_model, rank_v, nn.Identity(), 0.73 - 0.4 * (line - 0.5))
        self.g_lora = LowRank(d_model, rank_g, torch.sigmoid, None)
        self.g_norm = nn.GroupNorm(heads, d_model, eps=width * 1e-5)
        nn.init.constant_(self.g_norm.weight, ((index + 1) / layers) ** 0.7)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"r_k": {"weight_decay": 0.0}, "w_lora.up.bias": {"lr_factor": 2.0}}

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        weight = self.o_proj.weight
        d_model, width = len(weight), len(weight) // self.heads
        return state_zeros(weight, batch, self.heads, width, width), weight.new_zeros(batch, d_model)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.mix(x, state, mask, None)[:2]

    def mix(self, x: Tensor, state: Any, mask: Tensor | None, v_first: Tensor | None) -> tuple[Tensor, Any, Tensor]:
        """Compute :meth:`run`; also return v of the first layer. ``v_first`` is this v, or None in the first layer."""
        x, (S, last) = hide(x, mask), state
        change = _before(x, last) - x
        x_r, x_w, x_k, x_v, x_a, x_g = (x + change * getattr(self, f"x_{name}") for name in MIXED)
        r, k, v = self.r_proj(x_r), self.k_proj(x_k), self.v_proj(x_v)
        if self.v_lora is not None and v_first is not None:
            v = v + (v_first - v) * self.v_lora(x_v).sigmoid()
        a = self.a_lora(x_a).sigmoid()
        w = -math.exp(-0.5) * at_least_float32(self.w_lora(x_w)).sigmoid()
        parts = r, k * self.k_k, k * (1 + (a - 1) * self.k_a), v, a, w
        r, raw, k, v, a, w = (torch.unflatten(part, -1, (self.heads, -1)) for part in parts)
        kk = F.normalize(raw, dim=-1)
        a = 2 * a if self.allow_neg_eigval else a
        self.show(log_decay=w, erase=a)
        y, S = self.rule(r, w, k, v, -kk, kk * a, state=S, mask=mask)
        # the group norm of the heads; torch's own group norm is slower than its layer norm
        normed = F.layer_norm(y, y.shape[-1:], eps=self.g_norm.eps).flatten(-2) * self.g_norm.weight + self.g_norm.bias
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v
        gate = self.g_lora(x_g)
        out = self.o_proj((normed.to(gate.dtype) + bonus.flatten(-2)) * gate)
        return out, (S, x[:, -1]), v.flatten(-2) if v_first is None else v_first


def _before(x: Tensor, last: Tensor) -> Tensor:
    """Return ``x`` shifted one position later, ``(batch, length, d_model)``, with ``last`` at the first position."""
    return torch.cat((last.unsqueeze(1).to(x.dtype), x[:, :-1]), 1)


class ChannelMixing(Recurrent):
    """``W_v relu(W_k (x + (x_before - x) mu))²`` on ``(batch, length, d_model)``. State: the last input.

    ``width`` is the hidden width; ``index`` is the layer's place in the stack of ``layers`` layers, from 0.
    """

    def __init__(self, d_model: int, width: int, index: int, layers: int) -> None:
        super().__init__()
        self.x_k = nn.Parameter(1 - (torch.arange(d_model) / d_model) ** ((1 - index / layers) ** 4))
        self.key, self.value = nn.Linear(d_model, width, bias=False), nn.Linear(width, d_model, bias=False)
        nn.init.uniform_(self.key.weight, -0.5 / math.sqrt(d_model), 0.5 / math.sqrt(d_model))
        nn.init.zeros_(self.value.weight)

    def initial_state(self, batch: int) -> Tensor:
        return self.x_k.new_zeros(batch, len(self.x_k))

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        x = hide(x, mask)
        mixed = x + (_before(x, state) - x) * self.x_k
        return self.value(F.relu(self.key(mixed)).square()), x[:, -1]


class RWKV7Stack(Stack, Block):
    """Successive blocks; each time-mixing layer after the first receives v of the first time-mixing layer."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        v_first: Tensor | None = None
        following = []
        for block, before in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            if isinstance(block, ResidualBlock) and isinstance(block.mixer, RWKV7Layer):
                x, after, v_first = self.through(block, x, before, mask, v_first, by=_mix_time)
            else:
                x, after = self.through(block, x, by=functools.partial(computed, state=before, mask=mask))
            following.append(after)
        return x, following


def _mix_time(
    block: ResidualBlock, x: Tensor, state: Any, mask: Tensor | None, v_first: Tensor | None
) -> tuple[Tensor, Any, Tensor]:
    """Return outputs and new state of a time-mixing block, and v of the first time-mixing layer."""

    def mix(layer: RWKV7Layer, x: Tensor, *, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        if x.dim() == 3:
            y, _, v = layer.mix(x, layer.initial_state(len(x)), mask, v_first)
            return y, (None, v)
        y, state, v = layer.mix(x.unsqueeze(1), state, None, v_first)
        return y.squeeze(1), (state, v)

    y, ((memory, v), last) = block.run(x, state, mask, mix)
    return y, (memory, last), v


@registry.register("rwkv7")
@dataclass(frozen=True)
class RWKV7(KernelConfig):
    """RWKV-7: a matrix state with a decay per channel, and separate strengths for erasing and writing.

    Source: Peng et al. (arXiv:2503.14456).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "ranks": (16, 16, 16, 16), "mlp_width": 40},
        "recall-16k": {**SMALL, "heads": 2, "ranks": (16, 16, 16, 16), "mlp": False},
        "recall-64k": {**SMALL, "d_model": 88, "heads": 1, "ranks": (16, 16, 16, 16), "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True, "channel_mixing": True},
        # The ranks are those in zoology's code.
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "ranks": (16, 16, 16, 64), "allow_neg_eigval": False},
    }

    heads: int = parameter(4, "heads", at_least=1, at_most=1024)
    ranks: tuple[int, int, int, int] | None = parameter(
        None,
        "ranks of decay, erase, value mix and gate; none: multiples of 32 near 2.5, 2.5, 1.7, 5 sqrt(d_model)",
        at_least=1,
    )
    v_residual: bool = parameter(True, "mix the values of the first layer into the values of later layers")
    allow_neg_eigval: bool = parameter(False, "erase strength up to 2, so transitions have eigenvalues down to -1")
    channel_mixing: bool = parameter(False, "use RWKV's feed-forward map, by default 4 d_model wide, not the gated one")

    def check(self) -> None:
        self.divided(self.d_model, self.heads, "heads", "d_model", at_least=2)

    def layer(self, index: int, first: bool | None = None) -> RWKV7Layer:
        """Build the mixer of layer ``index``; ``first``: whether it is the first RWKV-7 layer (by default, index 0)."""
        return RWKV7Layer(self, index, index == 0 if first is None else first)

    def canon_sites(self) -> str:
        return super().canon_sites().replace("D", "") if self.channel_mixing else super().canon_sites()

    def feedforward(self, index: int) -> nn.Module:
        if self.channel_mixing:
            return ChannelMixing(self.d_model, self.mlp_width or 4 * self.d_model, index, self.layers)
        return super().feedforward(index)

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        return [RWKV7Stack(super().blocks(input, causal))]
