"""A matrix state with one decay per head: ``S_t = exp(g_t) S_(t-1) + k_t v_t^T``, ``y_t = S_t^T q_t``.

The core of SSD (Dao and Gu, arXiv:2405.21060, section 6), RetNet, linear attention (g = 0) and Mamba-2 and 3. Per
chunk, with the names of :mod:`lrtasks.models.ops.chunked` and D_ij = exp(G_i - G_j) for j <= i, else 0:

    Y = ((Q K^T) * D) V + exp(G) (Q S_in)
    S_out = exp(G_last) S_in + K^T (exp(G_last - G) V)

No exponent is positive, so that no decay is too strong. G starts again in each chunk: one sum over all positions would
lose its digits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lrtasks.models.ops.chunked import (
    carry,
    decay_matrix,
    from_chunks,
    full_precision,
    hide,
    over_positions,
    start_state,
    to_chunks,
    to_end,
)

CHUNK = 64

Features = Callable[[Tensor], Tensor]


@full_precision
def scalar_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """One position: q, k ``(B, H, K)``, v ``(B, H, V)``, g ``(B, H)``, S ``(B, H, K, V)`` to y ``(B, H, V)`` and S."""
    return _step(q, k, v, g, S)


def _step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    S = S * g.exp()[..., None, None] + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (q.unsqueeze(-2) @ S).squeeze(-2), S


@full_precision
def scalar_decay_reference(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The plain loop for :func:`scalar_decay`."""
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    start = start_state(state, v, len(v), v.shape[2], k.shape[-1], v.shape[-1])
    return over_positions(_step, (q, hide(k, mask), v, hide(g, mask)), start)


@full_precision
def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Compute all positions chunk by chunk.

    Args:
        q: queries, ``(B, L, G, K)``, scaled already; group i is shared by the heads ``i H/G .. (i+1) H/G - 1``.
        k: keys, shaped as q.
        v: values, ``(B, L, H, V)``, H a multiple of G.
        g: log decay, at most 0, ``(B, L, H)``.
        state: S before the first position, ``(B, H, K, V)``; None for zeros.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        chunk: positions per chunk.

    Returns:
        y ``(B, L, H, V)`` and S after the last position ``(B, H, K, V)``, in float32 at least.
    """
    return _chunked(q, k, v, g, state, mask, chunk, _dot_product, None)


@full_precision
def feature_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Features,
    similarity: Features,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """:func:`scalar_decay` without decay, on features of queries and keys whose products have a shorter form.

    Args:
        q: queries, ``(B, L, H, K)``, scaled already.
        k: keys, shaped as q.
        v: values, ``(B, L, H, V)``.
        features: map of queries and of keys to ``(..., F)``, on which the state is kept.
        similarity: what a product of features is as a function of the product of query and key.
        state: as for :func:`scalar_decay`, ``(B, H, F, V)``.
        mask: as for :func:`scalar_decay`.
        chunk: positions per chunk.
    """
    g = v.new_zeros(v.shape[:3])
    if mask is not None:
        v = hide(v, mask)  # features of a key of zeros need not be zero
    return _chunked(q, k, v, g, state, mask, chunk, lambda q, k: similarity(_dot_product(q, k)), features)


def _dot_product(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


def _chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None,
    mask: Tensor | None,
    chunk: int,
    scores: Callable[[Tensor, Tensor], Tensor],
    features: Features | None,
) -> tuple[Tensor, Tensor]:
    batch, length, groups = q.shape[:3]
    heads, width = v.shape[2:]
    chunk = min(chunk, length)
    # (B, groups, n, c, .), or with the heads of a group side by side (B, groups, n, c, heads / groups, .)
    q, k = to_chunks(q, chunk), to_chunks(hide(k, mask), chunk)
    v = to_chunks(torch.unflatten(v, 2, (groups, -1)), chunk)
    G = to_chunks(torch.unflatten(hide(g, mask).double(), 2, (groups, -1)), chunk).cumsum(3)
    by_head = (0, 1, 4, 2, 3)
    D = decay_matrix(G.permute(by_head), v.dtype)
    y = (scores(q, k).unsqueeze(2) * D) @ v.permute(*by_head, 5)
    y = y.permute(0, 1, 3, 4, 2, 5)

    if features is not None:
        q, k = features(q), features(k)
    update = k.mT @ (v * to_end(G, 3).exp().to(v.dtype).unsqueeze(-1)).flatten(-2)
    decay = G[:, :, :, -1:].exp().to(v.dtype).repeat_interleave(width, -1)
    start = start_state(state, v, batch, heads, q.shape[-1], width)
    start = torch.unflatten(start, 1, (groups, -1)).transpose(2, 3).flatten(-2)
    inside, end = carry(decay, update, start)
    y = y + torch.unflatten(q @ inside, -1, (-1, width)) * G.exp().to(v.dtype).unsqueeze(-1)
    end = torch.unflatten(end, -1, (-1, width)).transpose(2, 3).flatten(1, 2)
    return from_chunks(y, length).flatten(2, 3), end
