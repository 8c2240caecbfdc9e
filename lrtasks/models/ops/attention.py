"""Multi-head softmax attention with rotary positions (Vaswani et al., arXiv:1706.03762, section 3.2).

Letters: ``q k v`` queries, keys and values, ``e`` width of a head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.rotary import rotate
from lrtasks.models.ops.streaming import require_causal


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, valid: Tensor | None = None) -> Tensor:
    """``softmax(q kᵀ) v`` over the visible keys; the caller has put the scale into ``q``.

    Args:
        q: ``(batch, heads, queries, e)``.
        k: ``(batch, heads, positions, e)``, with ``positions >= queries`` if causal.
        v: as ``k``.
        causal: the last query stands at the last position, and none sees what comes after it.
        valid: ``(batch, positions)`` bool, False at padding, which no query sees. A query that is left without any
            key (it is padding itself, or its whole sample is) sees what it would without padding, so that every
            output is finite.

    Returns:
        ``(batch, heads, queries, e)``.
    """
    queries, positions = q.shape[-2], k.shape[-2]
    if valid is None and (not causal or queries in (1, positions)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal and queries > 1, scale=1.0)
    # (queries, positions), or one row for all queries
    visible = torch.ones(queries if causal else 1, positions, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible.tril(positions - queries)
    if valid is not None:
        unpadded = visible & valid[:, None, None, :]
        visible = unpadded | (visible & ~unpadded.any(-1, keepdim=True))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=1.0)


class KVCache(NamedTuple):
    """Streaming state: rotated keys and values still visible, ``(batch, heads, kept, e)``, and the next position."""

    k: Tensor
    v: Tensor
    position: int


class MultiHeadAttention(nn.Module):
    """Self-attention on ``(batch, length, d_model)`` with rotary positions and an output map.

    Args:
        d_model: width, a multiple of ``2 * heads`` (rotary embedding turns pairs of features).
        heads: number of heads.
        causal: position t sees positions up to t.
        learned_scale: one learned factor for the scores of all heads, started at ``1/sqrt(e)``, instead of the
            constant (as in the code of the DLR paper).
    """

    def __init__(self, d_model: int, heads: int, *, causal: bool, learned_scale: bool = False) -> None:
        super().__init__()
        check_heads(d_model, heads)
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        scale = 1 / math.sqrt(d_model // heads)
        self.scale: Tensor | float = nn.Parameter(torch.full((1,), scale)) if learned_scale else scale

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device))
        return self._merge(self._attend(q, k, v, mask))

    def initial_state(self, batch: int) -> KVCache:
        """Empty cache; raises :class:`UsageError` if the layer is not causal."""
        require_causal(self.causal)
        empty = self.qkv.weight.new_zeros(batch, self.heads, 0, self.qkv.in_features // self.heads)
        return KVCache(empty, empty, 0)

    def step(self, x: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        """One position ``(batch, d_model)``."""
        q, k, v = self._project(x[:, None], torch.tensor([state.position], device=x.device))
        first = -self._kept(state.position)
        k = torch.cat((state.k, k), 2)[:, :, first:]
        v = torch.cat((state.v, v), 2)[:, :, first:]
        return self._merge(attend(q, k, v, causal=True))[:, 0], KVCache(k, v, state.position + 1)

    def cache_bytes(self, steps: int) -> int:
        """Bytes of one sequence's keys and values after ``steps`` positions, at least 1."""
        return 2 * self._kept(steps - 1) * self.out.in_features * self.out.weight.element_size()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attend(q, k, v, causal=self.causal, valid=mask)

    def _kept(self, position: int) -> int:
        """Number of keys that the query at ``position`` sees, its own included."""
        return position + 1

    def _project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled and rotated queries, rotated keys, and values, each ``(batch, heads, length, e)``."""
        projected = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(projected[:2], positions)
        return (q * self.scale).to(q.dtype), k, projected[2]

    def _merge(self, heads: Tensor) -> Tensor:
        y: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return y


def check_heads(d_model: int, heads: int) -> None:
    """Raise :class:`UsageError` unless ``d_model`` splits into ``heads`` heads of even width."""
    if d_model % (2 * heads):
        raise UsageError(
            f"d_model must be a multiple of 2 * heads (rotary embedding turns pairs of features),"
            f" found d_model {d_model} with {heads} heads"
        )
