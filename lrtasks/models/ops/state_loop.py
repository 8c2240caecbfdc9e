"""The loop over positions of matrix states on a CPU with few threads, as a differentiable operation.

The loop computes :mod:`lrtasks.models.ops.decay` and :mod:`lrtasks.models.ops.delta_rule` as one recurrence,
``S_t = diag(e_t) S_(t-1) + b_t (a_t^T S_(t-1)) + k_t v_t^T`` and ``y_t = S_t^T r_t``. It is faster than products of
chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def loop_suits(x: Tensor) -> bool:
    """Return whether the loop suits inputs of this type and device, and the number of threads."""
    from lrtasks.models.ops import loops  # imports numba

    return loops.vectors_usable(x)


def state_loop(
    r: Tensor, e: Tensor, k: Tensor, v: Tensor, a: Tensor | None, b: Tensor | None, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute all positions of the recurrence in the module docstring.

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
