"""S4D: diagonal state space with eigenvalues of its own per channel, in conjugate pairs.

Source: Gu et al., "On the Parameterization and Initialization of Diagonal State Space Models", sections 3 and 4.

    L, H     sequence length, channels (d_model)
    N        states (d_state), of which N/2 are computed: the others are their conjugates
    λ[h,n]   eigenvalue -exp(r[h,n]) + i ω[h,n]
    Δ_h      step of channel h, exp(log_dt_h)
    C[h,n]   weight, complex, one set per direction (B = 1)
    K[h,l]   2 Re sum_n C[h,n] (exp(Δ_h λ[h,n]) - 1)/λ[h,n] exp(Δ_h λ[h,n] l)   (zero-order hold)

The layer around the kernel is :class:`~lrtasks.models.ops.convolution.LongConvLayer`, gated.
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
from lrtasks.models.base import ModelConfig
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.models.ops.exponentials import ChannelKernel, Frequencies

Start = Literal["lin", "legs"]


def starting_frequencies(start: Start, d_state: int) -> np.ndarray:
    """ω_n at start, ``(d_state / 2,)`` float64, ascending.

    ``lin``: πn. ``legs``: positive imaginary parts of the eigenvalues of the normal part of HiPPO-LegS, the
    skew-symmetric S with S[i, j] = -sqrt((i + 1/2)(j + 1/2)) for i > j (its diagonal part, -1/2, is Re λ).

    >>> starting_frequencies("lin", 4).round(3).tolist()
    [0.0, 3.142]
    >>> starting_frequencies("legs", 4).round(3).tolist()
    [0.557, 4.603]
    """
    if start == "lin":
        return np.pi * np.arange(d_state // 2)
    half_steps = np.sqrt(np.arange(d_state) + 0.5)
    below = np.tril(np.outer(half_steps, half_steps), -1)
    return np.linalg.eigvalsh(1j * (below - below.T))[d_state // 2 :]


class S4DKernel(ChannelKernel):
    """K[h, l] = 2 Re sum_n C[h, n] (exp(Δ_h λ[h, n]) - 1)/λ[h, n] exp(Δ_h λ[h, n] l) over N/2 conjugate pairs.

    At start Re λ = -1/2, Im λ as :func:`starting_frequencies`, log Δ uniform in [log dt_min, log dt_max], C complex
    normal of variance 1.

    Args:
        d_model: channels H.
        d_state: states N, even.
        dt_min: smallest step Δ at start.
        dt_max: largest one.
        start: ``lin`` or ``legs``.
        lr: learning rate of λ and Δ; None for that of the other parameters.
        directions: 1, or 2 for look-back and look-ahead kernels.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        dt_min: float,
        dt_max: float,
        start: Start = "lin",
        lr: float | None = None,
        directions: int = 1,
    ) -> None:
        super().__init__()
        self.directions = directions
        options = {} if lr is None else {"lr": lr}
        pairs = d_state // 2
        self.log_dt = nn.Parameter(torch.empty(d_model).uniform_(math.log(dt_min), math.log(dt_max)))
        self.r = nn.Parameter(torch.full((d_model, pairs), math.log(0.5)))
        grid = torch.as_tensor(starting_frequencies(start, d_state), dtype=torch.float64)
        self.omega = Frequencies(grid.expand(d_model, pairs), **options)
        self.C = nn.Parameter(torch.randn(directions, d_model, pairs, 2) / math.sqrt(2))
        self._options = {"weight_decay": 0.0} | options

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"log_dt": self._options, "r": self._options}

    def exponents(self) -> tuple[Tensor, Tensor]:
        """Weights 2 C (exp(Δλ) - 1)/λ ``(directions, H, N/2)`` and exponents Δλ ``(H, N/2)``, complex128."""
        eigenvalue = torch.complex(-torch.exp(self.r.double()), self.omega())
        exponent = torch.exp(self.log_dt.double()).unsqueeze(1) * eigenvalue
        C = torch.view_as_complex(self.C.double())
        return 2 * C * ((torch.exp(exponent) - 1) / eigenvalue), exponent


@registry.register("s4d")
@dataclass(frozen=True)
class S4D(ModelConfig):
    """Diagonal S4 (S4D), with the Lin or the LegS start.

    Source: Gu et al. (arXiv:2206.11893), sections 3 and 4.
    """

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset.
        "small": {"d_model": 64, "d_state": 512, "norm": "layer", "budget.lr": 0.001},
        # The S4D paper has none of these tasks: its layer (N = 64, Δ in [1e-3, 1e-1]) under the DLR paper's budget.
        "paper": {"d_model": 128, "d_state": 64, "dt_min": 0.001, "dt_max": 0.1, "norm": "layer", "budget.lr": 0.001},
        "paper/listops": {"layers": 6, "budget.weight_decay": 0.01},
    }

    d_state: int = parameter(
        64, "number of states N, an even number (N/2 conjugate pairs)", at_least=2, at_most=1 << 20
    )
    dt_min: float = parameter(1e-3, "smallest step Δ at start", above=0)
    dt_max: float = parameter(1e-1, "largest step Δ at start", above=0)
    start: Literal["lin", "legs"] = parameter("lin", "frequencies at start")
    kernel_lr: float | None = parameter(1e-3, "learning rate of λ and Δ; none for that of the rest", above=0)
    kernel_length: int | None = parameter(None, "cut the kernel to this many lags; none for the length", at_least=1)
    glu: bool = parameter(True, "gate the output map (GLU)")

    def check(self) -> None:
        if self.dt_min > self.dt_max:
            raise UsageError(f"s4d: dt_min must be at most dt_max ({self.dt_max:g}), found {self.dt_min:g}")
        if self.d_state % 2:
            raise UsageError(f"s4d: d_state must be even (conjugate pairs), found {self.d_state}")
        if self.start == "legs" and self.d_state > 4096:
            raise UsageError(
                f"s4d: start='legs' needs d_state at most 4096, found {self.d_state}; allowed: start='lin'"
            )

    def mixer(self, length: int, causal: bool) -> nn.Module:
        directions = 1 if causal else 2
        kernel = S4DKernel(self.d_model, self.d_state, self.dt_min, self.dt_max, self.start, self.kernel_lr, directions)
        return LongConvLayer(kernel, self.d_model, length, self.kernel_length, self.glu)
