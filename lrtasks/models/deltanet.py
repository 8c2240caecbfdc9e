"""Delta-rule layers: DeltaNet, Gated DeltaNet, Gated DeltaProduct and Kimi delta attention (KDA).

    S      state of a head, K x V: what is stored under each key direction
    q, k   queries and keys of length 1, silu(conv(linear(x))) normalised
    v      values, silu(conv(linear(x)))
    beta   how much of what stands under the key is erased, sigmoid(linear(x)); twice that with ``allow_neg_eigval``
    g      log decay of the state, -exp(A_log) softplus(linear(x) + dt_bias), per head, or per key channel in KDA
    S <- exp(g) S;  S <- S + beta k (v - S^T k)^T;  y = linear(rms(S^T q / sqrt(K)) * gate(x))

Sources: DeltaNet, Yang et al., arXiv:2406.06484; Gated DeltaNet, arXiv:2412.06464, section 3; Gated DeltaProduct,
arXiv:2502.10297 (n_h steps of the delta rule per position); negative eigenvalues, Grazzi et al., arXiv:2411.12537;
KDA, arXiv:2510.26692. Names and start are those of the layers of flash-linear-attention, but that A_log starts at
log 0.01 at least: a smaller rate would forget nothing and have hardly a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision
from lrtasks.models.ops.delta_rule import delta_rule, delta_rule_step
from lrtasks.models.ops.head_norms import GatedRMSNorm, l2_normalised
from lrtasks.models.ops.layers import zero_padding
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

SMALLEST_RATE = 0.01

State = tuple[Tensor, Tensor, Tensor, Tensor]
"""S ``(batch, value heads, K, V)``, and the last inputs of the convolutions of q, k and v."""


class DeltaLayer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        heads: heads of queries and keys.
        d_key: K.
        d_value: V.
        value_heads: heads of values, a multiple of ``heads``: each query and key serves several.
        n_h: steps of the delta rule per position.
        allow_neg_eigval: beta in (0, 2) instead of (0, 1).
        decay: none, per head, or per key channel.
        lower_bound: least log decay l of a key channel, ``g = l sigmoid(exp(A_log) (linear(x) + dt_bias))``; None for
            the form of the module docstring.
        gate: none, ``silu`` of a full linear map, or ``sigmoid`` of one of rank V.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_key: int,
        d_value: int,
        *,
        value_heads: int | None = None,
        n_h: int = 1,
        allow_neg_eigval: bool = False,
        decay: Literal["none", "head", "channel"] = "head",
        lower_bound: float | None = None,
        gate: Literal["none", "silu", "sigmoid"] = "silu",
    ) -> None:
        super().__init__()
        value_heads = value_heads or heads
        self.heads, self.value_heads, self.n_h, self.d_key, self.d_value = heads, value_heads, n_h, d_key, d_value
        self.allow_neg_eigval, self.decay, self.lower_bound = allow_neg_eigval, decay, lower_bound
        keys, values = heads * d_key, value_heads * d_value
        self.q_proj, self.k_proj = _linear(d_model, keys), _linear(d_model, n_h * keys)
        self.v_proj, self.b_proj = _linear(d_model, n_h * values), _linear(d_model, n_h * value_heads)
        self.q_conv1d, self.k_conv1d = ShortConv(keys), ShortConv(n_h * keys)
        self.v_conv1d = ShortConv(n_h * values)
        if decay == "head":
            self.a_proj = _linear(d_model, value_heads)
            self.A_log = nn.Parameter(log_uniform(value_heads, 0, 16).clamp_min(math.log(SMALLEST_RATE)))
            self.dt_bias = nn.Parameter(step_bias(value_heads))
        elif decay == "channel":
            self.f_proj = nn.Sequential(_linear(d_model, d_value), _linear(d_value, value_heads * d_key))
            start = log_uniform(value_heads, 1, 16)
            self.A_log = nn.Parameter(start if lower_bound is None else torch.zeros_like(start))
            self.dt_bias = nn.Parameter(step_bias(value_heads * d_key))
        self.g_proj: nn.Module | None = None
        if gate == "silu":
            self.g_proj = _linear(d_model, values)
        elif gate == "sigmoid":
            self.g_proj = nn.Sequential(_linear(d_model, d_value), nn.Linear(d_value, values))
        self.o_norm = GatedRMSNorm(d_value, gate="sigmoid" if gate == "sigmoid" else "silu")
        self.o_proj = _linear(values, d_model)

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.o_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        x = zero_padding(x, mask)
        mixed = (
            self.q_conv1d(self.q_proj(x)),
            self.k_conv1d(self.k_proj(x)),
            self.v_conv1d(self.v_proj(x)),
        )
        q, k, v, beta, g = self._inputs(x, *mixed)
        # the steps of one position follow each other
        k, v, beta = (value.flatten(1, 2) for value in (k, v, beta))
        y, _ = delta_rule(q, k, v, beta, g, mask=mask)
        return self._finish(x, y)

    def initial_state(self, batch: int) -> State:
        """Nothing stored."""
        S = state_zeros(self.o_proj.weight, batch, self.value_heads, self.d_key, self.d_value)
        q, k, v = (conv.initial_state(batch) for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d))
        return S, q, k, v

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        S, before_q, before_k, before_v = state
        mixed_q, before_q = self.q_conv1d.step(self.q_proj(x), before_q)
        mixed_k, before_k = self.k_conv1d.step(self.k_proj(x), before_k)
        mixed_v, before_v = self.v_conv1d.step(self.v_proj(x), before_v)
        y, S = delta_rule_step(*self._inputs(x, mixed_q, mixed_k, mixed_v), S)
        return self._finish(x, y), (S, before_q, before_k, before_v)

    def _inputs(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """q ``(..., H, K)``, scaled; k ``(..., n_h, H, K)``, v ``(..., n_h, H, V)``, beta ``(..., n_h, H)`` and g."""
        q = l2_normalised(torch.unflatten(q, -1, (self.heads, self.d_key))) * self.d_key**-0.5
        k = l2_normalised(torch.unflatten(k, -1, (self.n_h, self.heads, self.d_key)))
        shared = self.value_heads // self.heads
        if shared > 1:
            q, k = q.repeat_interleave(shared, -2), k.repeat_interleave(shared, -2)
        v = torch.unflatten(v, -1, (self.n_h, self.value_heads, self.d_value))
        beta = torch.unflatten(self.b_proj(x), -1, (self.n_h, self.value_heads)).sigmoid()
        return q, k, v, 2 * beta if self.allow_neg_eigval else beta, self._log_decay(x)

    def _log_decay(self, x: Tensor) -> Tensor | None:
        if self.decay == "none":
            return None
        if self.decay == "head":
            return _log_decay(self.a_proj(x), self.A_log, self.dt_bias, None)
        f, bias = (torch.unflatten(each, -1, (-1, self.d_key)) for each in (self.f_proj(x), self.dt_bias))
        return _log_decay(f, self.A_log.unsqueeze(-1), bias, self.lower_bound)

    def _finish(self, x: Tensor, y: Tensor) -> Tensor:
        gate = None if self.g_proj is None else torch.unflatten(self.g_proj(x), -1, y.shape[-2:])
        out: Tensor = self.o_proj(self.o_norm(y, gate).flatten(-2))
        return out


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


@full_precision
def _log_decay(raw: Tensor, A_log: Tensor, bias: Tensor, lower_bound: float | None) -> Tensor:
    if lower_bound is None:
        return -A_log.exp() * F.softplus(raw + bias)
    return lower_bound * torch.sigmoid(A_log.exp() * (raw + bias))


@registry.register("deltanet")
@dataclass(frozen=True)
class DeltaNet(RecurrentConfig):
    """DeltaNet: a delta rule, which replaces the value stored under a key.

    Sources: Schlag, Irie and Schmidhuber (arXiv:2102.11174); the parallel form, Yang et al. (arXiv:2406.06484).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 80},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 28, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 60, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "allow_neg_eigval": False},
    }

    heads: int = parameter(4, "heads of queries and keys", at_least=1, at_most=1024)
    head_dim: int | None = parameter(None, "width of a query and key; none for d_model / heads", at_least=1)
    expand_v: int = parameter(1, "width of a value, in head_dim", at_least=1, at_most=64)
    allow_neg_eigval: bool = parameter(False, "erase up to twice: transitions with eigenvalues down to -1")
    gate: bool = parameter(False, "gate the result of each head")

    def layer(self, index: int) -> DeltaLayer:
        return self._layer(decay="none", gate="silu" if self.gate else "none")

    def _layer(self, **options: object) -> DeltaLayer:
        d_key = self.head_dim or self.divided(self.d_model, self.heads, "heads")
        options = {"allow_neg_eigval": self.allow_neg_eigval, **options}
        return DeltaLayer(self.d_model, self.heads, d_key, self.expand_v * d_key, **options)  # type: ignore[arg-type]

    def check(self) -> None:
        if self.head_dim is None:
            self.divided(self.d_model, self.heads, "heads")


@registry.register("gated-deltanet")
@dataclass(frozen=True)
class GatedDeltaNet(DeltaNet):
    """Gated DeltaNet: a delta rule whose state decays, with one input-dependent rate per head.

    Sources: Yang, Kautz and Hatamizadeh (arXiv:2412.06464), section 3; negative eigenvalues, Grazzi et al.
    (arXiv:2411.12537).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "expand_v": 1, "mlp_width": 56},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 28, "expand_v": 1, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 60, "expand_v": 1, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_v": 1, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "expand_v": 1, "gate": False, "allow_neg_eigval": False},
    }

    expand_v: int = parameter(2, "width of a value, in head_dim", at_least=1, at_most=64)
    gate: bool = parameter(True, "gate the result of each head")
    value_heads: int | None = parameter(None, "heads of values, a multiple of heads; none for heads", at_least=1)

    def check(self) -> None:
        super().check()
        if self.value_heads is not None:
            self.divided(self.value_heads, self.heads, "heads")

    def layer(self, index: int) -> DeltaLayer:
        return self._layer(gate="silu" if self.gate else "none", value_heads=self.value_heads)


@registry.register("gated-deltaproduct")
@dataclass(frozen=True)
class GatedDeltaProduct(DeltaNet):
    """Gated DeltaProduct: n_h steps of the delta rule per position, a product of that many reflections.

    Source: Siems et al. (arXiv:2502.10297).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_model": 48, "heads": 3, "expand_v": 1, "mlp_width": 96},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 24, "expand_v": 1, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 56, "expand_v": 1, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_v": 1},
        # Groups of permutations in the paper's public code: 100 epochs of 100,000 samples.
        "paper": {
            "d_model": 128,
            "layers": 1,
            "heads": 8,
            "head_dim": 32,
            "budget.steps": 4_900,
            "budget.batch_size": 2048,
            "budget.lr": 0.001,
            "budget.weight_decay": 1e-6,
            "budget.schedule": "cosine",
            "budget.train_samples": 100_000,
        },
    }

    expand_v: int = parameter(2, "width of a value, in head_dim", at_least=1, at_most=64)
    allow_neg_eigval: bool = parameter(True, "erase up to twice: transitions with eigenvalues down to -1")
    gate: bool = parameter(True, "gate the result of each head")
    n_h: int = parameter(2, "steps of the delta rule per position", at_least=1, at_most=64)
    forget: bool = parameter(True, "let the state decay, once per position")

    def layer(self, index: int) -> DeltaLayer:
        return self._layer(decay="head" if self.forget else "none", gate="silu" if self.gate else "none", n_h=self.n_h)


@registry.register("kda")
@dataclass(frozen=True)
class KDA(DeltaNet):
    """Kimi delta attention: a delta rule whose state decays per key channel.

    Source: Kimi Team (arXiv:2510.26692).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 56},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 28, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 60, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "allow_neg_eigval": False},
    }

    gate: bool = parameter(True, "gate the result of each head, through a map of low rank")
    value_heads: int | None = parameter(None, "heads of values, a multiple of heads; none for heads", at_least=1)
    lower_bound: float | None = parameter(None, "least log decay, below 0; none for no bound")

    def check(self) -> None:
        super().check()
        if self.value_heads is not None:
            self.divided(self.value_heads, self.heads, "heads")
        if self.lower_bound is not None and self.lower_bound >= 0:
            raise UsageError(f"{self.name}: lower_bound must be below 0, found {self.lower_bound:g}")

    def layer(self, index: int) -> DeltaLayer:
        return self._layer(
            decay="channel",
            lower_bound=self.lower_bound,
            gate="sigmoid" if self.gate else "none",
            value_heads=self.value_heads,
        )
