"""The diagonal recurrence ``h_t = a_t h_(t-1) + b_t``, each channel by itself, real or complex.

Used by minGRU and minLSTM, LRU and S5, and RG-LRU. The gradient is the same recurrence run backwards:
``db_t = dh_t + conj(a_(t+1)) db_(t+1)`` and ``da_t = db_t conj(h_(t-1))``.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrtasks.models.ops.chunked import full_precision, over_positions, rows

Form = Literal["sequential", "blocks"]

NARROW = 2000
"""Numbers per position below which blocks are faster than one step per position, on a CPU."""


def diagonal_scan_step(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """One position, all ``(batch, ...)``: ``a h + b``, as output and as state."""
    h = a * h + b
    return h, h


def diagonal_scan_reference(a: Tensor, b: Tensor, initial: Tensor | None = None) -> Tensor:
    """The plain loop for :func:`diagonal_scan`."""
    start = torch.zeros_like(b[:, 0]) if initial is None else initial
    return over_positions(diagonal_scan_step, (a.expand_as(b), b), start)[0]


@full_precision
def diagonal_scan(a: Tensor, b: Tensor, initial: Tensor | None = None, form: Form | None = None) -> Tensor:
    """``h_t = a_t h_(t-1) + b_t``, differentiable in all arguments.

    Args:
        a: ``(batch, length, ...)``, broadcastable to ``b``; ``|a| <= 1`` for ``blocks``, which multiply many of them.
        b: ``(batch, length, ...)``; real or complex, as a.
        initial: h before the first position, ``(batch, ...)``; None for zeros.
        form: ``sequential``, one step per position; ``blocks``, about 2 sqrt(length) steps on more numbers each; None
            for the faster one.

    Returns:
        h at all positions, shaped as ``b``, in float32 at least.
    """
    dtype = torch.promote_types(a.dtype, b.dtype)
    b = b.to(dtype)
    start = torch.zeros_like(b[:, 0]) if initial is None else initial.to(dtype)
    h: Tensor = _DiagonalScan.apply(a.to(dtype).expand_as(b), b, start, form)  # type: ignore[no-untyped-call]
    return h


class _DiagonalScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, initial: Tensor, form: Form | None) -> Tensor:
        h = _scan(a.movedim(1, 0), b.movedim(1, 0), initial, form)
        ctx.save_for_backward(a, h, initial)
        ctx.form = form
        return h.movedim(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        a, h, initial = ctx.saved_tensors
        a = a.movedim(1, 0).conj()
        # from the last position to the first; the decay that meets position t is that of position t + 1
        turned = torch.cat((torch.zeros_like(a[:1]), a[1:].flip(0)))
        gradient = _scan(turned, given.movedim(1, 0).flip(0), torch.zeros_like(initial), ctx.form).flip(0)
        before = torch.cat((initial.unsqueeze(0), h[:-1])).conj()
        return (gradient * before).movedim(0, 1), gradient.movedim(0, 1), a[0] * gradient[0], None


def _scan(a: Tensor, b: Tensor, initial: Tensor, form: Form | None) -> Tensor:
    """h for a and b of shape ``(length, batch, ...)``."""
    if form is None:
        form = "blocks" if initial.numel() < NARROW or a.device.type != "cpu" else "sequential"
    return _by_blocks(a, b, initial) if form == "blocks" else _sequential(a, b, initial)


def _sequential(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    h = torch.empty_like(b, memory_format=torch.contiguous_format)
    before = initial
    for a_t, b_t, h_t in rows(a.contiguous(), b.contiguous(), h):
        torch.addcmul(b_t, a_t, before, out=h_t)
        before = h_t
    return h


def _by_blocks(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    """All blocks of c positions at once from zeros, then block by block what each inherits from the one before."""
    length = len(b)
    c = math.isqrt(length - 1) + 1
    n = -(-length // c)
    A, H = (_blocks(x, n, c) for x in (a, b))
    A_rows, H_rows = A.unbind(), H.unbind()
    for j in range(1, c):
        H_rows[j].addcmul_(A_rows[j], H_rows[j - 1])
        A_rows[j].mul_(A_rows[j - 1])  # now the product of all a of the block so far
    before = initial
    for A_i, H_i in zip(A.unbind(1), H.unbind(1), strict=True):
        H_i.addcmul_(A_i, before)
        before = H_i[-1]
    return H.transpose(0, 1).flatten(0, 1)[:length]


def _blocks(x: Tensor, n: int, c: int) -> Tensor:
    """A copy of ``(length, ...)`` as ``(c, n, ...)``, filled up with zeros at the end."""
    filled = x.new_zeros(n, c, *x.shape[1:])
    filled.flatten(0, 1)[: len(x)] = x
    return filled.transpose(0, 1).contiguous()
