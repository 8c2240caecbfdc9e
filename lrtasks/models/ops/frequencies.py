"""Frequencies that stay exact: a float64 starting grid that no cast touches, plus a learned offset."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Frequencies(nn.Module):
    """Angular frequencies ``grid + offset`` in float64, of which only the offset is learned.

    A frequency q rounded to float32 is off by up to 2e-7, which at position 2^20 turns the phase by 0.2 rad. The
    grid is therefore kept as the bits of float64 numbers, in an integer buffer: ``.half()``, ``.to(torch.float32)``
    and the like leave it alone, and it travels with the state dict. The gradient with respect to the offset is that
    with respect to q.

    Args:
        grid: starting values in radians, any shape.
        options: the offset's options for the optimiser, beside no weight decay.
    """

    grid_bits: Tensor

    def __init__(self, grid: Tensor, **options: float) -> None:
        super().__init__()
        self._options = {"weight_decay": 0.0, **options}
        self.offset = nn.Parameter(torch.zeros(grid.shape))
        self.register_buffer("grid_bits", grid.double().contiguous().clone().view(torch.int64))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"offset": self._options}

    def forward(self) -> Tensor:
        """The frequencies, float64."""
        return self.grid_bits.view(torch.float64) + self.offset.double()

    @torch.no_grad()
    def assign(self, values: Tensor) -> None:
        """Make the frequencies exactly ``values`` (their float64 form), with a zero offset."""
        self.grid_bits.copy_(values.double().contiguous().view(torch.int64))
        self.offset.zero_()
