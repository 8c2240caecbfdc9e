"""Delta rules: a matrix state that erases the value stored under a key before it writes a new one.

    S <- exp(g_t) S                       decay, per head or per key channel
    u_t = beta_t (v_t - S^T k_t)
    S <- S + k_t u_t^T,   y_t = S^T q_t

DeltaNet (Yang et al., arXiv:2406.06484), Gated DeltaNet (arXiv:2412.06464, section 3), Gated DeltaProduct
(arXiv:2502.10297, several steps per position), Kimi delta attention (arXiv:2510.26692, a decay per key channel), and
RWKV-7 (arXiv:2503.14456), whose erase reads the state before the decay. Except in RWKV-7, the keys must have norm 1:
with a larger norm, the state can grow without bound.

The chunked form is the WY form. With D_ij = exp(G_i - G_j) for j <= i, else 0,

    (I + M) [U | W] = [beta V | beta exp(G) K],   M = strict lower triangle of (beta K) K^T * D
    u = U - W S_in,   S_out = exp(G_last) S_in + (exp(G_last - G) K)^T u
    Y = (exp(G) Q) S_in + ((Q K^T) * D) u

The triangular system is solved directly: inverting it by a series would lose all digits on equal keys.

On a CPU with few threads, a compiled loop over positions computes all of these rules in the form of RWKV-7, which is
faster than products of chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models.ops.chunked import (
    decay_matrix,
    delta_carry,
    even_chunk,
    from_chunks,
    loop_suits,
    over_positions,
    start_state,
    state_loop,
    to_chunks,
    to_end,
)
from lrtasks.models.ops.decay import CHUNKS, chunk_for, decayed_products, log_decay
from lrtasks.models.ops.layers import full_precision, hide

CHUNK = 16
"""Largest number of steps in a chunk."""
WIDE_CHUNK = 32
"""The same for heads with more than :data:`WIDE` key channels: fewer and larger products."""
WIDE = 32
LOW_RANK_CHUNKS = (16,)


def _delta_step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one position; its n_h steps have their own axis: k ``(B, n_h, H, K)``, g ``(B, H, K or 1)``."""
    S = S * g.exp().unsqueeze(-1)
    for k_j, v_j, beta_j in zip(k.unbind(1), v.unbind(1), beta.unbind(1), strict=True):
        u = beta_j.unsqueeze(-1) * (v_j - (k_j.unsqueeze(-2) @ S).squeeze(-2))
        S = S + k_j.unsqueeze(-1) * u.unsqueeze(-2)
    return (q.unsqueeze(-2) @ S).squeeze(-2), S


def _low_rank_step(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    read = (a.unsqueeze(-2) @ S).squeeze(-2)
    S = w.exp().unsqueeze(-1) * S + b.unsqueeze(-1) * read.unsqueeze(-2) + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (r.unsqueeze(-2) @ S).squeeze(-2), S


@full_precision
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute all positions chunk by chunk.

    Args:
        q: queries, ``(B, L, H, K)``, already scaled.
        k: keys of norm 1, ``(B, L n_h, H, K)``: n_h consecutive steps for each position.
        v: values, ``(B, L n_h, H, V)``.
        beta: fraction to erase, in [0, 1], or in [0, 2] to allow negative eigenvalues, ``(B, L n_h, H)``.
        g: log decay, at most 0, one per position: ``(B, L, H)``, or ``(B, L, H, K)`` per key channel (n_h = 1 only);
            None for no decay.
        state: S before the first position, ``(B, H, K, V)``; None for zeros.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        plain: compute by the definition, position by position; a single position is always computed this way.

    Returns:
        y ``(B, L, H, V)``, read after the last step of each position, and S after the last position
        ``(B, H, K, V)``, in float32 at least.
    """
    batch, length, heads, d_key = q.shape
    n_h = k.shape[1] // length
    g = beta.new_zeros(batch, length, heads) if g is None else hide(g, mask)
    per_channel = g.dim() == q.dim()
    g = g if per_channel else g.unsqueeze(-1)
    k, v, beta = (torch.unflatten(x, 1, (length, n_h)) for x in (k, v, beta))
    k, beta = hide(k, mask), hide(beta, mask)
    start = start_state(state, v, batch, heads, d_key, v.shape[-1])
    if plain or length == 1:
        return over_positions(_delta_step, (q, k, v, beta, g), start)
    k, v, beta = (x.flatten(1, 2) for x in (k, v, beta))
    if loop_suits(v):
        # S <- e S - beta k (e k)^T S + k (beta v)^T, with the decay in the first and the read in the last of n_h steps
        e = F.pad(g.exp().unsqueeze(2), (0, 0, 0, 0, 0, n_h - 1), value=1.0).flatten(1, 2)
        r = F.pad(q.unsqueeze(2), (0, 0, 0, 0, n_h - 1, 0)).flatten(1, 2)
        beta = beta.unsqueeze(-1)
        y, end = state_loop(r, e.expand_as(k), k, beta * v, e * k, -beta * k, start)
        return y[:, n_h - 1 :: n_h], end
    c = max(1, (WIDE_CHUNK if d_key > WIDE else CHUNK) // n_h)  # in positions, of n_h steps each
    if per_channel:
        single = chunk_for(g, [size for size in CHUNKS if size <= c])
        c = single or c
        G = log_decay(g, c, exact=single is None)
    else:
        c = even_chunk(length, c)
        # the whole decay of a position is applied in its first step
        g = torch.cat((g.unsqueeze(2), g.new_zeros(batch, length, n_h - 1, heads, 1)), 2).flatten(1, 2)
        G = log_decay(g, c * n_h, exact=True)
    q, k, v = to_chunks(q, c), to_chunks(k, c * n_h), to_chunks(v, c * n_h)
    beta = to_chunks(beta, c * n_h).unsqueeze(-1)

    def read(x: Tensor) -> Tensor:
        """Select the last step of each position, after which the state is read."""
        return x[..., n_h - 1 :: n_h, :]

    if G.shape[-1] == 1:
        D = decay_matrix(G.squeeze(-1), q.dtype)
        A, M = (q @ k.mT) * read(D), (k @ k.mT) * D
    else:
        (A,), (M,) = decayed_products([q, k], [k], G, single is not None)
    later, from_start, decay = (x.exp().to(q.dtype) for x in (to_end(G), G, G[..., -1:, :].mT))
    right = torch.cat((beta * v, beta * from_start * k), -1)
    # solve_triangular does not read the diagonal of M
    solved = torch.linalg.solve_triangular(beta * M, right, upper=False, unitriangular=True)
    U, W = solved.split((v.shape[-1], d_key), -1)
    u, inside, end = delta_carry(U, W, k * later, decay, start)
    return from_chunks((q * read(from_start)) @ inside + A @ u, length), end


@full_precision
def low_rank_rule(
    r: Tensor,
    w: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute ``S_t = diag(exp(w_t)) S_(t-1) + b_t (a_t^T S_(t-1)) + k_t v_t^T``, ``y_t = S_t^T r_t``, as in RWKV-7.

    With Gp = G - w and products as in :func:`lrtasks.models.ops.decay.decayed_products`: solve
    ``(I - Aab) [U | W] = [Aak V | a exp(Gp)]``, then u = U + W S_in and Y = Ark V + Arb u + (r exp(G)) S_in.

    Args:
        r: read vectors (queries), ``(B, L, H, K)``; w, k, a and b have the same shape.
        w: log decay, at most 0.
        k: keys.
        v: values, ``(B, L, H, V)``.
        a: read vectors of the erase.
        b: write vectors of the erase.
        state: as in :func:`delta_rule`, which also describes the results.
        mask: as in :func:`delta_rule`.
        plain: as in :func:`delta_rule`.
    """
    batch, length, heads, d_key = r.shape
    w, k, a, b = (hide(x, mask) for x in (w, k, a, b))
    start = start_state(state, v, batch, heads, d_key, v.shape[-1])
    if plain or length == 1:
        return over_positions(_low_rank_step, (r, w, k, v, a, b), start)
    if loop_suits(v):
        return state_loop(r, w.exp(), k, v, a, b, start)
    chunk = chunk_for(w, LOW_RANK_CHUNKS)
    c = chunk or LOW_RANK_CHUNKS[-1]
    r, k, v, a, b = (to_chunks(x, c) for x in (r, k, v, a, b))
    G = log_decay(w, c, exact=chunk is None)
    before = torch.cat((torch.zeros_like(G[..., :1, :]), G[..., :-1, :]), -2)
    # row i of ``a`` is multiplied by exp(G_(i-1)): shifted to row i - 1, it can be handled as a row of r; the results
    # are shifted back and so are strictly below the diagonal
    early = torch.cat((a[..., 1:, :], torch.zeros_like(a[..., :1, :])), -2)
    (Arb, Ark), (Aab, Aak) = decayed_products([r, early], [b, k], G, chunk is not None)
    Aab, Aak = (torch.cat((torch.zeros_like(x[..., :1, :]), x[..., :-1, :]), -2) for x in (Aab, Aak))
    right = torch.cat((Aak @ v, a * before.exp().to(a.dtype)), -1)
    solved = torch.linalg.solve_triangular(-Aab, right, upper=False, unitriangular=True)
    U, W = solved.split((v.shape[-1], d_key), -1)
    later, from_start, decay = (x.exp().to(r.dtype) for x in (to_end(G), G, G[..., -1:, :].mT))
    u, inside, end = delta_carry(U, -W, b * later, decay, start, (k * later).mT @ v)
    y = Ark @ v + Arb @ u + (r * from_start) @ inside
    return from_chunks(y, length), end
