"""The layer around a long convolution, shared by DLR, DSS, S4D and SGConv, in its convolution and streaming forms.

    s = K * u (per channel),   z = GELU(s + D u),   y = M z + b   (optionally to 2 d_model, then GLU)

Source: DLR paper, section 2.2 and its public code; a kernel module only says what K is.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from lrtasks.errors import UsageError
from lrtasks.models.ops.longconv import fft_conv, working_bytes
from lrtasks.models.ops.streaming import require_causal
from lrtasks.models.portraits import Portrait

PORTRAIT_CHANNELS = 4


class Kernel(nn.Module):
    """What a long-convolution layer needs to know of its kernel.

    Attributes:
        directions: 1 (causal), or 2: look-back and look-ahead.
    """

    directions: int

    def forward(self, length: int) -> Tensor:
        """Real taps for the first ``length`` lags, ``(directions, d_model, length)``."""
        raise NotImplementedError

    def working_bytes(self, length: int, device: torch.device) -> int:
        """About what evaluating ``length`` taps and their gradient holds at its peak."""
        raise NotImplementedError

    def recurrence(self) -> tuple[Tensor, Tensor] | None:
        """``(weight, exponent)`` with K[h, l] = Re sum_n weight[h, n] exp(exponent[h, n] l), look-back direction only.

        Complex128, or float64 where all exponents are real; ``(d_model, N)`` and ``(d_model, N)`` or ``(N,)``. None for
        a kernel that is no such sum.
        """
        return None


@dataclasses.dataclass
class ExponentialState:
    """Streaming state of a sum of exponentials: ``memory[b, h, n] = sum_j exp(exponent_n j) u[t - j]``."""

    weight: Tensor
    ratio: Tensor
    memory: Tensor

    def step(self, u: Tensor) -> tuple[Tensor, ExponentialState]:
        """One input ``(batch, d_model)`` to one output, real, in double precision."""
        memory = self.memory * self.ratio + u.unsqueeze(-1)
        return (memory * self.weight).sum(-1).real, dataclasses.replace(self, memory=memory)


@dataclasses.dataclass
class WindowState:
    """Streaming state of any kernel: the last K inputs, newest at ``head - 1``, beside the kernel read backwards."""

    reversed_taps: Tensor
    memory: Tensor
    head: int

    @classmethod
    def empty(cls, taps: Tensor, batch: int) -> WindowState:
        """Before the first position, for the kernel ``taps``, ``(d_model, K)``."""
        return cls(taps.flip(-1), taps.new_zeros(batch, *taps.shape), 0)

    def step(self, u: Tensor) -> tuple[Tensor, WindowState]:
        """One input ``(batch, d_model)`` to one output, at O(K)."""
        memory = self.memory.clone()
        memory[..., self.head] = u
        head = (self.head + 1) % memory.shape[-1]
        return (memory * self.reversed_taps.roll(head, -1)).sum(-1), dataclasses.replace(self, memory=memory, head=head)


def kernel_state(kernel: Kernel, batch: int, length: int, kernel_length: int | None) -> ExponentialState | WindowState:
    """State before the first position: N numbers per channel, or the last K inputs.

    The recurrence is kept in double precision: a rounding of exp(Λ) to float32 would turn the phase by a radian in
    2^24 steps and bend the kernel well before. A cut kernel, or one that is no sum of N exponentials, needs its
    last K inputs instead.

    Args:
        kernel: look-back only.
        batch: sequences.
        length: longest sequence.
        kernel_length: number of taps of a cut kernel; None for one as long as the sequence.

    Raises:
        UsageError: for a kernel of two directions.
    """
    require_causal(kernel.directions == 1)
    found = None if kernel_length is not None else kernel.recurrence()
    if found is None:
        return WindowState.empty(kernel(kernel_length or length)[0], batch)
    weight, exponent = found
    return ExponentialState(weight, torch.exp(exponent), weight.new_zeros(batch, *weight.shape))


class LongConvLayer(nn.Module):
    """``(batch, length, d_model) -> (batch, length, d_model)`` by a long convolution, as the module docstring says.

    Args:
        kernel: the module that gives the taps.
        d_model: channels.
        length: longest sequence L.
        kernel_length: cut the kernel to that many lags; None for L.
        glu: map to 2 d_model and gate one half with the sigmoid of the other.
    """

    def __init__(self, kernel: Kernel, d_model: int, length: int, kernel_length: int | None, glu: bool) -> None:
        super().__init__()
        if kernel_length is not None and kernel_length > length:
            raise UsageError(f"kernel_length must be at most the sequence length ({length}), found {kernel_length}")
        self.kernel = kernel
        self.kernel_length = kernel_length
        self.length = length
        self.D = nn.Parameter(torch.randn(d_model))
        self.output = nn.Linear(d_model, 2 * d_model if glu else d_model)
        self.glu = glu

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, which then reaches no other position."""
        u = x.transpose(1, 2)
        if mask is not None:
            u = u * mask.unsqueeze(1)
        taps = self.kernel(min(x.shape[1], self.kernel_length or x.shape[1]))
        s = fft_conv(u, taps[0], taps[1] if self.kernel.directions == 2 else None)
        return self._after(s.transpose(1, 2), x)

    def _after(self, s: Tensor, u: Tensor) -> Tensor:
        y: Tensor = self.output(nn.functional.gelu(s + self.D * u))
        return nn.functional.glu(y, dim=-1) if self.glu else y

    def training_bytes(self, batch: int, device: torch.device) -> dict[str, int]:
        """Estimate for a training step in float32: what is kept for the gradient, and the largest passing need.

        Kept: the argument and the result of the GELU, and the argument of the GLU (twice as wide). Passing: gradients
        on their way through these, or the kernel's evaluation, beside the convolution's own.
        """
        signal = 4 * batch * self.length * len(self.D)
        taps = min(self.length, self.kernel_length or self.length)
        kernel = self.kernel.working_bytes(taps, device)
        passing = max(signal * (6 if self.glu else 4), kernel) + working_bytes(len(self.D), self.length, device)
        return {"kept": signal * (4 if self.glu else 2), "passing": passing}

    @torch.no_grad()
    def portraits(self) -> list[Portrait]:
        """Taps of a few channels over lags, their spectra, and the eigenvalues exp(Λ) of a sum of exponentials."""
        taps = self.kernel(self.kernel_length or self.length)[0, :PORTRAIT_CHANNELS].double().cpu()
        spectrum = torch.fft.rfft(taps).abs().clamp_min(1e-12)
        names = [f"channel {channel}" for channel in range(len(taps))]
        drawn = [
            Portrait("kernel", "lines", dict(zip(names, taps.numpy(), strict=True)), "lag", "K"),
            Portrait(
                "kernel spectrum",
                "lines",
                dict(zip(names, spectrum.numpy(), strict=True)),
                "frequency, in cycles per kernel length",
                "|FFT K|",
                log_y=True,
            ),
        ]
        found = self.kernel.recurrence()
        if found is not None:
            eigenvalues = torch.exp(found[1].to(torch.complex128)).flatten().cpu().numpy()
            drawn.append(Portrait("eigenvalues", "plane", {"exp Λ": eigenvalues}, "real part", "imaginary part"))
        return drawn

    def initial_state(self, batch: int) -> ExponentialState | WindowState:
        """See :func:`kernel_state`."""
        return kernel_state(self.kernel, batch, self.length, self.kernel_length)

    def step(self, x: Tensor, state: ExponentialState | WindowState) -> tuple[Tensor, ExponentialState | WindowState]:
        """One position ``(batch, d_model)``; equals :meth:`forward` of a causal layer."""
        s, state = state.step(x)
        return self._after(s.to(x.dtype), x), state
