"""Second-order all-pole filters, one set per time bin: parallel form, streaming form, and Focus's circular form.

:class:`BinFilter` applies them to a sequence that is divided into bins.

Source: the Focus paper (adaptive IIR filters before chunked attention), equations 4 to 8. The causal forms are our own.

    R          positions per bin
    θ0, θ1     coefficients of a filter: y[t] = x[t] - θ0 y[t-1] - θ1 y[t-2]
    H(ω)       1 / (1 + θ0 e^(-iω) + θ1 e^(-2iω))
    h          impulse response; h[-1] = 0, h[0] = 1
    F          filters per channel and bin, whose outputs are summed

Shapes: x ``(batch, channels, bins, R)``; θ ``(batch, channels, bins, F, 2)``, where batch or bins may be 1 if all
samples or all bins use the same filters.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lrtasks.models.ops.convolution import fft_conv
from lrtasks.models.ops.layers import Portrait, at_least_float32

Filtering = Literal["reset", "carry", "circular"]

SAMPLES = 2
"""Number of samples, the first of the last batch, that the record and the figures show."""
RECORDED, DRAWN = 9, 65
"""Numbers of frequencies in the record and in a figure, evenly spaced from 0 to the highest."""
TAPS = 48
"""Number of taps of an impulse response in a figure."""


def stable_coefficients(raw: Tensor, *, signed: bool) -> Tensor:
    """Map real numbers, ``(..., 2)``, to coefficients of stable filters, in float32 at least.

    By default, θ = sigmoid(raw), in the open unit square. There, both poles lie inside the unit circle, but every
    filter is weaker at frequency 0 than at the highest frequency. If ``signed``, θ1 = sigmoid(raw_1) and
    θ0 = (1 + θ1) tanh(raw_0): the part θ1 > 0 of the stability triangle, which includes low-pass filters.
    """
    raw = at_least_float32(raw)
    if not signed:
        return raw.sigmoid()
    theta1 = raw[..., 1].sigmoid()
    return torch.stack([(1 + theta1) * raw[..., 0].tanh(), theta1], -1)


def pole_radius(theta: Tensor) -> Tensor:
    """Return the largest absolute value of the roots of z² + θ0 z + θ1: ``(..., 2)`` to ``(...)``."""
    theta0, theta1 = theta.double().unbind(-1)
    root = (theta0.square() / 4 - theta1).to(torch.complex128).sqrt()
    return torch.maximum((root - theta0 / 2).abs(), (root + theta0 / 2).abs())


def frequency_response(theta: Tensor, omega: Tensor) -> Tensor:
    """Return H at frequencies ``omega`` in radians per position: ``(..., 2)`` and ``(n,)`` to complex ``(..., n)``."""
    turn = torch.polar(torch.ones_like(omega), -omega)
    return 1 / (1 + theta[..., :1] * turn + theta[..., 1:] * turn.square())


def impulse_response(theta: Tensor, length: int) -> Tensor:
    """Return the first ``length`` >= 1 values of h, ``(..., 2)`` to ``(..., length)``; differentiable, for any poles.

    With a = -θ0/2 and D = a² - θ1 the poles are p = a ± √D, and p^n = C_n ± √D S_n for real C_n and S_n with
    C_(m+n) = C_m C_n + D S_m S_n and S_(m+n) = S_m C_n + C_m S_n; then h[n] = S_(n+1). With B near sqrt(length),
    doubling gives one table of the powers 1 to B of p, and one table of the powers of p^B; one product of the two
    tables gives all powers. The shorter rule h[m+n] = h[m] h[n] - θ1 h[m-1] h[n-1] loses all digits if both poles are
    near 1, because large terms cancel.
    """
    c = -theta[..., :1] / 2
    # in double precision, because the difference cancels digits
    d = (c.double().square() - theta[..., 1:].double()).to(c.dtype)
    block = math.isqrt(length - 1) + 1
    small_c, small_s, step_c, step_s = _powers(c, torch.ones_like(c), d, block)
    # from powers 0 .. B-1 to 1 .. B
    small_c, small_s = small_c * c + d * small_s, small_s * c + small_c
    large_c, large_s, _, _ = _powers(step_c, step_s, d, -(-length // block))
    h = torch.stack([large_s, large_c], -1) @ torch.stack([small_c, small_s], -2)
    return h.flatten(-2)[..., :length]


def _powers(c: Tensor, s: Tensor, d: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return powers 0 .. count-1 of c + √d s, ``(..., 1)`` to ``(..., count)``, as two tables; also power ``count``."""
    base_c, base_s = c, s
    table_c, table_s = torch.ones_like(c), torch.zeros_like(c)
    while (known := table_c.shape[-1]) < count:
        # c + √d s is the base to the power ``known``
        new = min(known, count - known)
        first_c, first_s = table_c[..., :new], table_s[..., :new]
        table_c = torch.cat([table_c, first_c * c + d * first_s * s], -1)
        table_s = torch.cat([table_s, first_s * c + first_c * s], -1)
        c, s = c * c + d * s * s, 2 * c * s
    last_c, last_s = table_c[..., -1:], table_s[..., -1:]
    return table_c, table_s, last_c * base_c + d * last_s * base_s, last_s * base_c + last_c * base_s


def filter_bins(x: Tensor, theta: Tensor, past: Tensor | None = None) -> Tensor:
    """Sum the outputs of the F causal filters; each bin has its own coefficients. Differentiable in all arguments.

    The truncated impulse responses are summed over F, then convolved with x. With ``past``, each filter is convolved by
    itself, and its outputs y[-1], y[-2] before a bin add y[-1] h[t+1] - θ1 y[-2] h[t] to the outputs of the bin.

    Args:
        x: ``(batch, channels, bins, R)``.
        theta: ``(batch or 1, channels, bins or 1, F, 2)``.
        past: last two outputs of each filter before the first bin, newest first, ``(batch, channels, F, 2)``; each
            bin then continues the outputs of the previous bin. None: every bin starts from zeros.

    Returns:
        Shape and precision of x; computed in float32 at least, under autocast too.
    """
    with torch.autocast(x.device.type, enabled=False):
        signal = x.to(torch.promote_types(x.dtype, theta.dtype))
        if past is None:
            y = _convolve(signal, impulse_response(theta, x.shape[-1]).sum(-2))
        else:
            y = _carried(signal, theta, past.to(signal.dtype))
        return y.to(x.dtype)


def filter_step(x: Tensor, theta: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one position of :func:`filter_bins` as a recurrence, with two numbers of state per filter.

    Args:
        x: ``(batch, channels)``.
        theta: ``(batch or 1, channels, F, 2)``.
        past: last two outputs of each filter, newest first, ``(batch, channels, F, 2)``.

    Returns:
        The sum over F, ``(batch, channels)``, and the new ``past``.
    """
    y = x.unsqueeze(-1) - (theta * past).sum(-1)
    return y.sum(-1).to(x.dtype), torch.stack([y, past[..., 0]], -1)


def circular_filter(x: Tensor, theta: Tensor, *, conjugate: bool = True) -> Tensor:
    """Compute the paper's form, ``IFFT(sum_f FFT(x) conj(H_f))``, with R-point transforms in each bin. **Not causal.**

    H sampled at R points is the spectrum of the impulse response wrapped around the bin; its conjugate is the spectrum
    of the same response reversed in time. Outputs therefore depend on later inputs.

    Args:
        x: ``(batch, channels, bins, R)``.
        theta: ``(batch or 1, channels, bins or 1, F, 2)``.
        conjugate: False for a circular convolution, which looks ahead only by wrapping around.
    """
    length = x.shape[-1]
    with torch.autocast(x.device.type, enabled=False):
        signal = x.to(torch.promote_types(x.dtype, theta.dtype))
        omega = torch.arange(length // 2 + 1, device=x.device, dtype=theta.dtype) * (2 * torch.pi / length)
        response = frequency_response(theta, omega).sum(-2)
        spectrum = torch.fft.rfft(signal) * (response.conj() if conjugate else response)
        return torch.fft.irfft(spectrum, n=length).to(x.dtype)


def _convolve(x: Tensor, taps: Tensor) -> Tensor:
    """Convolve each bin causally with its own taps ``(batch or 1, channels, bins or 1, R)``."""
    batch, channels, bins, length = x.shape
    if taps.shape[0] == taps.shape[2] == 1:
        y = fft_conv(x.transpose(1, 2).reshape(-1, channels, length), taps[0, :, 0])
        return y.view(batch, bins, channels, length).transpose(1, 2)
    # treat every bin of every sample as a separate channel
    y = fft_conv(x.reshape(1, -1, length), taps.expand(x.shape).reshape(-1, length))
    return y.view(x.shape)


def _carried(x: Tensor, theta: Tensor, past: Tensor) -> Tensor:
    """Compute the bins one after the other, each from the last two outputs of every filter before it."""
    bins, length = x.shape[2:]
    h = impulse_response(theta, length + 1).expand(-1, -1, bins, -1, -1)
    theta1 = theta[..., 1].expand(-1, -1, bins, -1)
    outputs = []
    for i in range(bins):
        signal = x[:, :, i, None].expand(*past.shape[:3], length)
        taps = h[:, :, i].expand(*past.shape[:3], -1)
        own = fft_conv(signal.reshape(1, -1, length), taps[..., :-1].reshape(-1, length)).view(signal.shape)
        newest, before = past[..., :1], theta1[:, :, i, :, None] * past[..., 1:]
        y = own + newest * taps[..., 1:] - before * taps[..., :-1]
        past = torch.cat([newest, y], -1)[..., -2:].flip(-1)
        outputs.append(y.sum(-2))
    return torch.stack(outputs, 2)


class BinFilter(nn.Module):
    """Filter ``(batch, length, d_model)`` bin by bin with given coefficients.

    Bins without coefficients, at the start, are not filtered. With ``"carry"``, each of the F filters takes 1/F of the
    last two unfiltered outputs as its past.

    Args:
        bin_length: positions per bin, R; the last bin is padded with zeros.
        unfiltered: bins at the start without coefficients, 0 or 1.
        filtering: ``"reset"``: causal, each bin starts from zeros; ``"carry"``: causal, each bin continues the previous
            outputs; ``"circular"``: :func:`circular_filter`, not causal.
        conjugate: as in :func:`circular_filter`.
    """

    theta: Tensor | None = None  # coefficients of the first SAMPLES samples in the last forward pass

    def __init__(self, bin_length: int, unfiltered: int, filtering: Filtering, *, conjugate: bool = True) -> None:
        super().__init__()
        self.bin_length, self.unfiltered, self.conjugate = bin_length, unfiltered, conjugate
        self.filtering: Filtering = filtering

    def forward(self, x: Tensor, theta: Tensor) -> Tensor:
        """Filter x with ``theta``, ``(batch or 1, d_model, bins or 1, F, 2)``, after the unfiltered bins."""
        self.theta = theta[:SAMPLES].detach()
        length = x.shape[1]
        padded = functional.pad(x, (0, 0, 0, -length % self.bin_length))
        signal = padded.reshape(len(x), -1, self.bin_length, x.shape[2]).permute(0, 3, 1, 2)
        passing, rest = signal[:, :, : self.unfiltered], signal[:, :, self.unfiltered :]
        if not rest.shape[2]:
            return x
        if self.filtering == "circular":
            filtered = circular_filter(rest, theta, conjugate=self.conjugate)
        else:
            filtered = filter_bins(rest, theta, self._past(passing, theta) if self.filtering == "carry" else None)
        y = torch.cat([passing, filtered], 2).permute(0, 2, 3, 1).flatten(1, 2)
        return y[:, :length]

    def initial_state(self, batch: int, theta: Tensor) -> Tensor:
        """Return zeros as the last two outputs per filter, ``(batch, d_model, F, 2)``; ``theta`` as in :meth:`step`."""
        return theta.new_zeros(batch, *theta.shape[1:])

    def step(self, x: Tensor, theta: Tensor, past: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Compute one position ``(batch, d_model)`` of a causal form.

        Args:
            x: input.
            theta: coefficients of the current bin, ``(batch or 1, d_model, F, 2)``; zeros in an unfiltered bin.
            past: state.
            position: position of the input, from 0.
        """
        number, inside = divmod(position, self.bin_length)
        if self.filtering == "reset" and not inside:
            past = torch.zeros_like(past)
        return filter_step(x / theta.shape[-2] if number < self.unfiltered else x, theta, past)

    @torch.no_grad()
    def diagnostics(self) -> dict[str, Any]:
        """Return statistics of the last forward pass, for its first :data:`SAMPLES` samples.

        ``pole_radius``: largest absolute value of a filter's poles, mean over samples, filters, channels and bins;
        ``frequency_response``: absolute value of the summed filters' response, mean over channels, at nine
        frequencies from 0 to half a turn per position, by sample and by bin (1 in an unfiltered bin).
        """
        if self.theta is None or not self.theta.numel():
            return {}
        return {
            "pole_radius": float(pole_radius(self.theta).mean()),
            "frequency_response": (self._responses(self.theta, RECORDED) * 1e4).round().div(1e4).tolist(),
        }

    @torch.no_grad()
    def portraits(self) -> list[Portrait]:
        """Return plots of each shown sample's frequency responses per bin, and of one channel's impulse responses."""
        if self.theta is None or not self.theta.numel():
            return []
        responses = self._responses(self.theta, DRAWN)
        frequency = f"frequency (half turns per position / {DRAWN - 1})"
        images = [
            Portrait(f"frequency response, sample {i}", "image", {"response": each.cpu().numpy()}, frequency, "bin")
            for i, each in enumerate(responses)
        ]
        theta = self.theta[0]
        channel = int(pole_radius(theta).amax((1, 2)).argmax())
        taps = impulse_response(theta[channel].double(), TAPS).sum(-2).cpu().numpy()
        series = {f"bin {number + self.unfiltered}": response for number, response in enumerate(taps)}
        return [*images, Portrait("impulse responses, sample 0", "lines", series, "position", f"channel {channel}")]

    def _past(self, passing: Tensor, theta: Tensor) -> Tensor:
        """Return each filter's share of the last two positions before the first filtered bin, newest first."""
        filters = theta.shape[-2]
        last = functional.pad(passing.flatten(2), (2, 0))[..., -2:].flip(-1) / filters
        return last.unsqueeze(2).expand(-1, -1, filters, -1)

    def _responses(self, theta: Tensor, frequencies: int) -> Tensor:
        """Return ``|sum_f H_f|``, mean over channels, ``(samples, bins, frequencies)``."""
        omega = torch.linspace(0, torch.pi, frequencies, dtype=torch.float64, device=theta.device)
        response = frequency_response(theta.double(), omega).sum(-2).abs().mean(1)
        return functional.pad(response, (0, 0, self.unfiltered, 0), value=1.0)
