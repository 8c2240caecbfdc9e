"""minGRU and minLSTM (Feng et al., Were RNNs All We Needed?, arXiv:2410.01201, section 3): gates that read only x.

    h~       candidate, a linear map of the input
    g        g(x) = x + 1/2 for x >= 0 and sigmoid(x) below, always positive
    minGRU   h = (1 - z) h + z g(h~),  z a sigmoid of a linear map
    minLSTM  h = f' h + i' g(h~),  f' = f / (f + i) and i' = i / (f + i) of two such sigmoids
    output   h, or a linear map of h with an ``expansion`` other than 1

h is computed by a scan from h = 0. The reference code works with logarithms, which lose precision with the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, SMALL, TRACKING
from lrtasks.models.ops.layers import full_precision, hide
from lrtasks.models.ops.scans import diagonal_scan
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer, state_zeros


@full_precision
def mingru_gates(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b of ``h = a h + b`` from ``[h~ | z]``."""
    candidate, gate = x.chunk(2, -1)
    return torch.sigmoid(-gate), torch.sigmoid(gate) * _positive(candidate)


@full_precision
def minlstm_gates(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a and b of ``h = a h + b`` from ``[h~ | f | i]``."""
    candidate, f, i = x.chunk(3, -1)
    # stable form of f / (f + i), also where both sigmoids round to 0
    ratio = F.softplus(-i) - F.softplus(-f)
    return torch.sigmoid(ratio), torch.sigmoid(-ratio) * _positive(candidate)


def _positive(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x + 0.5, x.sigmoid())


class MinLayer(RecurrentLayer):
    """A minGRU (with parts h~, z) or a minLSTM (h~, f, i). State: h ``(batch, inner)``."""

    out_name = "to_out"

    def __init__(self, config: MinConfig) -> None:
        super().__init__()
        parts, self.gates = (3, minlstm_gates) if isinstance(config, MinLSTM) else (2, mingru_gates)
        self.inner = max(1, int(config.expansion * config.d_model + 1e-9))  # 0.57 * 100 is 56.99...
        self.to_gates = nn.Linear(config.d_model, parts * self.inner, bias=False)
        self.to_out = nn.Linear(self.inner, config.d_model, bias=False) if config.expansion != 1 else None

    def initial_state(self, batch: int) -> Tensor:
        return state_zeros(self.to_gates.weight, batch, self.inner)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        a, b = self.gates(self.to_gates(hide(x, mask)))
        self.show(decay=a)
        h = diagonal_scan(hide(a, mask, 1.0), hide(b, mask), state)
        y = h.to(self.to_gates.weight.dtype)
        return y if self.to_out is None else self.to_out(y), h[:, -1]


@dataclass(frozen=True)
class MinConfig(RecurrentConfig):
    """Parameters that minGRU and minLSTM share."""

    layer_class = MinLayer

    expansion: float = parameter(1.5, "width of the state, in multiples of d_model", above=0, at_most=64)


@registry.register("mingru")
@dataclass(frozen=True)
class MinGRU(MinConfig):
    """minGRU: a GRU whose gate and candidate depend on the input alone, so that a scan computes all positions.

    Source: Feng et al. (arXiv:2410.01201), section 3.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 68},
        "state-tracking": TRACKING,
        "paper": {**PAPER, "mlp_width": 512},
    }


@registry.register("minlstm")
@dataclass(frozen=True)
class MinLSTM(MinConfig):
    """minLSTM: an LSTM whose gates and candidate depend on the input alone, so that a scan computes all positions.

    Source: Feng et al. (arXiv:2410.01201), section 3.
    """

    presets: ClassVar[Presets] = {**MinGRU.presets, "small": {**SMALL, "mlp_width": 40}}
