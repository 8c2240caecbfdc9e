"""Short causal convolutions, one per channel: ``y_t = sum_j w[c, j] x_(t-W+1+j)``; the last tap meets the present.

They stand before the mixers of Mamba, GLA's family, xLSTM and Griffin (W = 4); a canon layer (Allen-Zhu,
arXiv:2512.17351) is the same with a residual.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.chunked import hide


def short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve ``(B, L, C)`` with taps ``(C, 1, W)``; positions before the first count as zeros."""
    width = weight.shape[-1]
    return F.conv1d(F.pad(x.mT, (width - 1, 0)), weight, bias, groups=len(weight)).mT


def short_conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The plain loop for :func:`short_conv`."""
    y = torch.zeros_like(x) if bias is None else torch.zeros_like(x) + bias
    for j, tap in enumerate(weight.squeeze(1).flip(-1).unbind(-1)):
        y = y + tap * F.pad(x, (0, 0, j, 0))[:, : x.shape[1]]
    return y


class ShortConv(nn.Conv1d):
    """A short causal convolution per channel on ``(batch, length, channels)``, with torch's start.

    Args:
        channels: C.
        width: taps W.
        bias: add a number per channel.
        activation: ``silu`` or ``none``, of the result.
        residual: add the input to the result.
    """

    def __init__(
        self,
        channels: int,
        width: int = 4,
        *,
        bias: bool = False,
        activation: Literal["silu", "none"] = "silu",
        residual: bool = False,
    ) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.activation, self.residual = activation, residual

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {name: {"weight_decay": 0.0} for name, _ in self.named_parameters()}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolve; ``mask`` is ``(batch, length)``, False at padding, which counts as zeros."""
        x = hide(x, mask)
        return self._finish(short_conv(x, self.weight, self.bias), x)

    def initial_state(self, batch: int) -> Tensor:
        """The last W - 1 inputs, ``(batch, W - 1, channels)``."""
        return self.weight.new_zeros(batch, self.kernel_size[0] - 1, self.in_channels)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position ``(batch, channels)``."""
        window = torch.cat((state, x.unsqueeze(1).to(state.dtype)), 1)
        y = torch.einsum("bwc,cw->bc", window, self.weight.squeeze(1))
        return self._finish(y if self.bias is None else y + self.bias, x), window[:, 1:]

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        if self.activation == "silu":
            y = F.silu(y)
        return x + y if self.residual else y


def canon_layer(channels: int) -> ShortConv:
    """``x + conv(x)`` with four taps per channel on ``(batch, length, channels)``."""
    return ShortConv(channels, activation="none", residual=True)


SITES = "ABCD"
"""Where canon layers can stand: after the norm before the mixer (A); on the queries, keys and values of attention (B);
after the norm before the feed-forward map (C); inside that map, before its nonlinearity (D)."""


def check_canon(name: str, sites: str, allowed: str = SITES) -> None:
    """Raise :class:`UsageError` unless ``sites`` are some of the letters in ``allowed``, each at most once."""
    if len(set(sites)) < len(sites) or not set(sites) <= set(allowed):
        raise UsageError(f"{name}: canon must be some of the letters {allowed}, each at most once, found {sites!r}")
