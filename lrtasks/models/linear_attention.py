"""Linear attention, gated linear attention (GLA) and RetNet: sums of outer products of keys and values.

    q, k, v   linear maps of the input, in heads; GLA and RetNet with ``conv`` then apply silu(conv(.))

Linear attention: attention whose weights are products of features, so that a running sum replaces the past keys.

    S += phi(k) v^T,  z += phi(k);  y = S^T phi(q) / (z^T phi(q) + eps);  output linear(y)
    elu       phi(x) = elu(x) + 1, phi(q) times K^(-1/2)  (Katharopoulos et al., arXiv:2006.16236)
    taylor    phi(q)^T phi(k) = 1 + s + s²/2 with s = q^T k / sqrt(K): the exponential to second order
              (Based, Arora et al., arXiv:2402.18668)

With ``head_norm`` the result of each head is also normalised (rms). In GLA and RetNet the state decays, per key
channel, per head or at fixed rates:

    S <- diag(exp(g)) S + k v^T;  y = linear(rms(S^T q / sqrt(K)) * silu(gate(x)))
    g         channel: logsigmoid(W2 W1 x + b) / 16 for each key channel (GLA)
              head: the same for each head
              fixed: log(1 - 2^(-5-h)) for head h (RetNet), with rotary positions on q and k

The models name their sources. Names and initial weights are those of the layers in flash-linear-attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING
from lrtasks.models.ops import fla
from lrtasks.models.ops.decay import channel_decay, scalar_decay
from lrtasks.models.ops.layers import GatedRMSNorm, at_least_float32, full_precision, hide
from lrtasks.models.ops.positions import rotate_halves
from lrtasks.models.recurrent import KernelConfig, QKVLayer, RecurrentConfig, linear, state_zeros

FeatureMap = Literal["elu", "taylor"]
EPS = {"elu": 1e-10, "taylor": 1e-12}
DIVISOR = 16
"""Divisor of the log decay of GLA, which therefore starts near 0."""


def elu_features(x: Tensor) -> Tensor:
    """Return ``elu(x) + 1``, which is always positive."""
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp())  # elu(x) + 1 would lose the digits of small values


def taylor_features(x: Tensor) -> Tensor:
    """Map ``(..., K)`` to 1 + K + K(K+1)/2 features; inputs with inner product s get features with ``1 + s + s²/2``."""
    K = x.shape[-1]
    i, j = torch.triu_indices(K, K, device=x.device)
    weight = torch.ones(len(i), dtype=x.dtype, device=x.device).masked_fill(i == j, 0.5**0.5)
    return torch.cat((torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j] * weight), -1)


@full_precision
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, state: Tensor | None, mask: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Return causal linear attention, ``(B, L, H, V)`` in float32 or higher, and the state after the last position.

    Arguments are as in :func:`lrtasks.models.ops.decay.scalar_decay`, except that the caller scales q and k by K^(-1/4)
    for taylor and does not scale them for elu. The result is divided by the sum of the weights plus ``eps``. The state
    is S with z as its last column, ``(B, H, features, V + 1)``.
    """
    form: dict[str, Any] = {"features": taylor_features, "similarity": lambda s: 1 + s + s.square() / 2}
    if feature_map == "elu":
        q, k, form = elu_features(q) * q.shape[-1] ** -0.5, elu_features(k), {}
    y, state = scalar_decay(q, k, F.pad(v, (0, 1), value=1.0), None, state, mask, **form)
    return y[..., :-1] / (y[..., -1:] + eps), state


class LinearAttentionLayer(QKVLayer):
    """The mixer. State: S and z as one, ``(batch, heads, features, V + 1)``, and the last inputs of canon layers."""

    out_name = "o_proj"

    def __init__(self, config: LinearAttention) -> None:
        d_model, heads = config.d_model, config.heads
        d_key = config.feature_dim or d_model // heads
        super().__init__(d_model, heads * d_key, heads * d_key, d_model)
        self.heads, self.d_key, self.d_value = heads, d_key, d_model // heads
        self.feature_map: FeatureMap = config.feature_map
        self.convolve("canon" if "B" in config.canon else "none")
        self.norm = GatedRMSNorm(self.d_value) if config.head_norm else None
        self.o_proj = linear(d_model, d_model)

    def initial_state(self, batch: int) -> tuple[Tensor, list[Tensor]]:
        features = self.d_key if self.feature_map == "elu" else 1 + self.d_key + self.d_key * (self.d_key + 1) // 2
        S = state_zeros(self.o_proj.weight, batch, self.heads, features, self.d_value + 1)
        return S, self.start_of_convolutions(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        S, before = state
        mixed, after = self.qkv(hide(x, mask), before)
        q, k, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in mixed)
        if self.feature_map == "taylor":
            q, k = q * self.d_key**-0.25, k * self.d_key**-0.25
        y, S = linear_attention(q, k, v, self.feature_map, S, mask, eps=EPS[self.feature_map])
        y = y.to(self.o_proj.weight.dtype) if self.norm is None else self.norm(y)
        return self.o_proj(y.flatten(-2)), (S, after)


@registry.register("linear-attention")
@dataclass(frozen=True)
class LinearAttention(RecurrentConfig):
    """Linear attention with features elu + 1, or with the Taylor features of Based; without decay.

    Sources: Katharopoulos et al. (arXiv:2006.16236); Taylor features, Arora et al. (Based, arXiv:2402.18668).
    """

    layer_class = LinearAttentionLayer
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 84},
        "recall-16k": {**SMALL, "heads": 2, "feature_map": "taylor", "feature_dim": 6, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "feature_map": "taylor", "feature_dim": 14, "mlp": False},
        "state-tracking": TRACKING,
        "paper": PAPER,
        # Settings of Based in zoology: keys of width 16 per head.
        "paper/mqar": {**PAPER_MQAR, "heads": 1, "feature_map": "taylor", "feature_dim": 16},
    }

    sites: ClassVar[str] = "ABCD"

    heads: int = parameter(4, "heads", at_least=1, at_most=1024)
    feature_map: Literal["elu", "taylor"] = parameter("elu", "feature map: elu + 1, or the exponential to second order")
    feature_dim: int | None = parameter(None, "width of a query and key; none: d_model / heads", at_least=1)
    head_norm: bool = parameter(False, "normalise the result of each head")
    canon: str = parameter("", "sites of canon layers, some of the letters ABCD")

    def check(self) -> None:
        self.divided(self.d_model, self.heads, "heads", "d_model")


class GLALayer(QKVLayer):
    """The mixer. State: S ``(batch, heads, K, V)``, the last inputs of the convolutions, the next input's position."""

    out_name = "o_proj"

    def __init__(self, config: GLA) -> None:
        d_model, heads, decay = config.d_model, config.heads, config.decay
        d_key, d_value = config.widths()
        keys, values = heads * d_key, heads * d_value
        super().__init__(d_model, keys, keys, values)
        self.heads, self.decay, self.d_key, self.d_value = heads, decay, d_key, d_value
        self.op = fla.on(config.op_backend, channel_decay if decay == "channel" else scalar_decay)
        self.g_proj = linear(d_model, values) if config.gate else None
        self.convolve("silu" if config.conv else "canon" if "B" in config.canon else "none")
        if decay != "fixed":
            rank, outputs = config.rank, keys if decay == "channel" else heads
            self.gk_proj = nn.Sequential(linear(d_model, rank), nn.Linear(rank, outputs))
        self.g_norm_swish_gate = GatedRMSNorm(self.d_value)
        self.o_proj = linear(values, d_model)

    def initial_state(self, batch: int) -> tuple[Tensor, list[Tensor], int]:
        S = state_zeros(self.o_proj.weight, batch, self.heads, self.d_key, self.d_value)
        return S, self.start_of_convolutions(batch), 0

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        x, (S, before, first) = hide(x, mask), state
        mixed, after = self.qkv(x, before)
        q, k, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in mixed)
        if self.decay == "fixed":
            positions = torch.arange(first, first + x.shape[1], device=x.device)
            q, k = (rotate_halves(value.transpose(1, 2), positions).transpose(1, 2) for value in (q, k))
            # computed here: a buffer would be rounded with the parameters, by .bfloat16() to three digits
            rates = torch.log1p(-(2.0 ** (-5 - torch.arange(self.heads, dtype=torch.float64, device=x.device))))
            g = rates.to(torch.promote_types(x.dtype, torch.float32)).expand(q.shape[:3])
        else:
            g = F.logsigmoid(at_least_float32(self.gk_proj(x))) / DIVISOR
            g = torch.unflatten(g, -1, (self.heads, -1)) if self.decay == "channel" else g
        self.show(log_decay=g)
        y, S = self.op(q * self.d_key**-0.5, k, v, g, state=S, mask=mask)
        gate = None if self.g_proj is None else torch.unflatten(self.g_proj(x), -1, y.shape[-2:])
        return self.o_proj(self.g_norm_swish_gate(y, gate).flatten(-2)), (S, after, first + x.shape[1])


@registry.register("gla")
@dataclass(frozen=True)
class GLA(KernelConfig):
    """Gated linear attention: a sum of key-value products with an input-dependent decay per key channel.

    Source: Yang et al. (arXiv:2312.06635), section 4.
    """

    layer_class = GLALayer
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 76},
        "recall-16k": {**SMALL, "heads": 2, "expand_k": 1.0, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "expand_k": 4.0, "mlp": False},
        "state-tracking": {**TRACKING, "heads": 4, "expand_k": 1.0},
        "paper": {**PAPER, "heads": 4},
        "paper/mqar": {**PAPER_MQAR, "heads": 2, "gate": False},
    }

    sites: ClassVar[str] = "ABCD"

    heads: int = parameter(4, "heads", at_least=1, at_most=1024)
    expand_k: float = parameter(0.5, "width of all keys together, in multiples of d_model", above=0, at_most=64)
    expand_v: float = parameter(1.0, "width of all values together, in multiples of d_model", above=0, at_most=64)
    decay: Literal["channel", "head", "fixed"] = parameter("channel", "decay per key channel, per head, or fixed")
    rank: int = parameter(16, "rank of the map that computes the decay", at_least=1, at_most=65536)
    conv: bool = parameter(False, "apply short convolutions to queries, keys and values")
    canon: str = parameter("", "sites of canon layers, some of the letters ABCD")
    gate: bool = parameter(True, "gate the result of each head", later=True)

    def check(self) -> None:
        if self.conv and "B" in self.canon:
            raise UsageError(f"{self.name}: conv and canon site B both convolve queries, keys and values; take one")
        d_key, d_value = self.widths()
        if not (d_key and d_value):
            found = f"found keys {d_key} and values {d_value} wide"
            raise UsageError(f"{self.name}: expand_k and expand_v must make a head at least 1 wide, {found}")
        if self.decay == "fixed" and d_key % 2:
            raise UsageError(f"{self.name}: the width of a head's keys must be even with decay='fixed', found {d_key}")

    def widths(self) -> tuple[int, int]:
        """Return the widths K and V of a head."""
        keys, values = (round(self.d_model * factor) for factor in (self.expand_k, self.expand_v))
        d_key = self.divided(keys, self.heads, "heads", "the width of all keys")
        return d_key, self.divided(values, self.heads, "heads", "the width of all values")


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

    expand_k: float = parameter(1.0, "width of all keys together, in multiples of d_model", above=0, at_most=64)
    expand_v: float = parameter(2.0, "width of all values together, in multiples of d_model", above=0, at_most=64)
    decay: Literal["channel", "head", "fixed"] = parameter("fixed", "decay per key channel, per head, or fixed")
