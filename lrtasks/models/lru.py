"""Linear recurrent units with fixed complex eigenvalues: LRU and S5.

    P      states, complex
    LRU    lambda = exp(-exp(nu) + i exp(theta));  h = lambda h + exp(gamma) (B x);  y = Re(C h) + D x
    S5     h = exp(lambda dt) h + B_bar x,  B_bar = (exp(lambda dt) - 1) / lambda B (zero-order hold);
           y = 2 Re(C h) + D x, from P states and their conjugates
    layer  z = gelu(y);  output = linear(z) * sigmoid(linear(z))

Sources: LRU, Orvieto et al., arXiv:2303.06349, section 3; S5, Smith et al., arXiv:2208.04933, section 3 and appendix B.
The eigenvalues, gamma, B and dt have no weight decay and a learning rate of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import PAPER, SMALL, TRACKING
from lrtasks.models.ops.layers import Portrait, Recurrent, at_least_float32, full_precision, hide
from lrtasks.models.ops.scans import diagonal_scan
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer, state_zeros
from lrtasks.models.s4d import legs_matrix


class DiagonalSSM(Recurrent):
    """``h = a h + B x``, ``y = factor Re(C h) + D x``; subclasses define the complex a, B and C.

    a does not depend on the input. Padding does not change the state. State: h ``(batch, P)``, complex.

    ``factor`` is 2 if the P states stand for their complex conjugates too. The parameters ``recurrent`` have no weight
    decay, and the learning rate ``rate``: ``{"lr": ...}``, or ``{"lr_factor": ...}`` on the budget's rate.
    """

    factor = 1
    recurrent: tuple[str, ...]
    D: nn.Parameter

    def __init__(self, states: int, rate: dict[str, float]) -> None:
        super().__init__()
        self.states, self.rate = states, rate

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {name: {"weight_decay": 0.0, **self.rate} for name in self.recurrent}

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a ``(P,)``, B ``(P, d_model)`` and C ``(d_model, P)``, complex."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> Tensor:
        return state_zeros(self.D, batch, self.states) + 0j

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, h = _state_space(x, *self.coefficients(), state, mask)
        return self.factor * y.to(x.dtype) + self.D * x, h

    def portraits(self) -> list[Portrait]:
        """Return a figure of the eigenvalues a in the complex plane."""
        with torch.no_grad():
            a = self.coefficients()[0].cpu().to(torch.complex128).numpy()
        return [Portrait("eigenvalues", "plane", {"a": a}, "real part", "imaginary part")]


@full_precision
def _state_space(x: Tensor, a: Tensor, B: Tensor, C: Tensor, h: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return ``Re(C h)`` and the last h; complex maps are computed as real matrix products."""
    a = a.expand(*x.shape[:2], -1)
    h = diagonal_scan(hide(a, mask, 1.0), torch.complex(x @ B.real.mT, x @ B.imag.mT), h)
    return h.real @ C.real.mT - h.imag @ C.imag.mT, h[:, -1]


class LRUCore(DiagonalSSM):
    """The linear recurrent unit of the module docstring."""

    recurrent = ("nu_log", "theta_log", "gamma_log", "B_re", "B_im")

    def __init__(self, config: LRU) -> None:
        super().__init__(config.d_state, {"lr_factor": config.recurrent_lr_factor})
        states, d_model, r_min, r_max = config.d_state, config.d_model, config.r_min, config.r_max
        # avoid 0 and 1, whose logarithms below are not finite, also after rounding
        squares = torch.rand(states).clamp_min(1e-7) * (r_max**2 - r_min**2) + r_min**2
        squares = squares.clamp(1e-37, 1 - 2**-24)
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(squares)))
        self.theta_log = nn.Parameter(torch.log(config.max_phase * torch.rand(states).clamp_min(1e-7)))
        self.gamma_log = nn.Parameter(0.5 * torch.log1p(-squares))
        self.B_re, self.B_im = (nn.Parameter(torch.randn(states, d_model) / math.sqrt(2 * d_model)) for _ in range(2))
        self.C_re, self.C_im = (nn.Parameter(torch.randn(d_model, states) / math.sqrt(states)) for _ in range(2))
        self.D = nn.Parameter(torch.randn(d_model))

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        B_re, B_im, C_re, C_im = map(at_least_float32, (self.B_re, self.B_im, self.C_re, self.C_im))
        # in float64, because an error of the phase grows with the length
        a = torch.exp(torch.complex(-self.nu_log.double().exp(), self.theta_log.double().exp()))
        B = torch.complex(B_re, B_im) * at_least_float32(self.gamma_log).exp().unsqueeze(1)
        return a.to(B.dtype), B, torch.complex(C_re, C_im)


def legs_eigenvalues(states: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues with negative imaginary part of the normal part of HiPPO-LegS, and their eigenvectors.

    Eigenvalues ``(states / 2,)``, sorted by imaginary part, and eigenvectors ``(states, states / 2)``; complex128.
    """
    imaginary, vectors = np.linalg.eigh(legs_matrix(states))
    return -0.5 + 1j * imaginary[: states // 2], vectors[:, : states // 2]


class S5Core(DiagonalSSM):
    """The S5 state space of the module docstring, with P conjugate pairs."""

    factor = 2
    recurrent = ("Lambda_re", "Lambda_im", "B", "log_step")

    def __init__(self, config: S5) -> None:
        super().__init__(config.d_state // 2, {"lr": config.recurrent_lr} if config.recurrent_lr else {})
        d_model, pairs, blocks = config.d_model, self.states, config.blocks_of_start
        self.discretisation = config.discretisation
        dtype = torch.get_default_dtype()
        eigenvalues, vectors = legs_eigenvalues(2 * pairs // blocks)
        V = torch.from_numpy(np.kron(np.eye(blocks), vectors))
        self.Lambda_re = nn.Parameter(torch.tensor(np.tile(eigenvalues.real, blocks), dtype=dtype))
        self.Lambda_im = nn.Parameter(torch.tensor(np.tile(eigenvalues.imag, blocks), dtype=dtype))
        B = torch.randn(2 * pairs, d_model, dtype=torch.float64) / math.sqrt(2 * pairs)
        self.B = nn.Parameter(torch.view_as_real(V.mH @ B.to(V.dtype)).to(dtype))
        C = torch.randn(d_model, 2 * pairs, dtype=torch.complex128) / math.sqrt(pairs)
        self.C = nn.Parameter(torch.view_as_real(C @ V).to(dtype))
        self.D = nn.Parameter(torch.randn(d_model))
        self.log_step = nn.Parameter(torch.empty(pairs, 1).uniform_(math.log(config.dt_min), math.log(config.dt_max)))

    def coefficients(self) -> tuple[Tensor, Tensor, Tensor]:
        # in float64, because a - 1 cancels digits
        Lambda = torch.complex(self.Lambda_re.double(), self.Lambda_im.double())
        dt = self.log_step[:, 0].double().exp()
        if self.discretisation == "zoh":
            a = torch.exp(Lambda * dt)
            entering = (a - 1) / Lambda
        else:
            inverse = 1 / (1 - dt / 2 * Lambda)
            a, entering = inverse * (1 + dt / 2 * Lambda), inverse * dt
        B, C = (torch.view_as_complex(at_least_float32(value).contiguous()) for value in (self.B, self.C))
        return a.to(B.dtype), B * entering.unsqueeze(1).to(B.dtype), C


class SSMLayer(RecurrentLayer):
    """A diagonal state space ``seq``, GELU (tanh form) and a gated linear map. State: the state of ``seq``."""

    out_name = "out1"

    def __init__(self, seq: DiagonalSSM, d_model: int) -> None:
        super().__init__()
        self.seq = seq
        self.out1, self.out2 = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def initial_state(self, batch: int) -> Any:
        return self.seq.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.seq.run(hide(x, mask), state, mask)
        z = F.gelu(y, approximate="tanh")
        return self.out1(z) * torch.sigmoid(self.out2(z)), state


@registry.register("lru")
@dataclass(frozen=True)
class LRU(RecurrentConfig):
    """LRU: a linear recurrence with learned complex eigenvalues, the same for all inputs.

    Source: Orvieto et al. (arXiv:2303.06349), section 3.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_state": 96},
        "state-tracking": {**TRACKING, "d_state": 128},
        "paper": {**PAPER, "d_state": 128},
    }

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    d_state: int = parameter(64, "number of complex states P", at_least=1, at_most=1 << 16)
    r_min: float = parameter(0.0, "smallest radius of an eigenvalue at the start", at_least=0, at_most=1)
    r_max: float = parameter(1.0, "largest radius of an eigenvalue at the start", above=0, at_most=1)
    max_phase: float = parameter(6.28, "largest phase of an eigenvalue at the start, in radians", above=0)
    recurrent_lr_factor: float = parameter(
        0.5, "factor on the learning rate of eigenvalues, gamma and B", above=0, at_most=1
    )

    def check(self) -> None:
        if self.r_min >= self.r_max:
            raise UsageError(f"lru: r_min must be below r_max ({self.r_max:g}), found {self.r_min:g}")

    def layer(self, index: int) -> SSMLayer:
        return SSMLayer(LRUCore(self), self.d_model)


@registry.register("s5")
@dataclass(frozen=True)
class S5(RecurrentConfig):
    """S5: a state space that mixes all channels, initialised from HiPPO, with the same recurrence for all inputs.

    Source: Smith, Warrington and Linderman (arXiv:2208.04933), section 3 and appendix B.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_state": 192},
        "state-tracking": {**TRACKING, "d_state": 256},
        "paper": {**PAPER, "d_state": 256},
    }

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    d_state: int = parameter(64, "number of states 2 P, even (P conjugate pairs)", at_least=2, at_most=1 << 12)
    blocks_of_start: int = parameter(1, "equal blocks of the HiPPO start, a divisor of d_state / 2", at_least=1)
    dt_min: float = parameter(1e-3, "smallest step at the start", above=0)
    dt_max: float = parameter(1e-1, "largest step at the start", above=0)
    discretisation: Literal["zoh", "bilinear"] = parameter("zoh", "discretisation: zero-order hold, or bilinear")
    recurrent_lr: float | None = parameter(1e-3, "learning rate of eigenvalues, B, steps; none: the budget's", above=0)

    def check(self) -> None:
        if self.d_state % 2:
            raise UsageError(f"s5: d_state must be even (conjugate pairs), found {self.d_state}")
        self.divided(self.d_state // 2, self.blocks_of_start, "blocks_of_start", "d_state / 2")
        self.require_order("dt_min", "dt_max")

    def layer(self, index: int) -> SSMLayer:
        return SSMLayer(S5Core(self), self.d_model)
