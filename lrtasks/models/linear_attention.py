"""Linear attention: attention whose weights are products of features, so that a sum over the past is enough.

    q, k, v   linear maps of the input, in heads
    S += phi(k) v^T,  z += phi(k);  y = S^T phi(q) / (z^T phi(q) + eps);  output linear(y)
    elu       phi(x) = elu(x) + 1, q scaled by K^(-1/2)  (Katharopoulos et al., arXiv:2006.16236)
    taylor    phi(q)^T phi(k) = 1 + s + s²/2 with s = q^T k / sqrt(K): the exponential to second order
              (Based, Arora et al., arXiv:2402.18668)

With ``head_norm`` the result of each head is normalised (rms) too. Start as in flash-linear-attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision
from lrtasks.models.ops.head_norms import GatedRMSNorm
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.scalar_decay import feature_attention, scalar_decay_step
from lrtasks.models.recurrent import PAPER, PAPER_MQAR, SMALL, TRACKING, RecurrentConfig, state_zeros

FeatureMap = Literal["elu", "taylor"]
EPS = {"elu": 1e-10, "taylor": 1e-12}


def elu_features(x: Tensor) -> Tensor:
    """``elu(x) + 1``, always positive."""
    return F.elu(x) + 1


def taylor_features(x: Tensor) -> Tensor:
    """Features of ``(..., K)`` whose products are ``1 + s + s²/2``, s that of the inputs: 1 + K + K(K+1)/2 of them."""
    K = x.shape[-1]
    i, j = torch.triu_indices(K, K, device=x.device)
    weight = torch.ones(len(i), dtype=x.dtype, device=x.device).masked_fill(i == j, 0.5**0.5)
    return torch.cat((torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j] * weight), -1)


def taylor_similarity(s: Tensor) -> Tensor:
    """``1 + s + s²/2``."""
    return 1 + s + s.square() / 2


def _same(x: Tensor) -> Tensor:
    return x


@full_precision
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, *, eps: float, mask: Tensor | None = None
) -> Tensor:
    """Attention of all positions, causal.

    Args:
        q: queries, ``(B, L, H, K)``; scaled by K^(-1/4) already for taylor, and not at all for elu.
        k: keys, likewise.
        v: values, ``(B, L, H, V)``.
        feature_map: ``elu`` or ``taylor``.
        eps: added to the sum of the weights, by which the result is divided.
        mask: ``(B, L)``, False at padding, which writes nothing.

    Returns:
        ``(B, L, H, V)`` in float32 at least.
    """
    v = F.pad(v, (0, 1), value=1.0)
    if feature_map == "elu":
        q = elu_features(q) * q.shape[-1] ** -0.5
        y, _ = feature_attention(q, elu_features(k), v, _same, _same, mask=mask)
    else:
        y, _ = feature_attention(q, k, v, taylor_features, taylor_similarity, mask=mask)
    return _divided(y, eps)


def _divided(y: Tensor, eps: float) -> Tensor:
    return y[..., :-1] / (y[..., -1:] + eps)


class LinearAttentionLayer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        heads: heads.
        d_key: K of a head.
        d_value: V of a head.
        feature_map: ``elu`` or ``taylor``.
        head_norm: normalise the result of each head.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_key: int,
        d_value: int,
        feature_map: FeatureMap,
        head_norm: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.d_key, self.d_value = heads, d_key, d_value
        self.feature_map: FeatureMap = feature_map
        self.q_proj = nn.Linear(d_model, heads * d_key, bias=False)
        self.k_proj = nn.Linear(d_model, heads * d_key, bias=False)
        self.v_proj = nn.Linear(d_model, heads * d_value, bias=False)
        self.norm = GatedRMSNorm(d_value) if head_norm else None
        self.o_proj = nn.Linear(heads * d_value, d_model, bias=False)

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.o_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        q, k, v = self._inputs(zero_padding(x, mask))
        y = linear_attention(q, k, v, self.feature_map, eps=EPS[self.feature_map], mask=mask)
        return self._finish(y)

    def initial_state(self, batch: int) -> Tensor:
        """S, with z as its last column, ``(batch, heads, features, V + 1)``."""
        features = self.d_key if self.feature_map == "elu" else 1 + self.d_key + self.d_key * (self.d_key + 1) // 2
        return state_zeros(self.o_proj.weight, batch, self.heads, features, self.d_value + 1)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        q, k, v = self._inputs(x)
        if self.feature_map == "elu":
            q, k = elu_features(q) * self.d_key**-0.5, elu_features(k)
        else:
            q, k = taylor_features(q), taylor_features(k)
        y, state = scalar_decay_step(q, k, F.pad(v, (0, 1), value=1.0), torch.zeros_like(v[..., 0]), state)
        return self._finish(_divided(y, EPS[self.feature_map])), state

    def _inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maps = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (torch.unflatten(proj(x), -1, (self.heads, -1)) for proj in maps)
        if self.feature_map == "taylor":
            q, k = q * self.d_key**-0.25, k * self.d_key**-0.25
        return q, k, v

    def _finish(self, y: Tensor) -> Tensor:
        y = y.to(self.o_proj.weight.dtype) if self.norm is None else self.norm(y)
        out: Tensor = self.o_proj(y.flatten(-2))
        return out


@registry.register("linear-attention")
@dataclass(frozen=True)
class LinearAttention(RecurrentConfig):
    """Linear attention with features elu + 1, or with the Taylor features of Based; without decay.

    Sources: Katharopoulos et al. (arXiv:2006.16236); Taylor features, Arora et al. (Based, arXiv:2402.18668).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 84},
        "recall-16k": {**SMALL, "heads": 2, "feature_map": "taylor", "feature_dim": 6, "mlp": False},
        "recall-64k": {**SMALL, "heads": 2, "feature_map": "taylor", "feature_dim": 14, "mlp": False},
        "state-tracking": TRACKING,
        "paper": PAPER,
        # Based in zoology: features of 16 per head.
        "paper/mqar": {**PAPER_MQAR, "heads": 1, "feature_map": "taylor", "feature_dim": 16},
    }

    heads: int = parameter(4, "heads", at_least=1, at_most=1024)
    feature_map: Literal["elu", "taylor"] = parameter("elu", "features: elu + 1, or of the second-order exponential")
    feature_dim: int | None = parameter(None, "width of a query and key; none for d_model / heads", at_least=1)
    head_norm: bool = parameter(False, "normalise the result of each head")

    def check(self) -> None:
        self.divided(self.d_model, self.heads, "heads")

    def layer(self, index: int) -> LinearAttentionLayer:
        d_value = self.divided(self.d_model, self.heads, "heads")
        d_key = self.feature_dim or d_value
        return LinearAttentionLayer(self.d_model, self.heads, d_key, d_value, self.feature_map, self.head_norm)
