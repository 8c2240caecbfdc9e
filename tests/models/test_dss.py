"""DSS-EXP: parity with the reference arrays, initialisation, streaming, invalid input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity import check_outputs_and_gradients

from lrtasks.models.ops import exponentials, loops
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.models.s4d import DSS, DSSKernel


def fill_kernel(kernel: DSSKernel, arrays: dict[str, Any], prefix: str) -> dict[str, torch.Tensor]:
    """Load raw values; return the leaves by the reference's names."""
    leaves = {"W": kernel.W, "Lambda_log_neg_re": kernel.a, "log_dt": kernel.log_dt}
    for name, leaf in leaves.items():
        leaf.data.copy_(torch.from_numpy(arrays[prefix + name]))
    kernel.b = exponentials.Frequencies(torch.from_numpy(arrays[f"{prefix}Lambda_im"])).to(kernel.W.dtype)
    return leaves | {"Lambda_im": kernel.b.offset}


@pytest.mark.parametrize("threads", [0, 1 << 10], ids=["operations", "loops"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("file", "scale"), [("dss_exp_kernel", True), ("dss_exp_noscale_kernel", False)])
def test_kernel_parity(
    data: Path, file: str, scale: bool, double: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "MOST_THREADS", threads)
    arrays = dict(np.load(data / "dlr" / f"{file}.npz"))
    H, N, L = (int(arrays[size]) for size in "HNL")
    kernel = DSSKernel(DSS(d_model=H, d_state=N, scale=scale))
    kernel = kernel.double() if double else kernel
    leaves = fill_kernel(kernel, arrays, "raw_")
    check_outputs_and_gradients(arrays, lambda: kernel(L), leaves, double, output="K")


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ["layer_dss_uni", "layer_dss_bi"])
def test_layer_parity(data: Path, file: str, double: bool) -> None:
    arrays = dict(np.load(data / "dlr" / f"{file}.npz"))
    H, N, L = (int(arrays[size]) for size in "HNL")
    kernel = DSSKernel(DSS(d_model=H, d_state=N), 1 + bool(arrays["bidirectional"]))
    layer = LongConvLayer(kernel, H, L, None, glu=False)
    layer = layer.double() if double else layer
    leaves = {f"kernel_{name}": leaf for name, leaf in fill_kernel(kernel, arrays, "raw_kernel_").items()}
    linear = {"D": layer.D, "output_linear_weight": layer.output.weight, "output_linear_bias": layer.output.bias}
    for name, leaf in linear.items():
        leaf.data.copy_(torch.from_numpy(arrays[f"raw_{name}"]).view_as(leaf))
    u = torch.from_numpy(arrays["u"]).to(layer.D.dtype).requires_grad_()
    check_outputs_and_gradients(
        arrays, lambda: layer(u.transpose(1, 2)).transpose(1, 2), leaves | linear | {"input": u}, double
    )


def test_start() -> None:
    torch.manual_seed(0)
    kernel = DSSKernel(DSS(d_model=2000, d_state=64))
    _, exponent = kernel.exponents()
    eigenvalue = exponent / torch.exp(kernel.log_dt.double()).unsqueeze(1)
    assert torch.allclose(eigenvalue.real, torch.tensor(-0.5, dtype=torch.float64), rtol=1e-7)
    assert torch.allclose(eigenvalue.imag, math.pi * torch.arange(64, dtype=torch.float64), rtol=1e-15, atol=0)
    log_dt = kernel.log_dt.detach()
    assert math.log(1e-4) <= log_dt.min()
    assert log_dt.max() <= math.log(1e-2)
    assert log_dt.mean().item() == pytest.approx(math.log(1e-3), abs=0.1)
    assert kernel.W.std().item() == pytest.approx(1, rel=0.02)


def test_scale_is_exact_where_the_step_is_tiny() -> None:
    """(exp(ΔΛ) - 1)/Λ loses all digits in float32 at ΔΛ = 1e-7; the kernel keeps them."""
    kernel = DSSKernel(DSS(d_model=1, d_state=1, dt_min=1e-7, dt_max=1e-7))
    with torch.no_grad():
        kernel.W.copy_(torch.tensor([[[[1.0, 0.0]]]]))
    dt = math.exp(kernel.log_dt.double().item())
    assert kernel(1)[0, 0, 0].item() == pytest.approx(-math.expm1(-dt / 2) / 0.5, rel=1e-6)
