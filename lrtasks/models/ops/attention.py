"""Multi-head softmax attention over all keys, over a sliding window, or over a chunk and its neighbours.

Source: Vaswani et al., arXiv:1706.03762, section 3.2. Symbols: ``q k v`` queries, keys and values, ``e`` width of
a head.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import CONVOLUTIONS, require_causal
from lrtasks.models.ops.positions import rotate

Positions = Literal["rope", "nope", "alibi"]
"""Position information: rotary embedding, none, or ALiBi (a penalty on distance, with a different slope per head)."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    valid: Tensor | None = None,
    window: int | None = None,
    slopes: Tensor | None = None,
    first: int | None = None,
) -> Tensor:
    """Compute ``softmax(q kᵀ - slope · distance) v`` over the visible keys. The caller has already scaled ``q``.

    Args:
        q: ``(batch, heads, queries, e)``.
        k: ``(batch, heads, positions, e)``, with ``positions >= queries`` if causal.
        v: as ``k``.
        causal: no query sees keys after its own position.
        valid: ``(batch, positions)`` bool, False at padding, which no query sees, even if it holds NaN.
        window: see only keys that are less than this many positions away; None to see all.
        slopes: ``(heads,)``, one slope per head (:func:`alibi_slopes`), or None for no penalty on distance.
        first: position of the first query. By default, the last query is at the last position if causal; otherwise
            the first query is at the first position.

    Returns:
        ``(batch, heads, queries, e)``; zeros for a query that sees no key.
    """
    queries, positions = q.shape[-2], k.shape[-2]
    plain = window is None and slopes is None
    if plain and valid is None and (not causal or queries in (1, positions)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal and queries > 1, scale=1.0)
    if first is None:
        first = positions - queries if causal else 0
    distance = torch.arange(first, first + queries, device=q.device)[:, None] - torch.arange(positions, device=q.device)
    # (queries, positions), or one row for all queries
    visible = torch.ones(queries if causal or not plain else 1, positions, dtype=torch.bool, device=q.device)
    if causal:
        visible = visible & (distance >= 0)
    if window is not None:
        visible = visible & (distance.abs() < window)
    empty: Tensor | None = None
    if valid is not None:
        padding = ~valid[:, None, :, None]
        k, v = k.masked_fill(padding, 0), v.masked_fill(padding, 0)
        visible = visible & valid[:, None, None, :]
        empty = ~visible.any(-1, keepdim=True)
        visible = visible | empty
    if slopes is not None:
        exact = slopes.to(q.device, torch.promote_types(q.dtype, torch.float32), non_blocking=True)
        penalty = (exact[:, None, None] * distance.abs()).to(q.dtype)
        visible = (-penalty).masked_fill(~visible, -math.inf)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=1.0)
    return y if empty is None else y.masked_fill(empty, 0)


def attend_local(
    q: Tensor, k: Tensor, v: Tensor, *, chunk: int, causal: bool, valid: Tensor | None = None, **options: Any
) -> Tensor:
    """Attend as :func:`attend` does, but query i sees key j only if ``|i // chunk - j // chunk| <= 1``.

    All inner chunks have neighbourhoods of the same shape and are computed in one batched call. The edge chunks (the
    first one, and the last ones, whose neighbourhoods are incomplete) are computed in separate calls on the keys that
    exist, so nothing is padded. The scores take ``O(length · chunk)`` memory. ``q``, ``k``, ``v`` and the result are
    ``(batch, heads, length, e)``. ``options`` are those of :func:`attend`: ``slopes``, and ``window``, at most
    ``chunk``; with ``window = chunk`` this is sliding-window attention.
    """
    length, after = q.shape[2], 0 if causal else 1
    # chunks [1, inner) have a whole previous chunk and, unless causal, a whole next one
    inner = max(1, length // chunk - after)
    attended: Callable[..., Tensor] = functools.partial(attend, causal=causal, **options)

    def edge(start: int) -> Tensor:
        """Attend in the edge chunk that starts at ``start``, over the keys that exist in its neighbourhood."""
        begin = max(0, start - chunk)
        seen = slice(begin, start + chunk * (1 + after))
        known = None if valid is None else valid[:, seen]
        return attended(q[:, :, start : start + chunk], k[:, :, seen], v[:, :, seen], valid=known, first=start - begin)

    def between() -> Tensor:
        """Attend in chunks ``1..inner-1`` together; return ``(batch, heads, (inner - 1) * chunk, e)``."""
        batch, heads, _, width = q.shape
        span = chunk * (2 + after)
        used = (inner - 2) * chunk + span

        def seen(x: Tensor) -> Tensor:
            chunks = torch.unflatten(x[:, :, :used], 2, (-1, chunk)).transpose(1, 2)
            return torch.cat([chunks[:, shift : shift + inner - 1] for shift in range(2 + after)], 3).flatten(0, 1)

        queries = q[:, :, chunk : inner * chunk].reshape(batch, heads, inner - 1, chunk, width).transpose(1, 2)
        known = None if valid is None else valid[:, :used].unfold(1, span, chunk).flatten(0, 1)
        y = attended(queries.flatten(0, 1), seen(k), seen(v), valid=known, first=chunk)
        return y.reshape(batch, inner - 1, heads, chunk, width).transpose(1, 2).flatten(2, 3)

    outputs = [edge(0)]
    if inner > 1:
        outputs.append(between())
    outputs.extend(edge(start) for start in range(inner * chunk, length, chunk))
    return torch.cat(outputs, 2)


def alibi_slopes(heads: int) -> Tensor:
    """Return each head's penalty per unit of distance, ``(heads,)`` in float64 (Press et al., arXiv:2108.12409).

    For n heads, n a power of two, the slopes are 2^(-8h/n), h = 1..n. For other numbers of heads, they are the slopes
    for the next lower power of two, followed by every second slope (from the first) for twice that power.
    """
    power = 1 << (heads.bit_length() - 1)

    def slopes(n: int) -> Tensor:
        return 2 ** (-8 * torch.arange(1, n + 1, dtype=torch.float64) / n)

    return torch.cat((slopes(power), slopes(2 * power)[::2][: heads - power]))


class KVCache(NamedTuple):
    """Streaming state: the rotated keys and the values that are still visible, ``(batch, heads, kept, e)``; the next
    position; and the last inputs of the short convolution, if there is one."""

    k: Tensor
    v: Tensor
    position: int
    before: Tensor | None = None


class MultiHeadAttention(nn.Module):
    """Self-attention on ``(batch, length, d_model)`` with an output projection; :func:`check_heads` checks the widths.

    Args:
        learned_scale: scale the scores of all heads by one learned factor, initialised to ``1/sqrt(e)``, instead of by
            that constant (as in the code of the DLR paper).
        chunk: see only a query's own and neighbouring chunks of this many positions; None to see all keys.
        window: see only the query's own key and the ``window - 1`` before it (without ``causal``, also
            the ``window - 1`` after it); None to see all keys.
        conv: applied to queries, keys and values: ``silu``, a short convolution with SiLU; ``canon``, a canon layer; or
            ``none``.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        causal: bool,
        learned_scale: bool = False,
        chunk: int | None = None,
        window: int | None = None,
        positions: Positions = "rope",
        conv: Literal["none", "silu", "canon"] = "none",
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.chunk, self.window, self.positions = heads, causal, chunk, window, positions
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        scale = 1 / math.sqrt(d_model // heads)
        self.scale: Tensor | float = nn.Parameter(torch.full((1,), scale)) if learned_scale else scale
        self.slopes = alibi_slopes(heads) if positions == "alibi" else None
        self.conv = CONVOLUTIONS[conv](3 * d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self._heads(self.conv(self.qkv(x), mask))
        given: dict[str, Any] = {"causal": self.causal, "valid": mask, "slopes": self.slopes}
        chunk = self.chunk or self.window
        if chunk is None:
            return self._merge(attend(q, k, v, **given))
        return self._merge(attend_local(q, k, v, chunk=chunk, window=self.window, **given))

    def initial_state(self, batch: int) -> KVCache:
        """Return an empty cache; raise :class:`UsageError` if the layer is not causal."""
        require_causal(self.causal)
        empty = self.qkv.weight.new_zeros(batch, self.heads, 0, self.qkv.in_features // self.heads)
        return KVCache(empty, empty, 0, self.conv.initial_state(batch))

    def step(self, x: Tensor, state: KVCache) -> tuple[Tensor, KVCache]:
        qkv, before = self.conv.step(self.qkv(x), state.before)
        q, k, v = self._heads(qkv[:, None], torch.tensor([state.position], device=x.device))
        first = -self._kept(state.position)
        k = torch.cat((state.k, k), 2)[:, :, first:]
        v = torch.cat((state.v, v), 2)[:, :, first:]
        y = self._merge(attend(q, k, v, causal=True, slopes=self.slopes))[:, 0]
        return y, KVCache(k, v, state.position + 1, before)

    def cache_bytes(self, steps: int) -> int:
        """Return the bytes of one sequence's keys and values after ``steps`` >= 1 positions."""
        return 2 * self._kept(steps - 1) * self.out.in_features * self.out.weight.element_size()

    def _kept(self, position: int) -> int:
        """Return the number of keys that the query at ``position`` sees, including its own."""
        if self.chunk is not None:
            return position + 1 - max(0, position // self.chunk - 1) * self.chunk
        return min(position + 1, self.window or position + 1)

    def _heads(self, qkv: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return scaled q, k and v, each ``(batch, heads, length, e)``; q and k are rotated for rotary positions."""
        parts = torch.unflatten(qkv, -1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(parts[:2], positions) if self.positions == "rope" else parts[:2]
        return (q * self.scale).to(q.dtype), k, parts[2]

    def _merge(self, heads: Tensor) -> Tensor:
        return self.out(heads.transpose(1, 2).flatten(2))


def check_heads(d_model: int, heads: int, positions: Positions = "rope") -> None:
    """Raise :class:`UsageError` unless ``heads`` divides ``d_model``; rotary positions need an even head width."""
    rotary = positions == "rope"
    if d_model % ((1 + rotary) * heads):
        multiple = "2 * heads (rotary embedding turns pairs of features)" if rotary else "heads"
        raise UsageError(f"d_model must be a multiple of {multiple}, found d_model {d_model} with {heads} heads")
