"""Biases that depend on the distance of key and query only (position of the key minus position of the query)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.initialisation import WEIGHT_STD, normal_
from lrtasks.models.ops.rotary import BASE


class RelativeBias(nn.Module):
    """One learned number per distance, the same for all distances beyond ``positions - 1``.

    Args:
        positions: P; the table has 2P - 1 entries, for distances -(P-1) .. P-1.
        truncated: cut the normal draws of the start (standard deviation 0.02) at 0.04.
    """

    def __init__(self, positions: int, *, truncated: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(normal_(torch.empty(2 * positions - 1), WEIGHT_STD, truncated=truncated))

    def forward(self, distance: Tensor) -> Tensor:
        """Bias at integer distances, of the shape of ``distance``."""
        reach = len(self.table) // 2
        index = (distance.clamp(-reach, reach) + reach).flatten()
        return self.table.index_select(0, index).view_as(distance)


class LocalBias(nn.Module):
    """One learned number per distance up to ω on either side (causal: before), 0 beyond.

    At start normal draws of standard deviation 0.02, cut at 0.04.

    Args:
        window: ω.
        causal: keys do not follow their query.
    """

    def __init__(self, window: int, causal: bool) -> None:
        super().__init__()
        self.before, self.after = window, 0 if causal else window
        self.table = nn.Parameter(normal_(torch.empty(self.before + 1 + self.after), WEIGHT_STD, truncated=True))

    def forward(self, distance: Tensor) -> Tensor:
        """Bias at integer distances (key minus query), of the shape of ``distance``."""
        index = distance.clamp(-self.before - 1, self.after + 1) + self.before + 1
        return F.pad(self.table, (1, 1)).index_select(0, index.flatten()).view_as(distance)


class RotaryBias(nn.Module):
    """``<R_i a, R_j b>`` with learned vectors a, b and the rotation R that turns feature m with feature m + width/2.

    Rotations keep products, so the bias is <a, R_(j-i) b>, a function of the distance:
    sum_m (a_m b_m + a'_m b'_m) cos(θ_m (j-i)) + (a'_m b_m - a_m b'_m) sin(θ_m (j-i)), where ' is the second half and
    θ_m = 10000^(-m / (width/2)). Source: public code of MEGA, for language models.

    Args:
        width: size of a and b, an even number.
        truncated: cut the normal draws of the start (standard deviation 0.02) at 0.04.
    """

    def __init__(self, width: int, *, truncated: bool = True) -> None:
        super().__init__()
        self.a = nn.Parameter(normal_(torch.empty(width), WEIGHT_STD, truncated=truncated))
        self.b = nn.Parameter(normal_(torch.empty(width), WEIGHT_STD, truncated=truncated))

    def forward(self, distance: Tensor) -> Tensor:
        """Bias at integer distances, of the shape of ``distance``."""
        half = len(self.a) // 2
        frequency = BASE ** (-torch.arange(half, dtype=torch.float64, device=distance.device) / half)
        angle = distance.to(torch.float64).unsqueeze(-1) * frequency
        a, a2, b, b2 = self.a[:half], self.a[half:], self.b[:half], self.b[half:]
        cos, sin = angle.cos().to(a.dtype), angle.sin().to(a.dtype)
        return cos @ (a * b + a2 * b2) + sin @ (a2 * b - a * b2)
