"""Compiled loops for the GRU of :mod:`lrtasks.models.lstm`, the scalar memory of xLSTM, the selective scan of Mamba,
:mod:`lrtasks.models.ops.chunked` and :mod:`lrtasks.models.ops.exponentials`, on a CPU.

One position of a GRU or of xLSTM is little work, and starting an operation of torch costs more. The selective scan, the
matrix states and the tables of exponentials are large; here they stay in the cache. All compiled functions that call
each other are in this file, because numba does not notice a change of a called function in another file.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import extending, types
from torch import Tensor

from lrtasks.compiling import compiled, compiled_inner, untraced

LARGEST_STATE = 4096
"""Largest number of state values of a batch for which the loops of the GRU are used. For larger states, torch is faster
(``python benchmarks/recurrent_ops.py --ops gru --batch 64`` has 4,096 values). The sLSTM needs more operations of torch
per position, so its loops are used for eight times as many values, with at most MOST_THREADS threads."""
MOST_THREADS = 2
"""Largest number of torch threads for which the loops with vectors are used (matrix states, tables of exponentials),
and the loop of the sLSTM for large states. A loop uses one thread; operations of torch use all, and many are faster."""
BLOCK = 16
"""Positions between two states that a forward pass keeps. A backward pass computes the states between them again, which
should stay in the cache."""
LANES = 16
"""Numbers in a vector, as in a register of AVX-512; other processors use several registers."""
NEGLIGIBLE = 1e-19
"""Size below which a power counts as zero. Products of two powers are then almost never denormal (slow) numbers."""


def gru_usable(h: Tensor) -> bool:
    """Return whether the loops of the GRU suit a state h of this size, type and device."""
    return _computable(h) and h.numel() <= LARGEST_STATE


def slstm_usable(h: Tensor) -> bool:
    """Return whether the loops of the sLSTM suit a state h of this size, type and device, and the number of threads."""
    few_threads = torch.get_num_threads() <= MOST_THREADS
    return _computable(h) and h.numel() <= (8 * LARGEST_STATE if few_threads else LARGEST_STATE)


def vectors_usable(x: Tensor) -> bool:
    """Return whether loops with vectors suit inputs of this type and device, and the number of threads."""
    return _computable(x) and torch.get_num_threads() <= MOST_THREADS


def _computable(x: Tensor) -> bool:
    return x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu"


def run_loop(loop: Callable[..., None], *inputs: Any) -> None:
    """Call a compiled loop of this file with numbers and contiguous tensors; some of the tensors receive results."""
    untraced(loop)(*(x.detach().numpy() if isinstance(x, Tensor) else x for x in inputs))


class Lanes(types.Type):
    """Numba's type of a vector of LANES numbers of type ``of``, which the compiler keeps in registers.

    A sum in an array that might overlap others would pass through memory at each addition.
    """

    def __init__(self, of: Any) -> None:
        super().__init__(f"Lanes({of})")
        self.of = of


@extending.register_model(Lanes)
class _LanesModel(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Lanes) -> None:
        vector = ir.VectorType(manager.lookup(kind.of).get_value_type(), LANES)
        super().__init__(manager, kind, vector)  # type: ignore[no-untyped-call]


_intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
"""Makes an operation of compiled functions from a function that returns its signature and the writer of its code."""


def _repeated(builder: Any, x: Any) -> Any:
    vector = ir.Constant(ir.VectorType(x.type, LANES), ir.Undefined)
    places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(builder.insert_element(vector, x, ir.IntType(32)(0)), vector, places)


def _address(context: Any, builder: Any, kind: Any, array: Any, first: Any) -> Any:
    start = builder.gep(context.make_array(kind)(context, builder, array).data, [first])
    return builder.bitcast(start, context.get_value_type(Lanes(kind.dtype)).as_pointer())


@_intrinsic
def _lanes(_typing: Any, x: Any) -> Any:
    """Return a vector with LANES times the number ``x``."""

    def code(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return _repeated(builder, given[0])

    return Lanes(x)(x), code


@_intrinsic
def _load(_typing: Any, array: Any, first: Any) -> Any:
    """Return LANES numbers of an array ``(n,)``, from the place ``first``."""

    def code(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.load(_address(context, builder, array, *given), align=array.dtype.bitwidth // 8)

    return Lanes(array.dtype)(array, first), code


@_intrinsic
def _store(_typing: Any, array: Any, first: Any, x: Any) -> Any:
    """Write the vector ``x`` to an array ``(n,)``, from the place ``first``."""

    def code(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        builder.store(given[2], _address(context, builder, array, *given[:2]), align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, first, x), code


@_intrinsic
def _prefetch(_typing: Any, array: Any, first: Any) -> Any:
    """Start to bring LANES numbers of an array ``(n,)``, from the place ``first``, into the cache."""

    def code(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        address = builder.bitcast(_address(context, builder, array, *given), byte)
        builder.call(prefetch, [address, word(0), word(3), word(1)])  # to read, into the nearest cache, data
        return context.get_dummy_value()

    return types.void(array, first), code


@_intrinsic
def _add_scaled(_typing: Any, x: Any, scale: Any, y: Any) -> Any:
    """Return ``x + scale y`` for vectors x and y, possibly with one rounding; ``scale`` is a vector or a number."""

    def code(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        factor = given[1] if isinstance(scale, Lanes) else _repeated(builder, given[1])
        return builder.fadd(given[0], builder.fmul(factor, given[2], flags=("contract",)), flags=("contract",))

    return x(x, scale, y), code


@_intrinsic
def _negative(_typing: Any, x: Any) -> Any:
    """Return ``-x`` for a vector x."""

    def code(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.fneg(given[0])

    return x(x), code


@functools.partial(compiled_inner, regroup=True)
def _add_product(h: np.ndarray, R: np.ndarray, out: np.ndarray) -> None:
    """Add ``h R`` to ``out``, for vectors h and out. Each pass writes ``out`` to memory, so a pass adds four rows."""
    K = R.shape[0]
    whole = K - K % 4
    for k in range(0, whole, 4):
        h_0, h_1, h_2, h_3 = h[k], h[k + 1], h[k + 2], h[k + 3]
        for j in range(R.shape[1]):
            out[j] += h_0 * R[k, j] + h_1 * R[k + 1, j] + h_2 * R[k + 2, j] + h_3 * R[k + 3, j]
    for k in range(whole, K):
        for j in range(R.shape[1]):
            out[j] += h[k] * R[k, j]


@compiled
def _exp(x: np.float32) -> np.float32:
    """Return exp(x) with an error below two units in the last place; below -87.3, return exp(-87.3).

    ``exp(x) = 2^n exp(r)``: n is the integer nearest to x / log 2, and a polynomial (Cephes' ``expf``) gives exp(r).
    Compilers turn loops with this function, but not with ``math.exp``, into vector instructions.
    """
    x = np.float32(-87.3) if x < np.float32(-87.3) else x
    x = np.float32(89.0) if x > np.float32(89.0) else x  # n = 128 below, which gives infinity
    rounding = np.float32(1.5 * 2**23)  # a sum with it has n in its last bits
    shifted = np.float32(x * np.float32(1 / math.log(2)) + rounding)
    n = shifted - rounding
    r = x - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)  # x - n log 2, in two steps
    y = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
    y = y * r + np.float32(8.3334519073e-3)
    y = y * r + np.float32(4.1665795894e-2)
    y = y * r + np.float32(1.6666665459e-1)
    y = y * r + np.float32(5.0000001201e-1)
    y = y * r * r + r + np.float32(1)
    exponent = np.int32((shifted.view(np.int32) << 23) + (127 << 23))
    return y * exponent.view(np.float32)


@compiled_inner
def _exps(x: np.ndarray) -> None:
    """Replace each number of ``x``, ``(n,)``, by its exponential; in float32 by vector instructions."""
    if x.itemsize == 4:
        for j in range(len(x)):
            x[j] = _exp(np.float32(x[j]))
    else:
        for j in range(len(x)):
            x[j] = math.exp(x[j])


@compiled_inner
def _log1ps(x: np.ndarray) -> None:
    """Replace each number of ``x``, ``(n,)``, in [0, 1], by log(1 + x); in float32 by vector instructions.

    With s = x / (2 + x) of at most 1 / 3, log(1 + x) is 2 artanh(s) = 2 (s + s³ / 3 + s⁵ / 5 + ...). The first term
    left out is below 2e-9 times the sum.
    """
    if x.itemsize == 4:
        one, two = np.float32(1), np.float32(2)
        for j in range(len(x)):
            s = x[j] / (two + x[j])
            q = s * s
            y = np.float32(1 / 11) + q * (np.float32(1 / 13) + q * np.float32(1 / 15))
            y = np.float32(1 / 5) + q * (np.float32(1 / 7) + q * (np.float32(1 / 9) + q * y))
            x[j] = two * s * (one + q * (np.float32(1 / 3) + q * y))
    else:
        for j in range(len(x)):
            x[j] = math.log1p(x[j])


@compiled
def gru_forward(
    x: np.ndarray, R: np.ndarray, bias: np.ndarray, h: np.ndarray, gates: np.ndarray, own: np.ndarray
) -> None:
    """Compute h at all positions of a GRU.

    Args:
        x: ``(L, B, 3 H)``, contribution of the input to r, z and n, with its bias.
        R: ``(H in, 3 H out)``, recurrent map.
        bias: ``(3 H,)``, bias of the recurrent map.
        h: ``(L + 1, B, H)``; the first row is the initial state, and the others receive h.
        gates: ``(L, B, 4 H)``, receives r, z, n, and the recurrent contribution to n.
        own: ``(B, 3 H)``, work space.
    """
    H, one, two = h.shape[2], h.dtype.type(1), h.dtype.type(2)  # in float32, 1 + x would have float64
    for t in range(x.shape[0]):
        for b in range(len(own)):
            for j in range(len(bias)):
                own[b, j] = bias[j]
            _add_product(h[t, b], R, own[b])
        for b in range(x.shape[1]):
            for j in range(2 * H):
                gates[t, b, j] = -(x[t, b, j] + own[b, j])
            _exps(gates[t, b, : 2 * H])
            for j in range(2 * H):
                gates[t, b, j] = one / (one + gates[t, b, j])
            for j in range(H):
                gates[t, b, 3 * H + j] = own[b, 2 * H + j]
                gates[t, b, 2 * H + j] = -two * (x[t, b, 2 * H + j] + gates[t, b, j] * own[b, 2 * H + j])
            _exps(gates[t, b, 2 * H : 3 * H])
            for j in range(H):
                n = two / (one + gates[t, b, 2 * H + j]) - one  # tanh
                gates[t, b, 2 * H + j] = n
                h[t + 1, b, j] = n + gates[t, b, H + j] * (h[t, b, j] - n)


@compiled
def gru_backward(
    h: np.ndarray, gates: np.ndarray, RT: np.ndarray, d_h: np.ndarray, d_x: np.ndarray, d_own: np.ndarray
) -> None:
    """Compute the gradients of :func:`gru_forward` from the last position to the first.

    RT is the transpose of R. ``d_h``, ``(L + 1, B, H)``, holds gradients from outside; each row receives its total
    gradient. ``d_x`` and ``d_own``, ``(L, B, 3 H)``, receive those of x and of the recurrent contribution.
    """
    H, one = h.shape[2], h.dtype.type(1)
    for t in range(len(d_x) - 1, -1, -1):
        for b in range(h.shape[1]):
            for j in range(H):
                r, z, n, own = gates[t, b, j], gates[t, b, H + j], gates[t, b, 2 * H + j], gates[t, b, 3 * H + j]
                given = d_h[t + 1, b, j]
                d_n = given * (one - z) * (one - n * n)
                d_z = given * (h[t, b, j] - n) * z * (one - z)
                d_r = d_n * own * r * (one - r)
                d_x[t, b, j], d_x[t, b, H + j], d_x[t, b, 2 * H + j] = d_r, d_z, d_n
                d_own[t, b, j], d_own[t, b, H + j], d_own[t, b, 2 * H + j] = d_r, d_z, d_n * r
                d_h[t, b, j] += given * z
            _add_product(d_own[t, b], RT, d_h[t, b])


@compiled
def slstm_forward(
    x_if: np.ndarray,
    x_zo: np.ndarray,
    bias: np.ndarray,
    R: np.ndarray,
    slots: np.ndarray,
    keep: np.ndarray,
    pairs: np.ndarray,
    h: np.ndarray,
    m: np.ndarray,
) -> None:
    """Compute h at all positions of the scalar memory.

    Args:
        x_if: ``(H, B, L, 2 D)``, contribution of the input to i and f.
        x_zo: ``(H, B, L, 2 D)``, contribution of the input to z and o.
        bias: ``(H, 4 D)``.
        R: ``(H, D in, 4 D out)``, recurrent map of each head.
        slots: ``(H, B, L, 4 D)``, receives i', sigmoid(-f), tanh(z) and sigmoid(o).
        keep: ``(H, B, L, D)``, receives f'.
        pairs: ``(H, B, L + 1, 2, D)``; the first row is the initial c and n, and the others receive c and n.
        h: ``(H, B, L + 1, D)``; the first row is the initial state, and the others receive h.
        m: ``(H, B, D)``, the initial m; receives the last one.
    """
    D, zero, one, two = h.shape[3], h.dtype.type(0), h.dtype.type(1), h.dtype.type(2)
    for head in range(slots.shape[0]):
        for b in range(slots.shape[1]):
            for t in range(slots.shape[2]):
                for j in range(2 * D):
                    slots[head, b, t, j] = x_if[head, b, t, j] + bias[head, j]
                for j in range(2 * D):
                    slots[head, b, t, 2 * D + j] = x_zo[head, b, t, j] + bias[head, 2 * D + j]
                _add_product(h[head, b, t], R[head], slots[head, b, t])
                i, f = slots[head, b, t, :D], slots[head, b, t, D : 2 * D]
                z, o = slots[head, b, t, 2 * D : 3 * D], slots[head, b, t, 3 * D :]
                hold, log, m_t = keep[head, b, t], h[head, b, t + 1], m[head, b]
                for j in range(D):
                    hold[j] = -abs(f[j])
                    z[j] *= -two
                    o[j] *= -one
                _exps(hold)
                _exps(slots[head, b, t, 2 * D :])
                for j in range(D):
                    log[j] = hold[j]
                _log1ps(log)
                for j in range(D):
                    kept = min(f[j], zero) - log[j] + m_t[j]
                    m_t[j] = max(kept, i[j])
                    i[j] = kept - i[j]
                for j in range(D):
                    f[j] = (hold[j] if f[j] > zero else one) / (one + hold[j])
                    hold[j] = -abs(i[j])
                _exps(hold)  # the smaller one of i' and f'; the other one is 1
                for j in range(D):
                    lesser, of_f = hold[j], i[j] > zero
                    hold[j] = one if of_f else lesser
                    i[j] = lesser if of_f else one
                    z[j] = two / (one + z[j]) - one  # tanh
                    o[j] = one / (one + o[j])
                before, pair = pairs[head, b, t], pairs[head, b, t + 1]
                for j in range(D):
                    pair[0, j] = hold[j] * before[0, j] + i[j] * z[j]
                for j in range(D):
                    pair[1, j] = hold[j] * before[1, j] + i[j]
                for j in range(D):
                    h[head, b, t + 1, j] = o[j] * pair[0, j] / pair[1, j]


@compiled
def slstm_backward(
    slots: np.ndarray,
    keep: np.ndarray,
    pairs: np.ndarray,
    RT: np.ndarray,
    d_h: np.ndarray,
    d_pair: np.ndarray,
    d_slots: np.ndarray,
) -> None:
    """Compute the gradients of :func:`slstm_forward` from the last position to the first.

    Args:
        slots: as :func:`slstm_forward` leaves it; also keep and pairs.
        RT: ``(H, 4 D, D)``, the transpose of R.
        d_h: ``(H, B, L + 1, D)``, gradients of h from outside; each row receives its total gradient.
        d_pair: ``(H, B, 2, D)``, zeros; work space for the gradients of c and n.
        d_slots: ``(H, B, L, 4 D)``, receives the gradient of the slots.
    """
    D, one = d_h.shape[3], d_h.dtype.type(1)
    for head in range(d_slots.shape[0]):
        for b in range(d_slots.shape[1]):
            d_c, d_n = d_pair[head, b, 0], d_pair[head, b, 1]
            for t in range(d_slots.shape[2] - 1, -1, -1):
                write, forget = slots[head, b, t, :D], slots[head, b, t, D : 2 * D]
                z, o = slots[head, b, t, 2 * D : 3 * D], slots[head, b, t, 3 * D :]
                d_i, d_f = d_slots[head, b, t, :D], d_slots[head, b, t, D : 2 * D]
                d_z, d_o = d_slots[head, b, t, 2 * D : 3 * D], d_slots[head, b, t, 3 * D :]
                before, pair = pairs[head, b, t], pairs[head, b, t + 1]
                given, hold = d_h[head, b, t + 1], keep[head, b, t]
                for j in range(D):
                    d_o[j] = given[j] * o[j]
                for j in range(D):
                    of_c = d_o[j] / pair[1, j]
                    d_c[j] += of_c
                    d_n[j] -= of_c * pair[0, j] / pair[1, j]
                for j in range(D):
                    d_o[j] *= pair[0, j] / pair[1, j] * (one - o[j])
                for j in range(D):
                    d_i[j] = (d_c[j] * z[j] + d_n[j]) * write[j]
                for j in range(D):
                    d_z[j] = d_c[j] * write[j] * (one - z[j] * z[j])
                for j in range(D):
                    d_c[j] *= hold[j]
                    d_n[j] *= hold[j]
                for j in range(D):
                    d_f[j] = (d_c[j] * before[0, j] + d_n[j] * before[1, j]) * forget[j]
                _add_product(d_slots[head, b, t], RT[head], d_h[head, b, t])


@functools.partial(compiled, regroup=True)
def selective_forward(
    entering: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    negative: bool,
    h: np.ndarray,
    borders: np.ndarray,
    y: np.ndarray,
) -> None:
    """Compute y at all positions of the selective scan, in float32.

    Args:
        entering: ``(batch, L, D)``, dt u.
        dt: ``(batch, L, D)``.
        A: ``(N, D)``.
        B: ``(batch, L, N)``.
        C: ``(batch, L, N)``.
        negative: whether transitions are ``2 exp(dt A) - 1`` instead of ``exp(dt A)``.
        h: ``(batch, N, D)``, the initial state; receives the last one.
        borders: ``(batch, L / BLOCK rounded up, N, D)``, receives the states before the positions 0, BLOCK, ...
        y: ``(batch, L, D)``, zeros; receives y.
    """
    one = np.float32(1)
    scale = one + one if negative else one
    for b in range(len(y)):
        for t in range(y.shape[1]):
            for n in range(len(A)):
                B_n, C_n = B[b, t, n], C[b, t, n]
                if t % BLOCK == 0:
                    for d in range(A.shape[1]):
                        borders[b, t // BLOCK, n, d] = h[b, n, d]
                for d in range(A.shape[1]):
                    a = scale * _exp(dt[b, t, d] * A[n, d]) + (one - scale)
                    h[b, n, d] = a * h[b, n, d] + entering[b, t, d] * B_n
                    y[b, t, d] += C_n * h[b, n, d]


@functools.partial(compiled, regroup=True)
def selective_backward(
    entering: np.ndarray,
    dt: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    negative: bool,
    borders: np.ndarray,
    d_y: np.ndarray,
    a: np.ndarray,
    h: np.ndarray,
    d_h: np.ndarray,
    d_entering: np.ndarray,
    d_dt: np.ndarray,
    d_A: np.ndarray,
    d_B: np.ndarray,
    d_C: np.ndarray,
) -> None:
    """Compute the gradients of :func:`selective_forward` from the last position to the first.

    The states between two stored ones are computed again. Each inner loop uses few arrays: with many, the compiler does
    not check whether they overlap, and does not use vector instructions.

    Args:
        entering: as in :func:`selective_forward`; also dt, A, B, C, negative and borders.
        d_y: ``(batch, L, D)``, gradient of y.
        a: ``(BLOCK, N, D)``, work space for transitions and for the gradients of ``dt A``.
        h: ``(BLOCK + 1, N, D)``, work space for states.
        d_h: ``(batch, N, D)``, gradient of the last state; receives that of the initial state.
        d_entering: zeros; receives the gradient of ``entering``. The next four receive those of dt, A, B and C.
    """
    one, N, D = np.float32(1), A.shape[0], A.shape[1]
    scale = one + one if negative else one
    for b in range(len(d_y)):
        for block in range(borders.shape[1] - 1, -1, -1):
            first, last = block * BLOCK, min((block + 1) * BLOCK, d_y.shape[1])
            for n in range(N):
                for d in range(D):
                    h[0, n, d] = borders[b, block, n, d]
            for t in range(first, last):
                i = t - first
                for n in range(N):
                    for d in range(D):
                        a[i, n, d] = scale * _exp(dt[b, t, d] * A[n, d]) + (one - scale)
                    B_n = B[b, t, n]
                    for d in range(D):
                        h[i + 1, n, d] = a[i, n, d] * h[i, n, d] + entering[b, t, d] * B_n
            for t in range(last - 1, first - 1, -1):
                i = t - first
                for n in range(N):
                    B_n, C_n, of_B, of_C = B[b, t, n], C[b, t, n], one - one, one - one
                    for d in range(D):
                        total = d_h[b, n, d] + d_y[b, t, d] * C_n
                        d_h[b, n, d] = total
                        of_C += d_y[b, t, d] * h[i + 1, n, d]
                        of_B += entering[b, t, d] * total
                    d_B[b, t, n], d_C[b, t, n] = of_B, of_C
                    for d in range(D):
                        total, kept = d_h[b, n, d], a[i, n, d]
                        d_entering[b, t, d] += B_n * total
                        d_h[b, n, d] = kept * total
                        a[i, n, d] = (kept - (one - scale)) * total * h[i, n, d]
                    for d in range(D):
                        d_dt[b, t, d] += a[i, n, d] * A[n, d]
                        d_A[n, d] += a[i, n, d] * dt[b, t, d]


@compiled
def low_rank_forward(
    r: np.ndarray,
    e: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    a: Any,
    b: Any,
    S: np.ndarray,
    borders: np.ndarray,
    z: Any,
    y: np.ndarray,
) -> None:
    """Compute ``S_t = diag(e_t) S_(t-1) + b_t (a_t^T S_(t-1)) + k_t v_t^T`` and ``y_t = S_t^T r_t`` at all positions.

    K and V are multiples of LANES. Without an erase, a, b and z are None; numba compiles a second version for this.

    Args:
        r: ``(batch, L, H, K)``; also e, k, a and b.
        v: ``(batch, L, H, V)``.
        S: ``(batch, H, V / LANES, K LANES)``, the initial state as tiles of LANES columns; receives the last one.
        borders: ``(batch, L / BLOCK rounded up, H, V / LANES, K LANES)``, receives the states before the positions 0,
            BLOCK, ...
        z: ``(batch, L, H, V)``, receives ``a_t^T S_(t-1)``.
        y: ``(batch, L, H, V)``, receives y.
    """
    K, zero = r.shape[3], _lanes(y.dtype.type(0))
    for n in range(borders.shape[0]):
        for t in range(y.shape[1]):
            for head in range(borders.shape[2]):
                r_t, e_t, k_t = r[n, t, head], e[n, t, head], k[n, t, head]
                for tile in range(borders.shape[3]):
                    state, first = S[n, head, tile], tile * LANES
                    if t % BLOCK == 0:
                        for i in range(K):
                            _store(borders[n, t // BLOCK, head, tile], i * LANES, _load(state, i * LANES))
                    v_t, z_t, y_t = _load(v[n, t, head], first), zero, zero
                    if a is not None:
                        for i in range(K):
                            z_t = _add_scaled(z_t, a[n, t, head, i], _load(state, i * LANES))
                        _store(z[n, t, head], first, z_t)
                    for i in range(K):
                        written = _add_scaled(zero, k_t[i], v_t)
                        if a is not None:
                            written = _add_scaled(written, b[n, t, head, i], z_t)
                        S_i = _add_scaled(written, e_t[i], _load(state, i * LANES))
                        _store(state, i * LANES, S_i)
                        y_t = _add_scaled(y_t, r_t[i], S_i)
                    _store(y[n, t, head], first, y_t)


@compiled_inner
def _transpose_tiles(rows: np.ndarray, columns: np.ndarray) -> None:
    """Copy a matrix ``(K, V)`` from ``rows``, ``(V / LANES, K LANES)``, to ``columns``, ``(K / LANES, V LANES)``."""
    for tile in range(rows.shape[0]):
        for i in range(rows.shape[1] // LANES):
            for j in range(LANES):
                columns[i // LANES, (tile * LANES + j) * LANES + i % LANES] = rows[tile, i * LANES + j]


@compiled_inner
def _fetch(x: np.ndarray) -> None:
    """Start to bring the vector ``x`` into the cache."""
    for i in range(0, len(x), LANES):
        _prefetch(x, i)


@compiled
def low_rank_backward(
    r: np.ndarray,
    e: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    a: Any,
    b: Any,
    borders: np.ndarray,
    z: Any,
    d_y: np.ndarray,
    S: np.ndarray,
    d_z: np.ndarray,
    d_ST: np.ndarray,
    d_S: np.ndarray,
    d_r: np.ndarray,
    d_e: np.ndarray,
    d_k: np.ndarray,
    d_v: np.ndarray,
    d_a: Any,
    d_b: Any,
) -> None:
    """Compute the gradients of :func:`low_rank_forward` from the last position to the first.

    The gradients of z and v are sums over the K rows of the state, and those of r, e, k, a and b are sums over its V
    columns. The gradient of the state is computed twice, in both layouts, so that each sum adds vectors.

    Args:
        r: as in :func:`low_rank_forward`; also e, k, v, a, b, borders and z.
        d_y: ``(batch, L, H, V)``, gradient of y.
        S: ``(BLOCK + 1, H, K / LANES, V LANES)``, work space for states as tiles of LANES rows.
        d_z: ``(BLOCK, H, V)``, work space.
        d_ST: ``(H, K / LANES, V LANES)``, work space.
        d_S: ``(batch, H, V / LANES, K LANES)``, gradient of the last state; receives that of the initial state.
        d_r: receives the gradient of r. The next five receive the gradients of e, k, v, a and b.
    """
    K, V, zero = r.shape[3], v.shape[3], _lanes(d_y.dtype.type(0))
    for n in range(borders.shape[0]):
        for head in range(d_S.shape[1]):
            _transpose_tiles(d_S[n, head], d_ST[head])
        for block in range(borders.shape[1] - 1, -1, -1):
            first, last = block * BLOCK, min((block + 1) * BLOCK, d_y.shape[1])
            for head in range(borders.shape[2]):
                _transpose_tiles(borders[n, block, head], S[0, head])
            for t in range(first, last):
                for head in range(borders.shape[2]):
                    v_t = v[n, t, head]
                    if block > 0:  # processors do not expect blocks in reverse order
                        for x in (r, e, k, v, d_y, d_r, d_e, d_k, d_v):
                            _fetch(x[n, t - BLOCK, head])
                        if a is not None:
                            for x in (a, b, z, d_a, d_b):
                                _fetch(x[n, t - BLOCK, head])
                    for tile in range(K // LANES):
                        i, before, after = tile * LANES, S[t - first, head, tile], S[t - first + 1, head, tile]
                        e_i, k_i = _load(e[n, t, head], i), _load(k[n, t, head], i)
                        b_i = zero if a is None else _load(b[n, t, head], i)
                        for j in range(V):
                            written = _add_scaled(zero, v_t[j], k_i)
                            if a is not None:
                                written = _add_scaled(written, z[n, t, head, j], b_i)
                            _store(after, j * LANES, _add_scaled(written, e_i, _load(before, j * LANES)))
            for t in range(last - 1, first - 1, -1):
                for head in range(borders.shape[2]):
                    r_t, e_t, k_t = r[n, t, head], e[n, t, head], k[n, t, head]
                    for tile in range(V // LANES):
                        j, total = tile * LANES, d_S[n, head, tile]
                        y_j, of_z, of_v = _load(d_y[n, t, head], j), zero, zero
                        for i in range(K):
                            total_i = _add_scaled(_load(total, i * LANES), r_t[i], y_j)
                            _store(total, i * LANES, total_i)
                            of_v = _add_scaled(of_v, k_t[i], total_i)
                            if a is not None:
                                of_z = _add_scaled(of_z, b[n, t, head, i], total_i)
                        for i in range(K):
                            through_z = zero if a is None else _add_scaled(zero, a[n, t, head, i], of_z)
                            _store(total, i * LANES, _add_scaled(through_z, e_t[i], _load(total, i * LANES)))
                        _store(d_z[t - first, head], j, of_z)
                        _store(d_v[n, t, head], j, of_v)
            for t in range(last - 1, first - 1, -1):
                for head in range(borders.shape[2]):
                    y_t, v_t, of_z_t = d_y[n, t, head], v[n, t, head], d_z[t - first, head]
                    for tile in range(K // LANES):
                        i, before, after = tile * LANES, S[t - first, head, tile], S[t - first + 1, head, tile]
                        r_i, e_i = _load(r[n, t, head], i), _load(e[n, t, head], i)
                        a_i = zero if a is None else _load(a[n, t, head], i)
                        of_r, of_e, of_k, of_a, of_b, total = zero, zero, zero, zero, zero, d_ST[head, tile]
                        for j in range(V):
                            S_j = _load(before, j * LANES)
                            total_j = _add_scaled(_load(total, j * LANES), y_t[j], r_i)
                            of_r = _add_scaled(of_r, y_t[j], _load(after, j * LANES))
                            of_e = _add_scaled(of_e, S_j, total_j)
                            of_k = _add_scaled(of_k, v_t[j], total_j)
                            through_z = zero
                            if a is not None:
                                of_a = _add_scaled(of_a, of_z_t[j], S_j)
                                of_b = _add_scaled(of_b, z[n, t, head, j], total_j)
                                through_z = _add_scaled(zero, of_z_t[j], a_i)
                            _store(total, j * LANES, _add_scaled(through_z, e_i, total_j))
                        _store(d_r[n, t, head], i, of_r)
                        _store(d_e[n, t, head], i, of_e)
                        _store(d_k[n, t, head], i, of_k)
                        if a is not None:
                            _store(d_a[n, t, head], i, of_a)
                            _store(d_b[n, t, head], i, of_b)


@compiled_inner
def _powers(z: np.ndarray, table: np.ndarray, power: np.ndarray) -> None:
    """Write z^0, z^1, ... to the rows of ``table``, ``(count, 2 N)``, and replace z by z^count.

    ``z`` and the work space ``power`` are ``(2, N)`` in float64.
    """
    N = z.shape[1]
    for n in range(N):
        power[0, n], power[1, n] = 1.0, 0.0
    for count in range(table.shape[0]):
        row = table[count]
        for n in range(N):
            real, imaginary = power[0, n], power[1, n]
            real = 0.0 if abs(real) < NEGLIGIBLE else real
            imaginary = 0.0 if abs(imaginary) < NEGLIGIBLE else imaginary
            row[n], row[N + n] = table.dtype.type(real), table.dtype.type(imaginary)
            power[0, n] = real * z[0, n] - imaginary * z[1, n]
            power[1, n] = real * z[1, n] + imaginary * z[0, n]
    for n in range(N):
        z[0, n], z[1, n] = power[0, n], power[1, n]


@compiled_inner
def _complex_product(x: np.ndarray, y: np.ndarray, sign: int, out: np.ndarray) -> None:
    """Write ``x y``, or its conjugate if ``sign`` is -1, to ``out``; ``(2 N,)`` each: N real, N imaginary parts."""
    N, zero = len(x) // 2, _lanes(out.dtype.type(0))
    for n in range(0, N, LANES):
        x_r, x_i, y_r, y_i = _load(x, n), _load(x, N + n), _load(y, n), _load(y, N + n)
        imaginary = _add_scaled(_add_scaled(zero, x_r, y_i), x_i, y_r)
        _store(out, n, _add_scaled(_add_scaled(zero, x_r, y_r), _negative(x_i), y_i))
        _store(out, N + n, imaginary if sign == 1 else _negative(imaginary))


@compiled
def powers(z: np.ndarray, work: np.ndarray, seeds: np.ndarray, table: np.ndarray) -> None:
    """Compute the powers z^0 .. z^(count - 1) of complex numbers; N is a multiple of LANES.

    Two tables of about sqrt(count) powers are computed in float64. Each power is a product of one of each.

    Args:
        z: ``(G, 2, N)`` float64, real parts and imaginary parts.
        work: ``(2, 2, N)`` float64, work space.
        seeds: ``(2, sqrt(count) rounded up, 2 N)``, work space.
        table: ``(G, count, 2 N)``, receives the powers: N real parts, then N imaginary parts.
    """
    inner = seeds.shape[1]
    for g in range(len(table)):
        for n in range(z.shape[2]):
            work[0, 0, n], work[0, 1, n] = z[g, 0, n], z[g, 1, n]
        _powers(work[0], seeds[0], work[1])
        _powers(work[0], seeds[1], work[1])
        for i in range(table.shape[1]):
            _complex_product(seeds[1, i // inner], seeds[0, i % inner], 1, table[g, i])


@compiled
def weighted_powers(weight: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    """Compute the conjugates of ``W z^m``.

    Args:
        weight: W, ``(G, R, 2 N)``: N real parts, then N imaginary parts.
        table: z^m, ``(G, count, 2 N)``.
        out: ``(G, R, count, 2 N)``, receives the result.
    """
    for g in range(out.shape[0]):
        for r in range(out.shape[1]):
            for m in range(out.shape[2]):
                _complex_product(weight[g, r], table[g, m], -1, out[g, r, m])


@compiled
def power_sums(table: np.ndarray, inner: np.ndarray, stride: int, total: np.ndarray, moment: np.ndarray) -> None:
    """Add ``sum_m z^m P_m`` to ``total`` and ``sum_m z^m (m stride P_m + Q_m)`` to ``moment``.

    Args:
        table: z^m, ``(G, count, 2 N)``: N real parts, then N imaginary parts.
        inner: P and Q, ``(G, R, 2, count, 2 N)``.
        stride: positions between two powers.
        total: ``(G, R, 2 N)``; also moment.
    """
    N = table.shape[2] // 2
    for g in range(inner.shape[0]):
        for r in range(inner.shape[1]):
            for m in range(inner.shape[3]):
                z, P, Q, position = table[g, m], inner[g, r, 0, m], inner[g, r, 1, m], total.dtype.type(m * stride)
                for n in range(0, N, LANES):
                    z_r, z_i, P_r, P_i = _load(z, n), _load(z, N + n), _load(P, n), _load(P, N + n)
                    Q_r, Q_i = _add_scaled(_load(Q, n), position, P_r), _add_scaled(_load(Q, N + n), position, P_i)
                    minus = _negative(z_i)
                    s, t = total[g, r], moment[g, r]
                    _store(s, n, _add_scaled(_add_scaled(_load(s, n), z_r, P_r), minus, P_i))
                    _store(s, N + n, _add_scaled(_add_scaled(_load(s, N + n), z_r, P_i), z_i, P_r))
                    _store(t, n, _add_scaled(_add_scaled(_load(t, n), z_r, Q_r), minus, Q_i))
                    _store(t, N + n, _add_scaled(_add_scaled(_load(t, N + n), z_r, Q_i), z_i, Q_r))
