"""Comparison of SeqBoat and MEGA parts with reference arrays (first axis: time; names of raw parameters)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from parity import read_arrays
from torch import Tensor, nn

from lrtasks.models.mega import EMAKernel
from lrtasks.models.ops.convolution import SSM
from lrtasks.models.ops.scoped_attention import SharedAttention

Arrays = Mapping[str, Any]
OUTPUT, GRADIENT = {True: 1e-9, False: 2e-4}, {True: 1e-9, False: 2e-3}
"""Allowed difference in double precision, and in single."""


class Part(NamedTuple):
    """A parameter and the reference's name for it, or for the array of which it holds the ``rows``."""

    name: str
    parameter: nn.Parameter
    rows: slice = slice(None)


def load(data: Path, name: str) -> Arrays:
    """The file called ``name`` of SeqBoat, MEGA, Focus and LongVQ."""
    return read_arrays(data / "hybrids", name)


def check_close(found: Tensor, wanted: np.ndarray, at_most: float, what: str = "output") -> None:
    """Compare relative to the largest wanted value, or to 1 if that is smaller."""
    assert tuple(found.shape) == wanted.shape, (what, found.shape, wanted.shape)
    gap = np.abs(found.detach().double().numpy() - wanted).max(initial=0) / max(1.0, np.abs(wanted).max(initial=0))
    assert gap <= at_most, f"{what}: {gap:.2e} > {at_most:.0e}"


def fill(arrays: Arrays, parts: Iterable[Part]) -> None:
    with torch.no_grad():
        for name, parameter, rows in parts:
            parameter.copy_(torch.from_numpy(arrays[f"param_{name}"][rows]).view_as(parameter))


def check_gradients(arrays: Arrays, parts: Iterable[Part], at_most: float) -> None:
    for name, parameter, rows in parts:
        assert parameter.grad is not None, name
        wanted = arrays[f"grad_{name}"][rows]
        check_close(parameter.grad.view(wanted.shape), wanted, at_most, f"gradient of {name}")


def check_layer(arrays: Arrays, layer: nn.Module, parts: list[Part], double: bool, at_most: float = 0.0) -> None:
    """Outputs, and gradients of sum(output · G) where there is a G, of a block whose parameters are all ``parts``."""
    named = dict(layer.named_parameters())
    listed = {id(part.parameter) for part in parts}
    assert not [name for name, parameter in named.items() if id(parameter) not in listed]
    layer.to(torch.float64 if double else torch.float32)
    fill(arrays, parts)
    x = torch.from_numpy(arrays["in_x"]).to(next(layer.parameters()).dtype).requires_grad_()
    mask = torch.from_numpy(~arrays["in_pad"]) if "in_pad" in arrays else None
    y = layer(x.transpose(0, 1), mask).transpose(0, 1)
    check_close(y, arrays["out_y"], max(at_most, OUTPUT[double]))
    if "in_G" not in arrays:
        return
    (y * torch.from_numpy(arrays["in_G"]).to(y.dtype)).sum().backward()
    assert x.grad is not None
    check_close(x.grad, arrays["grad_x"], max(at_most, GRADIENT[double]), "gradient of x")
    check_gradients(arrays, parts, max(at_most, GRADIENT[double]))


def linear_parts(name: str, layer: nn.Linear, rows: slice = slice(None)) -> list[Part]:
    return [Part(f"{name}_weight", layer.weight, rows), Part(f"{name}_bias", layer.bias, rows)]


def ssm_parts(ssm: SSM, prefix: str = "") -> list[Part]:
    kernel = ssm.kernel
    assert isinstance(kernel, EMAKernel)
    named = {"delta": kernel.delta, "alpha": kernel.alpha, "beta": kernel.beta, "gamma": kernel.gamma}
    return [Part(prefix + name, value) for name, value in {**named, "omega": ssm.omega}.items()]


def norm_parts(norm: nn.Module, prefix: str = "") -> list[Part]:
    if isinstance(norm, (nn.LayerNorm, nn.BatchNorm1d)):
        return [Part(f"{prefix}norm_norm_weight", norm.weight), Part(f"{prefix}norm_norm_bias", norm.bias)]
    return [Part(f"{prefix}norm_norm_scalar", norm.gain)]


def attention_parts(attention: SharedAttention, prefix: str = "", table: slice = slice(None)) -> list[Part]:
    """``table``: entries of the reference's bias table that ours holds."""
    parts = [Part(f"{prefix}gamma", attention.gamma), Part(f"{prefix}beta", attention.beta)]
    if hasattr(attention.bias, "table"):
        parts.append(Part(f"{prefix}rel_pos_bias_rel_pos_bias", attention.bias.table, table))
    elif attention.bias is not None:
        parts.append(Part("rel_pos_bias_alpha", attention.bias.a))
        parts.append(Part("rel_pos_bias_beta", attention.bias.b))
    return parts
