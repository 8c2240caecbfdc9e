"""Position information for attention: rotary positions, biases by distance, and absolute sinusoids.

A distance is the key's position minus the query's position.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.layers import WEIGHT_STD, Recurrent, normal_

BASE = 10000.0


def rotate(x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Rotate the pair of features ``(2m, 2m+1)`` at position ``t`` by the angle ``t · 10000^(-2m/width)``.

    A pair ``(a, b)`` becomes ``(a cos - b sin, a sin + b cos)``, so the product of two rotated vectors depends
    only on the difference of their positions. Source: Su et al., RoFormer, arXiv:2104.09864, section 3.2.2.

    Args:
        x: ``(..., length, width)`` of any floating-point type, ``width`` even.
        positions: ``(length,)`` integers; ``0..length-1`` if not given.

    Returns:
        The rotated tensor, with the shape and type of ``x``.
    """
    # rotate half-precision features in float32
    working = torch.promote_types(x.dtype, torch.float32)
    if positions is None:
        turns = _turns_from_start(*x.shape[-2:], x.device, working)
    else:
        turns = _turns(positions, x.shape[-1], working)
    pairs = torch.unflatten(x.to(working), -1, (-1, 2))
    if any(stride % 2 for stride in pairs.stride()[:-1]) or pairs.stride(-1) != 1 or pairs.storage_offset() % 2:
        pairs = pairs.contiguous()
    return torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2).to(x.dtype)


def _turns(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return ``exp(i t 10000^(-2m/width))``, ``(length, width / 2)``, in the complex type of ``dtype``."""
    # float64 until after the sine: at position 10^6, a float32 angle is wrong by hundredths of a radian
    pair = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None] * BASE ** (-pair / width)
    return torch.complex(angles.cos().to(dtype), angles.sin().to(dtype))


@functools.lru_cache(maxsize=8)
def _turns_from_start(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return :func:`_turns` at positions 0 to length - 1, cached for the next call."""
    with torch.inference_mode(False):
        return _turns(torch.arange(length, device=device), width, dtype)


def rotate_halves(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate as :func:`rotate` does, but with pairs ``(m, m + width/2)``, as in RetNet and most language models.

    Args:
        x: ``(..., length, width)``, ``width`` even.
        positions: ``(length,)`` integers.
    """
    half = x.shape[-1] // 2
    pairs = torch.stack((x[..., :half], x[..., half:]), -1).flatten(-2)
    return torch.unflatten(rotate(pairs, positions), -1, (half, 2)).movedim(-1, -2).flatten(-2)


class RelativeBias(nn.Module):
    """One learned number per distance; distances beyond ``positions - 1`` use the last number on their side.

    Args:
        positions: P; the table has 2P - 1 entries, for distances -(P-1) .. P-1.
        truncated: truncate the initial normal draws (standard deviation 0.02) at 0.04.
    """

    def __init__(self, positions: int, *, truncated: bool = True) -> None:
        super().__init__()
        self.table = nn.Parameter(normal_(torch.empty(2 * positions - 1), WEIGHT_STD, truncated=truncated))

    def forward(self, distance: Tensor) -> Tensor:
        """Return the biases at integer distances, shaped as ``distance``."""
        reach = len(self.table) // 2
        index = (distance.clamp(-reach, reach) + reach).flatten()
        return self.table.index_select(0, index).view_as(distance)


class LocalBias(nn.Module):
    """One learned number per distance up to ω (``window``) on both sides, or only before if ``causal``; 0 beyond.

    The initial numbers are normal draws of standard deviation 0.02, truncated at 0.04.
    """

    def __init__(self, window: int, causal: bool) -> None:
        super().__init__()
        self.before, self.after = window, 0 if causal else window
        self.table = nn.Parameter(normal_(torch.empty(self.before + 1 + self.after), WEIGHT_STD, truncated=True))

    def forward(self, distance: Tensor) -> Tensor:
        """Return the biases at integer distances, shaped as ``distance``."""
        index = distance.clamp(-self.before - 1, self.after + 1) + self.before + 1
        return F.pad(self.table, (1, 1)).index_select(0, index.flatten()).view_as(distance)


class RotaryBias(nn.Module):
    """``<R_i a, R_j b>`` with learned vectors a, b and the rotation R of the feature pairs m and m + width/2.

    Rotations preserve products, so the bias is <a, R_(j-i) b>, a function of the distance:
    sum_m (a_m b_m + a'_m b'_m) cos(θ_m (j-i)) + (a'_m b_m - a_m b'_m) sin(θ_m (j-i)), where ' is the second half and
    θ_m = 10000^(-m / (width/2)). Source: public code of MEGA, for language models.

    Args:
        width: size of a and b, even.
        truncated: truncate the initial normal draws (standard deviation 0.02) at 0.04.
    """

    def __init__(self, width: int, *, truncated: bool = True) -> None:
        super().__init__()
        self.a = nn.Parameter(normal_(torch.empty(width), WEIGHT_STD, truncated=truncated))
        self.b = nn.Parameter(normal_(torch.empty(width), WEIGHT_STD, truncated=truncated))

    def forward(self, distance: Tensor) -> Tensor:
        """Return the biases at integer distances, shaped as ``distance``."""
        half = len(self.a) // 2
        frequency = BASE ** (-torch.arange(half, dtype=torch.float64, device=distance.device) / half)
        angle = distance.to(torch.float64).unsqueeze(-1) * frequency
        a, a2, b, b2 = self.a[:half], self.a[half:], self.b[:half], self.b[half:]
        cos, sin = angle.cos().to(a.dtype), angle.sin().to(a.dtype)
        return cos @ (a * b + a2 * b2) + sin @ (a2 * b - a * b2)


class Sinusoids(Recurrent):
    """``x[t] + s [sin(t f) ‖ cos(t f)]`` with f_m = 10000^(-2m / d_model) and a learned s, initially d_model^(-1/2).

    Source: public code of MEGA and SeqBoat, image and speech tasks.

    Args:
        d_model: width, even.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.scale = nn.Parameter(torch.tensor([1 / math.sqrt(d_model)]))

    def initial_state(self, batch: int) -> int:
        """Return the position of the next input, 0."""
        return 0

    def run(self, x: Tensor, state: int, mask: Tensor | None = None) -> tuple[Tensor, int]:
        end = state + x.shape[1]
        exponent = torch.arange(self.d_model // 2, dtype=torch.float64, device=x.device) * 2 / self.d_model
        angle = torch.arange(state, end, device=x.device).unsqueeze(1) * BASE**-exponent
        return x + self.scale * torch.cat([angle.sin(), angle.cos()], 1).to(x.dtype), end
