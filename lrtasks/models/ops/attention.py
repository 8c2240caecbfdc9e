"""Multi-head softmax attention with rotary positions, over all keys or over the own and neighbouring chunks.

Source: Vaswani et al., arXiv:1706.03762, section 3.2. Letters: ``q k v`` queries, keys and values, ``e`` width of a
head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import require_causal
from lrtasks.models.ops.positions import rotate


def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, valid: Tensor | None = None) -> Tensor:
    """``softmax(q kᵀ) v`` over the visible keys; the caller has put the scale into ``q``.

    Args:
        q: ``(batch, heads, queries, e)``.
        k: ``(batch, heads, positions, e)``, with ``positions >= queries`` if causal.
        v: as ``k``.
        causal: the last query stands at the last position, and no query sees what comes after it.
        valid: ``(batch, positions)`` bool, False at padding, which no query sees, even if it holds NaN.

    Returns:
        ``(batch, heads, queries, e)``; zeros for a query that sees no key.
    """
    queries, positions = q.shape[-2], k.shape[-2]
    if valid is None and (not causal or queries in (1, positions)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal and queries > 1, scale=1.0)
    # (queries, positions), or one row for all queries
    visible = torch.ones(queries if causal else 1, positions, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible.tril(positions - queries)
    if valid is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=1.0)
    padding = ~valid[:, None, :, None]
    k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
    visible = visible & valid[:, None, None, :]
    empty = ~visible.any(-1, keepdim=True)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | empty, scale=1.0)
    return y.masked_fill(empty, 0)


def attend_local(q: Tensor, k: Tensor, v: Tensor, *, chunk: int, causal: bool, valid: Tensor | None = None) -> Tensor:
    """``softmax(q kᵀ) v`` where query i sees key j if ``|i // chunk - j // chunk| <= 1``, and ``j <= i`` if causal.

    All inner chunks have windows of the same shape and go through one batched call. The chunks at the edges (the first,
    and the last ones, which see a ragged tail) have calls of their own on shorter windows, so nothing is padded. The
    scores take ``O(length · chunk)`` memory. With ``length <= chunk`` this is ordinary attention.

    Args:
        q: ``(batch, heads, length, e)``; the caller has put the scale into it.
        k: as ``q``.
        v: as ``q``.
        chunk: positions in a chunk, counted from position 0.
        causal: see above.
        valid: ``(batch, length)`` bool, False at padding, as :func:`attend` takes it.

    Returns:
        ``(batch, heads, length, e)``.
    """
    length, after = q.shape[2], 0 if causal else 1
    # chunks [1, inner) have a whole previous chunk and, unless causal, a whole next one
    inner = max(1, length // chunk - after)

    def edge(start: int) -> Tensor:
        """The chunk that starts at ``start``, on whatever its window holds."""
        window = slice(max(0, start - chunk), start + chunk * (1 + after))
        seen = None if valid is None else valid[:, window]
        return attend(q[:, :, start : start + chunk], k[:, :, window], v[:, :, window], causal=causal, valid=seen)

    outputs = [edge(0)]
    if inner > 1:
        outputs.append(_attend_inner(q, k, v, chunk, inner, causal, valid))
    outputs.extend(edge(start) for start in range(inner * chunk, length, chunk))
    return torch.cat(outputs, 2)


def _attend_inner(
    q: Tensor, k: Tensor, v: Tensor, chunk: int, inner: int, causal: bool, valid: Tensor | None
) -> Tensor:
    """Chunks ``1..inner-1`` together: ``(batch, heads, (inner - 1) * chunk, e)``."""
    batch, heads, _, width = q.shape
    span = chunk * (2 if causal else 3)
    used = (inner - 2) * chunk + span

    def windows(x: Tensor) -> Tensor:
        return x[:, :, :used].unfold(2, span, chunk).permute(0, 2, 1, 4, 3).reshape(-1, heads, span, width)

    queries = q[:, :, chunk : inner * chunk].reshape(batch, heads, inner - 1, chunk, width).transpose(1, 2)
    seen = None if valid is None else valid[:, :used].unfold(1, span, chunk).flatten(0, 1)
    attended = attend(queries.flatten(0, 1), windows(k), windows(v), causal=causal, valid=seen)
    return attended.reshape(batch, inner - 1, heads, chunk, width).transpose(1, 2).flatten(2, 3)


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
        chunk: see the own and the neighbouring chunks of that many positions only; None to see all keys.
    """

    def __init__(
        self, d_model: int, heads: int, *, causal: bool, learned_scale: bool = False, chunk: int | None = None
    ) -> None:
        super().__init__()
        check_heads(d_model, heads)
        self.heads, self.causal, self.chunk = heads, causal, chunk
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        scale = 1 / math.sqrt(d_model // heads)
        self.scale: Tensor | float = nn.Parameter(torch.full((1,), scale)) if learned_scale else scale

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        q, k, v = self._project(x, torch.arange(x.shape[1], device=x.device))
        if self.chunk is None:
            return self._merge(attend(q, k, v, causal=self.causal, valid=mask))
        return self._merge(attend_local(q, k, v, chunk=self.chunk, causal=self.causal, valid=mask))

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

    def _kept(self, position: int) -> int:
        """Number of keys that the query at ``position`` sees, its own included."""
        return position + 1 - (0 if self.chunk is None else max(0, position // self.chunk - 1) * self.chunk)

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
