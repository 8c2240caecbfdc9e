"""Plain attention by its definition, and a comparison of attention modules with the reference arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from parity import check_close
from torch import Tensor, nn

from lrtasks.models.ops.attention import MultiHeadAttention

# Allowed in float64. The reference keeps its rotary frequencies in float32, where 0.01 is 2.2e-8 off, so that its last
# angle is 1.4e-8 off; gradients, in which much cancels, then come out up to 1.5e-8 apart. With the reference's own
# frequencies everything agrees to the usual 1e-10.
PRECISIONS = ["float32", "float64", "float64, reference's frequencies"]
AT_MOST, AT_MOST_GRADIENT = 1e-8, 2e-8


def plain_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys, one query at a time; a query without any gives NaN."""
    out = torch.empty_like(q)
    visible = visible.expand(*q.shape[:2], -1, -1)
    for index in np.ndindex(q.shape[:3]):
        keys, values = (x[index[:2]][visible[index]] for x in (k, v))
        out[index] = torch.softmax(keys @ q[index], 0) @ values
    return out


def local_visible(length: int, chunk: int, causal: bool) -> Tensor:
    """Which key (column) each query (row) sees."""
    i = torch.arange(length)
    near = (i[:, None] // chunk - i // chunk).abs() <= 1
    return near & (i <= i[:, None]) if causal else near


def reference_rotate(frequencies: np.ndarray) -> Callable[[Tensor, Tensor], Tensor]:
    """Rotation of adjacent pairs, as complex numbers, by given frequencies."""

    def rotate(x: Tensor, positions: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(x.shape[-2])
        angles = positions.double()[:, None] * torch.from_numpy(frequencies).double()
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)

    return rotate


def check_attention_parity(
    arrays: Mapping[str, Any],
    module: nn.Module,
    attention: MultiHeadAttention,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str = "",
) -> Callable[[Tensor | None, str], None]:
    """Compare ``module``, which holds ``attention``, in output and in all gradients of sum(cotangent * output).

    Returns:
        The function that compares one more array with the reference's of the given name.
    """
    double, same_frequencies = precision.startswith("float64"), precision.endswith("frequencies")
    if same_frequencies:
        monkeypatch.setattr("lrtasks.models.ops.attention.rotate", reference_rotate(arrays["rope_freqs"]))
    raw = {name: torch.from_numpy(value) for name, value in arrays.items() if name.startswith("raw_")}
    loaded = {
        attention.scale: raw[f"raw_{prefix}scale"],
        attention.qkv.weight: torch.cat([raw[f"raw_{prefix}{part}_weight"] for part in "QKV"]),
        attention.qkv.bias: torch.cat([raw[f"raw_{prefix}{part}_bias"] for part in "QKV"]),
        attention.out.weight: raw[f"raw_{prefix}O_weight"],
        attention.out.bias: raw[f"raw_{prefix}O_bias"],
    }
    with torch.no_grad():
        for parameter, value in loaded.items():
            parameter.copy_(value)
    dtype = torch.float64 if double else torch.float32
    module.to(dtype)
    u = torch.from_numpy(arrays["u"]).to(dtype).requires_grad_()
    y = module(u.transpose(1, 2)).transpose(1, 2)
    (y * torch.from_numpy(arrays["cotangent"])).sum().backward()

    def check(found: Tensor | None, name: str) -> None:
        assert found is not None, name
        own = AT_MOST if name == "y" else AT_MOST_GRADIENT
        check_close(found, arrays, name, double, 1e-10 if same_frequencies else own)

    check(y, "y")
    check(u.grad, "grad_input")
    check(attention.scale.grad, f"grad_{prefix}scale")
    for kind in ("weight", "bias"):
        parts = getattr(attention.qkv, kind).grad.chunk(3)
        for part, gradient in zip("QKV", parts, strict=True):
            check(gradient, f"grad_{prefix}{part}_{kind}")
        check(getattr(attention.out, kind).grad, f"grad_{prefix}O_{kind}")
    return check
