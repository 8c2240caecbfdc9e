"""DSS-EXP: diagonal state space with a step of its own per channel.

Source: "Simplifying and Understanding State Space Models with Diagonal Linear RNNs", section 2.1, where it is the
baseline, and its public code (after Gupta et al., "Diagonal State Spaces are as Effective as Structured State Spaces").

    L, H, N  sequence length, channels (d_model), states (d_state)
    Λ_n      eigenvalue -exp(a_n) + i b_n, shared by all channels and both directions
    Δ_h      step of channel h, exp(log_dt_h)
    W[h,n]   weight, complex, one set per direction
    K[h,l]   Re sum_n W[h,n] (exp(Δ_h Λ_n) - 1)/Λ_n exp(Δ_h Λ_n l)

The layer around the kernel is :class:`~lrtasks.models.ops.convolution.LongConvLayer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import ModelConfig
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.models.ops.exponentials import ChannelKernel, Frequencies


class DSSKernel(ChannelKernel):
    """K[h, l] = Re sum_n W'[h, n] exp(Δ_h Λ_n l), with W' = W (exp(Δ_h Λ_n) - 1) / Λ_n, or W' = W without scale.

    At start Λ_n = -1/2 + iπn, log Δ is uniform in [log dt_min, log dt_max] and the parts of W are standard normal.
    1/Λ is taken as conj(Λ) / max(|Λ|², 1e-7).

    Args:
        d_model: channels H.
        d_state: states N.
        dt_min: smallest step Δ at start.
        dt_max: largest one.
        scale: whether W is scaled as above (DSS-EXP), or used as it is.
        lr: learning rate of Λ and Δ; None for that of the other parameters.
        directions: 1, or 2 for look-back and look-ahead kernels.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        dt_min: float,
        dt_max: float,
        scale: bool = True,
        lr: float | None = None,
        directions: int = 1,
    ) -> None:
        super().__init__()
        self.scale, self.directions = scale, directions
        options = {} if lr is None else {"lr": lr}
        self.log_dt = nn.Parameter(torch.empty(d_model).uniform_(math.log(dt_min), math.log(dt_max)))
        self.a = nn.Parameter(torch.full((d_state,), math.log(0.5)))
        self.b = Frequencies(math.pi * torch.arange(d_state, dtype=torch.float64), **options)
        self.W = nn.Parameter(torch.randn(directions, d_model, d_state, 2))
        self._options = {"weight_decay": 0.0} | options

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"log_dt": self._options, "a": self._options, "W": {"weight_decay": 0.0}}

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Weights W' ``(directions, H, N)`` and exponents Δ_h Λ_n ``(H, N)``, complex128."""
        eigenvalue = torch.complex(-torch.exp(self.a.double()), self.b())
        exponent = torch.exp(self.log_dt.double()).unsqueeze(1) * eigenvalue
        W = torch.view_as_complex(self.W.double())
        if not self.scale:
            return W, exponent
        inverse = eigenvalue.conj() / eigenvalue.abs().square().clamp_min(1e-7)
        return W * ((torch.exp(exponent) - 1) * inverse), exponent


@registry.register("dss")
@dataclass(frozen=True)
class DSS(ModelConfig):
    """Diagonal state space (DSS-EXP): N shared eigenvalues, one step per channel.

    Sources: Gupta, Gu and Berant (arXiv:2203.14343), in the form of the DLR paper (arXiv:2212.00768), section 2.1.
    """

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset.
        "small": {"d_model": 64, "d_state": 512, "dt_min": 0.0001, "dt_max": 0.01, "norm": "layer", "budget.lr": 0.001},
        # DLR paper, Table 1: atomic tasks at L = 4096.
        "paper": {
            "d_model": 128,
            "d_state": 4096,
            "dt_min": 0.0001,
            "dt_max": 0.01,
            "norm": "scalar",
            "budget.lr": 0.001,
        },
        # Table 3: ListOps-SubTrees.
        "paper/listops": {"layers": 6, "d_state": 1024, "glu": True, "budget.lr": 0.001, "budget.weight_decay": 0.01},
        # Table 3: Pathfinder-Segmentation at 128 x 128.
        "paper/pathfinder": {
            "layers": 5,
            "d_state": 1024,
            "prenorm": True,
            "glu": True,
            "kernel_length": 8192,
            "budget.lr": 0.001,
        },
        # Table 2: shift at lengths 2^14 to 2^20.
        "long": {
            "d_model": 32,
            "d_state": 4096,
            "dt_min": 0.0001,
            "dt_max": 0.01,
            "norm": "scalar",
            "budget.lr": 0.001,
        },
        # The trend of Table 2 on a CPU: shift at lengths 2^10 to 2^14.
        "trend": {"d_model": 32, "d_state": 512, "dt_min": 0.0001, "dt_max": 0.01, "norm": "layer", "budget.lr": 0.001},
    }

    d_state: int = parameter(512, "number of states N", at_least=1, at_most=1 << 20)
    dt_min: float = parameter(1e-4, "smallest step Δ at start", above=0)
    dt_max: float = parameter(1e-2, "largest step Δ at start", above=0)
    scale: bool = parameter(True, "scale W by (exp(ΔΛ) - 1)/Λ (DSS-EXP)")
    kernel_lr: float | None = parameter(None, "learning rate of Λ and Δ; none for that of the rest", above=0)
    kernel_length: int | None = parameter(None, "cut the kernel to this many lags; none for the length", at_least=1)
    glu: bool = parameter(False, "gate the output map (GLU)")

    def check(self) -> None:
        if self.dt_min > self.dt_max:
            raise UsageError(f"dss: dt_min must be at most dt_max ({self.dt_max:g}), found {self.dt_min:g}")

    def mixer(self, length: int, causal: bool) -> nn.Module:
        directions = 1 if causal else 2
        kernel = DSSKernel(self.d_model, self.d_state, self.dt_min, self.dt_max, self.scale, self.kernel_lr, directions)
        return LongConvLayer(kernel, self.d_model, length, self.kernel_length, self.glu)
