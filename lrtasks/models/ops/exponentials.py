"""Kernels that are sums of exponentials: their evaluation, and their frequencies as parameters.

:func:`exp_kernel` evaluates them without a table of states × positions:

    K[r, l] = Re sum_n W[r, n] exp(Λ_n l),    l = 0 .. L-1,    Λ_n = rate_n + i freq_n

Positions are factored, l = l1 B + l0, so that exp(Λ l) = exp(Λ l1 B) exp(Λ l0). This takes N (L/B + B) exponentials
instead of N L, and one real matrix product of (rows L/B × 2N) by (2N × B). A radix step of a Fourier transform uses the
same factorisation; here the complex frequencies are arbitrary.

Phases: ``freq * position`` is computed and reduced to one turn in float64, with an error of 1e-9 rad at l = 2^20, where
float32 is wrong by half a radian. Everything after that may be float32: at any l, the error is a few 1e-7 of the
largest value. On a CPU with few threads, compiled loops compute the tables as powers of exp(Λ) and exp(Λ B) in float64.

In float32 on a CPU, :mod:`lrtasks.models.ops.nonuniform` is faster for sums of a hundred or more exponentials at a
thousand or more positions.

Memory: groups and rows are processed in chunks. The backward pass recomputes large intermediates chunk by chunk; only
small tables of exponentials are saved for it. With P[r,l1,n] = sum_l0 G[r,l] exp(Λ_n l0) for the incoming gradient G,
the gradient of W is conj(sum_l1 exp(Λ l1 B) P), and the gradient of Λ is the conjugate of
sum_r W sum_l1 (l1 B) exp(Λ l1 B) P + sum_l0 l0 exp(Λ l0) D[l0,n], where D[l0,n] = sum_(r,l1) G[r,l] W exp(Λ l1 B) is
a second matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

CHUNK = {"cpu": 1 << 19}
"""Complex numbers in the largest temporary of a chunk: 4 MiB in complex64."""
CHUNK_ELSEWHERE = 1 << 24
"""The same on other devices: a GPU needs larger chunks to be busy (128 MiB)."""
CHUNK_OF_LOOPS = 1 << 16
"""The same for compiled loops, whose temporaries should stay in the cache."""
KEPT = 1 << 19
"""Maximum numbers in a table of exponentials that is saved for the backward pass: 4 MiB in complex64."""
SHORTEST_NONUNIFORM = 1024
"""Positions from which non-uniform transforms are considered."""


def exp_kernel(weight: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
    """Evaluate ``Re sum_n W[..., n] exp((rate_n + i freq_n) l)`` at l = 0 .. length-1.

    Imaginary parts need no routine of their own: Im z = Re(-i z), so ``exp_kernel(-1j * weight, ...)`` is Im K.

    Args:
        weight: W, complex or real. ``(R, N)`` if all rows share Λ; ``(G, R, N)`` if each of G groups has its own Λ.
        rate: real part of Λ per position, ``(N,)`` or ``(G, N)``, usually negative; None for 0.
        freq: imaginary part of Λ in radians per position, same shape; None for 0, but not if rate is None. Pass
            float64 where float32 rounding matters: an error d in freq changes the phase at l by d l.
        length: number of positions L.

    Returns:
        The kernel, ``(R, L)`` or ``(G, R, L)``, real, in the weight's precision but in float32 at least.
        Differentiable (once) in all three tensors.
    """
    pole = rate if rate is not None else freq
    if pole is None:
        raise ValueError("exp_kernel needs rate or freq")
    dtype = torch.promote_types(weight.dtype, torch.float32)
    weight = weight.to(dtype)
    if freq is None and weight.is_complex():
        weight = weight.real
    grouped = pole.dim() == 2
    W = weight if grouped else weight.unsqueeze(0)
    a, q = (None if x is None else x.double().reshape(-1, x.shape[-1]) for x in (rate, freq))
    if q is not None and length >= SHORTEST_NONUNIFORM and W.is_cpu and dtype.to_real() == torch.float32:
        kernel = _fastest(W, a, q, length)
    else:
        kernel = _by_products(W, a, q, length)
    return kernel if grouped else kernel.squeeze(0)


def _fastest(W: Tensor, rate: Tensor | None, freq: Tensor, length: int) -> Tensor:
    """Evaluate by non-uniform transforms if these are faster, and very fast decays by matrix products."""
    from lrtasks.models.ops import nonuniform

    decay = torch.zeros_like(freq) if rate is None else -rate
    if not nonuniform.faster(W.shape, decay, freq, length):
        return _by_products(W, rate, freq, length)
    kernel = nonuniform.nonuniform_kernel(W.to(W.dtype.to_complex()), decay, freq, length)
    fast = ~nonuniform.in_reach(decay)
    if fast.any():
        reach = min(length, nonuniform.FAST_REACH)
        rest = _by_products(W * fast.unsqueeze(1), rate, freq, reach)
        kernel = kernel + torch.nn.functional.pad(rest, (0, length - reach))
    return kernel


def _by_products(W: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
    """Evaluate by matrix products. Compiled loops make the tables if they suit; otherwise, torch does."""
    if freq is not None and W.is_cpu:
        from lrtasks.models.ops import loops  # imports numba

        if loops.vectors_usable(W.real):
            more = 0, -W.shape[-1] % loops.LANES
            rate = torch.zeros_like(freq) if rate is None else rate
            inputs = (torch.nn.functional.pad(x, more) for x in (W.to(W.dtype.to_complex()), rate, freq))
            return _LoopKernel.apply(*inputs, length)  # type: ignore[no-untyped-call]
    return _ExpKernel.apply(W, rate, freq, length)  # type: ignore[no-untyped-call]


def block_size(rows: int, length: int) -> int:
    """Return the block size B that balances the N·B entries of one table with the rows·N·L/B entries of the other.

    The number of blocks is a power of two. It is one (the plain form, with a cheaper table) if rows >= length.
    """
    blocks = 1
    while blocks * blocks * rows < length:
        blocks *= 2
    return -(-length // blocks)


def exponentials(rate: Tensor | None, freq: Tensor | None, stride: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return the table exp(Λ · stride · m), m = 0 .. count-1, ``(G, count, N)``; complex, or real if ``freq`` is None.

    Two tables of about sqrt(count) entries are computed exactly (phases in float64); their products give all entries.
    """
    inner = math.isqrt(count - 1) + 1
    fine = _exact(rate, freq, stride, inner, dtype)
    coarse = _exact(rate, freq, stride * inner, -(-count // inner), dtype)
    return (coarse.unsqueeze(2) * fine.unsqueeze(1)).flatten(1, 2)[:, :count]


def _exact(rate: Tensor | None, freq: Tensor | None, stride: int, count: int, dtype: torch.dtype) -> Tensor:
    def exponent(part: Tensor) -> Tensor:
        position = torch.arange(count, dtype=torch.float64, device=part.device).mul_(stride)
        return part.unsqueeze(1) * position.unsqueeze(1)

    size = None if rate is None else exponent(rate).to(dtype).exp_()
    if freq is None:
        assert size is not None
        return size
    turns = exponent(freq / (2 * math.pi))
    phase = turns.sub_(turns.round()).mul_(2 * math.pi).to(dtype)
    cos, sin = phase.cos(), phase.sin_()
    return torch.complex(cos, sin) if size is None else torch.complex(cos.mul_(size), sin.mul_(size))


def _flat(x: Tensor) -> Tensor:
    """Interleave real and imaginary parts on the last axis, so that complex sums become real matrix products."""
    return torch.view_as_real(x).flatten(-2) if x.is_complex() else x


def _unflat(x: Tensor, like: Tensor) -> Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2)) if like.is_complex() else x


@contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """Disable autocast, and TF32 or bfloat16 in float32 products: either would cost the kernel three digits.

    Torch has an old switch for the process and new switches per backend, and refuses to multiply if they disagree.
    They are changed only if a product may have reduced precision; both then agree inside, and are restored afterwards.
    """
    backends: Any = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    if all(precision in ("none", "ieee") for precision in before):
        with torch.autocast(device.type, enabled=False):
            yield
        return
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:  # the caller has set only the new switches, and torch refuses to translate them
        old = None
    try:
        if old is not None:
            torch.set_float32_matmul_precision("highest")
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if old is not None:
            torch.set_float32_matmul_precision(old)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = "none"  # inherits; set explicitly below only if that differs
            if backend.fp32_precision != precision:
                backend.fp32_precision = precision


class _Plan:
    """Plan of the evaluation: how positions are factored, and the chunks of groups and of rows within groups."""

    def __init__(self, shape: Sequence[int], length: int, chunk: int) -> None:
        G, R, N = shape
        self.B = block_size(R, length)
        self.L1 = -(-length // self.B)
        rows = max(1, min(R, chunk // (self.L1 * N)))
        groups = max(1, chunk // (N * max(self.B, rows * self.L1))) if rows == R else 1
        self.groups = [slice(start, min(start + groups, G)) for start in range(0, G, groups)]
        self.rows = [slice(start, min(start + rows, R)) for start in range(0, R, rows)]

    def tables(
        self, part: slice, rate: Tensor | None, freq: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return exp(Λ l0) ``(groups, B, N)`` and exp(Λ l1 B) ``(groups, L1, N)`` for a slice of groups."""
        rate, freq = (None if x is None else x[part] for x in (rate, freq))
        return exponentials(rate, freq, 1, self.B, dtype), exponentials(rate, freq, self.B, self.L1, dtype)

    def tables_of_loops(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory for both tables of a chunk, ``(groups, B, 2 N)`` and ``(groups, L1, 2 N)``."""
        groups = self.groups[0].stop
        return like.new_empty(groups, self.B, like.shape[-1]), like.new_empty(groups, self.L1, like.shape[-1])

    def blocks(self, x: Tensor) -> Tensor:
        """View ``(groups, rows, L1 B)`` as ``(groups, rows L1, B)``."""
        return x.view(len(x), -1, self.B)


class _ExpKernel(torch.autograd.Function):
    """Value and gradient as in the module's docstring; W ``(G, R, N)``, rate and freq ``(G, N)`` float64."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
        ctx.plan = plan = _Plan(W.shape, length, CHUNK.get(W.device.type, CHUNK_ELSEWHERE))
        kept: tuple[Tensor, ...] = ()
        dtype = W.dtype.to_real()
        kernel = W.new_empty((*W.shape[:2], plan.L1 * plan.B), dtype=dtype)
        # the real product of the interleaved parts of conj(U) and E is Re U Re E - Im U Im E = Re(U E)
        conjugate = W.conj_physical()
        with _full_precision(W.device):
            for g in plan.groups:
                fine, coarse = plan.tables(g, rate, freq, dtype)
                if len(plan.groups) == 1 and max(fine.numel(), coarse.numel()) <= KEPT:
                    kept = fine, coarse
                coarse = coarse.conj_physical()
                for r in plan.rows:
                    U = (conjugate[g, r].unsqueeze(2) * coarse.unsqueeze(1)).flatten(1, 2)
                    torch.bmm(_flat(U), _flat(fine).transpose(1, 2), out=plan.blocks(kernel[g, r]))
        ctx.save_for_backward(W, rate, freq, *kept)
        return kernel[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        W, rate, freq, *kept = ctx.saved_tensors
        plan: _Plan = ctx.plan
        grad = torch.nn.functional.pad(grad, (0, plan.L1 * plan.B - grad.shape[-1])).contiguous()
        grad_W = torch.empty_like(W)
        grad_pole = torch.zeros(W.shape[0], W.shape[2], dtype=torch.complex128, device=W.device)
        starts = torch.arange(plan.L1, device=grad.device).to(grad) * plan.B
        sum_and_moment = torch.stack([torch.ones_like(starts), starts])
        offsets = torch.arange(plan.B, device=grad.device).to(grad).unsqueeze(0)
        with _full_precision(W.device):
            for g in plan.groups:
                fine, coarse = kept or plan.tables(g, rate, freq, grad.dtype)
                D = torch.zeros_like(_flat(fine))
                for r in plan.rows:
                    G = plan.blocks(grad[g, r])
                    P = _unflat(torch.bmm(G, _flat(fine)), fine).view(len(G), -1, plan.L1, W.shape[2])
                    # two sums over l1, plain and weighted by l1 B, as one product on contiguous blocks
                    P = _unflat(torch.matmul(sum_and_moment, _flat(P.mul_(coarse.unsqueeze(1)))), fine)
                    grad_W[g, r] = P[:, :, 0].conj() if W.is_complex() else P[:, :, 0].real
                    grad_pole[g] += (W[g, r] * P[:, :, 1]).sum(1)
                    D.baddbmm_(G.transpose(1, 2), _flat((W[g, r].unsqueeze(2) * coarse.unsqueeze(1)).flatten(1, 2)))
                D = _flat(_unflat(D, fine).mul_(fine))
                grad_pole[g] += _unflat(torch.matmul(offsets, D), fine).squeeze(1)
        return grad_W, None if rate is None else grad_pole.real, None if freq is None else -grad_pole.imag, None


class _LoopKernel(torch.autograd.Function):
    """The same by compiled loops; W ``(G, R, N)`` complex, rate and freq ``(G, N)`` float64, N a multiple of LANES.

    Loops have arrays ``(..., 2 N)``: N real parts, then N imaginary parts. The gradient of Λ is computed in another
    form, with l = l1 B + l0 in the sum over l1, so that one product has all sums over l0:

        sum_r W sum_l1 exp(Λ l1 B) sum_l0 (l1 B + l0) G[r,l] exp(Λ l0)
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, rate: Tensor, freq: Tensor, length: int) -> Tensor:
        from lrtasks.models.ops import loops

        ctx.plan = plan = _Plan(W.shape, length, CHUNK_OF_LOOPS)
        weight = torch.cat([W.real, W.imag], -1)
        bases = _base(rate, freq, 1), _base(rate, freq, plan.B)
        kernel = weight.new_empty(*W.shape[:2], plan.L1 * plan.B)
        tables = plan.tables_of_loops(weight)
        U = weight.new_empty(len(tables[0]), plan.rows[0].stop, plan.L1, weight.shape[-1])
        with _full_precision(W.device):
            for g in plan.groups:
                fine, coarse = _powers(bases[0][g], tables[0]), _powers(bases[1][g], tables[1])
                for r in plan.rows:
                    here = U[: len(fine), : weight[g, r].shape[1]]
                    loops.run_loop(loops.weighted_powers, weight[g, r], coarse, here)
                    torch.bmm(here.flatten(1, 2), fine.transpose(1, 2), out=plan.blocks(kernel[g, r]))
        ctx.save_for_backward(W, *bases)
        return kernel[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from lrtasks.models.ops import loops

        W, *bases = ctx.saved_tensors
        plan: _Plan = ctx.plan
        N = W.shape[-1]
        moments = grad.new_zeros(*grad.shape[:2], 2, plan.L1 * plan.B)  # G, and l0 G
        moments[:, :, 0, : grad.shape[-1]] = grad
        blocks = moments.view(*moments.shape[:3], plan.L1, plan.B)
        torch.mul(blocks[:, :, 0], torch.arange(plan.B).to(grad), out=blocks[:, :, 1])
        total, moment = grad.new_zeros(2, *W.shape[:2], 2 * N)
        tables = plan.tables_of_loops(total)
        sums = total.new_empty(len(tables[0]), plan.rows[0].stop * 2 * plan.L1, 2 * N)
        with _full_precision(W.device):
            for g in plan.groups:
                fine, coarse = _powers(bases[0][g], tables[0]), _powers(bases[1][g], tables[1])
                for r in plan.rows:
                    here = blocks[g, r].flatten(1, 3)
                    inner = torch.bmm(here, fine, out=sums[: len(fine), : here.shape[1]])
                    inner = inner.view(*blocks[g, r].shape[:-1], -1)
                    loops.run_loop(loops.power_sums, coarse, inner, plan.B, total[g, r], moment[g, r])
        pole = (W * torch.complex(moment[..., :N], moment[..., N:])).sum(1).to(torch.complex128)
        return torch.complex(total[..., :N], -total[..., N:]), pole.real, -pole.imag, None


def _base(rate: Tensor, freq: Tensor, stride: int) -> Tensor:
    """Return exp(Λ · stride), real and imaginary parts, ``(G, 2, N)`` float64."""
    size, phase = torch.exp(rate * stride), freq * stride
    return torch.stack([size * phase.cos(), size * phase.sin()], 1)


def _powers(base: Tensor, table: Tensor) -> Tensor:
    """Write the first powers of ``base``, ``(groups, 2, N)``, to ``table``, and return its part that has them."""
    from lrtasks.models.ops import loops

    table = table[: len(base)]
    seeds = table.new_empty(2, math.isqrt(table.shape[1] - 1) + 1, table.shape[2])
    loops.run_loop(loops.powers, base, base.new_empty(2, *base.shape[1:]), seeds, table)
    return table


class Frequencies(nn.Module):
    """Angular frequencies ``grid + offset`` in float64; only the offset is learned.

    Rounding a frequency q to float32 changes it by up to 2e-7, and the phase at position 2^20 by 0.2 rad. The grid is
    therefore stored as the bits of float64 numbers in an integer buffer: ``.half()``, ``.to(torch.float32)`` and
    similar calls do not change the buffer, and the state dict contains it. The gradients with respect to the offset and
    to q are equal.

    Args:
        grid: starting values in radians, any shape.
        options: optimiser options of the offset, in addition to zero weight decay.
    """

    grid_bits: Tensor

    def __init__(self, grid: Tensor, **options: float) -> None:
        super().__init__()
        self._options = {"weight_decay": 0.0, **options}
        self.offset = nn.Parameter(torch.zeros(grid.shape))
        self.register_buffer("grid_bits", grid.double().contiguous().clone().view(torch.int64))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"offset": self._options}

    def forward(self) -> Tensor:
        """Return the frequencies in float64."""
        return self.grid_bits.view(torch.float64) + self.offset.double()
