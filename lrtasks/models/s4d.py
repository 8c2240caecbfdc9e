"""DSS-EXP and S4D: diagonal state spaces in which each channel has its own step size.

Sources: S4D, Gu et al., "On the Parameterization and Initialization of Diagonal State Space Models", sections 3 and 4;
DSS, "Simplifying and Understanding State Space Models with Diagonal Linear RNNs", section 2.1, where it is the
baseline, and its public code (after Gupta et al., "Diagonal State Spaces are as Effective as Structured State Spaces").

    L, H, N  sequence length, channels (d_model), states (d_state)
    Δ_h      step of channel h, exp(log_dt_h)

DSS:

    Λ_n      eigenvalue -exp(a_n) + i b_n, shared by all channels and both directions
    W[h,n]   weight, complex, one set per direction
    K[h,l]   Re sum_n W[h,n] (exp(Δ_h Λ_n) - 1)/Λ_n exp(Δ_h Λ_n l)

S4D, where each channel has its own eigenvalues; only N/2 are computed, because the others are their conjugates:

    λ[h,n]   eigenvalue -exp(r[h,n]) + i ω[h,n]
    C[h,n]   weight, complex, one set per direction (B = 1)
    K[h,l]   2 Re sum_n C[h,n] (exp(Δ_h λ[h,n]) - 1)/λ[h,n] exp(Δ_h λ[h,n] l)   (zero-order hold)

The layer around the kernel is :class:`~lrtasks.models.ops.convolution.LongConvLayer`, gated in S4D.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.dlr import LISTOPS, PATHFINDER, SMALL, TABLE_1, TABLE_2, TREND, LongConvConfig
from lrtasks.models.ops.convolution import Kernel
from lrtasks.models.ops.exponentials import Frequencies, exp_kernel

Start = Literal["lin", "legs"]


def starting_frequencies(start: Start, d_state: int) -> np.ndarray:
    """Return the initial ω_n, ``(d_state / 2,)`` float64, ascending.

    ``lin``: πn. ``legs``: positive imaginary parts of the eigenvalues of the normal part of HiPPO-LegS.

    >>> starting_frequencies("lin", 4).round(3).tolist()
    [0.0, 3.142]
    >>> starting_frequencies("legs", 4).round(3).tolist()
    [0.557, 4.603]
    """
    if start == "lin":
        return np.pi * np.arange(d_state // 2)
    return np.linalg.eigvalsh(legs_matrix(d_state))[d_state // 2 :]


def legs_matrix(states: int) -> np.ndarray:
    """Return -i times the skew-symmetric part of the normal part of HiPPO-LegS, ``(states, states)``, Hermitian.

    The normal part is -1/2 on its diagonal, and -sqrt((i + 1/2)(j + 1/2)) at i > j.
    """
    half_steps = np.sqrt(np.arange(states) + 0.5)
    below = np.tril(np.outer(half_steps, half_steps), -1)
    return np.asarray(1j * (below - below.T))


class ChannelKernel(Kernel):
    """A sum of exponentials in which each channel has its own exponents (DSS, S4D).

    K[d, h, l] = Re sum_n weight[d, h, n] exp(exponent[h, n] l), in the parameters' precision, float32 at least.
    At start log Δ is uniform in [log dt_min, log dt_max].
    """

    def __init__(self, config: DSS | S4D, directions: int) -> None:
        super().__init__()
        self.directions = directions
        low, high = math.log(config.dt_min), math.log(config.dt_max)
        self.log_dt = nn.Parameter(torch.empty(config.d_model).uniform_(low, high))
        self.rate = {} if config.kernel_lr is None else {"lr": config.kernel_lr}
        self.options = {"weight_decay": 0.0, **self.rate}

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Return weights ``(directions, H, N)`` and exponents ``(H, N)``, complex128."""
        raise NotImplementedError

    def forward(self, length: int) -> Tensor:
        weight, exponent = self.exponents()
        dtype = torch.promote_types(next(self.parameters()).dtype, torch.float32).to_complex()
        weight = weight.to(dtype).transpose(0, 1).contiguous()
        return exp_kernel(weight, exponent.real, exponent.imag, length).transpose(0, 1)

    @torch.no_grad()
    def recurrence(self) -> tuple[Tensor, Tensor]:
        weight, exponent = self.exponents()
        return weight[0], exponent


class DSSKernel(ChannelKernel):
    """K[h, l] = Re sum_n W'[h, n] exp(Δ_h Λ_n l), with W' = W (exp(Δ_h Λ_n) - 1) / Λ_n, or W' = W without scale.

    At start Λ_n = -1/2 + iπn and the parts of W are standard normal.
    1/Λ is computed as conj(Λ) / max(|Λ|², 1e-7).
    """

    def __init__(self, config: DSS, directions: int = 1) -> None:
        super().__init__(config, directions)
        d_state, self.scale = config.d_state, config.scale
        self.a = nn.Parameter(torch.full((d_state,), math.log(0.5)))
        self.b = Frequencies(math.pi * torch.arange(d_state, dtype=torch.float64), **self.rate)
        self.W = nn.Parameter(torch.randn(directions, config.d_model, d_state, 2))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"log_dt": self.options, "a": self.options, "W": {"weight_decay": 0.0}}

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Return the weights W' ``(directions, H, N)`` and exponents Δ_h Λ_n ``(H, N)``, complex128."""
        eigenvalue = torch.complex(-torch.exp(self.a.double()), self.b())
        exponent = torch.exp(self.log_dt.double()).unsqueeze(1) * eigenvalue
        W = torch.view_as_complex(self.W.double())
        if not self.scale:
            return W, exponent
        inverse = eigenvalue.conj() / eigenvalue.abs().square().clamp_min(1e-7)
        return W * ((torch.exp(exponent) - 1) * inverse), exponent


NARROW = {"dt_min": 0.0001, "dt_max": 0.01}


@registry.register("dss")
@dataclass(frozen=True)
class DSS(LongConvConfig):
    """Diagonal state space (DSS-EXP): N shared eigenvalues, one step per channel.

    Sources: Gupta, Gu and Berant (arXiv:2203.14343), in the form of the DLR paper (arXiv:2212.00768), section 2.1.
    """

    kernel_class = DSSKernel
    presets: ClassVar[Presets] = {
        "small": {**SMALL, **NARROW},
        "paper": {**TABLE_1, **NARROW, "budget.lr": 0.001},
        "paper/listops": {**LISTOPS, "budget.lr": 0.001},
        "paper/pathfinder": {**PATHFINDER, "budget.lr": 0.001},
        "long": {**TABLE_2, **NARROW, "budget.lr": 0.001},
        "trend": {**TREND, **NARROW},
    }

    d_state: int = parameter(512, "number of states N", at_least=1, at_most=1 << 20)
    dt_min: float = parameter(1e-4, "smallest step Δ at start", above=0)
    dt_max: float = parameter(1e-2, "largest step Δ at start", above=0)
    scale: bool = parameter(True, "scale W by (exp(ΔΛ) - 1)/Λ (DSS-EXP)")
    kernel_lr: float | None = parameter(None, "learning rate of Λ and Δ; none: the budget's learning rate", above=0)

    def check(self) -> None:
        self.require_order("dt_min", "dt_max")


class S4DKernel(ChannelKernel):
    """K[h, l] = 2 Re sum_n C[h, n] (exp(Δ_h λ[h, n]) - 1)/λ[h, n] exp(Δ_h λ[h, n] l) over N/2 conjugate pairs.

    At start Re λ = -1/2, Im λ is given by :func:`starting_frequencies`, and C is complex normal with variance 1.
    """

    def __init__(self, config: S4D, directions: int = 1) -> None:
        super().__init__(config, directions)
        d_model, pairs = config.d_model, config.d_state // 2
        self.r = nn.Parameter(torch.full((d_model, pairs), math.log(0.5)))
        grid = torch.as_tensor(starting_frequencies(config.start, config.d_state), dtype=torch.float64)
        self.omega = Frequencies(grid.expand(d_model, pairs), **self.rate)
        self.C = nn.Parameter(torch.randn(directions, d_model, pairs, 2) / math.sqrt(2))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"log_dt": self.options, "r": self.options}

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Return the weights 2 C (exp(Δλ) - 1)/λ ``(directions, H, N/2)`` and exponents Δλ ``(H, N/2)``, complex128."""
        eigenvalue = torch.complex(-torch.exp(self.r.double()), self.omega())
        exponent = torch.exp(self.log_dt.double()).unsqueeze(1) * eigenvalue
        C = torch.view_as_complex(self.C.double())
        return 2 * C * ((torch.exp(exponent) - 1) / eigenvalue), exponent


@registry.register("s4d")
@dataclass(frozen=True)
class S4D(LongConvConfig):
    """Diagonal S4 (S4D), with the Lin or the LegS initialisation.

    Source: Gu et al. (arXiv:2206.11893), sections 3 and 4.
    """

    kernel_class = S4DKernel
    presets: ClassVar[Presets] = {
        "small": SMALL,
        # The S4D paper does not run these tasks; here: its layer (N = 64, Δ in [1e-3, 1e-1]), the DLR paper's budget.
        "paper": {"d_model": 128, "d_state": 64, "dt_min": 0.001, "dt_max": 0.1, "norm": "layer", "budget.lr": 0.001},
        "paper/listops": {"layers": 6, "budget.weight_decay": 0.01},
    }

    d_state: int = parameter(64, "number of states N, even (N/2 conjugate pairs)", at_least=2, at_most=1 << 20)
    dt_min: float = parameter(1e-3, "smallest step Δ at start", above=0)
    dt_max: float = parameter(1e-1, "largest step Δ at start", above=0)
    start: Literal["lin", "legs"] = parameter("lin", "initial frequencies")
    kernel_lr: float | None = parameter(1e-3, "learning rate of λ and Δ; none: the budget's learning rate", above=0)
    glu: bool = parameter(True, "use a gated output map (GLU)")

    def check(self) -> None:
        self.require_order("dt_min", "dt_max")
        if self.d_state % 2:
            raise UsageError(f"s4d: d_state must be even (conjugate pairs), found {self.d_state}")
        if self.start == "legs" and self.d_state > 4096:
            raise UsageError(f"s4d: d_state must be at most 4096 with start='legs', found {self.d_state}")
