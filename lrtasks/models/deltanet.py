"""Delta-rule layers: DeltaNet, Gated DeltaNet, Gated DeltaProduct and Kimi delta attention (KDA).

    S      state of a head, K x V: it stores a value for each key direction
    q, k   queries and keys of norm 1, silu(conv(linear(x))) normalised
    v      values, silu(conv(linear(x)))
    beta   share of the value stored under the key that is erased, sigmoid(linear(x)); doubled by ``allow_neg_eigval``
    g      log decay of the state, -exp(A_log) softplus(linear(x) + dt_bias), per head, or per key channel in KDA
    S <- exp(g) S;  S <- S + beta k (v - S^T k)^T;  y = linear(rms(S^T q / sqrt(K)) * gate(x))

The models name their sources. Names and initial values are those of flash-linear-attention, except that A_log starts
at log 0.01 or above. With a smaller rate, the state forgets nothing, and the rate gets almost no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING
from lrtasks.models.ops import fla
from lrtasks.models.ops.delta_rule import delta_rule
from lrtasks.models.ops.layers import GatedRMSNorm, at_least_float32, hide, l2_normalised
from lrtasks.models.recurrent import KernelConfig, QKVLayer, linear, log_draws, state_zeros, step_bias

SMALLEST_RATE = 0.01


class DeltaLayer(QKVLayer):
    """The layer of the module docstring. State: S ``(batch, value heads, K, V)``, and the last inputs of q, k and v.

    Several value heads may share one query and key; each has its own beta and g. A position may take ``n_h`` steps of
    the delta rule. With a lower bound l, the log decay of a key channel is ``g = l sigmoid(exp(A_log) (linear(x) +
    dt_bias))``. The gate is ``silu`` of a linear map, or, with a decay per key channel, ``sigmoid`` of a linear map of
    rank V.
    """

    out_name = "o_proj"

    def __init__(self, config: DeltaNet) -> None:
        d_model, heads, d_key, n_h = config.d_model, config.heads, config.d_key, config.n_h
        value_heads, d_value = config.value_heads or heads, config.expand_v * d_key
        decay, lower_bound = config.decay if config.forget else "none", config.lower_bound
        keys, values = heads * d_key, value_heads * d_value
        super().__init__(d_model, keys, n_h * keys, n_h * values)
        self.heads, self.value_heads, self.n_h, self.d_key, self.d_value = heads, value_heads, n_h, d_key, d_value
        self.allow_neg_eigval, self.decay = config.allow_neg_eigval, decay
        self.lower_bound: float | None = lower_bound
        self.rule = fla.on(config.op_backend, delta_rule)
        self.b_proj = linear(d_model, n_h * value_heads)
        self.convolve("silu")
        if decay == "head":
            self.a_proj = linear(d_model, value_heads)
            self.A_log = nn.Parameter(log_draws(value_heads, 0, 16).clamp_min(math.log(SMALLEST_RATE)))
            self.dt_bias = nn.Parameter(step_bias(value_heads))
        elif decay == "channel":
            self.f_proj = nn.Sequential(linear(d_model, d_value), linear(d_value, value_heads * d_key))
            start = log_draws(value_heads, 1, 16)
            self.A_log = nn.Parameter(start if lower_bound is None else torch.zeros_like(start))
            self.dt_bias = nn.Parameter(step_bias(value_heads * d_key))
        self.g_proj: nn.Module | None = None
        if config.gate:
            if decay == "channel":
                self.g_proj = nn.Sequential(linear(d_model, d_value), nn.Linear(d_value, values))
            else:
                self.g_proj = linear(d_model, values)
        self.o_norm = GatedRMSNorm(d_value, gate="sigmoid" if decay == "channel" else "silu")
        self.o_proj = linear(values, d_model)

    def initial_state(self, batch: int) -> tuple[Tensor, list[Tensor]]:
        S = state_zeros(self.o_proj.weight, batch, self.value_heads, self.d_key, self.d_value)
        return S, self.start_of_convolutions(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        x, (S, before) = hide(x, mask), state
        (q, k, v), after = self.qkv(x, before)
        q = l2_normalised(torch.unflatten(q, -1, (self.heads, self.d_key))) * self.d_key**-0.5
        # the n_h steps of one position become successive steps of the delta rule
        parts = (k, self.heads), (v, self.value_heads), (self.b_proj(x), self.value_heads)
        k, v, beta = (torch.unflatten(part, -1, (self.n_h, heads, -1)).flatten(1, 2) for part, heads in parts)
        k, beta = l2_normalised(k), beta.squeeze(-1).sigmoid()
        if self.value_heads > self.heads:
            q, k = (value.repeat_interleave(self.value_heads // self.heads, -2) for value in (q, k))
        beta = 2 * beta if self.allow_neg_eigval else beta
        g = self._log_decay(x)
        self.show(log_decay=g, beta=torch.unflatten(beta, 1, (-1, self.n_h)))
        y, S = self.rule(q, k, v, beta, g, state=S, mask=mask)
        gate = None if self.g_proj is None else torch.unflatten(self.g_proj(x), -1, y.shape[-2:])
        return self.o_proj(self.o_norm(y, gate).flatten(-2)), (S, after)

    def _log_decay(self, x: Tensor) -> Tensor | None:
        if self.decay == "none":
            return None
        given: list[Tensor] = [self.a_proj(x) if self.decay == "head" else self.f_proj(x), self.A_log, self.dt_bias]
        raw, A_log, bias = map(at_least_float32, given)
        if self.decay == "channel":
            raw, bias = (torch.unflatten(each, -1, (-1, self.d_key)) for each in (raw, bias))
            A_log = A_log.unsqueeze(-1)
        if self.lower_bound is None:
            return -A_log.exp() * F.softplus(raw + bias)
        return self.lower_bound * torch.sigmoid(A_log.exp() * (raw + bias))


@registry.register("deltanet")
@dataclass(frozen=True)
class DeltaNet(KernelConfig):
    """DeltaNet: a delta rule, which replaces the value stored under a key.

    Sources: Schlag, Irie and Schmidhuber (arXiv:2102.11174); the parallel form, Yang et al. (arXiv:2406.06484).
    """

    # what the models below vary
    decay = "none"  # or per "head", or per key "channel"
    forget, n_h = True, 1
    value_heads, lower_bound = cast(Any, None), cast(Any, None)

    layer_class = DeltaLayer
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 80},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 28, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 60, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "allow_neg_eigval": False},
    }

    heads: int = parameter(4, "heads of queries and keys", at_least=1, at_most=1024)
    head_dim: int | None = parameter(None, "width of a query and key; none: d_model / heads", at_least=1)
    expand_v: int = parameter(1, "width of a value, in multiples of head_dim", at_least=1, at_most=64)
    allow_neg_eigval: bool = parameter(False, "erase strength up to 2, so transitions have eigenvalues down to -1")
    gate: bool = parameter(False, "gate the result of each head")

    @property
    def d_key(self) -> int:
        """Width of a query and key."""
        return self.head_dim or self.divided(self.d_model, self.heads, "heads", "d_model")

    def check(self) -> None:
        if self.head_dim is None:
            self.divided(self.d_model, self.heads, "heads", "d_model")


@registry.register("gated-deltanet")
@dataclass(frozen=True)
class GatedDeltaNet(DeltaNet):
    """Gated DeltaNet: a delta rule whose state decays, with one input-dependent rate per head.

    Sources: Yang, Kautz and Hatamizadeh (arXiv:2412.06464), section 3; negative eigenvalues, Grazzi et al.
    (arXiv:2411.12537).
    """

    decay = "head"
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "expand_v": 1, "mlp_width": 56},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 28, "expand_v": 1, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 60, "expand_v": 1, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_v": 1, "allow_neg_eigval": True},
        "paper": {**PAPER, "heads": 4, "allow_neg_eigval": True},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "expand_v": 1, "gate": False, "allow_neg_eigval": False},
    }

    expand_v: int = parameter(2, "width of a value, in multiples of head_dim", at_least=1, at_most=64)
    gate: bool = parameter(True, "gate the result of each head")
    value_heads: int | None = parameter(None, "heads of values, a multiple of heads; none: heads", at_least=1)

    def check(self) -> None:
        super().check()
        if self.value_heads is not None:
            self.divided(self.value_heads, self.heads, "heads", "value_heads")


@registry.register("gated-deltaproduct")
@dataclass(frozen=True)
class GatedDeltaProduct(GatedDeltaNet):
    """Gated DeltaProduct: n_h steps of the delta rule per position, a product of that many reflections.

    Source: Siems et al. (arXiv:2502.10297).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_model": 48, "heads": 3, "expand_v": 1, "mlp_width": 96},
        "recall-16k": {**SMALL, "heads": 2, "head_dim": 24, "expand_v": 1, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "head_dim": 56, "expand_v": 1, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_v": 1},
        # Settings for permutation groups in the paper's public code: 100 epochs of 100,000 samples.
        "paper": {"d_model": 128, "layers": 1, "heads": 8, "head_dim": 32, "budget.steps": 4_900, "budget.lr": 0.001}
        | {"budget.batch_size": 2048, "budget.weight_decay": 1e-6, "budget.schedule": "cosine"}
        | {"budget.train_samples": 100_000},
    }

    allow_neg_eigval: bool = parameter(True, "erase strength up to 2, so transitions have eigenvalues down to -1")
    value_heads: int | None = parameter(
        None, "heads of values, a multiple of heads; none: heads", at_least=1, later=True
    )
    n_h: int = parameter(2, "steps of the delta rule per position", at_least=1, at_most=64)
    forget: bool = parameter(True, "let the state decay, once per position")


@registry.register("kda")
@dataclass(frozen=True)
class KDA(GatedDeltaNet):
    """Kimi delta attention: a delta rule whose state decays per key channel.

    Source: Kimi Team (arXiv:2510.26692).
    """

    decay = "channel"
    presets: ClassVar[Presets] = {**DeltaNet.presets, "small": {**SMALL, "mlp_width": 56}}

    expand_v: int = parameter(1, "width of a value, in multiples of head_dim", at_least=1, at_most=64)
    gate: bool = parameter(True, "gate the result of each head with a low-rank map")
    lower_bound: float | None = parameter(None, "lower bound of the log decay, below 0; none: no bound")

    def check(self) -> None:
        super().check()
        if self.lower_bound is not None and self.lower_bound >= 0:
            raise UsageError(f"{self.name}: lower_bound must be below 0, found {self.lower_bound:g}")
