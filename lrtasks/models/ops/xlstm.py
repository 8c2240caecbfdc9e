"""The memories of xLSTM (Beck et al., arXiv:2405.04517, sections 2.2 and 2.3 and appendix A), stabilised.

The matrix memory (:func:`mlstm`), with lf = logsigmoid(f), keys scaled by D^(-1/2), and n following the recurrence of C
with 1 in place of v:

    C_t = exp(lf_t) C_(t-1) + exp(i_t) k_t v_t^T
    h_t = C_t^T q_t / max(|n_t^T q_t|, 1)

The carried state is multiplied by exp(-m_t), where m_t = max(lf_t + m_(t-1), i_t) starts at minus infinity. The
denominator then is ``max(|n^T q|, exp(-m)) + 1e-6``. The normaliser n is stored as an additional column of C, for
which v is 1.

The scalar memory with recurrent gates (:func:`slstm`), with the slots ``(i, f, z, o) = x_t + R h_(t-1)`` of each head,
where x_t is the contribution of the input, including the biases:

    m = max(logsigmoid(f) + m, i);  i' = exp(i - m);  f' = exp(logsigmoid(f) + m_before - m)
    c = f' c + i' tanh(z);  n = f' n + i';  h = sigmoid(o) c / n

The gates read h of the previous position, so positions cannot be computed in parallel. The contribution of the input at
all positions is computed before the loop, and the gradient of R after it. m only keeps the exponentials in range; h
does not depend on m, so no gradient passes through m.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.models.ops.chunked import (
    decay_matrix,
    even_chunk,
    from_chunks,
    over_positions,
    rows,
    skipping_padding,
    to_chunks,
    to_end,
)
from lrtasks.models.ops.layers import full_precision, hide
from lrtasks.models.ops.scans import carry

CHUNK = 32
EPS = 1e-6
NOTHING = -1e9
"""Log input gate of positions that write nothing; finite, so that differences are finite."""
START = -1e30
"""m before the first position: minus infinity, but finite for the same reason."""

State = tuple[Tensor, Tensor]
"""State of the matrix memory: exp(-m) C, with the normaliser as last column, ``(B, H, D, V + 1)``; m ``(B, H)``."""


def mlstm_start(q: Tensor, v: Tensor) -> State:
    """Return the state before the first position for q ``(B, ..., H, D)`` and v ``(B, ..., H, V)``."""
    shape = (q.shape[0], q.shape[-2])
    return q.new_zeros(*shape, q.shape[-1], v.shape[-1] + 1), q.new_full(shape, START)


@full_precision
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: State | None = None,
    mask: Tensor | None = None,
    *,
    plain: bool = False,
) -> tuple[Tensor, State]:
    """Compute all positions of the matrix memory chunk by chunk.

    Args:
        q: queries, ``(B, L, H, D)``.
        k: keys, shaped as q; this function scales them by D^(-1/2).
        v: values, ``(B, L, H, V)``.
        i: input gate before its exponential, ``(B, L, H)``.
        f: forget gate before its sigmoid, ``(B, L, H)``.
        state: state before the first position; None for an empty memory.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        plain: compute by the definition, position by position; a single position is always computed this way.

    Returns:
        h ``(B, L, H, V)`` and the state after the last position, in float32 at least.
    """
    length = q.shape[1]
    C, m = state or mlstm_start(q, v)
    lf, i, k = hide(F.logsigmoid(f), mask), hide(i, mask, NOTHING), hide(k, mask)
    scale = 1 / math.sqrt(k.shape[-1])
    if plain or length == 1:
        return over_positions(_mlstm_step, (q, k * scale, F.pad(v, (0, 1), value=1.0), i, lf), (C, m))
    c = even_chunk(length, CHUNK)
    q, k, v = to_chunks(q, c), to_chunks(k, c), to_chunks(F.pad(v, (0, 1), value=1.0), c)
    # in float64, (B, H, n, c), because sums are subtracted
    lf, i = to_chunks(lf.double(), c), to_chunks(i.double(), c, NOTHING)
    G, total = lf.cumsum(-1), lf.flatten(2).cumsum(-1)
    start = m.double().unsqueeze(-1)
    m_all = total + torch.maximum((i.flatten(2) - total).cummax(-1).values, start)
    m_all = torch.unflatten(m_all, -1, (-1, c))
    m_out = m_all[..., -1:]
    m_in = torch.cat((start.unsqueeze(-1), m_out[..., :-1, :]), -2)
    i = i + math.log(scale)

    scores = decay_matrix(G, q.dtype, -m_all, i, q @ k.mT)
    inherited = (G + m_in - m_all).exp().to(q.dtype)
    written = (to_end(G) + i - m_out).exp().to(q.dtype)
    kept = (G[..., -1:] + m_in - m_out).exp().to(q.dtype)
    inside, C = carry(kept.unsqueeze(-1), (k * written.unsqueeze(-1)).mT @ v, C)
    sums = scores @ v + (q @ inside) * inherited.unsqueeze(-1)
    return from_chunks(_normalised(sums, m_all.to(q.dtype)), length), (C, m_out[:, :, -1, 0].to(q.dtype))


def _mlstm_step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, lf: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute one position; k is already scaled, and the last entry of v is 1."""
    C, m = state
    m_new = torch.maximum(lf + m, i)
    kept, written = (lf + m - m_new).exp(), (i - m_new).exp()
    C = C * kept[..., None, None] + (k * written.unsqueeze(-1)).unsqueeze(-1) * v.unsqueeze(-2)
    return _normalised((q.unsqueeze(-2) @ C).squeeze(-2), m_new), (C, m_new)


def _normalised(sums: Tensor, m: Tensor) -> Tensor:
    """Divide by the last column; ``exp(-m)`` is kept finite, so that its gradient is finite."""
    bound = math.log(torch.finfo(sums.dtype).max) * 0.9
    floor = (-m.clamp_min(-bound)).exp()
    sums, normaliser = torch.split(sums, [sums.shape[-1] - 1, 1], -1)
    # the gradient of a product has fewer operations than that of a quotient
    return sums * (torch.maximum(normaliser.abs(), floor.unsqueeze(-1)) + EPS).reciprocal()


class SLSTMState(NamedTuple):
    """State of the scalar memory: h, c, n and m, each ``(B, H, D)``."""

    h: Tensor
    c: Tensor
    n: Tensor
    m: Tensor


def slstm_start(x: Tensor) -> SLSTMState:
    """Return the state before the first position, for slots ``(B, ..., H, 4, D)``."""
    zero = x.new_zeros(x.shape[0], x.shape[-3], x.shape[-1])
    return SLSTMState(zero, zero, zero, torch.full_like(zero, START))


@full_precision
def slstm_step(x: Tensor, R: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
    """Compute one position from x ``(B, H, 4, D)`` and R as in :func:`slstm`; return h ``(B, H, D)`` and the state."""
    h, c, n, m = state
    i, f, z, o = (x + torch.einsum("bhd,hsed->bhse", h, R)).unbind(2)
    lf = F.logsigmoid(f)
    m_new = torch.maximum(lf + m, i)
    write, keep = (i - m_new).exp(), (lf + m - m_new).exp()
    c, n = keep * c + write * z.tanh(), keep * n + write
    h = o.sigmoid() * c / n
    return h, SLSTMState(h, c, n, m_new)


@full_precision
def slstm(
    x_if: Tensor, x_zo: Tensor, bias: Tensor, R: Tensor, mask: Tensor | None = None, *, plain: bool = False
) -> Tensor:
    """Compute all positions of the scalar memory, one after the other.

    Args:
        x_if: contribution of the input to the slots i and f, ``(B, L, H, 2, D)``. It is not copied if it is a view of
            ``(H, B, L, 2, D)``.
        x_zo: contribution of the input to the slots z and o, like ``x_if``.
        bias: ``(H, 4, D)``.
        R: recurrent maps of each head and slot, ``(H, 4, D out, D in)``.
        mask: ``(B, L)``, False at padding, which is skipped; h is 0 there.
        plain: compute by the definition.

    Returns:
        h ``(B, L, H, D)``, in float32 at least.
    """

    def run(x_if: Tensor, x_zo: Tensor) -> Tensor:
        if plain:
            x = torch.cat((x_if, x_zo), -2) + bias
            return over_positions(lambda x_t, state: slstm_step(x_t, R, state), (x,), slstm_start(x))[0]
        inputs = (x.permute(2, 0, 1, 3, 4).flatten(3) for x in (x_if, x_zo))
        h: Tensor = _SLSTM.apply(*inputs, bias.flatten(1), R.flatten(1, 2).mT)  # type: ignore[no-untyped-call]
        return h.permute(1, 2, 0, 3)

    if mask is None:
        return run(x_if, x_zo)
    return skipping_padding(lambda x: run(*x.chunk(2, -2)), torch.cat((x_if, x_zo), -2), mask)


class _SLSTM(torch.autograd.Function):
    """The loop of :func:`slstm`, on ``x_if`` and ``x_zo`` ``(H, B, L, 2 D)``, bias ``(H, 4 D)``, R ``(H, D, 4 D)``."""

    @staticmethod
    def forward(ctx: Any, x_if: Tensor, x_zo: Tensor, bias: Tensor, R: Tensor) -> Tensor:
        from lrtasks.models.ops import loops  # imports numba

        heads, batch, length, width = x_if.shape
        width //= 2
        slots = x_if.new_empty(heads, batch, length, 4 * width)
        keep = x_if.new_empty(heads, batch, length, width)  # f'
        pairs = x_if.new_zeros(heads, batch, length + 1, 2, width)  # c and n, from before the first position
        h = x_if.new_zeros(heads, batch, length + 1, width)
        m = x_if.new_full((heads, batch, width), START)
        loop = partial(loops.run_loop, loops.slstm_forward) if loops.slstm_usable(m) else _slstm_forward
        loop(x_if.contiguous(), x_zo.contiguous(), bias.contiguous(), R.contiguous(), slots, keep, pairs, h, m)
        ctx.save_for_backward(slots, keep, pairs, h, R)
        return h[:, :, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, ...]:
        from lrtasks.models.ops import loops

        slots, keep, pairs, h, R = ctx.saved_tensors
        d_slots = torch.empty_like(slots)
        d_h, d_pair = F.pad(given, (0, 0, 1, 0)), torch.zeros_like(pairs[:, :, 0])
        loop = partial(loops.run_loop, loops.slstm_backward) if loops.slstm_usable(d_pair[:, :, 0]) else _slstm_backward
        loop(slots, keep, pairs, R.mT.contiguous(), d_h.contiguous(), d_pair, d_slots)
        of_if, of_zo = d_slots.chunk(2, -1)
        return of_if, of_zo, d_slots.sum((1, 2)), (h[:, :, :-1].mT @ d_slots).sum(1)


def _slstm_forward(
    x_if: Tensor,
    x_zo: Tensor,
    bias: Tensor,
    R: Tensor,
    slots: Tensor,
    keep: Tensor,
    pairs: Tensor,
    h: Tensor,
    m: Tensor,
) -> None:
    """Do what :func:`~lrtasks.models.ops.loops.slstm_forward` does, by operations of torch."""
    torch.add(torch.cat((x_if, x_zo), -1), bias[:, None, None], out=slots)
    pairs = pairs.movedim(3, 0)
    written = torch.ones_like(pairs[:, :, :, 0])  # tanh(z) and 1
    by_position = (slots, keep, h[:, :, :-1], h[:, :, 1:])
    both = (pairs[:, :, :, :-1], pairs[:, :, :, 1:])
    inputs = (*(x.movedim(2, 0) for x in by_position), *(x.movedim(3, 0) for x in both))
    for slots_t, keep_t, before_h, h_t, before, pair in rows(*inputs):
        i, f, z, o = slots_t.baddbmm_(before_h, R).chunk(4, -1)
        torch.add(F.logsigmoid(f), m, out=keep_t)
        m = torch.maximum(i, keep_t)
        i.sub_(m).exp_()
        keep_t.sub_(m).exp_()
        written[0] = z.tanh_()
        torch.addcmul(keep_t * before, i, written, out=pair)
        c, n = pair.unbind()
        torch.div(o.sigmoid_() * c, n, out=h_t)
    slots.chunk(4, -1)[1].neg_().sigmoid_()


def _slstm_backward(
    slots: Tensor, keep: Tensor, pairs: Tensor, RT: Tensor, d_h: Tensor, d_pair: Tensor, d_slots: Tensor
) -> None:
    """Do what :func:`~lrtasks.models.ops.loops.slstm_backward` does, by operations of torch."""
    slots, keep, pairs, d_h, d_slots = (x.movedim(2, 0) for x in (slots, keep, pairs, d_h, d_slots))
    d_pair = d_pair.movedim(2, 0)
    write, forget, z, o = slots.chunk(4, -1)
    before_c, before_n = pairs[:-1].unbind(3)
    c, n = pairs[1:].unbind(3)
    zero = torch.zeros_like(z)
    # factors from the gradient of h to the gradients of c and n, then from those of c, n and h to those of the slots
    by_h = torch.stack((o / n, -o * c / n.square()), 1)
    by_c = torch.stack((z * write, before_c * keep * forget, write * (1 - z.square()), zero), -2)
    by_n = torch.stack((write, before_n * keep * forget, zero, zero), -2)
    by_own = torch.stack((zero, zero, zero, c / n * o * (1 - o)), -2)
    unflat = torch.unflatten(d_slots, -1, (4, -1))
    inputs = (d_h[1:], d_h[:-1], by_h, by_c, by_n, by_own, keep, unflat, d_slots)
    for given, before, by_h_t, by_c_t, by_n_t, by_own_t, keep_t, unflat_t, d_slots_t in rows(*inputs, backwards=True):
        d_pair.addcmul_(by_h_t, given)
        d_c, d_n = d_pair.unsqueeze(-2).unbind()
        torch.mul(by_c_t, d_c, out=unflat_t)
        unflat_t.addcmul_(by_n_t, d_n).addcmul_(by_own_t, given.unsqueeze(-2))
        before.baddbmm_(d_slots_t, RT)
        d_pair.mul_(keep_t)
