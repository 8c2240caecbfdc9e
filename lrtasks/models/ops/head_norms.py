"""Normalisations over the channels of one head, and the gate that goes with them.

rms(x; w)   w x / sqrt(mean(x²) + eps)
l2(x)       x / sqrt(sum(x²) + 1e-6): eps inside the root, as in flash-linear-attention
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.chunked import full_precision


@full_precision
def l2_normalised(x: Tensor) -> Tensor:
    """``x / sqrt(sum(x²) + 1e-6)`` over the last axis, in float32 at least."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@full_precision
def rms_normalised(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """``weight x / sqrt(mean(x²) + eps)`` over the last axis, in float32 at least."""
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class GatedRMSNorm(nn.Module):
    """RMS norm over the last axis, optionally with a gate.

    Args:
        width: size of the last axis.
        gate: function of the gate, ``silu`` or ``sigmoid``.
        gate_first: gate what is normalised (Mamba-2) instead of the result (the GLA family).
        groups: normalise that many equal parts of the last axis, each by itself.
        eps: added to the mean square.
    """

    def __init__(
        self,
        width: int,
        *,
        gate: Literal["silu", "sigmoid"] = "silu",
        gate_first: bool = False,
        groups: int = 1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.gate, self.gate_first, self.groups, self.eps = gate, gate_first, groups, eps

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"weight": {"weight_decay": 0.0}}

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """``x`` and ``gate`` ``(..., width)``; the result has the type of ``gate``, or of the weight without one."""
        dtype = self.weight.dtype if gate is None else gate.dtype
        opened = None
        if gate is not None:
            opened = F.silu(gate) if self.gate == "silu" else torch.sigmoid(gate)
        if opened is not None and self.gate_first:
            x = x * opened
        parts, weight = (torch.unflatten(value, -1, (self.groups, -1)) for value in (x, self.weight))
        y = rms_normalised(parts, weight, self.eps).flatten(-2)
        return (y * opened if opened is not None and not self.gate_first else y).to(dtype)
