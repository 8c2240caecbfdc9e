"""Reference arrays of the modern mixers: float64 inputs, settings, outputs and gradients of sum(in_G * out_y)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parity import gap, read_arrays
from torch import Tensor
from torch.nn import functional as F

ARRAYS = Path(__file__).parent / "parity_modern"


def arrays(name: str) -> dict[str, np.ndarray]:
    """The file called ``name``: ``in_*``, ``param_*``, ``cfg_*``, ``out_*`` and ``grad_*``."""
    return read_arrays(ARRAYS, name)


def leaves(found: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs and parameters by their names, those that have a gradient ready for it."""
    chosen = {}
    for full, value in found.items():
        kind, _, name = full.partition("_")
        if kind in ("in", "param") and name != "G":
            tensor = torch.from_numpy(value)
            chosen[name] = tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor
    return chosen


def check_outputs(
    found: Mapping[str, np.ndarray],
    forward: Callable[[dict[str, Tensor]], tuple[Tensor, ...]],
    dtype: torch.dtype,
    outputs: tuple[str, ...] = ("y",),
) -> None:
    """Compare the outputs of ``forward(leaves)`` and all gradients: 1e-9 of the largest value in float64, else 5e-5."""
    at_most = 1e-9 if dtype == torch.float64 else 5e-5
    given = leaves(found, dtype)
    results = forward(given)
    for name, result in zip(outputs, results, strict=False):
        if f"out_{name}" in found:
            assert gap(result, found[f"out_{name}"]) <= at_most, name
    assert results[0].dtype == dtype
    (results[0] * torch.from_numpy(found["in_G"]).to(dtype)).sum().backward()
    for name, value in given.items():
        if f"grad_{name}" in found:
            assert value.grad is not None, name
            assert gap(value.grad, found[f"grad_{name}"]) <= at_most, name


def settings(found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The ``cfg_*`` entries as plain values."""
    return {name.removeprefix("cfg_"): value.tolist() for name, value in found.items() if name.startswith("cfg_")}


def plain_short_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The plain loop over the taps ``(C, 1, W)`` of a short convolution of ``(B, L, C)``."""
    y = torch.zeros_like(x) if bias is None else torch.zeros_like(x) + bias
    for j, tap in enumerate(weight.squeeze(1).flip(-1).unbind(-1)):
        y = y + tap * F.pad(x, (0, 0, j, 0))[:, : x.shape[1]]
    return y
