"""Hyena of order 2 (Poli et al., Hyena Hierarchy, arXiv:2302.10866, section 3): gates around a long convolution, in the
layers of a Transformer. A small network computes the kernel from the lag. Causal only.

    x0, x1, v   depthwise convolutions (3 lags) of three linear maps of the input
    K[c, t]     kernel of channel c at lag t, exp(-δ_c t / (L-1)) · MLP(features of t)
    D           skip weight
    y = linear(x0 · (K * (x1 · v) + D · x1 · v))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.attention import TransformerLike
from lrtasks.models.base import ATOMIC, RECALL, TwoForms
from lrtasks.models.ops.convolution import WindowState, fft_conv
from lrtasks.models.ops.layers import hide

SHORT = 3  # lags of the short convolution
DECAY = (0.3, 1.5)  # the fastest and the slowest channel fall to 0.01 at these fractions of the length


class ImplicitFilter(nn.Module):
    """Kernel ``K[c, t] = exp(-δ_c t / (L-1)) · MLP(t / (L-1), cos(f w_t), -sin(f w_t))_c`` with ``w_t = 2πt/L``.

    The frequencies f run evenly from 1e-4 to ``bands - 1``; ``filter_features`` is 1 + 2 · bands. The MLP has three
    hidden layers ``sin(a · linear)`` that share the learned vector a, at first ``filter_frequency``; the rates δ run
    evenly over channels from ``ln(100)/1.5`` to ``ln(100)/0.3``. L is the length over which t / (L-1) runs from 0 to 1.
    """

    rates: Tensor

    def __init__(self, config: Hyena, length: int) -> None:
        super().__init__()
        features, width = config.filter_features, config.filter_width
        self.length, self.bands = length, (features - 1) // 2
        sizes = [features, width, width, width]
        self.hidden = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(3))
        self.frequency = nn.Parameter(torch.full((width,), config.filter_frequency))
        self.out = nn.Linear(width, config.d_model, bias=False)
        fast, slow = (math.log(100) / fraction for fraction in DECAY)
        self.register_buffer("rates", torch.linspace(slow, fast, config.d_model), persistent=False)

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        """Turn off weight decay, as for every kernel."""
        return {name: {"weight_decay": 0.0} for name, _ in self.named_parameters()}

    def forward(self, length: int) -> Tensor:
        """Return the taps for the lags ``0..length-1``, ``(d_model, length)``, in the precision of the parameters."""
        with torch.autocast(self.rates.device.type, enabled=False):
            lag = torch.arange(length, device=self.rates.device, dtype=torch.float64)
            bands = torch.linspace(1e-4, self.bands - 1, self.bands, device=lag.device, dtype=torch.float64)
            time = lag[:, None] / max(self.length - 1, 1)
            angles = 2 * math.pi / self.length * lag[:, None] * bands
            hidden = torch.cat((time, angles.cos(), -angles.sin()), 1).to(self.rates.dtype)
            for layer in self.hidden:
                hidden = torch.sin(self.frequency * layer(hidden))
            taps: Tensor = self.out(hidden) * torch.exp(-self.rates * time.to(self.rates.dtype))
        return taps.T


class HyenaOperator(TwoForms):
    """The map of the module docstring, for sequences of at most ``length``; padded positions have no effect."""

    def __init__(self, config: Hyena, length: int) -> None:
        super().__init__()
        d_model, self.length = config.d_model, length
        filter = ImplicitFilter(config, length)
        self.input = nn.Linear(d_model, 3 * d_model)
        self.short = nn.Conv1d(3 * d_model, 3 * d_model, SHORT, groups=3 * d_model)
        self.filter = filter
        self.D = nn.Parameter(torch.randn(d_model))
        self.out = nn.Linear(d_model, d_model)

    def initial_state(self, batch: int) -> tuple[WindowState, WindowState]:
        """Return empty memories of past inputs for the short and the long convolution (L inputs)."""
        # a torch convolution stores its taps in reversed order
        short = self.short.weight[:, 0].flip(-1)
        return WindowState.empty(short, batch), WindowState.empty(self.filter(self.length), batch, whole=True)

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """Compute all positions, or one ``(batch, d_model)`` at the cost ``O(longest sequence)``."""
        z = self.input(x)
        if state is None:
            x0, x1, v = self.short(F.pad(hide(z, mask).mT, (SHORT - 1, 0))).mT.chunk(3, -1)
            u = hide(x1 * v, mask)
            s = fft_conv(u.mT, self.filter(x.shape[1])).mT
        else:
            mixed, short = state[0].step(z)
            x0, x1, v = (mixed + self.short.bias).chunk(3, -1)
            u = x1 * v
            s, long = state[1].step(u)
            state = short, long
        return self.out(x0 * (s + self.D * u)), state


@registry.register("hyena")
@dataclass(frozen=True)
class Hyena(TransformerLike):
    """Hyena of order 2: gates around a long convolution with an implicit kernel, in Transformer layers. Causal only.

    Source: Poli et al. (arXiv:2302.10866), section 3.
    """

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset.
        "small": {"d_model": 64, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Two layers, as in the paper's recall experiments.
        "small/recall": {"d_model": 64, "layers": 2},
        "small/mqar": {"d_model": 64, "layers": 2},
        "paper": ATOMIC,
        "paper/recall": RECALL,
    }

    filter_features: int = parameter(
        5, "number of input features of the lag, odd: time, and sine and cosine of each band", at_least=3, at_most=65537
    )
    filter_width: int = parameter(64, "hidden width of the kernel network", at_least=1, at_most=65536)
    filter_frequency: float = parameter(10.0, "initial value of the learned frequencies in the kernel network", above=0)

    def check(self) -> None:
        super().check()
        if self.filter_features % 2 == 0:
            raise UsageError(f"hyena: filter_features must be odd, found {self.filter_features}")

    def mixer(self, length: int, causal: bool) -> HyenaOperator:
        self.require_causal(causal)
        return HyenaOperator(self, length)
