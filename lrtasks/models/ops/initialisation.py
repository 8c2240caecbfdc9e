"""Normal draws for initial weights, cut or not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WEIGHT_STD = 0.02  # of the linear maps, and of the biases by distance, of MEGA and the models that build on it


def normal_(tensor: Tensor, std: float, *, truncated: bool) -> Tensor:
    """Fill with normal draws of standard deviation ``std``, cut at two of them on either side if ``truncated``."""
    if truncated:
        return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)
    return nn.init.normal_(tensor, std=std)


def linear(inputs: int, outputs: int, *, truncated: bool) -> nn.Linear:
    """A linear map with normal weights of standard deviation 0.02 and zero bias."""
    layer = nn.Linear(inputs, outputs)
    normal_(layer.weight, WEIGHT_STD, truncated=truncated)
    with torch.no_grad():
        layer.bias.zero_()
    return layer
