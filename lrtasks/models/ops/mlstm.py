"""The matrix memory of xLSTM, stabilised (mLSTM; Beck et al., arXiv:2405.04517, section 2.3 and appendix A.2).

With lf = logsigmoid(f), keys scaled by D^(-1/2), and n the same recurrence as C with 1 for v:

    C_t = exp(lf_t) C_(t-1) + exp(i_t) k_t v_t^T
    h_t = C_t^T q_t / max(|n_t^T q_t|, 1)

Everything carried is multiplied by exp(-m_t), where m_t = max(lf_t + m_(t-1), i_t) starts at minus infinity; then the
denominator is ``max(|n^T q|, exp(-m)) + 1e-6``. The normaliser is one more column of C, with ones for values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models.ops.chunked import (
    carry,
    decay_matrix,
    from_chunks,
    full_precision,
    hide,
    over_positions,
    to_chunks,
    to_end,
)

CHUNK = 64
EPS = 1e-6
NOTHING = -1e9
"""Log input gate of what is not written; finite, so that differences of it are."""
START = -1e30
"""m before the first position: minus infinity, but finite for the same reason."""

State = tuple[Tensor, Tensor]
"""C with the normaliser as its last column, ``(B, H, D, V + 1)``, times exp(-m); and m, ``(B, H)``."""


def mlstm_start(q: Tensor, v: Tensor) -> State:
    """State before the first position for q ``(B, ..., H, D)`` and v ``(B, ..., H, V)``."""
    shape = (q.shape[0], q.shape[-2])
    return q.new_zeros(*shape, q.shape[-1], v.shape[-1] + 1), q.new_full(shape, START)


@full_precision
def mlstm_step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State) -> tuple[Tensor, State]:
    """One position: q, k ``(B, H, D)``, v ``(B, H, V)``, i, f ``(B, H)``; gives h ``(B, H, V)`` and the new state."""
    return _step(q, k, v, i, F.logsigmoid(f), state)


@full_precision
def mlstm_reference(
    q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor, state: State | None = None, mask: Tensor | None = None
) -> tuple[Tensor, State]:
    """The plain loop for :func:`mlstm`."""
    i, lf = hide(i, mask, NOTHING), hide(F.logsigmoid(f), mask)
    return over_positions(_step, (q, hide(k, mask), v, i, lf), state or mlstm_start(q, v))


@full_precision
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: State | None = None,
    mask: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, State]:
    """Compute all positions chunk by chunk.

    Args:
        q: queries, ``(B, L, H, D)``.
        k: keys, shaped as q; scaled by D^(-1/2) here.
        v: values, ``(B, L, H, V)``.
        i: input gate before its exponential, ``(B, L, H)``.
        f: forget gate before its sigmoid, ``(B, L, H)``.
        state: before the first position; None for nothing written yet.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        chunk: positions per chunk.

    Returns:
        h ``(B, L, H, V)`` and the state after the last position, in float32 at least.
    """
    length = q.shape[1]
    C, m = state or mlstm_start(q, v)
    c = min(chunk, length)
    lf, i, k = hide(F.logsigmoid(f), mask), hide(i, mask, NOTHING), hide(k, mask) / math.sqrt(k.shape[-1])
    q, k, v = to_chunks(q, c), to_chunks(k, c), to_chunks(F.pad(v, (0, 1), value=1.0), c)
    # in float64, (B, H, n, c): differences of sums are taken
    G, i = to_chunks(lf.double(), c).cumsum(-1), to_chunks(i.double(), c, NOTHING)
    last = G[..., -1:]
    at_end = to_end(G, 3) + i  # log of what a position weighs at the end of its chunk
    m_in, m_end = _border_maxima(last.squeeze(-1), at_end.amax(-1), m)
    m_all = G + torch.maximum((i - G).cummax(-1).values, m_in.unsqueeze(-1))

    scores = (q @ k.mT) * decay_matrix(G, q.dtype, -m_all, i)
    inherited = (G + m_in.unsqueeze(-1) - m_all).exp().to(q.dtype)
    m_out = torch.cat((m_in[..., 1:], m_end.unsqueeze(-1)), -1)
    written = (at_end - m_out.unsqueeze(-1)).exp().to(q.dtype)
    kept = (last.squeeze(-1) + m_in - m_out).exp().to(q.dtype)
    inside, C = carry(kept[..., None, None], k.mT @ (v * written.unsqueeze(-1)), C)
    sums = scores @ v + (q @ inside) * inherited.unsqueeze(-1)
    return from_chunks(_normalised(sums, m_all.to(q.dtype)), length), (C, m_end.to(q.dtype))


def _step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, lf: Tensor, state: State) -> tuple[Tensor, State]:
    C, m = state
    m_new = torch.maximum(lf + m, i)
    kept, written = (lf + m - m_new).exp(), (i - m_new).exp()
    k = k / math.sqrt(k.shape[-1]) * written.unsqueeze(-1)
    C = C * kept[..., None, None] + k.unsqueeze(-1) * F.pad(v, (0, 1), value=1.0).unsqueeze(-2)
    return _normalised((q.unsqueeze(-2) @ C).squeeze(-2), m_new), (C, m_new)


def _normalised(sums: Tensor, m: Tensor) -> Tensor:
    """Divide by the last column; ``exp(-m)`` stays finite, so that its gradient does."""
    least = math.log(torch.finfo(sums.dtype).max) * 0.9
    floor = (-m.clamp_min(-least)).exp()
    denominator = torch.maximum(sums[..., -1].abs(), floor) + EPS
    return sums[..., :-1] / denominator.unsqueeze(-1)


def _border_maxima(last: Tensor, largest: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """m before each chunk ``(B, H, n)`` and after the last one ``(B, H)``, both in float64."""
    before = []
    m = m.double()
    for last_i, largest_i in zip(last.unbind(-1), largest.unbind(-1), strict=True):
        before.append(m)
        m = torch.maximum(last_i + m, largest_i)
    return torch.stack(before, -1), m
