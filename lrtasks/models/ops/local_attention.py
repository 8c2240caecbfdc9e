"""Attention to the own and the neighbouring chunks, in memory linear in the length."""

from __future__ import annotations

import torch
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.ops.attention import MultiHeadAttention, attend


def attend_local(q: Tensor, k: Tensor, v: Tensor, *, chunk: int, causal: bool, valid: Tensor | None = None) -> Tensor:
    """``softmax(q kᵀ) v`` where query i sees key j if ``|i // chunk - j // chunk| <= 1``, and ``j <= i`` if causal.

    Inner chunks, whose windows are all alike, go through one batched call; those at the edges (the first, and the
    last ones, which see a ragged tail) have calls of their own on shorter windows, so nothing is padded. The scores
    take ``O(length · chunk)`` memory. With ``length <= chunk`` this is ordinary attention.

    Args:
        q: ``(batch, heads, length, e)``; the caller has put the scale into it.
        k: as ``q``.
        v: as ``q``.
        chunk: positions in a chunk, counted from position 0.
        causal: see above.
        valid: ``(batch, length)`` bool, False at padding, as :func:`lrtasks.models.ops.attention.attend` takes it.

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


class MultiHeadLocalAttention(MultiHeadAttention):
    """:class:`MultiHeadAttention` through :func:`attend_local`; rotary angles follow the absolute position.

    Args:
        d_model: width, a multiple of ``2 * heads``.
        heads: number of heads.
        chunk: positions in a chunk.
        causal: position t sees the previous chunk and its own up to t.
        learned_scale: as in :class:`MultiHeadAttention`.
    """

    def __init__(self, d_model: int, heads: int, chunk: int, *, causal: bool, learned_scale: bool = False) -> None:
        super().__init__(d_model, heads, causal=causal, learned_scale=learned_scale)
        if chunk < 1:
            raise UsageError(f"chunk must be at least 1, found {chunk}")
        self.chunk = chunk

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attend_local(q, k, v, chunk=self.chunk, causal=self.causal, valid=mask)

    def _kept(self, position: int) -> int:
        return position + 1 - max(0, position // self.chunk - 1) * self.chunk
