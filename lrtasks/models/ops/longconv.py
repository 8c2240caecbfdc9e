"""Long convolutions by zero-padded FFT, causal and two-sided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = {"cpu": 1 << 19}  # real numbers in the padded signals that go through at a time: 2 MiB in float32
CHANNELS = 16  # at least so many go through together: a cache line where channels are the last axis in memory
CHUNK_ELSEWHERE = 1 << 27  # a GPU is kept busy by larger ones: 512 MiB


def fft_conv(u: Tensor, kernel: Tensor, backward: Tensor | None = None, *, lag: int = 1) -> Tensor:
    """Convolve every channel of ``u`` with its own kernel, and with a second one that looks ahead if given.

        y[i] = sum_{j >= 0} kernel[j] u[i - j]  +  sum_{j >= 0} backward[j] u[i + lag + j]

    with u = 0 outside its L positions. One transform pair serves both directions. Only ``u`` and the kernels are kept
    for the gradient, sequences go through in chunks, and transforms are repeated in the backward pass.

    Args:
        u: ``(batch, H, L)``.
        kernel: taps for lags 0 .. K-1, ``(H, K)``, any K >= 1 (taps from L on have no effect).
        backward: taps for positions ``lag``, ``lag + 1``, ... ahead, ``(H, K')``; None for a causal convolution.
        lag: first position ahead that ``backward`` weighs: 1 (DLR, DSS) or 0 (MEGA, which also weighs the present).

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
        # a look-ahead of j positions is a lag of size - j on the circle
        taps = torch.nn.functional.pad(kernel, (0, size - kernel.shape[-1]))
        if backward is not None:
            ahead = torch.nn.functional.pad(backward, (lag, size - lag - backward.shape[-1]))
            taps = taps + ahead.flip(-1).roll(1, -1)
        y: Tensor = _CircularConv.apply(u.to(dtype), taps)  # type: ignore[no-untyped-call]
        return y.to(u.dtype)


def working_bytes(channels: int, length: int, device: torch.device) -> int:
    """About what :func:`fft_conv` and its gradient hold at their peak in float32 beside inputs and outputs.

    Five padded signals or spectra of one chunk, twice the length each.
    """
    return 5 * 4 * max(CHUNK.get(device.type, CHUNK_ELSEWHERE), 2 * min(channels, CHANNELS) * length)


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
    """Slices of channels, and of the sequences that go through them at a time."""
    limit = CHUNK.get(u.device.type, CHUNK_ELSEWHERE) // size
    width = max(limit, CHANNELS)
    for start in range(0, u.shape[1], width):
        channels = slice(start, min(start + width, u.shape[1]))
        step = max(1, limit // (channels.stop - start))
        yield channels, [slice(first, first + step) for first in range(0, u.shape[0], step)]
