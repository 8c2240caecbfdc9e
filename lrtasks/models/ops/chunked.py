"""Shared parts of linear recurrences with a matrix state: chunks, the carried state, and loops over positions.

Each head has a state S, ``(K, V)``, with one row per key channel. Its recurrence is computed chunk by chunk: inside a
chunk of c positions everything is a matrix product; only the states at the chunk borders need a loop. On a CPU with few
threads, the compiled loop over positions, :func:`state_loop`, is faster.

    B, L, H    batch, length, heads
    n, c       chunks, and positions in a chunk
    g          log of a decay, at most 0
    G          sum of g from the start of the chunk up to and including a position
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.models.ops.layers import hide

ROWS = 256


def over_positions(step: Callable[..., tuple[Tensor, Any]], inputs: Sequence[Tensor], state: Any) -> tuple[Tensor, Any]:
    """Run the plain loop: call ``step(*inputs at t, state) -> (output, state)`` for every position t.

    ``inputs`` are ``(batch, length, ...)``, and ``state`` is the state before the first position. Return the outputs,
    ``(batch, length, ...)``, and the state after the last position.
    """
    if inputs[0].shape[1] == 1:
        y, state = step(*(value.squeeze(1) for value in inputs), state)
        return y.unsqueeze(1), state
    outputs = []
    for at_t in zip(*(value.unbind(1) for value in inputs), strict=True):
        y, state = step(*at_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def rows(*tensors: Tensor, backwards: bool = False) -> Iterator[tuple[Tensor, ...]]:
    """Iterate over the rows of tensors with equally long first axes, together; for loops without gradient.

    The tensors are unbound :data:`ROWS` rows at a time: many live tensors make Python's garbage collector slow.
    """
    starts = range(0, len(tensors[0]), ROWS)
    for start in reversed(starts) if backwards else starts:
        part = list(zip(*(x[start : start + ROWS].unbind() for x in tensors), strict=True))
        yield from reversed(part) if backwards else part


def skipping_padding(recurrence: Callable[[Tensor], Tensor], x: Tensor, mask: Tensor) -> Tensor:
    """Apply ``recurrence`` to the valid positions only, as if there were no padding between them; give 0 at padding.

    Args:
        recurrence: causal map of ``(batch, length, ...)``.
        x: ``(batch, length, ...)``.
        mask: ``(batch, length)``, False at padding.
    """
    rows = torch.arange(len(x), device=x.device).unsqueeze(1)
    valid_first = (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    y = recurrence(hide(x, mask)[rows, valid_first])
    return hide(y[rows, valid_first.argsort(1)], mask)


def even_chunk(length: int, largest: int) -> int:
    """Return the chunk size that splits ``length`` evenly into the fewest chunks of at most ``largest`` positions.

    >>> even_chunk(128, 64), even_chunk(66, 64), even_chunk(5, 64)
    (64, 33, 5)
    """
    return -(-length // -(-length // largest))


def to_chunks(x: Tensor, chunk: int, value: float = 0.0) -> Tensor:
    """Split ``(B, L, H, ...)`` into ``(B, H, n, chunk, ...)``; pad the last chunk with ``value``.

    The result is contiguous, because each product would copy it otherwise.
    """
    missing = -x.shape[1] % chunk
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing), value=value)
    return torch.unflatten(x, 1, (-1, chunk)).movedim(3, 1).contiguous()


def from_chunks(x: Tensor, length: int) -> Tensor:
    """Join ``(B, H, n, chunk, V)`` to ``(B, L, H, V)``, without the padding of the last chunk."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]


def start_state(state: Tensor | None, like: Tensor, *shape: int) -> Tensor:
    """Return ``state`` in the type of ``like``, or zeros of this shape if ``state`` is None."""
    return like.new_zeros(shape) if state is None else state.to(like.dtype)


class _DecayMatrix(torch.autograd.Function):
    """``exp(G_i - G_j + row_i + column_j)`` for ``j <= i``, 0 elsewhere, times ``scores`` if they are not None."""

    @staticmethod
    def forward(ctx: Any, G: Tensor, row: Tensor, column: Tensor, dtype: torch.dtype, scores: Tensor | None) -> Tensor:
        exponent = ((G + row).unsqueeze(-1) + (column - G).unsqueeze(-2)).to(dtype)
        # tril_, not a product with a mask, because entries above the diagonal may be infinite
        D = exponent.exp_().tril_()
        result = D if scores is None else scores * D
        ctx.save_for_backward(D, result)
        ctx.of_scores = None if scores is None else scores.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        D, result = ctx.saved_tensors
        weight = result * given
        diagonal = weight.diagonal(dim1=-2, dim2=-1).to(torch.float64, copy=True)
        # the diagonal does not depend on G; its large entries would cancel in the gradient of G and lose digits
        weight.diagonal(dim1=-2, dim2=-1).zero_()
        in_row, in_column = weight.sum(-1).double(), weight.sum(-2).double()
        of_scores = None if ctx.of_scores is None else torch.mul(given, D, out=weight).sum_to_size(ctx.of_scores)
        return in_row - in_column, in_row + diagonal, in_column + diagonal, None, of_scores


def decay_matrix(
    G: Tensor,
    dtype: torch.dtype,
    row: Tensor | None = None,
    column: Tensor | None = None,
    scores: Tensor | None = None,
) -> Tensor:
    """Return the decay from position j to position i of a chunk: ``exp(G_i - G_j)`` for ``j <= i``, otherwise 0.

    Args:
        G: ``(..., c)`` in float64: |G| grows along the chunk, and differences of large numbers lose digits.
        dtype: type of the result, ``(..., c, c)``.
        row: added to the exponents of row i, shaped as G; None for 0.
        column: added to the exponents of column j, shaped as G; None for 0.
        scores: multiplied by the decays, broadcastable to the result; None for 1.
    """
    zero = torch.zeros((), dtype=G.dtype, device=G.device)
    row, column = (zero if x is None else x for x in (row, column))
    return _DecayMatrix.apply(G, row, column, dtype, scores)  # type: ignore[no-untyped-call]


def to_end(G: Tensor) -> Tensor:
    """Return ``G_last - G_i`` for G ``(B, H, n, c, ...)``: the log of the decay from i to the end of the chunk."""
    last = G[:, :, :, -1:]
    # the last position is 0 for any G; the constant avoids two gradients that would have to cancel
    return torch.cat((last - G[:, :, :, :-1], torch.zeros_like(last)), 3)


class _MatrixCarry(torch.autograd.Function):
    """``S_0`` and ``S_(i+1) = M_i S_i + N_i``, for M ``(n, ..., K, K)`` and N ``(n, ..., K, V)``."""

    @staticmethod
    def forward(ctx: Any, M: Tensor, N: Tensor, start: Tensor) -> Tensor:
        states = start.new_empty(len(N) + 1, *start.shape)
        S = states.unbind()
        S[0].copy_(start)
        for i, (M_i, N_i) in enumerate(zip(M.unbind(), N.unbind(), strict=True)):
            torch.baddbmm(N_i, M_i, S[i], out=S[i + 1])
        ctx.save_for_backward(M, states)
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, ...]:
        M, states = ctx.saved_tensors
        gradient = torch.empty_like(states)
        dS, own, MT = gradient.unbind(), given.unbind(), M.mT.unbind()
        dS[-1].copy_(own[-1])
        for i in range(len(M) - 1, -1, -1):
            torch.baddbmm(own[i], MT[i], dS[i + 1], out=dS[i])
        return gradient[1:] @ states[:-1].mT, gradient[1:], gradient[0]


def delta_carry(
    U: Tensor, W: Tensor, k: Tensor, decay: Tensor, start: Tensor, update: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a delta rule's states at chunk borders, and the value u that each position writes.

    ``u_i = U_i - W_i S_i`` and ``S_(i+1) = decay_i S_i + k_i^T u_i + update_i``.

    Args:
        U: ``(B, H, n, c, V)``.
        W: ``(B, H, n, c, K)``.
        k: keys, ``(B, H, n, c, K)``, decayed to the end of their chunk.
        decay: decay over the whole chunk, ``(B, H, n, K or 1, 1)``.
        start: S_0, ``(B, H, K, V)``.
        update: additional update of each chunk, ``(B, H, n, K, V)``, or ``None``.

    Returns:
        u ``(B, H, n, c, V)``, S_0 .. S_(n-1) ``(B, H, n, K, V)`` and S_n ``(B, H, K, V)``.
    """
    # without u: S_(i+1) = (decay_i - k_i^T W_i) S_i + k_i^T U_i + update_i
    added = k.mT @ U if update is None else update + k.mT @ U
    transition = decay * torch.eye(W.shape[-1], dtype=W.dtype, device=W.device) - k.mT @ W
    M, N = (x.flatten(0, 1).transpose(0, 1) for x in (transition, added))
    states: Tensor = _MatrixCarry.apply(M, N, start.flatten(0, 1))  # type: ignore[no-untyped-call]
    states = torch.unflatten(states.transpose(0, 1), 0, U.shape[:2])
    before = states[:, :, :-1]
    return U - W @ before, before, states[:, :, -1]


def loop_suits(x: Tensor) -> bool:
    """Return whether :func:`state_loop` suits inputs of this type and device, and the number of threads."""
    from lrtasks.models.ops import loops  # imports numba

    return loops.vectors_usable(x)


def state_loop(
    r: Tensor, e: Tensor, k: Tensor, v: Tensor, a: Tensor | None, b: Tensor | None, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all positions of matrix states by the loop over positions, differentiably.

    ``S_t = diag(e_t) S_(t-1) + b_t (a_t^T S_(t-1)) + k_t v_t^T`` and ``y_t = S_t^T r_t``, the recurrence of
    :mod:`lrtasks.models.ops.decay` and :mod:`lrtasks.models.ops.delta_rule`.

    Args:
        r: read vectors (queries), ``(B, L, H, K)``.
        e: decays, ``(B, L, H, K)``.
        k: keys, ``(B, L, H, K)``.
        v: values, ``(B, L, H, V)``.
        a: read vectors of the erase, ``(B, L, H, K)``; None for no erase.
        b: write vectors of the erase, ``(B, L, H, K)``; None for no erase.
        start: S before the first position, ``(B, H, K, V)``.

    Returns:
        y ``(B, L, H, V)`` and S after the last position, ``(B, H, K, V)``.
    """
    from lrtasks.models.ops.loops import LANES

    K, V = start.shape[-2:]
    if K % LANES or V % LANES:
        more_K, more_V = (0, -K % LANES), (0, -V % LANES)
        r, e, k = (F.pad(x, more_K) for x in (r, e, k))
        a, b = (None if x is None else F.pad(x, more_K) for x in (a, b))
        v, start = F.pad(v, more_V), F.pad(start, more_V + more_K)
    y, S = _StateLoop.apply(r, e, k, v, a, b, start)  # type: ignore[no-untyped-call]
    return y[..., :V], S[..., :K, :V]


class _StateLoop(torch.autograd.Function):
    """The loop for K and V that are multiples of its vectors' length."""

    @staticmethod
    def forward(
        ctx: Any, r: Tensor, e: Tensor, k: Tensor, v: Tensor, a: Tensor | None, b: Tensor | None, start: Tensor
    ) -> tuple[Tensor, Tensor]:
        from lrtasks.models.ops import loops

        inputs = [None if x is None else x.contiguous() for x in (r, e, k, v, a, b)]
        S, y = _tiles(start, loops.LANES), torch.empty_like(v, memory_format=torch.contiguous_format)
        borders = S.new_empty(len(S), -(-v.shape[1] // loops.BLOCK), *S.shape[1:])
        z = None if a is None else torch.empty_like(y)
        loops.run_loop(loops.low_rank_forward, *inputs, S, borders, z, y)
        ctx.save_for_backward(*inputs, borders, z)
        return y, _from_tiles(S, loops.LANES)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dS: Tensor) -> tuple[Tensor | None, ...]:
        from lrtasks.models.ops import loops

        *inputs, borders, z = ctx.saved_tensors
        heads, K, V = dS.shape[1:]
        by_row = heads, K // loops.LANES, V * loops.LANES
        shapes = (loops.BLOCK + 1, *by_row), (loops.BLOCK, heads, V), by_row
        work = [borders.new_empty(shape) for shape in shapes]
        dS = _tiles(dS, loops.LANES)
        gradients = [None if x is None else torch.empty_like(x) for x in inputs]
        loops.run_loop(loops.low_rank_backward, *inputs, borders, z, dy.contiguous(), *work, dS, *gradients)
        return *gradients, _from_tiles(dS, loops.LANES)


def _tiles(S: Tensor, lanes: int) -> Tensor:
    """Copy ``(B, H, K, V)`` to ``(B, H, V / lanes, K lanes)``."""
    columns = torch.unflatten(S, -1, (-1, lanes))
    return columns.transpose(2, 3).clone(memory_format=torch.contiguous_format).flatten(3)


def _from_tiles(S: Tensor, lanes: int) -> Tensor:
    return torch.unflatten(S, -1, (-1, lanes)).transpose(2, 3).flatten(3)
