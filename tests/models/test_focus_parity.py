"""Focus: outputs and gradients of the global convolution and of a layer equal the reference arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from focus_models import convolution
from hybrid_parity import GRADIENT, OUTPUT, Part, check_close, check_gradients, fill, load

from lrtasks.models.focus import Focus, FocusLayer, GlobalKernel, Hypernetwork


@pytest.mark.parametrize("double", [True, False])
def test_global_convolution_parity(data: Path, double: bool) -> None:
    arrays = load(data, "longconv")
    dtype = torch.float64 if double else torch.float32
    channels, taps = arrays["in_kernel"].shape[1:]
    conv = convolution(channels, taps, float(arrays["in_lambda"]), 0.2).to(dtype).eval()
    kernel = conv.kernel
    assert isinstance(kernel, GlobalKernel)
    with torch.no_grad():
        kernel.taps.copy_(torch.from_numpy(arrays["in_kernel"][0]))
        conv.D.copy_(torch.from_numpy(arrays["in_skip"][0]))
    check_close(kernel(taps)[0], arrays["out_squashed"][0], OUTPUT[double])
    seen: list[torch.Tensor] = []
    conv.output.register_forward_pre_hook(lambda _, given: seen.extend(given))
    conv(torch.from_numpy(arrays["in_u"]).to(dtype).transpose(1, 2))
    wanted = torch.nn.functional.gelu(torch.from_numpy(arrays["out_y"][:, 0]))
    check_close(seen[0].transpose(1, 2), wanted.numpy(), OUTPUT[double])
    kernel.threshold, kernel.smoothing = float(arrays["in_lambda_smooth"]), int(arrays["in_smooth_window"])
    check_close(kernel(taps)[0], arrays["out_smoothed_then_squashed"][0], OUTPUT[double])


def reference_layer(arrays: dict[str, Any]) -> FocusLayer:
    bin_length, bins, filters, pooled, chunk, d_k, d_v, hidden = arrays["in_cfg"].tolist()
    config = Focus(
        d_model=arrays["in_x"].shape[2],
        bins=bins,
        filters=filters,
        pooled=pooled,
        hidden=hidden,
        chunk=chunk,
        d_k=d_k,
        d_v=d_v,
        shared=False,
        squash=float(arrays["in_lambda"]),
        kernel_dropout=0.0,
        norm="none",
    )
    return FocusLayer(config, bins * bin_length, bin_length, chunk, causal=True)


def reference_parts(layer: FocusLayer) -> list[Part]:
    coefficients = layer.coefficients
    assert isinstance(coefficients, Hypernetwork) and coefficients.summary is not None
    assert layer.attention.bias is not None
    conv = coefficients.summary.conv
    assert isinstance(conv.kernel, GlobalKernel)
    maps = {
        "mix": conv.output,
        "mlp1": coefficients.hidden,
        "mlp2": coefficients.out,
        "q": layer.query,
        "joint": layer.mix,
    }
    return [
        *(Part(f"W{name}", module.weight) for name, module in maps.items()),
        *(Part(f"b{name}", module.bias) for name, module in maps.items()),
        *(Part("Uh", layer.out.weight), Part("kernel", conv.kernel.taps), Part("skip", conv.D)),
        Part("rel", layer.attention.bias.table),
    ]


@pytest.mark.parametrize("double", [True, False])
def test_layer_parity(data: Path, double: bool) -> None:
    arrays = dict(load(data, "focus_layer"))
    for prefix in ("param_W", "param_b", "grad_W", "grad_b"):  # the maps of the filtered signal are one in ours
        arrays[f"{prefix}joint"] = np.concatenate([arrays[prefix + name] for name in ("k", "v", "gam", "phi", "h")])
    layer = reference_layer(arrays).to(torch.float64 if double else torch.float32)
    parts = reference_parts(layer)
    assert {id(part.parameter) for part in parts} == {id(parameter) for parameter in layer.parameters()}
    fill(arrays, parts)
    coefficients = layer.coefficients
    assert isinstance(coefficients, Hypernetwork) and coefficients.summary is not None
    x = torch.from_numpy(arrays["in_x"]).to(layer.query.weight.dtype).requires_grad_()
    theta, _ = coefficients.run(x, None, None, None)
    assert theta is not None
    check_close(coefficients.summary(x), arrays["out_embedding"][:, :, :-1], OUTPUT[double])  # of all bins but the last
    check_close(theta.transpose(1, 2), arrays["out_theta_shifted"][:, 1:], OUTPUT[double])
    filtered = layer.filter(x, theta)
    check_close(filtered, arrays["out_filtered"], OUTPUT[double])
    k, v = layer.mix(filtered).split(layer.widths, -1)[:2]
    check_close(layer.attention(layer.query(x), k, v), arrays["out_attention"], OUTPUT[double])
    y = layer(x)
    check_close(y, arrays["out_y"], OUTPUT[double])
    (y * torch.from_numpy(arrays["in_G"]).to(y.dtype)).sum().backward()
    assert x.grad is not None
    check_close(x.grad, arrays["grad_x"], GRADIENT[double])
    check_gradients(arrays, parts, GRADIENT[double])


def test_all_arrays_are_compared(data: Path) -> None:
    files = {path.stem for path in (data / "hybrids").glob("focus_*.npz")}
    assert files == {"focus_iir", "focus_causality", "focus_poles", "focus_layer"}
