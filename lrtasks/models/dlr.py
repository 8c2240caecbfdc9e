"""DLR: a long convolution whose kernel is a sum of complex exponentials shared by all channels.

Source: "Simplifying and Understanding State Space Models with Diagonal Linear RNNs", section 2 and its public code.

    L        sequence length            l   lag, 0 .. L-1
    H        channels (d_model)         h   channel
    N        states (d_state)           n   state
    Λ_n      eigenvalue -p_n² + i q_n, shared by all channels and both directions
    W[h,n]   weight, complex, one set per direction
    K[h,l]   sum_n W[h,n] exp(Λ_n l), then cast to a real number: Re K, Im K, Re K + Im K or Re K · Im K
    D_h      skip weight                M, b   output map

The layer around the kernel is :class:`~lrtasks.models.ops.convolution.LongConvLayer`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import ModelConfig
from lrtasks.models.ops.convolution import Kernel, LongConvLayer
from lrtasks.models.ops.exponentials import Frequencies, exp_kernel
from lrtasks.models.ops.layers import at_least_float32

# Re(cast factor · K) is the cast: Im K = Re(-i K), Re K + Im K = Re((1 - i) K)
FACTORS: dict[str, complex] = {"real": 1, "imag": -1j, "sum": 1 - 1j}


class DLRKernel(Kernel):
    """K[h, l] = cast(sum_n W[h, n] exp(Λ_n l)), with Λ_n = -p_n² + i q_n.

    At start dt_n is log-uniform in [dt_min, dt_max], p_n = sqrt(dt_n / 2), q_n = 2πn/N, and the parts of W are
    normal with standard deviation 1/N. The cast ``real-prod`` uses Re K in the first H // 2 channels and Re K · Im K in
    the others.
    """

    def __init__(self, config: DLR, directions: int = 1) -> None:
        super().__init__()
        self.cast, self.directions = config.kernel, directions
        d_model, d_state, eigenvalues = config.d_model, config.d_state, config.eigenvalues
        self.real_weight = config.real_weight or eigenvalues == "real"
        self.p: nn.Parameter | None = None
        self.q: Frequencies | None = None
        if eigenvalues != "imag":
            log_dt = torch.empty(d_state).uniform_(math.log(config.dt_min), math.log(config.dt_max))
            self.p = nn.Parameter(torch.sqrt(torch.exp(log_dt) / 2))
        if eigenvalues != "real":
            self.q = Frequencies(2 * math.pi * torch.arange(d_state, dtype=torch.float64) / d_state)
        parts = () if self.real_weight else (2,)
        self.W = nn.Parameter(torch.randn(directions, d_model, d_state, *parts) / d_state)

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        """Turn off weight decay on the kernel; :class:`Frequencies` does the same for its own offset."""
        return {"W": {"weight_decay": 0.0}} | ({} if self.p is None else {"p": {"weight_decay": 0.0}})

    def weight(self) -> Tensor:
        """Return W as a real or complex tensor ``(directions, H, N)``, in float32 or higher precision."""
        W = at_least_float32(self.W)
        return W if self.real_weight else torch.view_as_complex(W)

    def eigenvalues(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the real and imaginary parts of Λ, ``(N,)`` float64 each; None for a part that is zero."""
        return None if self.p is None else -self.p.double().square(), None if self.q is None else self.q()

    def forward(self, length: int) -> Tensor:
        W = self.weight()
        rate, freq = self.eigenvalues()
        rows = W.flatten(0, 1)
        if self.cast in FACTORS:
            if self.cast != "real":
                rows = rows * FACTORS[self.cast]
            return exp_kernel(rows, rate, freq, length).view(*W.shape[:2], length)
        # compute Re K of every row, and Im K of the rows whose kernel is the product
        plain = W.shape[1] // 2 if self.cast == "real-prod" else 0
        turned = W[:, plain:].flatten(0, 1) * FACTORS["imag"]
        both = exp_kernel(torch.cat([rows + 0j, turned]), rate, freq, length)
        real = both[: len(rows)].view(*W.shape[:2], length)
        imaginary = both[len(rows) :].view(len(W), -1, length)
        return torch.cat([real[:, :plain], real[:, plain:] * imaginary], 1)

    @torch.no_grad()
    def recurrence(self) -> tuple[Tensor, Tensor] | None:
        if self.cast not in FACTORS:
            return None  # the product of two sums of N exponentials has N² of them
        rate, freq = self.eigenvalues()
        weight = self.weight()[0]
        if rate is not None and freq is None:
            return weight.double(), rate
        assert freq is not None
        exponent = torch.complex(torch.zeros_like(freq) if rate is None else rate, freq)
        return weight.to(torch.complex128) * FACTORS[self.cast], exponent


@dataclass(frozen=True)
class LongConvConfig(ModelConfig):
    """Layers of one long convolution; subclasses name the class of its kernel, made from config and directions."""

    kernel_class: ClassVar[type[Kernel]]

    kernel_length: int | None = parameter(None, "kernel length in lags; none: the sequence length", at_least=1)
    glu: bool = parameter(False, "use a gated output map (GLU)")

    def make_kernel(self, length: int, directions: int) -> Kernel:
        """Build the kernel of one layer for sequences of at most ``length``."""
        return self.kernel_class(self, directions)

    def mixer(self, length: int, causal: bool) -> nn.Module:
        kernel = self.make_kernel(length, 1 if causal else 2)
        return LongConvLayer(kernel, self.d_model, length, self.kernel_length, self.glu)


# Settings that runs of the DLR paper share. Table 1: atomic tasks at L = 4096. Table 2: shift at lengths 2^14 to 2^20;
# TREND reproduces its trend on a CPU, with shift at lengths 2^10 to 2^14. Table 3: ListOps-SubTrees and
# Pathfinder-Segmentation at 128 x 128.
TABLE_1: dict[str, Any] = {"d_model": 128, "d_state": 4096, "norm": "scalar"}
TABLE_2: dict[str, Any] = {"d_model": 32, "d_state": 4096, "norm": "scalar"}
TREND: dict[str, Any] = {"d_model": 32, "d_state": 512, "norm": "layer", "budget.lr": 0.001}
LISTOPS: dict[str, Any] = {"layers": 6, "d_state": 1024, "glu": True, "budget.weight_decay": 0.01}
PATHFINDER: dict[str, Any] = {"layers": 5, "d_state": 1024, "prenorm": True, "glu": True, "kernel_length": 8192}
SMALL: dict[str, Any] = {"d_model": 64, "d_state": 512, "norm": "layer", "budget.lr": 0.001}
"""Trains in minutes on two CPU cores; steps and batch size are the defaults (2,000 and 16). dss and s4d have
about as many parameters as dlr; sgconv has a quarter."""
SLOW = {"dt_min": 1e-05, "dt_max": 1e-05}
BROAD = {"dt_min": 0.0001, "dt_max": 0.1}


@registry.register("dlr")
@dataclass(frozen=True)
class DLR(LongConvConfig):
    """Diagonal linear RNN: one kernel of N shared exponentials per channel.

    Source: Gupta, Mehta and Berant (arXiv:2212.00768), section 2.
    """

    kernel_class = DLRKernel
    presets: ClassVar[Presets] = {
        "small": {**SMALL, **SLOW},
        "paper": {**TABLE_1, **SLOW, "budget.lr": 0.0001},
        "paper/listops": {**LISTOPS, **BROAD, "budget.lr": 0.0008},
        "paper/pathfinder": {**PATHFINDER, **BROAD, "budget.lr": 0.0001},
        "long": {**TABLE_2, **SLOW, "budget.lr": 1e-05},
        "trend": {**TREND, **SLOW},
    }

    d_state: int = parameter(512, "number of exponentials N", at_least=1, at_most=1 << 20)
    dt_min: float = parameter(1e-5, "smallest dt at start; Re Λ = -dt/2 per position", above=0)
    dt_max: float = parameter(1e-5, "largest dt at start", above=0)
    kernel: Literal["real", "imag", "sum", "prod", "real-prod"] = parameter("real", "how the kernel K is made real")
    eigenvalues: Literal["complex", "real", "imag"] = parameter("complex", "parts of Λ: real and imaginary, or one")
    real_weight: bool = parameter(False, "use real weights W (always true with real eigenvalues)")

    def check(self) -> None:
        self.require_order("dt_min", "dt_max")
        if self.eigenvalues == "real" and self.kernel not in ("real", "sum"):
            raise UsageError(f"dlr: kernel must be real or sum with eigenvalues='real', found {self.kernel!r}")
