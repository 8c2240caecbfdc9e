"""Sums of many exponentials at many positions in float32 on a CPU, by non-uniform fast Fourier transforms.

    K[g, r, l] = Re sum_n W[g, r, n] exp(Λ_n l),    l = 0 .. L-1,    Λ_n = -decay_n + i freq_n,    decay_n >= 0

The cost grows with N + L log L per row, where the matrix products of :mod:`lrtasks.models.ops.exponentials` need N L.

Method (Dutt and Rokhlin, SIAM J. Sci. Comput. 14(6), 1993; Greengard and Lee, SIAM Review 46(3), 2004, the Gaussian
window). Take a block of M positions with centre c, and a frequency grid of S = 2 M points. With x = l - c in
-M/2 .. M/2 and θ = (freq + i decay) S / 2π, the position of the exponential on the grid,

    exp(Λ l) = exp(Λ c) exp(2πi θ x / S),
    exp(2πi θ x / S) ≈ D(x) sum_j φ(θ - j) exp(2πi j x / S),
    φ(t) = exp(-b t²),    D(x) = sqrt(b/π) exp(π² x² / (b S²))

over the :data:`WIDTH` grid points j next to θ. So each exponential adds W exp(Λ c) φ(θ - j) to a few grid points, and
one transform gives all positions. φ is an entire function, so θ may be complex: a decay is a shift off the real axis.
The sum loses digits if decay · M is large. Exponentials are therefore sorted into classes: class k has blocks of about
L / 2^k positions, so that decay · M <= :data:`DECAY`. In float32, a decaying exponential is zero after a few blocks of
its class; later blocks are not computed. Conjugates of W and Λ give the same real part, so that all frequencies are
folded into 0 .. π.

Errors are a few 1e-7 of the largest value, as in the matrix products: phases and windows are computed in float64.
"""

from __future__ import annotations

import cmath
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.autograd.function import once_differentiable

from lrtasks.compiling import compiled, untraced

WIDTH = 16
"""Grid points on which each exponential is spread. The window is cut where it has fallen to 2e-8."""
SHARPNESS = math.pi * math.sqrt(2) / WIDTH
"""b in the window: the parts that are cut off and the aliases of a grid of 2 M points are then equally small."""
_DAMPING = np.exp(-SHARPNESS * np.arange(-WIDTH // 2, WIDTH // 2) ** 2.0)
DECAY = 2.0
"""Largest decay over a block."""
NEGLIGIBLE = 17.3
"""Decay after which an exponential counts as zero: exp(-17.3) = 3e-8, half of the rounding of float32."""
SMALLEST_BLOCK = 32
"""Positions in the smallest block. Decays too fast for it are left out here."""
FAST_REACH = math.ceil(NEGLIGIBLE * SMALLEST_BLOCK / DECAY)
"""Positions after which the exponentials that are left out are negligible."""
COST_OF_POSITION, COST_OF_POINTS = 180, 700
"""Time of the transforms per position, and of spreading one exponential over the grid of one block, forward and
backward; the unit is the time that the matrix products need per exponential and position (benchmarks/kernels.py)."""
TILE = 32
"""Exponentials that are prepared together: for each row they then use neighbouring grid points, which are cached."""
CHUNK = 1 << 19
"""Complex numbers on the grids that are transformed together: 4 MiB."""


def in_reach(decay: Tensor) -> Tensor:
    """Return whether :func:`nonuniform_kernel` includes exponentials with these decays per position."""
    return decay * SMALLEST_BLOCK <= DECAY


def faster(shape: Sequence[int], decay: Tensor, freq: Tensor, length: int) -> bool:
    """Return whether :func:`nonuniform_kernel` can evaluate the sum, and in less time than matrix products.

    The time depends on the decays, since each class of decays has its own transforms.
    """
    groups, _, states = shape
    # a kernel that grows, or has diverged, has no classes
    if not bool((decay >= 0).all() & decay.isfinite().all() & freq.isfinite().all()):
        return False
    classes = _classes(decay, length)
    positions = groups * sum(each.blocks * each.block for each in classes)
    points = sum(each.blocks * len(each.poles) for each in classes)
    rest = groups * states * FAST_REACH * (sum(len(each.poles) for each in classes) < groups * states)
    # the loops have one thread, and everything else has all threads
    time = COST_OF_POSITION * positions + COST_OF_POINTS * points * torch.get_num_threads() + rest
    return time < groups * states * length


def nonuniform_kernel(weight: Tensor, decay: Tensor, freq: Tensor, length: int) -> Tensor:
    """Evaluate ``Re sum_n W[..., n] exp((-decay_n + i freq_n) l)`` at l = 0 .. length-1.

    Args:
        weight: W, complex64, ``(G, R, N)``: each of G groups has its own exponentials, which its R rows share.
        decay: decay per position, at least 0, finite, ``(G, N)`` float64. Exponentials that are not :func:`in_reach`
            are left out; their gradients are zero.
        freq: radians per position, finite, ``(G, N)`` float64.
        length: number of positions L.

    Returns:
        The kernel, ``(G, R, L)`` float32. Differentiable (once) in all three tensors.
    """
    return _Nonuniform.apply(weight, decay, freq, length)  # type: ignore[no-untyped-call]


class _Work(NamedTuple):
    """What a compiled loop reads, for some groups and rows of a class.

    poles ``(P,)`` counts exponentials as group · N + n; turns ``(G, N)``, 0 to 1 per position; decay ``(G, N)``; weight
    ``(G, R, N)``. The loops overwrite the rest, for :data:`TILE` exponentials at a time: starts ``(TILE,)``, the index
    of the first grid point in an array of alternating real and imaginary parts; taps ``(TILE, 2 WIDTH)``, the window φ,
    and turned, i φ, each with real and imaginary parts in turn; centres ``(TILE, blocks)``, exp(Λ c).
    """

    first_group: int
    first_row: int
    block: int
    poles: np.ndarray
    turns: np.ndarray
    decay: np.ndarray
    weight: np.ndarray
    starts: np.ndarray
    taps: np.ndarray
    turned: np.ndarray
    centres: np.ndarray


@compiled
def _window(w: _Work, poles: np.ndarray) -> None:
    """Prepare a few exponentials: the grid points next to θ, the window φ there, and exp(Λ c) of all blocks."""
    for p in range(len(poles)):
        g, n = poles[p] // w.turns.shape[1], poles[p] % w.turns.shape[1]
        turn = min(w.turns[g, n], 1 - w.turns[g, n])
        theta = turn * 2 * w.block
        first = math.ceil(theta - WIDTH / 2)
        w.starts[p] = 2 * (first + WIDTH)
        z = complex(theta - first - WIDTH // 2, w.decay[g, n] * w.block / math.pi)
        # φ(z - i) = exp(-b z²) exp(2 b z i) exp(-b i²), i = j - WIDTH/2
        value = cmath.exp(-SHARPNESS * (z * z + z * WIDTH))
        ratio = cmath.exp(2 * SHARPNESS * z)
        for j in range(WIDTH):
            tap = value * _DAMPING[j]
            w.taps[p, 2 * j], w.taps[p, 2 * j + 1] = tap.real, tap.imag
            w.turned[p, 2 * j], w.turned[p, 2 * j + 1] = -tap.imag, tap.real
            value *= ratio
        for b in range(w.centres.shape[1]):
            centre = b * w.block + w.block // 2
            phase = turn * centre
            phase = 2 * math.pi * (phase - math.floor(phase))
            w.centres[p, b] = cmath.exp(complex(-w.decay[g, n] * centre, phase))


@compiled
def _spread(w: _Work, grid: np.ndarray) -> None:
    """Add W exp(Λ c) φ(θ - j) of every exponential to its grid points.

    ``grid`` is ``(groups, rows, blocks, 2 (M + 1 + 2 WIDTH))``, real and imaginary parts in turn, from grid point
    -WIDTH to M + WIDTH.
    """
    starts, taps, turned = w.starts, w.taps, w.turned
    for low in range(0, len(w.poles), TILE):
        tile = w.poles[low : low + TILE]
        _window(w, tile)
        for r in range(grid.shape[1]):
            for p in range(len(tile)):
                g, n = tile[p] // w.turns.shape[1], tile[p] % w.turns.shape[1]
                factor = w.weight[g, w.first_row + r, n]
                if w.turns[g, n] > 0.5:
                    factor = factor.conjugate()
                for b in range(grid.shape[2]):
                    u = factor * w.centres[p, b]
                    real, imaginary = np.float32(u.real), np.float32(u.imag)
                    for j in range(2 * WIDTH):
                        grid[g - w.first_group, r, b, starts[p] + j] += real * taps[p, j] + imaginary * turned[p, j]


@functools.partial(compiled, regroup=True)
def _gather(w: _Work, grid: np.ndarray, moments: np.ndarray, grad_weight: np.ndarray, grad_pole: np.ndarray) -> None:
    """Compute the gradients of every exponential from its grid points; the adjoint of :func:`_spread`, same shapes.

    ``grid`` has the transform of the incoming gradient G, and ``moments`` the transform of x G[l]. ``grad_weight``
    ``(G, R, N)`` receives the conjugate of sum_l G exp(Λ l). The sum over rows of W sum_l l G exp(Λ l) is added to
    ``grad_pole`` ``(G, N)``.
    """
    starts, taps, turned = w.starts, w.taps, w.turned
    for low in range(0, len(w.poles), TILE):
        tile = w.poles[low : low + TILE]
        _window(w, tile)
        for r in range(grid.shape[1]):
            for p in range(len(tile)):
                g, n = tile[p] // w.turns.shape[1], tile[p] % w.turns.shape[1]
                total, moment = 0j, 0j
                for b in range(grid.shape[2]):
                    a0, a1 = np.float32(0), np.float32(0)
                    m0, m1 = np.float32(0), np.float32(0)
                    # torch's transform has the other sign: the grid holds Y*, and φ Y = Re(φ* Y*)* - i Re((i φ)* Y*)
                    for j in range(2 * WIDTH):
                        a0 += grid[g - w.first_group, r, b, starts[p] + j] * taps[p, j]
                        a1 += grid[g - w.first_group, r, b, starts[p] + j] * turned[p, j]
                        m0 += moments[g - w.first_group, r, b, starts[p] + j] * taps[p, j]
                        m1 += moments[g - w.first_group, r, b, starts[p] + j] * turned[p, j]
                    here = complex(a0, -a1) * w.centres[p, b]
                    total += here
                    moment += (b * w.block + w.block // 2) * here + complex(m0, -m1) * w.centres[p, b]
                factor = w.weight[g, w.first_row + r, n]
                if w.turns[g, n] > 0.5:
                    grad_weight[g, w.first_row + r, n] = total
                    grad_pole[g, n] += factor * moment.conjugate()
                else:
                    grad_weight[g, w.first_row + r, n] = total.conjugate()
                    grad_pole[g, n] += factor * moment


class _Class(NamedTuple):
    """Exponentials with blocks of one size: their numbers group · N + n, ascending; the size M; how many blocks."""

    poles: Tensor
    block: int
    blocks: int

    def chunks(self, weight: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield groups, rows and exponentials that are computed together."""
        groups, rows, states = weight.shape
        size = self.blocks * (self.block + 1 + 2 * WIDTH)
        height = max(1, min(rows, CHUNK // size))
        width = max(1, CHUNK // (size * rows))
        for g in range(0, groups, width):
            ends = torch.tensor([g * states, (g + width) * states])
            low, high = torch.searchsorted(self.poles, ends).tolist()
            if low < high:
                for r in range(0, rows, height):
                    yield slice(g, min(g + width, groups)), slice(r, min(r + height, rows)), self.poles[low:high]

    def positions(self) -> Tensor:
        """Return x, the positions of a block from its centre, ``(M,)`` float64."""
        return torch.arange(self.block, dtype=torch.float64) - self.block // 2

    def correction(self) -> Tensor:
        """Return D(x), ``(M,)`` float32."""
        x = self.positions() / (2 * self.block)
        return (math.sqrt(SHARPNESS / math.pi) * torch.exp(math.pi**2 / SHARPNESS * x.square())).float()


def _classes(decay: Tensor, length: int) -> list[_Class]:
    decay = decay.detach()
    finest = max(0, math.floor(math.log2(length / SMALLEST_BLOCK)))
    found = torch.log2((decay * length / DECAY).clamp_min(1)).ceil_().long().clamp_max_(finest)
    found[~in_reach(decay)] = finest + 1
    classes = []
    for k in range(finest + 1):
        poles = (found == k).flatten().nonzero().squeeze(1)
        if len(poles):
            block = next_fast_len(max(SMALLEST_BLOCK, -(-length // (1 << k))), real=True)
            slowest = float(decay.flatten()[poles].min())
            blocks = -(-length // block)
            if slowest * length > NEGLIGIBLE:
                blocks = min(blocks, math.ceil(NEGLIGIBLE / (slowest * block)))
            classes.append(_Class(poles, block, blocks))
    return classes


class _Nonuniform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, decay: Tensor, freq: Tensor, length: int) -> Tensor:
        turns = freq / (2 * math.pi)
        turns = (turns - turns.floor()).contiguous()
        weight, decay = weight.resolve_conj().contiguous(), decay.contiguous()
        ctx.save_for_backward(weight, decay, turns)
        ctx.classes = classes = _classes(decay, length)
        padded = max([length, *(each.blocks * each.block for each in classes)])
        kernel = torch.zeros(*weight.shape[:2], padded)
        for each in classes:
            M, centre = each.block, each.block // 2
            correction = each.correction()
            for g, r, poles in each.chunks(weight):
                target = kernel[g, r, : each.blocks * M].view(*weight[g, r].shape[:2], each.blocks, M)
                grid = torch.zeros(*target.shape[:3], M + 1 + 2 * WIDTH, dtype=torch.complex64)
                _call(_spread, poles, turns, decay, weight, g, r, M, grid)
                half = grid[..., WIDTH : WIDTH + M + 1]
                half[..., : WIDTH + 1] += grid[..., : WIDTH + 1].flip(-1).conj()
                half[..., M - WIDTH :] += grid[..., M + WIDTH :].flip(-1).conj()
                y = torch.fft.irfft(half, n=2 * M, norm="forward")
                target[..., :centre].addcmul_(y[..., 2 * M - centre :], correction[:centre], value=0.5)
                target[..., centre:].addcmul_(y[..., : M - centre], correction[centre:], value=0.5)
        return kernel[..., :length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, decay, turns = ctx.saved_tensors
        padded = max([grad.shape[-1], *(each.blocks * each.block for each in ctx.classes)])
        grad = torch.nn.functional.pad(grad, (0, padded - grad.shape[-1]))
        grad_weight = torch.zeros_like(weight)
        grad_pole = torch.zeros(decay.shape, dtype=torch.complex128)
        for each in ctx.classes:
            M = each.block
            correction = each.correction()
            moment = correction * each.positions().float()
            for g, r, poles in each.chunks(weight):
                G = grad[g, r, : each.blocks * M].view(*weight[g, r].shape[:2], each.blocks, M)
                grids = _spectrum(G, correction), _spectrum(G, moment)
                _call(_gather, poles, turns, decay, weight, g, r, M, *grids, grad_weight, grad_pole)
        return grad_weight, -grad_pole.real, -grad_pole.imag, None


def _spectrum(signal: Tensor, factor: Tensor) -> Tensor:
    """Return the transform of ``factor · signal`` ``(..., M)`` at the grid points -WIDTH .. M + WIDTH."""
    M = signal.shape[-1]
    centre = M // 2
    y = signal.new_zeros(*signal.shape[:-1], 2 * M)
    torch.mul(signal[..., :centre], factor[:centre], out=y[..., 2 * M - centre :])
    torch.mul(signal[..., centre:], factor[centre:], out=y[..., : M - centre])
    half = torch.fft.rfft(y)
    below, above = half[..., 1 : WIDTH + 1], half[..., M - WIDTH : M]
    return torch.cat([below.flip(-1).conj(), half, above.flip(-1).conj()], -1).resolve_conj()


def _call(
    loop: Any, poles: Tensor, turns: Tensor, decay: Tensor, weight: Tensor, g: slice, r: slice, M: int, *grids: Tensor
) -> None:
    """Call a compiled loop. Grids become arrays of real and imaginary parts in turn; gradients stay complex."""
    starts = torch.empty(TILE, dtype=torch.int64)
    taps = torch.empty(2, TILE, 2 * WIDTH)
    centres = torch.empty(TILE, grids[0].shape[2], dtype=torch.complex128)
    flat = [x if x.dim() < 4 else torch.view_as_real(x).flatten(-2) for x in grids]
    arrays = (x.detach().numpy() for x in (poles, turns, decay, weight, starts, *taps, centres))
    untraced(loop)(_Work(g.start, r.start, M, *arrays), *(x.detach().numpy() for x in flat))
