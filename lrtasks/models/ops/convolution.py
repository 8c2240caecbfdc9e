"""Long convolutions: the FFT form, the interface of a kernel, its streaming forms, and the layers that use it.

    s = K * u (per channel),   z = GELU(s + D u),   y = M z + b   (optionally to 2 d_model, then GLU)

is :class:`LongConvLayer`, the layer of DLR, DSS, S4D and SGConv (DLR paper, section 2.3, and its public code).
:class:`SSM` is the simpler layer of MEGA, SeqBoat and LongVQ. A kernel module only provides K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import Portrait, hide, normal_, require_causal

CHUNK = {"cpu": 1 << 19}
"""Real numbers in the padded signals that are transformed together: 2 MiB in float32."""
CHUNK_ELSEWHERE = 1 << 27
"""The same on other devices: a GPU needs larger chunks to be busy (512 MiB)."""
CHANNELS = 16
"""Smallest number of channels in a chunk: a cache line if channels are the last axis in memory."""
PORTRAIT_CHANNELS = 4


def fft_conv(u: Tensor, kernel: Tensor, backward: Tensor | None = None, *, lag: int = 1) -> Tensor:
    """Convolve every channel of ``u`` with its own kernel and, if given, with a second kernel that looks ahead.

        y[i] = sum_{j >= 0} kernel[j] u[i - j]  +  sum_{j >= 0} backward[j] u[i + lag + j]

    with u = 0 outside its L positions. One transform pair serves both directions. To save memory, sequences are
    processed in chunks, only ``u`` and the kernels are saved for the gradient, and the backward pass repeats the
    transforms.

    Args:
        u: ``(batch, H, L)``.
        kernel: taps for lags 0 .. K-1, ``(H, K)``, any K >= 1 (taps at lag L and beyond have no effect).
        backward: taps for look-aheads ``lag``, ``lag + 1``, ..., ``(H, K')``; None for a causal convolution.
        lag: smallest look-ahead of ``backward``: 1 (DLR, DSS), or 0 to include the current position (MEGA).

    Returns:
        ``(batch, H, L)`` in the precision of ``u``; computed in float32 at least, under autocast too.
    """
    length = u.shape[-1]
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    with torch.autocast(u.device.type, enabled=False):
        kernel = kernel[..., :length].to(dtype)
        reach = kernel.shape[-1]
        if backward is not None:
            backward = backward[..., : max(length - lag, 0)].to(dtype)
            reach = max(reach, backward.shape[-1] + lag)
        size = next_fast_len(length + reach - 1, real=True)
        # in a circular convolution, a look-ahead of j positions is a lag of size - j
        taps = torch.nn.functional.pad(kernel, (0, size - kernel.shape[-1]))
        if backward is not None:
            ahead = torch.nn.functional.pad(backward, (lag, size - lag - backward.shape[-1]))
            taps = taps + ahead.flip(-1).roll(1, -1)
        return _CircularConv.apply(u.to(dtype), taps).to(u.dtype)  # type: ignore[no-untyped-call]


class _CircularConv(torch.autograd.Function):
    """First L positions of the circular convolution of zero-padded u ``(batch, H, L)`` with taps ``(H, size)``."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(u, taps)
        y = torch.empty_like(u)  # in the layout of u, transposed or not
        size, length = taps.shape[-1], u.shape[-1]
        for channels, sequences in _chunks(u, size):
            spectrum = torch.fft.rfft(taps[channels])
            for part in sequences:
                signal = torch.fft.rfft(u[part, channels], n=size).mul_(spectrum)
                y[part, channels] = torch.fft.irfft(signal, n=size)[..., :length]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        u, taps = ctx.saved_tensors
        grad_u, grad_taps = torch.empty_like(u), torch.empty_like(taps)
        size, length = taps.shape[-1], u.shape[-1]
        for channels, sequences in _chunks(u, size):
            spectrum = torch.fft.rfft(taps[channels]).conj_physical_()
            correlation = torch.zeros_like(spectrum)
            for part in sequences:
                incoming = torch.fft.rfft(grad[part, channels], n=size)
                signal = torch.fft.rfft(u[part, channels], n=size).conj_physical_()
                correlation += signal.mul_(incoming).sum(0)
                grad_u[part, channels] = torch.fft.irfft(incoming.mul_(spectrum), n=size)[..., :length]
            grad_taps[channels] = torch.fft.irfft(correlation, n=size)
        return grad_u, grad_taps


def _chunks(u: Tensor, size: int) -> Iterator[tuple[slice, list[slice]]]:
    """Yield slices of channels, each with the slices of sequences that are processed together."""
    limit = CHUNK.get(u.device.type, CHUNK_ELSEWHERE) // size
    width = max(limit, CHANNELS)
    for start in range(0, u.shape[1], width):
        channels = slice(start, min(start + width, u.shape[1]))
        step = max(1, limit // (channels.stop - start))
        yield channels, [slice(first, first + step) for first in range(0, u.shape[0], step)]


class Kernel(nn.Module):
    """Interface of the kernel of a long-convolution layer.

    Attributes:
        directions: 1 (causal), or 2 (look-back and look-ahead).
    """

    directions: int

    def forward(self, length: int) -> Tensor:
        """Return real taps for the first ``length`` lags, ``(directions, d_model, length)``."""
        raise NotImplementedError

    def recurrence(self) -> tuple[Tensor, Tensor] | None:
        """Return ``(weight, exponent)`` with K[h, l] = Re sum_n weight[h, n] exp(exponent[h, n] l), look-back only.

        Types are complex128, or float64 if all exponents are real. Shapes are ``(d_model, N)`` for the weight and
        ``(d_model, N)`` or ``(N,)`` for the exponent. Return None if the kernel is not a sum of exponentials.
        """
        return None


@dataclasses.dataclass
class ExponentialState:
    """Streaming state of a sum of exponentials: ``memory[b, h, n] = sum_j exp(exponent_n j) u[t - j]``."""

    weight: Tensor
    ratio: Tensor
    memory: Tensor

    def step(self, u: Tensor) -> tuple[Tensor, ExponentialState]:
        """Compute one real output in double precision from one input ``(batch, d_model)``."""
        memory = self.memory * self.ratio + u.unsqueeze(-1)
        return (memory * self.weight).sum(-1).real, dataclasses.replace(self, memory=memory)


@dataclasses.dataclass
class WindowState:
    """Streaming state of any kernel: its reversed taps, and the last K inputs; the newest is at ``(steps - 1) % K``.

    A kernel that is ``whole`` has more taps for longer sequences, so the state serves K positions only.
    """

    reversed_taps: Tensor
    memory: Tensor
    whole: bool = False
    steps: int = 0

    @classmethod
    def empty(cls, taps: Tensor, batch: int, *, whole: bool = False) -> WindowState:
        """Return the state before the first position, for the kernel ``taps``, ``(d_model, K)``."""
        return cls(taps.flip(-1), taps.new_zeros(batch, *taps.shape), whole)

    def step(self, u: Tensor) -> tuple[Tensor, WindowState]:
        """Compute one output from one input ``(batch, d_model)``, in O(K).

        Raises:
            UsageError: after K positions if the kernel is ``whole``.
        """
        K, steps = self.memory.shape[-1], self.steps + 1
        if self.whole and steps > K:
            raise UsageError(f"the streaming form of the kernel was built for {K} positions, found one more")
        memory = self.memory.select_scatter(u, -1, self.steps % K)
        s = (memory * self.reversed_taps.roll(steps % K, -1)).sum(-1)
        return s, dataclasses.replace(self, memory=memory, steps=steps)


class KernelConvolution(nn.Module):
    """Base class of layers with a long convolution: parallel form and streaming form of the convolution.

    Args:
        kernel: provides the taps, in one or two directions.
        length: maximum sequence length L.
        kernel_length: truncate the kernel to this many lags; None for L.
    """

    lag = 1
    """Smallest look-ahead of the second kernel, as in :func:`fft_conv`."""

    def __init__(self, kernel: Kernel, length: int, kernel_length: int | None) -> None:
        super().__init__()
        self.kernel, self.length, self.kernel_length = kernel, length, kernel_length

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ``(batch, length, d_model)``. Padding (False in ``mask``, ``(batch, length)``) is zero in the sums."""
        taps = self.kernel(min(x.shape[1], self.kernel_length or x.shape[1]))
        ahead = taps[1] if self.kernel.directions == 2 else None
        s = fft_conv(hide(x, mask).transpose(1, 2), taps[0], ahead, lag=self.lag).transpose(1, 2)
        return self.after(s, x)

    def after(self, s: Tensor, x: Tensor) -> Tensor:
        """Compute the output from the convolution ``s = K * x`` and the input."""
        raise NotImplementedError

    def step(self, x: Tensor, state: ExponentialState | WindowState) -> tuple[Tensor, ExponentialState | WindowState]:
        s, state = state.step(x)
        return self.after(s.to(x.dtype), x), state

    def initial_state(self, batch: int) -> ExponentialState | WindowState:
        """Return the state before the first position: N numbers per channel, or the last K inputs.

        The recurrence runs in double precision: rounding exp(Λ) to float32 would shift the phase by a radian after 2^24
        steps and distort the kernel well before. A truncated kernel, or a kernel that is not a sum of N exponentials,
        needs its last K inputs instead.

        Raises:
            UsageError: if the kernel has two directions.
        """
        require_causal(self.kernel.directions == 1)
        found = None if self.kernel_length is not None else self.kernel.recurrence()
        if found is None:
            taps = self.kernel(self.kernel_length or self.length)[0]
            return WindowState.empty(taps, batch, whole=self.kernel_length is None)
        weight, exponent = found
        return ExponentialState(weight, exponent.exp(), weight.new_zeros(batch, *weight.shape))


class LongConvLayer(KernelConvolution):
    """Long-convolution layer on ``(batch, length, d_model)``; the module docstring gives its formula.

    Args:
        kernel: the module that provides the taps.
        d_model: channels.
        length: maximum sequence length L.
        kernel_length: truncate the kernel to this many lags; None for L.
        glu: map to 2 d_model and multiply one half by the sigmoid of the other half.
    """

    def __init__(self, kernel: Kernel, d_model: int, length: int, kernel_length: int | None, glu: bool) -> None:
        super().__init__(kernel, length, kernel_length)
        if kernel_length is not None and kernel_length > length:
            raise UsageError(f"kernel_length must be at most the sequence length ({length}), found {kernel_length}")
        self.D = nn.Parameter(torch.randn(d_model))
        self.output = nn.Linear(d_model, 2 * d_model if glu else d_model)
        self.glu = glu

    def after(self, s: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.output(nn.functional.gelu(s + self.D * x))
        return nn.functional.glu(y, dim=-1) if self.glu else y

    @torch.no_grad()
    def portraits(self) -> list[Portrait]:
        """Return plots of a few channels' taps and spectra and, for a sum of exponentials, its eigenvalues exp(Λ)."""
        taps = self.kernel(self.kernel_length or self.length)[0, :PORTRAIT_CHANNELS].double().cpu()
        spectrum = torch.fft.rfft(taps).abs().clamp_min(1e-12)
        lags, lines = ({f"channel {i}": line for i, line in enumerate(each.numpy())} for each in (taps, spectrum))
        frequency = "frequency, in cycles per kernel length"
        drawn = [
            Portrait("kernel", "lines", lags, "lag", "K"),
            Portrait("kernel spectrum", "lines", lines, frequency, "|FFT K|", log_y=True),
        ]
        found = self.kernel.recurrence()
        if found is not None:
            eigenvalues = torch.exp(found[1].to(torch.complex128)).flatten().cpu().numpy()
            drawn.append(Portrait("eigenvalues", "plane", {"exp Λ": eigenvalues}, "real part", "imaginary part"))
        return drawn


class SSM(KernelConvolution):
    """``y = K * x + ω ⊙ x`` on ``(batch, length, d_model)``, over the past or, with two kernels, over past and future.

        y[t] = sum_{j >= 0} K1[j] x[t - j]  (+ sum_{j >= 0} K2[j] x[t + j])  + ω x[t]

    Both directions include the current position. Padded inputs count as zero in the sums, but not in ``ω x[t]``.

    Args:
        kernel: K, with one or two directions.
        d_model: channels.
        length: maximum sequence length.
        kernel_length: keep only this many taps; None for all.
        truncated: truncate the normal draws of ω (standard deviation 1) at 2.
    """

    lag = 0

    def __init__(
        self, kernel: Kernel, d_model: int, length: int, kernel_length: int | None = None, *, truncated: bool = True
    ) -> None:
        super().__init__(kernel, length, kernel_length)
        self.omega = nn.Parameter(normal_(torch.empty(d_model), 1.0, truncated=truncated))

    def after(self, s: Tensor, x: Tensor) -> Tensor:
        return s + self.omega * x
