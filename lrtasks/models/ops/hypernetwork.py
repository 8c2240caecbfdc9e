"""Where the coefficients of Focus's filters come from: a hypernetwork on a global convolution, or learned numbers.

Sources: the Focus paper, equations 1 to 3; Fu et al., "Simple Hardware-Efficient Long Convolutions for Sequence
Modeling", section 3 (:class:`GlobalConv`). A bin's coefficients come from the bin before it, and no pooling window
crosses the end of a bin, so that with a causal convolution nothing ahead of the filtered bin is seen.

    R     positions per bin
    O     values kept of a bin, per channel: the largest in each of O windows
    F     filters per channel and bin
    k, K  kernel of a channel of the convolution, its number of taps
    λ     threshold: taps below it count as zero, the others come closer to zero by it
    D     skip weight of a channel
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.chunked import hide
from lrtasks.models.ops.convolution import WindowState, fft_conv
from lrtasks.models.ops.iir import stable_coefficients

KERNEL_STD = 0.002
KERNEL_LR = 1e-3
START = -2.0
"""Start of the raw coefficients, about sigmoid^-1(0.1): mild filters."""
SPREAD = math.sqrt(0.5)
"""Standard deviation around it over draws of the output layer, see :class:`CoefficientNetwork`."""


def smooth(kernel: Tensor, width: int) -> Tensor:
    """Running mean over ``width`` taps (an odd number) of ``(channels, K)``, with zeros beyond both ends."""
    return F.avg_pool1d(kernel.unsqueeze(0), width, stride=1, padding=width // 2).squeeze(0)


class GlobalConv(nn.Module):
    """``GLU(linear(GELU(k' * x + D ⊙ x)))``, causal, with ``k' = sign(k) max(|k| - λ, 0)``.

    The linear map, to twice the width, lets channels see each other. At start k ~ N(0, 0.002²) and D ~ N(0, 1).

    Args:
        d_model: channels.
        taps: K.
        threshold: λ, at least 0.
        smoothing: width of a running mean over k before squashing, an odd number; None for none.
        dropout: rate on the taps.
    """

    def __init__(self, d_model: int, taps: int, threshold: float, smoothing: int | None, dropout: float) -> None:
        super().__init__()
        self.threshold, self.smoothing = threshold, smoothing
        self.kernel = nn.Parameter(torch.randn(d_model, taps) * KERNEL_STD)
        self.D = nn.Parameter(torch.randn(d_model))
        self.mix = nn.Linear(d_model, 2 * d_model)
        self.dropout = nn.Dropout(dropout)

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"kernel": {"lr": KERNEL_LR, "weight_decay": 0.0}}

    def taps(self) -> Tensor:
        """k', ``(d_model, K)``."""
        kernel = self.kernel if self.smoothing is None else smooth(self.kernel, self.smoothing)
        return F.softshrink(kernel, self.threshold)

    def convolve(self, x: Tensor) -> Tensor:
        """``k' * x + D ⊙ x`` on ``(batch, length, d_model)``."""
        return fft_conv(x.transpose(1, 2), self.dropout(self.taps())).transpose(1, 2) + self.D * x

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, length, d_model)`` to the same shape."""
        return self._after(self.convolve(x))

    def initial_state(self, batch: int) -> WindowState:
        """The last K inputs."""
        return WindowState.empty(self.taps(), batch)

    def step(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        """One position ``(batch, d_model)``, at O(K) per channel."""
        y, state = state.step(x)
        return self._after(y + self.D * x), state

    def _after(self, convolved: Tensor) -> Tensor:
        return F.glu(self.mix(F.gelu(convolved)), dim=-1)


def starting_point(filters: int, *, signed: bool) -> Tensor:
    """Middle of the raw coefficients at start, ``(F, 2)``: θ near 0.1; ``signed``, θ0 near 0."""
    return torch.tensor([0.0 if signed else START, START]).expand(filters, 2)


@dataclasses.dataclass
class SummaryState:
    """Streaming state of :class:`BinSummary`.

    Attributes:
        window: of the convolution.
        largest: largest value so far in each window of the present bin, ``(batch, d_model, O)``.
        position: of the next input in its bin.
    """

    window: WindowState
    largest: Tensor
    position: int


class BinSummary(nn.Module):
    """The largest values of a global convolution's output in O windows of each bin but the last.

    Window o of a bin covers its positions floor(o R / O) up to, not including, ceil((o + 1) R / O).

    Args:
        conv: the causal global convolution.
        bin_length: R.
        pooled: O.
    """

    def __init__(self, conv: GlobalConv, bin_length: int, pooled: int) -> None:
        super().__init__()
        self.conv, self.bin_length, self.pooled = conv, bin_length, pooled

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(batch, length, d_model)`` to ``(batch, d_model, bins - 1, O)``.

        ``mask`` is ``(batch, length)`` bool, False at padding, which counts as zero, or ``None``.
        """
        bins = max(-(-x.shape[1] // self.bin_length) - 1, 0)
        if not bins:
            return x.new_zeros(len(x), x.shape[2], 0, self.pooled)
        y = self.conv(hide(x, mask)[:, : bins * self.bin_length]).transpose(1, 2)
        y = y.reshape(*y.shape[:2], bins, self.bin_length)
        largest: Tensor = F.adaptive_max_pool1d(y.flatten(0, 1), self.pooled)
        return largest.view(*y.shape[:3], self.pooled)

    def initial_state(self, batch: int) -> SummaryState:
        """State before the first position of the first bin."""
        window = self.conv.initial_state(batch)
        return SummaryState(window, self._lowest(window.memory[..., :1].expand(-1, -1, self.pooled)), 0)

    def step(self, x: Tensor, state: SummaryState) -> tuple[Tensor | None, SummaryState]:
        """One position ``(batch, d_model)``; at the end of a bin its summary ``(batch, d_model, O)``, else None."""
        y, window = self.conv.step(x, state.window)
        inside = [
            o * self.bin_length // self.pooled <= state.position < -(-(o + 1) * self.bin_length // self.pooled)
            for o in range(self.pooled)
        ]
        largest = torch.maximum(state.largest, y.unsqueeze(-1))
        largest = torch.where(torch.tensor(inside, device=x.device), largest, state.largest)
        if state.position + 1 < self.bin_length:
            return None, SummaryState(window, largest, state.position + 1)
        return largest, SummaryState(window, self._lowest(largest), 0)

    @staticmethod
    def _lowest(like: Tensor) -> Tensor:
        return torch.full_like(like, -torch.inf)


class CoefficientNetwork(nn.Module):
    """Two layers with sigmoids, the same for all channels and bins: ``(..., O)`` to coefficients ``(..., F, 2)``.

    At start the first layer is Xavier-uniform; the second has hyperfan-in weights (Chang et al., "Principled Weight
    Initialization for Hypernetworks") of variance 1 / (2 · width · 1/4): two coefficients enter a filter, and the mean
    square of a hidden sigmoid is about 1/4. Its bias makes the filters mild.

    Args:
        pooled: O.
        width: hidden width.
        filters: F.
        signed: as :func:`~lrtasks.models.ops.iir.stable_coefficients` takes it.
    """

    def __init__(self, pooled: int, width: int, filters: int, *, signed: bool) -> None:
        super().__init__()
        self.filters, self.signed = filters, signed
        self.hidden = nn.Linear(pooled, width)
        self.out = nn.Linear(width, 2 * filters)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.normal_(self.out.weight, std=math.sqrt(4 / (2 * width)))
        with torch.no_grad():
            self.out.bias.copy_(starting_point(filters, signed=signed).flatten())

    def forward(self, summary: Tensor) -> Tensor:
        raw = self.out(self.hidden(summary).sigmoid()).unflatten(-1, (self.filters, 2))
        return stable_coefficients(raw, signed=self.signed)


class Coefficients(nn.Module):
    """Where a layer's Θ come from.

    Attributes:
        unfiltered: bins at the start that have none and pass as they are: 0 or 1.
    """

    unfiltered: int

    def forward(self, x: Tensor, mask: Tensor | None, summary: Tensor | None) -> Tensor:
        """Θ of the bins after the unfiltered ones, ``(batch or 1, d_model, bins or 1, F, 2)``.

        ``summary`` is that of the encoded input, where the layers share one.
        """
        raise NotImplementedError

    def initial_state(self, batch: int) -> tuple[Tensor, Any]:
        """Θ in the first bin, ``(batch or 1, d_model, F, 2)``, and a state; where it is unfiltered, zeros."""
        raise NotImplementedError

    def step(self, x: Tensor, summary: Tensor | None, state: Any) -> tuple[Tensor | None, Any]:
        """At the last position of a bin Θ of the next one, else None."""
        raise NotImplementedError


class Hypernetwork(Coefficients):
    """Θ of a bin by a small network from the summary of the bin before.

    Args:
        d_model: channels.
        network: from summaries to coefficients.
        summary: the layer's own; None where the layers share one.
    """

    unfiltered = 1

    def __init__(self, d_model: int, network: CoefficientNetwork, summary: BinSummary | None) -> None:
        super().__init__()
        self.d_model, self.network, self.summary = d_model, network, summary

    def forward(self, x: Tensor, mask: Tensor | None, summary: Tensor | None) -> Tensor:
        theta: Tensor = self.network(summary if self.summary is None else self.summary(x, mask))
        return theta

    def initial_state(self, batch: int) -> tuple[Tensor, SummaryState | None]:
        theta = self.network.out.weight.new_zeros(batch, self.d_model, self.network.filters, 2)
        return theta, None if self.summary is None else self.summary.initial_state(batch)

    def step(self, x: Tensor, summary: Tensor | None, state: Any) -> tuple[Tensor | None, Any]:
        if self.summary is not None:
            summary, state = self.summary.step(x, state)
        return None if summary is None else self.network(summary), state


class LearnedCoefficients(Coefficients):
    """One Θ per channel and filter for all bins, the first one too.

    At start its raw values spread as those of Focus's hypernetwork do.

    Args:
        d_model: channels.
        filters: F.
        signed: as :func:`~lrtasks.models.ops.iir.stable_coefficients` takes it.
    """

    unfiltered = 0

    def __init__(self, d_model: int, filters: int, *, signed: bool) -> None:
        super().__init__()
        self.signed = signed
        self.raw = nn.Parameter(starting_point(filters, signed=signed) + SPREAD * torch.randn(d_model, filters, 2))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"raw": {"weight_decay": 0.0}}

    def forward(self, x: Tensor, mask: Tensor | None, summary: Tensor | None) -> Tensor:
        return stable_coefficients(self.raw, signed=self.signed)[None, :, None]

    def initial_state(self, batch: int) -> tuple[Tensor, None]:
        return stable_coefficients(self.raw, signed=self.signed)[None], None

    def step(self, x: Tensor, summary: Tensor | None, state: None) -> tuple[None, None]:
        return None, None
