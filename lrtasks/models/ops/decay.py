"""Matrix states with decay: ``S_t = exp(g_t) S_(t-1) + k_t v_t^T``, ``y_t = S_t^T q_t``, with a decay per head or per
key channel.

:func:`scalar_decay`, with a decay per head, is the core of SSD (Dao and Gu, arXiv:2405.21060, section 6), RetNet,
linear attention (g = 0) and Mamba-2 and 3. Per chunk, with the names of :mod:`lrtasks.models.ops.chunked` and
D_ij = exp(G_i - G_j) for j <= i, else 0:

    Y = ((Q K^T) * D) V + exp(G) (Q S_in)
    S_out = exp(G_last) S_in + K^T (exp(G_last - G) V)

No exponent is positive, so nothing overflows, even at a strong decay. G restarts at 0 in each chunk, because one sum
over all positions would lose digits.

:func:`channel_decay`, with a decay per key channel, is gated linear attention (GLA; Yang et al., arXiv:2312.06635,
section 4). Inside a chunk the scores are

    A_ij = sum_d q_id k_jd exp(G_id - G_jd)   for j <= i

which :func:`decayed_products` computes in one of two ways: as one matrix product of q exp(G - a) and k exp(a - G), with
an anchor a at the middle of the chunk, if no exponent exceeds :data:`LIMIT`; or, for stronger decays, in sub-blocks
that have no positive exponents.

On a CPU with few threads, both use :func:`lrtasks.models.ops.chunked.state_loop`, which is faster for small states
(:func:`scalar_decay` only without ``features``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models.ops.chunked import (
    decay_matrix,
    even_chunk,
    from_chunks,
    loop_suits,
    over_positions,
    start_state,
    state_loop,
    to_chunks,
    to_end,
)
from lrtasks.models.ops.layers import full_precision, hide
from lrtasks.models.ops.scans import carry

CHUNK = 32
CHUNKS = (32, 16)
"""Chunk sizes to try for the single matrix product with a decay per key channel, largest first."""
LIMIT = 60.0
"""Largest exponent in the single product; exp(89) overflows in float32."""
SUB_BLOCK = 8


def _step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one position: q, k ``(B, H, K)``, v ``(B, H, V)``, g ``(B, H, K or 1)``, S ``(B, H, K, V)``."""
    S = S * g.exp().unsqueeze(-1) + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (q.unsqueeze(-2) @ S).squeeze(-2), S


@full_precision
def scalar_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    features: Callable[[Tensor], Tensor] | None = None,
    similarity: Callable[[Tensor], Tensor] | None = None,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute all positions chunk by chunk.

    Args:
        q: queries, ``(B, L, groups, K)``, already scaled; each group serves ``H / groups`` successive heads.
        k: keys, shaped as q.
        v: values, ``(B, L, H, V)``, H a multiple of the number of groups.
        g: log decay, at most 0, ``(B, L, H)``; None for no decay.
        state: S before the first position, ``(B, H, K, V)``; None for zeros.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        features: maps queries and keys to features, whose number is the K of the state; None to use q and k directly.
        similarity: computes the product of two feature vectors from the product of query and key; required with
            ``features``.
        plain: compute by the definition, position by position; a single position is always computed this way.

    Returns:
        y ``(B, L, H, V)`` and S after the last position ``(B, H, K, V)``, in float32 at least.
    """
    batch, length, groups = q.shape[:3]
    heads, width = v.shape[2:]
    k, g = hide(k, mask), v.new_zeros(v.shape[:3]) if g is None else hide(g, mask)
    if features is not None:
        v = hide(v, mask)  # a zero key may have nonzero features
    by_position = plain or length == 1
    if by_position or (features is None and loop_suits(v)):
        q, k = (q, k) if features is None else (features(q), features(k))
        if groups < heads:
            q, k = (x.repeat_interleave(heads // groups, 2) for x in (q, k))
        start = start_state(state, v, batch, heads, q.shape[-1], width)
        if by_position:
            return over_positions(_step, (q, k, v, g.unsqueeze(-1)), start)
        return state_loop(q, g.exp().to(v.dtype).unsqueeze(-1).expand_as(k), k, v, None, None, start)
    chunk = even_chunk(length, CHUNK)
    # shapes: (B, groups, n, c, .), or (B, groups, n, c, heads / groups, .) with an axis for the heads of a group
    q, k = to_chunks(q, chunk), to_chunks(k, chunk)
    v = to_chunks(torch.unflatten(v, 2, (groups, -1)), chunk)
    G = to_chunks(torch.unflatten(g.double(), 2, (groups, -1)), chunk).cumsum(3)
    by_head = (0, 1, 4, 2, 3)
    scores = q @ k.mT
    scores = scores if similarity is None else similarity(scores)
    scores = decay_matrix(G.permute(by_head), v.dtype, scores=scores.unsqueeze(2))
    y = (scores @ v.permute(*by_head, 5)).permute(0, 1, 3, 4, 2, 5)
    if features is not None:
        q, k = features(q), features(k)
    update = k.mT @ (v * to_end(G).exp().to(v.dtype).unsqueeze(-1)).flatten(-2)
    decay = G[:, :, :, -1:].exp().to(v.dtype).repeat_interleave(width, -1)
    start = start_state(state, v, batch, heads, q.shape[-1], width)
    start = torch.unflatten(start, 1, (groups, -1)).transpose(2, 3).flatten(-2)
    inside, end = carry(decay, update, start)
    y = y + torch.unflatten(q @ inside, -1, (-1, width)) * G.exp().to(v.dtype).unsqueeze(-1)
    end = torch.unflatten(end, -1, (-1, width)).transpose(2, 3).flatten(1, 2)
    return from_chunks(y, length).flatten(2, 3), end


@full_precision
def channel_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute as :func:`scalar_decay` does, but with ``g`` ``(B, L, H, K)`` and H heads in all other inputs.

    The strength of the decays determines which of the two forms is used.
    """
    batch, length, heads, d_key = q.shape
    k, g = hide(k, mask), hide(g, mask)
    start = start_state(state, v, batch, heads, d_key, v.shape[-1])
    if plain or length == 1:
        return over_positions(_step, (q, k, v, g), start)
    if loop_suits(v):
        return state_loop(q, g.exp().to(v.dtype), k, v, None, None, start)
    chunk = chunk_for(g, CHUNKS)
    c = chunk or CHUNKS[0]
    q, k, v = (to_chunks(x, c) for x in (q, k, v))
    G = log_decay(g, c, exact=chunk is None)
    ((A,),) = decayed_products([q], [k], G, chunk is not None)
    update = (k * to_end(G).exp().to(k.dtype)).mT @ v
    inside, end = carry(G[:, :, :, -1:].exp().to(v.dtype).mT, update, start)
    y = A @ v + (q * G.exp().to(q.dtype)) @ inside
    return from_chunks(y, length), end


def chunk_for(g: Tensor, chunks: Sequence[int]) -> int | None:
    """Find the first of ``chunks`` for which the single product is safe: half a chunk decays to more than exp(-LIMIT).

    Args:
        g: log decay, ``(B, L, H, K)``.
        chunks: maximum chunk sizes, even, in descending order.

    Returns:
        The even chunk size, at most the size found in ``chunks``; None if the sub-blocks are needed.
    """
    for half in dict.fromkeys(-(-even_chunk(g.shape[1], chunk) // 2) for chunk in chunks):
        if to_chunks(g.detach(), half).sum(3).amin() > -LIMIT:
            return 2 * half
    return None


def log_decay(g: Tensor, chunk: int, *, exact: bool) -> Tensor:
    """Return G, ``(B, H, n, chunk, K)``, in float64 if ``exact``, because large entries will be subtracted."""
    g = to_chunks(g, chunk)
    return (g.double() if exact else g).cumsum(3)


def decayed_products(rows: Sequence[Tensor], columns: Sequence[Tensor], G: Tensor, single: bool) -> list[list[Tensor]]:
    """Compute ``sum_d row_id column_jd exp(G_id - G_jd)`` for j <= i, 0 above the diagonal, for each row-column pair.

    Args:
        rows: tensors ``(..., c, K)``.
        columns: tensors ``(..., c, K)``.
        G: sum of log decays from the start of the chunk, ``(..., c, K)``.
        single: use one product per pair, which needs small exponents; otherwise use sub-blocks of :data:`SUB_BLOCK`.

    Returns:
        For each tensor in ``rows``, the list over ``columns`` of ``(..., c, c)``.
    """
    if not single:
        return [list(row) for row in _by_sub_blocks(torch.stack(list(rows)), torch.stack(list(columns)), G)]
    # the anchor cancels in the product, so it needs no gradient
    anchored = G - G[..., G.shape[-2] // 2 - 1, None, :].detach()
    up, down = anchored.exp(), (-anchored).exp()
    raised, lowered = [row * up for row in rows], [(column * down).mT for column in columns]

    def product(row: Tensor, raised_row: Tensor, column: Tensor, lowered_column: Tensor) -> Tensor:
        # tril, not a product with a mask, because entries above the diagonal may be infinite; the diagonal does not
        # depend on G: as a part of the product, it would give two large gradients of G that must cancel
        below = torch.tril(raised_row @ lowered_column, -1)
        return below + torch.diag_embed((row * column).sum(-1))

    pairs = list(zip(columns, lowered, strict=True))
    return [[product(*row, *column) for column in pairs] for row in zip(rows, raised, strict=True)]


def _by_sub_blocks(row: Tensor, column: Tensor, G: Tensor) -> Tensor:
    """Compute as above from stacked rows ``(R, ..., c, K)`` and columns ``(C, ...)``: ``(R, C, ..., c, c)``."""
    dtype, s = row.dtype, SUB_BLOCK
    blocks = G.shape[-2] // s
    row_blocks, column_blocks, G_blocks = (torch.unflatten(x, -2, (blocks, s)) for x in (row, column, G))
    # diagonal blocks: the decays of all pairs of positions, (..., blocks, s, s, K)
    below = torch.ones(s, s, dtype=torch.bool, device=G.device).tril(-1)
    same = torch.zeros(s, s, dtype=dtype, device=G.device).masked_fill(below.mT, -torch.inf).unsqueeze(-1)
    # constant 0 on the diagonal: G - G would have two gradients that must cancel
    between = (G_blocks.unsqueeze(-2) - G_blocks.unsqueeze(-3)).to(dtype).where(below.unsqueeze(-1), same).exp()
    diagonal = torch.einsum("r...ik,c...ijk->rc...ij", row_blocks, between * column_blocks.unsqueeze(-3))
    # below the diagonal, the anchor of each row of blocks is the end of the previous block
    product = "r...ik,c...jk->rc...ij"
    G_rows, row_parts, strips = G_blocks.unbind(-3), row_blocks.unbind(-3), []
    for r, part in enumerate(diagonal.unbind(-3)):
        keys = r * s
        if r:
            anchor = G_rows[r - 1][..., -1:, :].detach()
            up = (G_rows[r] - anchor).exp().to(dtype)
            down = (anchor - G.narrow(-2, 0, keys)).exp().to(dtype)
            part = torch.cat((torch.einsum(product, row_parts[r] * up, column.narrow(-2, 0, keys) * down), part), -1)
        strips.append(F.pad(part, (0, (blocks - 1 - r) * s)))
    return torch.cat(strips, -2)
