"""A long convolution whose kernel is learned tap by tap, kept sparse by squashing.

Source: Fu et al., "Simple Hardware-Efficient Long Convolutions for Sequence Modeling", section 3; Focus takes it as
the first part of its hypernetwork.

    k, K    kernel of a channel, its number of taps
    λ       threshold: taps below it count as zero, the others come closer to zero by it
    D       skip weight of a channel
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.longconv import fft_conv
from lrtasks.models.ops.longlayer import WindowState

KERNEL_STD = 0.002
KERNEL_LR = 1e-3


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
