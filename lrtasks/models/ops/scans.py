"""Scans of diagonal recurrences: the plain scan, and the selective scan of Mamba.

:func:`diagonal_scan` is ``h_t = a_t h_(t-1) + b_t`` per channel, real or complex. It is used by minGRU and minLSTM,
LRU and S5, and RG-LRU; :func:`carry` is the same recurrence over chunks. The gradient is the recurrence run backwards:
``db_t = dh_t + conj(a_(t+1)) db_(t+1)`` and ``da_t = db_t conj(h_(t-1))``.

:func:`selective_scan` (S6; Gu and Dao, arXiv:2312.00752, section 3) has N states per channel:

    h_t = exp(dt_t A) h_(t-1) + dt_t B_t u_t     (D channels, N states each)
    y_t = h_t C_t                                (sum over states)

With ``negative`` the transition is ``2 exp(dt_t A) - 1``, in (-1, 1] (Grazzi et al., arXiv:2411.12537, section 4). All
states together would be N times as large as the input. The sequence is therefore processed in blocks: only the states
between blocks are saved, and the gradient recomputes each block.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lrtasks.models.ops.chunked import over_positions, rows, start_state
from lrtasks.models.ops.layers import full_precision, hide

Form = Literal["plain", "sequential", "blocks"]

NARROW = 2000
"""Numbers per position below which, on a CPU, ``blocks`` is faster than one step per position."""
BLOCK = 256
"""Positions in a block of the selective scan by operations of torch. Larger blocks take more memory and less time."""


def _diagonal_step(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    h = a * h + b
    return h, h


@full_precision
def diagonal_scan(a: Tensor, b: Tensor, initial: Tensor | None = None, form: Form | None = None) -> Tensor:
    """Compute ``h_t = a_t h_(t-1) + b_t``, differentiable in all arguments.

    Args:
        a: ``(batch, length, ...)``, broadcastable to ``b``; ``|a| <= 1`` for ``blocks``, which multiplies many of them.
        b: ``(batch, length, ...)``; real or complex, as a.
        initial: h before the first position, ``(batch, ...)``; None for zeros.
        form: ``sequential``: one step per position; ``blocks``: about 2 sqrt(length) steps, each on more numbers;
            ``plain``: the definition; None: the faster of ``sequential`` and ``blocks``. A single position is always
            computed by the definition.

    Returns:
        h at all positions, shaped as ``b``, in float32 at least.
    """
    dtype = torch.promote_types(a.dtype, b.dtype)
    b = b.to(dtype)
    start = torch.zeros_like(b[:, 0]) if initial is None else initial.to(dtype)
    if b.shape[1] == 1:
        return a * start.unsqueeze(1) + b
    if form == "plain":
        return over_positions(_diagonal_step, (a.expand_as(b), b), start)[0]
    a = a.to(dtype).expand_as(b)
    _, h = _DiagonalScan.apply(a.movedim(1, 0), b.movedim(1, 0), start, form)  # type: ignore[no-untyped-call]
    return h.movedim(0, 1)


def carry(decay: Tensor, update: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the states at chunk borders, ``S_(i+1) = decay_i S_i + update_i``.

    Args:
        decay: ``(B, H, n, ...)``, broadcastable to ``update``.
        update: what each chunk adds, ``(B, H, n, K, V)``.
        start: S_0, ``(B, H, K, V)``.

    Returns:
        S_0 .. S_(n-1), shaped as ``update``, and S_n, ``(B, H, K, V)``.
    """
    inputs = decay.movedim(2, 0), update.movedim(2, 0), start
    before, after = _DiagonalScan.apply(*inputs, "sequential")  # type: ignore[no-untyped-call]
    return before.movedim(0, 2), after[-1]


class _DiagonalScan(torch.autograd.Function):
    """The scan of b, ``(length, ...)``, by a, which has as many axes and is broadcastable to b.

    The results are h before and after each position.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, initial: Tensor, form: Form | None) -> tuple[Tensor, Tensor]:
        h = _scan(a, b, initial, form)
        ctx.save_for_backward(a, h)
        ctx.form = form
        ctx.set_materialize_grads(False)
        return h[:-1], h[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, before: Tensor | None, after: Tensor | None) -> tuple[Tensor | None, ...]:
        a, h = ctx.saved_tensors
        a = a.conj()
        if after is None:
            if before is None:
                return None, None, None, None
            given, last = before[1:], torch.zeros_like(h[-1])
        else:
            given, last = after[:-1] if before is None else after[:-1] + before[1:], after[-1]
        # from the last position to the first; the gradient at position t uses a of position t + 1
        gradient = _scan(a[1:], given, last, ctx.form, backwards=True)
        of_initial = a[0] * gradient[0]
        of_a = (gradient * h[:-1].conj()).sum_to_size(a.shape)
        return of_a, gradient, of_initial if before is None else of_initial + before[0], None


def _scan(a: Tensor, b: Tensor, initial: Tensor, form: Form | None, backwards: bool = False) -> Tensor:
    """Return ``initial``, then h for a and b ``(length, batch, ...)``; if ``backwards``, h and then ``initial``."""
    if form is None:
        form = "blocks" if initial.numel() < NARROW or a.device.type != "cpu" else "sequential"
    if form == "blocks":
        return _by_blocks(a.flip(0), b.flip(0), initial).flip(0) if backwards else _by_blocks(a, b, initial)
    h = b.new_empty(len(b) + 1, *initial.shape)
    last = h[-1 if backwards else 0].copy_(initial)
    for a_t, b_t, h_t in rows(a, b, h[:-1] if backwards else h[1:], backwards=backwards):
        last = torch.addcmul(b_t, a_t, last, out=h_t)
    return h


def _by_blocks(a: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    """Scan all blocks of c positions at once from zeros; then add, block by block, the decayed previous state."""
    length = len(b)
    c = math.isqrt(length - 1) + 1
    n = -(-length // c)
    A, H = (_blocks(x, n, c) for x in (a, b))
    A_rows, H_rows = A.unbind(), H.unbind()
    for j in range(1, c):
        H_rows[j].addcmul_(A_rows[j], H_rows[j - 1])
        A_rows[j].mul_(A_rows[j - 1])  # now the product of a over the block so far
    before = initial
    for A_i, H_i in zip(A.unbind(1), H.unbind(1), strict=True):
        H_i.addcmul_(A_i, before)
        before = H_i[-1]
    h = b.new_empty(n * c + 1, *initial.shape)
    h[0] = initial
    torch.unflatten(h[1:], 0, (n, c)).copy_(H.transpose(0, 1))
    return h[: length + 1]


def _blocks(x: Tensor, n: int, c: int) -> Tensor:
    """Copy ``(length, ...)`` to ``(c, n, ...)``, padded with zeros at the end."""
    filled = x.new_zeros(n, c, *x.shape[1:])
    filled.flatten(0, 1)[: len(x)] = x
    return filled.transpose(0, 1).contiguous()


def _selective_step(
    u: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor, negative: bool
) -> tuple[Tensor, Tensor]:
    """Compute y and h of one position: u, dt ``(batch, D)``, B, C ``(batch, N)``, A ``(D, N)``, h ``(batch, D, N)``."""
    a = (dt.unsqueeze(-1) * A).exp()
    h = (2 * a - 1 if negative else a) * h + (dt * u).unsqueeze(-1) * B.unsqueeze(-2)
    return (h @ C.unsqueeze(-1)).squeeze(-1), h


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
    *,
    plain: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute all positions of the selective scan in little memory.

    Args:
        u: inputs, ``(batch, L, D)``.
        dt: steps, at least 0, ``(batch, L, D)``.
        A: eigenvalues, at most 0, ``(D, N)``.
        B: input weights of the states, ``(batch, L, N)``.
        C: output weights of the states, ``(batch, L, N)``.
        state: h before the first position, ``(batch, D, N)``; None for zeros.
        mask: ``(batch, L)``, False at padding, which writes nothing and decays nothing.
        negative: allow negative transitions.
        plain: compute by the definition, position by position; a single position is always computed this way.

    Returns:
        y ``(batch, L, D)`` and h after the last position ``(batch, D, N)``, in float32 at least.
    """
    start, dt = start_state(state, u, len(u), *A.shape), hide(dt, mask)
    if plain or u.shape[1] == 1:
        return over_positions(lambda u, dt, B, C, h: _selective_step(u, dt, B, C, A, h, negative), (u, dt, B, C), start)
    if u.device.type != "cpu" or u.dtype != torch.float32:
        return _selective_blocks(dt * u, dt, A, B, C, start, negative)
    return _CompiledScan.apply(dt * u, dt, A, B, C, start, negative)  # type: ignore[no-untyped-call]


class _CompiledScan(torch.autograd.Function):
    """The selective scan with ``entering`` = dt u in place of u, by compiled loops."""

    @staticmethod
    def forward(
        ctx: Any, entering: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, start: Tensor, negative: bool
    ) -> tuple[Tensor, Tensor]:
        from lrtasks.models.ops import loops  # imports numba

        inputs = [x.contiguous() for x in (entering, dt, A.mT, B, C)]
        h = start.mT.clone(memory_format=torch.contiguous_format)
        batch, N, D = h.shape
        borders = h.new_empty(batch, -(-dt.shape[1] // loops.BLOCK), N, D)
        y = torch.zeros_like(inputs[0])
        loops.run_loop(loops.selective_forward, *inputs, negative, h, borders, y)
        ctx.save_for_backward(*inputs, borders)
        ctx.negative = negative
        return y, h.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dh: Tensor) -> tuple[Tensor | None, ...]:
        from lrtasks.models.ops import loops

        *inputs, borders = ctx.saved_tensors
        a, h = (borders.new_empty(loops.BLOCK + i, *borders.shape[2:]) for i in (0, 1))
        dh = dh.mT.clone(memory_format=torch.contiguous_format)
        of_entering, of_dt, of_A, of_B, of_C = gradients = [torch.zeros_like(x) for x in inputs]
        loops.run_loop(loops.selective_backward, *inputs, ctx.negative, borders, dy.contiguous(), a, h, dh, *gradients)
        return of_entering, of_dt, of_A.mT, of_B, of_C, dh.mT, None


def _selective_blocks(
    entering: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, negative: bool
) -> tuple[Tensor, Tensor]:
    """Compute the same by operations of torch; a gradient recomputes each block from the state before it."""
    outputs = []
    for block in zip(*(torch.split(x, BLOCK, 1) for x in (entering, dt, B, C)), strict=True):
        y, h = checkpoint(_selective_block, *block, A, h, negative, use_reentrant=False, preserve_rng_state=False)
        outputs.append(y)
    return torch.cat(outputs, 1), h


def _selective_block(
    entering: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor, h: Tensor, negative: bool
) -> tuple[Tensor, Tensor]:
    a = (dt.unsqueeze(-1) * A).exp()
    states = diagonal_scan(2 * a - 1 if negative else a, entering.unsqueeze(-1) * B.unsqueeze(-2), h)
    # a copy of the last state: a view would keep the states of all positions
    return (states @ C.unsqueeze(-1)).squeeze(-1), states[:, -1].clone()
