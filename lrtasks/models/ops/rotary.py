"""Rotary position embedding on adjacent pairs of features (Su et al., RoFormer, arXiv:2104.09864, section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10000.0


def rotate(x: Tensor, positions: Tensor | None = None) -> Tensor:
    """Turn the pair of features ``(2m, 2m+1)`` at position ``t`` by the angle ``t · 10000^(-2m/width)``.

    A pair ``(a, b)`` becomes ``(a cos - b sin, a sin + b cos)``, so that the product of two rotated vectors depends
    on their positions only through the difference.

    Args:
        x: ``(..., length, width)`` of any floating-point type, ``width`` even.
        positions: ``(length,)`` integers; ``0..length-1`` if not given.

    Returns:
        The rotated tensor, shaped and typed as ``x``.
    """
    length, width = x.shape[-2:]
    if positions is None:
        positions = torch.arange(length, device=x.device)
    # float64 up to the sine: at position 10^6 a float32 angle is already wrong by hundredths of a radian
    pair = torch.arange(0, width, 2, device=x.device, dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None] * BASE ** (-pair / width)
    # half-precision features are turned in float32
    working = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angles.cos().to(working), angles.sin().to(working)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
