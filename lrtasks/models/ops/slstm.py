"""The scalar memory of xLSTM with recurrent gates (sLSTM; Beck et al., arXiv:2405.04517, section 2.2).

With the slots ``(i, f, z, o) = x_t + R h_(t-1)`` of each head, x_t the slots' part of the input with their biases:

    m = max(logsigmoid(f) + m, i);  i' = exp(i - m);  f' = exp(logsigmoid(f) + m_before - m)
    c = f' c + i' tanh(z);  n = f' n + i';  h = sigmoid(o) c / n

The gates read h of the position before, so that nothing can run in parallel. The input's part of all positions is
computed before the loop, and the gradient of R for all positions after it. h does not depend on m, which only keeps
the exponentials in range, and so no gradient passes through m.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.models.ops.chunked import full_precision, over_positions, rows, skipping_padding

START = -1e30
"""m before the first position: minus infinity, but finite."""


class SLSTMState(NamedTuple):
    """h, c, n and m, each ``(B, H, D)``."""

    h: Tensor
    c: Tensor
    n: Tensor
    m: Tensor


def slstm_start(x: Tensor) -> SLSTMState:
    """State before the first position, for slots ``(B, ..., 4, H, D)``."""
    zero = x.new_zeros(x.shape[0], *x.shape[-2:])
    return SLSTMState(zero, zero, zero, torch.full_like(zero, START))


@full_precision
def slstm_step(x: Tensor, R: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
    """One position: x ``(B, 4, H, D)`` and R as for :func:`slstm`; gives h ``(B, H, D)`` and the new state."""
    return _step(x, R, state)


def _step(x: Tensor, R: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
    h, c, n, m = state
    i, f, z, o = (x + torch.einsum("bhd,hsed->bshe", h, R)).unbind(1)
    lf = F.logsigmoid(f)
    m_new = torch.maximum(lf + m, i)
    write, keep = (i - m_new).exp(), (lf + m - m_new).exp()
    c, n = keep * c + write * z.tanh(), keep * n + write
    h = o.sigmoid() * c / n
    return h, SLSTMState(h, c, n, m_new)


@full_precision
def slstm_reference(x: Tensor, R: Tensor, mask: Tensor | None = None) -> Tensor:
    """The plain loop for :func:`slstm`."""

    def step(x: Tensor, valid: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
        h, after = _step(x, R, state)
        kept = (torch.where(valid, new, old) for new, old in zip(after, state, strict=True))
        return torch.where(valid, h, 0), SLSTMState(*kept)

    valid = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    return over_positions(step, (x, valid[..., None, None]), slstm_start(x))[0]


@full_precision
def slstm(x: Tensor, R: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute all positions, one after the other.

    Args:
        x: the slots i, f, z, o before their functions, biases included, ``(B, L, 4, H, D)``.
        R: recurrent maps of each head and slot, ``(H, 4, D out, D in)``.
        mask: ``(B, L)``, False at padding, which is skipped and gives 0.

    Returns:
        h ``(B, L, H, D)``, in float32 at least.
    """

    def run(x: Tensor) -> Tensor:
        h: Tensor = _SLSTM.apply(x.permute(1, 3, 0, 2, 4).flatten(3), R.flatten(1, 2).mT)  # type: ignore[no-untyped-call]
        return h.permute(2, 0, 1, 3)

    return run(x) if mask is None else skipping_padding(run, x, mask)


class _SLSTM(torch.autograd.Function):
    """On slots ``(L, H, B, 4 D)`` and R ``(H, D in, 4 D out)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, R: Tensor) -> Tensor:
        length, heads, batch, width = x.shape
        width //= 4
        x, R = x.contiguous(), R.contiguous()
        slots = torch.empty_like(x)
        gates = x.new_empty(length, 2, heads, batch, width)  # i' and f'
        pairs = x.new_zeros(length + 1, 2, heads, batch, width)  # c and n, from before the first position
        h = x.new_zeros(length + 1, heads, batch, width)
        m = x.new_full((heads, batch, width), START)
        written = x.new_ones(2, heads, batch, width)  # tanh(z) and 1
        for x_t, slots_t, gates_t, before_h, before, h_t, pair in rows(
            x, slots, gates, h[:-1], pairs[:-1], h[1:], pairs[1:]
        ):
            i, f, z, o = torch.baddbmm(x_t, before_h, R, out=slots_t).chunk(4, -1)
            write, keep = gates_t.unbind()
            write.copy_(i)
            torch.add(F.logsigmoid(f), m, out=keep)
            m = torch.maximum(write, keep)
            gates_t.sub_(m).exp_()
            torch.tanh(z, out=written[0])
            torch.addcmul(keep * before, write, written, out=pair)
            c, n = pair.unbind()
            torch.div(o.sigmoid() * c, n, out=h_t)
        ctx.save_for_backward(slots, gates, pairs, h, R)
        return h[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        slots, gates, pairs, h, R = ctx.saved_tensors
        _, f, z, o = slots.chunk(4, -1)
        z, o = z.tanh(), o.sigmoid()
        write, keep = gates.unbind(1)
        before_c, before_n = pairs[:-1].unbind(1)
        c, n = pairs[1:].unbind(1)
        # what a gradient in h adds to those in c and n; then how the three enter those in the slots (L, H, B, 4, D)
        by_h = torch.stack((o / n, -o * c / n.square()), 1)
        forget = keep * torch.sigmoid(-f)
        zero = torch.zeros_like(z)
        by_slots = (
            torch.stack((z * write, before_c * forget, write * (1 - z.square()), zero), -2),
            torch.stack((write, before_n * forget, zero, zero), -2),
            torch.stack((zero, zero, zero, c / n * o * (1 - o)), -2),
        )
        slot_gradient = torch.empty_like(slots)
        d_slots = torch.unflatten(slot_gradient, -1, (4, -1))
        d_pair, d_h = torch.zeros_like(pairs[0]), torch.zeros_like(h[0])
        RT = R.mT.contiguous()
        inputs = (given, by_h, *by_slots, keep, d_slots, slot_gradient)
        for given_t, by_h_t, by_c, by_n, by_own, keep_t, d_slots_t, flat_t in rows(*inputs, backwards=True):
            d_h = d_h + given_t
            d_pair = torch.addcmul(d_pair, by_h_t, d_h)
            d_c, d_n = d_pair.unsqueeze(-2).unbind()
            torch.mul(by_c, d_c, out=d_slots_t)
            d_slots_t.addcmul_(by_n, d_n).addcmul_(by_own, d_h.unsqueeze(-2))
            d_h = torch.bmm(flat_t, RT)
            d_pair.mul_(keep_t)
        of_R = h[:-1].transpose(0, 1).flatten(1, 2).mT @ slot_gradient.transpose(0, 1).flatten(1, 2)
        return slot_gradient, of_R
