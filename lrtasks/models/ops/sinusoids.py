"""Absolute positions: sinusoids times one learned scale (public code of MEGA and SeqBoat, image and speech tasks)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lrtasks.models.ops.rotary import BASE


class Sinusoids(nn.Module):
    """``x[t] + s [sin(t f) ‖ cos(t f)]`` with f_m = 10000^(-2m / d_model) and a learned s, at start d_model^(-1/2).

    Args:
        d_model: width, an even number.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.scale = nn.Parameter(torch.tensor([1 / math.sqrt(d_model)]))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + self._at(torch.arange(x.shape[1], device=x.device), x.dtype)

    def initial_state(self, batch: int) -> int:
        """The position of the next input."""
        return 0

    def step(self, x: Tensor, state: int) -> tuple[Tensor, int]:
        """One position ``(batch, d_model)``."""
        return x + self._at(torch.tensor([state], device=x.device), x.dtype), state + 1

    def _at(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        exponent = torch.arange(self.d_model // 2, dtype=torch.float64, device=positions.device) * 2 / self.d_model
        angle = positions.unsqueeze(1) * BASE**-exponent
        return self.scale * torch.cat([angle.sin(), angle.cos()], 1).to(dtype)
