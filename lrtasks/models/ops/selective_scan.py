"""The selective scan of Mamba (S6; Gu and Dao, arXiv:2312.00752, section 3): N states per channel, diagonal.

    h_t = exp(dt_t A) h_(t-1) + dt_t B_t u_t     (D channels, N states each)
    y_t = h_t C_t                                (sum over states)

With ``negative`` the transition is ``2 exp(dt_t A) - 1``, in (-1, 1] (Grazzi et al., arXiv:2411.12537, section 4).

All h together are N times as large as the input. So the sequence is worked through in blocks, only the states between
blocks are kept, and the gradient computes each block again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrtasks.models.ops.chunked import full_precision, hide, over_positions, start_state

BLOCK = 64


@full_precision
def selective_scan_step(
    u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor, negative: bool = False
) -> tuple[Tensor, Tensor]:
    """One position: u, dt ``(batch, D)``, B, C ``(batch, N)``, A ``(D, N)``, h ``(batch, D, N)`` to y and h."""
    return _step(u, dt, B, C, A, h, negative)


def _step(u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor, negative: bool) -> tuple[Tensor, Tensor]:
    a = (dt.unsqueeze(-1) * A).exp()
    h = (2 * a - 1 if negative else a) * h + (dt * u).unsqueeze(-1) * B.unsqueeze(-2)
    return (h @ C.unsqueeze(-1)).squeeze(-1), h


@full_precision
def selective_scan_reference(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    negative: bool = False,
) -> tuple[Tensor, Tensor]:
    """The plain loop for :func:`selective_scan`."""
    start = start_state(state, u, len(u), *A.shape)
    return over_positions(lambda u, dt, B, C, h: _step(u, dt, B, C, A, h, negative), (u, hide(dt, mask), B, C), start)


@full_precision
def selective_scan(
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    negative: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute all positions in little memory.

    Args:
        u: inputs, ``(batch, L, D)``.
        dt: steps, at least 0, ``(batch, L, D)``.
        A: eigenvalues, at most 0, ``(D, N)``.
        B: how each input enters the states, ``(batch, L, N)``.
        C: how the output reads them, ``(batch, L, N)``.
        state: h before the first position, ``(batch, D, N)``; None for zeros.
        mask: ``(batch, L)``, False at padding, which writes nothing and decays nothing.
        negative: let the transitions be negative.

    Returns:
        y ``(batch, L, D)`` and h after the last position ``(batch, D, N)``, in float32 at least.
    """
    start = start_state(state, u, len(u), *A.shape)
    y, end = _SelectiveScan.apply(u, hide(dt, mask), A, B, C, start, negative)  # type: ignore[no-untyped-call]
    return y, end


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, start: Tensor, negative: bool
    ) -> tuple[Tensor, Tensor]:
        u, dt, B, C = (x.transpose(0, 1).contiguous() for x in (u, dt, B, C))
        y, h, borders = torch.empty_like(u), start, []
        for first in range(0, len(u), BLOCK):
            at = slice(first, first + BLOCK)
            borders.append(h)
            _, H = _block(u[at], dt[at], A, B[at], h, negative)
            torch.matmul(H, C[at].unsqueeze(-1), out=y[at].unsqueeze(-1))
            h = H[-1].clone()
        ctx.save_for_backward(u, dt, A, B, C, *borders)
        ctx.negative = negative
        return y.transpose(0, 1), h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dh: Tensor) -> tuple[Tensor | None, ...]:
        u, dt, A, B, C, *borders = ctx.saved_tensors
        dy = dy.transpose(0, 1).contiguous()
        du, ddt, dA, dB, dC = (torch.zeros_like(x) for x in (u, dt, A, B, C))
        for i in range(len(borders) - 1, -1, -1):
            at = slice(i * BLOCK, (i + 1) * BLOCK)
            a, H = _block(u[at], dt[at], A, B[at], borders[i], ctx.negative)
            dC[at] = (dy[at].unsqueeze(-2) @ H).squeeze(-2)
            # the same scan run backwards, from the gradient that the next block hands over
            dH = dy[at].unsqueeze(-1) * C[at].unsqueeze(-2)
            a_rows, rows = a.unbind(), dH.unbind()
            rows[-1].add_(dh)
            for t in range(len(rows) - 1, 0, -1):
                rows[t - 1].addcmul_(a_rows[t], rows[t])
            dh = a_rows[0] * rows[0]
            entering = dt[at] * u[at]
            dB[at] = (entering.unsqueeze(-2) @ dH).squeeze(-2)
            of_entering = (dH @ B[at].unsqueeze(-1)).squeeze(-1)
            du[at] = of_entering * dt[at]
            # by dt A: the transition, or for 2 exp - 1 itself and 1
            exponent = a.add_(1).mul_(dH) if ctx.negative else a.mul_(dH)
            exponent[1:].mul_(H[:-1])
            exponent[0].mul_(borders[i])
            dA += torch.einsum("tbdn,tbd->dn", exponent, dt[at])
            ddt[at] = exponent.mul_(A).sum(-1) + of_entering * u[at]
        of_u, of_dt, of_B, of_C = (x.transpose(0, 1) for x in (du, ddt, dB, dC))
        return of_u, of_dt, dA, of_B, of_C, dh, None


def _block(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, h: Tensor, negative: bool) -> tuple[Tensor, Tensor]:
    """Transitions and states of one block, both ``(positions, batch, D, N)``; inputs ``(positions, batch, ...)``."""
    a = (dt.unsqueeze(-1) * A).exp_()
    if negative:
        a.mul_(2).sub_(1)
    H = (dt * u).unsqueeze(-1) * B.unsqueeze(-2)
    for a_t, H_t in zip(a.unbind(), H.unbind(), strict=True):
        h = H_t.addcmul_(a_t, h)
    return a, H
