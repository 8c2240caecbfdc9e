"""SGConv: a long convolution whose kernel joins stretched short kernels, with a decay between them.

Source: Li et al., "What Makes Convolutional Models Great on Long Sequence Modeling?", section 3.2, as used in the DLR
paper's public code.

    L, H     sequence length, channels (d_model)
    N        taps per scale (d_state)
    S        number of scales, the smallest with N 2^(S-1) >= L
    w_i      taps of scale i = 0 .. S-1, stretched by r_i = 1, 1, 2, 4, 8, ... with linear interpolation
    α_h      decay from one scale to the next
    Z_h      Euclidean norm of the whole kernel at start, a constant
    K[h]     (w_0, α_h w_1 stretched, α_h² w_2 stretched, ...) / Z_h, cut to L taps

The layer around the kernel is :class:`~lrtasks.models.ops.convolution.LongConvLayer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.dlr import SMALL, TABLE_1, TABLE_2, TREND, LongConvConfig
from lrtasks.models.ops.convolution import Kernel


def scales(taps: int, length: int) -> int:
    """Return the smallest number of scales S whose kernel, ``taps * 2**(S-1)`` long, reaches ``length``.

    >>> [scales(8, 8 * ratio) for ratio in (1, 2, 3, 4, 5, 9, 17)]
    [1, 2, 3, 3, 4, 5, 6]
    """
    return 1 + (-(-length // taps) - 1).bit_length()


class SGConvKernel(Kernel):
    """Stretched short kernels in sequence, scale i multiplied by α^i, divided by a norm that is fixed at start.

    At start w ~ N(0, 1)/N, α is uniform in [alpha_min, alpha_max] per channel, and the norm is the kernel's own.
    ``length`` is the number of lags that the kernel must cover.
    """

    norm: Tensor

    def __init__(self, config: SGConv, length: int, directions: int = 1) -> None:
        super().__init__()
        d_model, taps = config.d_model, config.d_state
        self.directions = directions
        self.w = nn.Parameter(torch.randn(scales(taps, length), directions, d_model, taps) / taps)
        self.alpha = nn.Parameter(torch.empty(directions, d_model).uniform_(config.alpha_min, config.alpha_max))
        self.register_buffer("norm", self._unnormalised().detach().norm(dim=-1, keepdim=True))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"w": {"weight_decay": 0.0}, "alpha": {"weight_decay": 0.0}}

    def _unnormalised(self) -> Tensor:
        pieces = []
        decay = self.alpha.unsqueeze(-1) ** 0  # so that α has a gradient, 0, also with a single scale
        for scale, w in enumerate(self.w):
            stretch = 1 if scale < 2 else 2 ** (scale - 1)
            if stretch > 1:
                w = nn.functional.interpolate(w, scale_factor=float(stretch), mode="linear", align_corners=False)
            pieces.append(w * decay)
            decay = decay * self.alpha.unsqueeze(-1)
        return torch.cat(pieces, -1)

    def forward(self, length: int) -> Tensor:
        return self._unnormalised()[..., :length] / self.norm


FALLING, EVEN = {"alpha_min": 0.5, "alpha_max": 1.0}, {"alpha_min": 1.0, "alpha_max": 1.0}


@registry.register("sgconv")
@dataclass(frozen=True)
class SGConv(LongConvConfig):
    """Structured global convolution: one multi-scale kernel per channel.

    Source: Li et al. (arXiv:2210.09298), section 3.2.
    """

    version: ClassVar[int] = 2
    presets: ClassVar[Presets] = {
        # Any N up to L gives fewer parameters than dlr's small preset; 64 taps give three scales at L = 256. The DLR
        # paper runs SGConv on shift only (Table 2). Its code has α = 1, as here (the paper prints 1e-5). The other
        # tasks have the budget of Table 1.
        "small": {**SMALL, **FALLING, "d_state": 64},
        "small/shift": EVEN,
        "paper": {**TABLE_1, **FALLING, "budget.lr": 0.001},
        "paper/shift": EVEN,
        "long": {**TABLE_2, **EVEN, "budget.lr": 1e-05},
        "trend": {**TREND, **EVEN},
    }

    d_state: int = parameter(64, "number of taps N per scale", at_least=1, at_most=1 << 20)
    alpha_min: float = parameter(0.5, "smallest decay between scales at start", above=0, at_most=1)
    alpha_max: float = parameter(1.0, "largest decay between scales at start", above=0, at_most=1)

    def check(self) -> None:
        self.require_order("alpha_min", "alpha_max")

    def mixer(self, length: int, causal: bool) -> nn.Module:
        # inputs of longer tests must not meet the taps beyond this length, which are not trained
        cut = replace(self, kernel_length=self.kernel_length or length)
        return super(SGConv, cut).mixer(length, causal)

    def make_kernel(self, length: int, directions: int) -> SGConvKernel:
        return SGConvKernel(self, min(length, self.kernel_length or length), directions)
