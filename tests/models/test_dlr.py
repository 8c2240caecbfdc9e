"""DLR: parity with the reference arrays, initial statistics, exact frequencies, streaming, invalid input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity import check_outputs_and_gradients, gap

from lrtasks.models import build
from lrtasks.models.dlr import DLR, DLRKernel
from lrtasks.models.ops import exponentials, loops
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.spec import Spec

CASTS = {"real": "real", "imag": "imag", "sum": "sum", "prod": "prod", "realprod": "real-prod"}
VARIANTS = [
    ("dlr_kernel_complex", "complex", False),
    ("dlr_kernel_imaglambda", "imag", False),
    ("dlr_kernel_imaglambda_realW", "imag", True),
]
KERNELS = [(*variant, cast) for variant in VARIANTS for cast in CASTS] + [("dlr_kernel_real", "real", True, "real")]
LAYERS = ["layer_dlr_uni", "layer_dlr_bi", "layer_dlr_uni_shortkernel", "layer_dlr_bi_shortkernel", "layer_dlr_bi_glu"]
NETWORKS = ["network_dlr_2layer_postnorm", "network_dlr_2layer_prenorm"]


def fill_kernel(kernel: DLRKernel, arrays: dict[str, Any], prefix: str) -> dict[str, torch.Tensor]:
    """Load raw values; return the leaves by the reference's names."""
    leaves = {"W": kernel.W}
    kernel.W.data.copy_(torch.from_numpy(arrays[f"{prefix}W"]))
    if kernel.p is not None:
        kernel.p.data.copy_(torch.from_numpy(arrays[f"{prefix}Lambda_log_neg_re"]))
        leaves["Lambda_log_neg_re"] = kernel.p
    if kernel.q is not None:
        kernel.q = exponentials.Frequencies(torch.from_numpy(arrays[f"{prefix}Lambda_im"])).to(kernel.W.dtype)
        leaves["Lambda_im"] = kernel.q.offset
    return leaves


def fill_layer(layer: LongConvLayer, arrays: dict[str, Any], prefix: str, linear: str) -> dict[str, torch.Tensor]:
    leaves = {f"kernel_{k}": v for k, v in fill_kernel(layer.kernel, arrays, f"{prefix}kernel_").items()}
    leaves |= {"D": layer.D, f"{linear}_weight": layer.output.weight, f"{linear}_bias": layer.output.bias}
    for name in ("D", f"{linear}_weight", f"{linear}_bias"):
        leaves[name].data.copy_(torch.from_numpy(arrays[prefix + name]).view_as(leaves[name]))
    return leaves


@pytest.mark.parametrize("threads", [0, 1 << 10], ids=["operations", "loops"])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(("file", "eigenvalues", "real_weight", "cast"), KERNELS)
def test_kernel_parity(
    data: Path,
    file: str,
    eigenvalues: Any,
    real_weight: bool,
    cast: str,
    double: bool,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "MOST_THREADS", threads)
    arrays = dict(np.load(data / "dlr" / f"{file}.npz"))
    H, N, L = (int(arrays[size]) for size in "HNL")
    sizes = {"d_model": H, "d_state": N, "dt_min": 1e-3, "dt_max": 1e-1}
    kernel = DLRKernel(DLR(**sizes, kernel=CASTS[cast], eigenvalues=eigenvalues, real_weight=real_weight))
    kernel = kernel.double() if double else kernel
    leaves = fill_kernel(kernel, arrays, "raw_")
    check_outputs_and_gradients(arrays, lambda: kernel(L), leaves, double, prefix=f"{cast}_", output="K")


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", LAYERS)
def test_layer_parity(data: Path, file: str, double: bool) -> None:
    arrays = dict(np.load(data / "dlr" / f"{file}.npz"))
    H, N, L, taps = (int(arrays[size]) for size in ("H", "N", "L", "kernel_length"))
    glu = str(arrays["postact"]) == "glu"
    kernel = DLRKernel(DLR(d_model=H, d_state=N), 1 + bool(arrays["bidirectional"]))
    layer = LongConvLayer(kernel, H, L, taps if taps < L else None, glu)
    layer = layer.double() if double else layer
    leaves = fill_layer(layer, arrays, "raw_", "output_linear_0" if glu else "output_linear")
    u = torch.from_numpy(arrays["u"]).to(layer.D.dtype).requires_grad_()
    leaves["input"] = u
    check_outputs_and_gradients(arrays, lambda: layer(u.transpose(1, 2)).transpose(1, 2), leaves, double)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", NETWORKS)
def test_network_parity(data: Path, file: str, double: bool) -> None:
    arrays = dict(np.load(data / "dlr" / f"{file}.npz"))
    L, d_in, d_out, d_model, N, layers, last = (
        int(arrays[size]) for size in ("L", "d_in", "d_out", "d_model", "N", "n_layers", "l_output")
    )
    model = build(
        "dlr", Spec("real", L, d_in), Spec("real", last, d_out), causal=True,
        layers=layers, d_model=d_model, d_state=N, norm="scalar", prenorm=bool(arrays["prenorm"]),
    )  # fmt: skip
    model = model.double() if double else model
    leaves: dict[str, torch.Tensor] = {
        "encoder_weight": model.encoder.weight,
        "encoder_bias": model.encoder.bias,
        "decoder_output_transform_weight": model.decoder.weight,
        "decoder_output_transform_bias": model.decoder.bias,
    }
    norms = {f"model_layers_{i}_norm_norm": block.norm for i, block in enumerate(model.blocks)}
    if model.blocks[0].prenorm:
        norms["model_norm_norm"] = model.final_norm
    for name, norm in norms.items():
        leaves |= {f"{name}_m": norm.m, f"{name}_s": norm.s}
    for name, leaf in leaves.items():
        leaf.data.copy_(torch.from_numpy(arrays[f"raw_{name}"]))
    for i, block in enumerate(model.blocks):
        name = f"model_layers_{i}_layer_"
        filled = fill_layer(block.mixer, arrays, f"raw_{name}", "output_linear")
        leaves |= {name + key: leaf for key, leaf in filled.items()}
    x = torch.from_numpy(arrays["x"]).to(model.decoder.weight.dtype).requires_grad_()
    leaves["input"] = x
    check_outputs_and_gradients(arrays, lambda: model(x), leaves, double)


def test_start_has_the_reference_statistics(data: Path) -> None:
    arrays = dict(np.load(data / "dlr" / "dlr_init_example.npz"))
    N, dt_min, dt_max = int(arrays["N"]), float(arrays["dt_min"]), float(arrays["dt_max"])
    kernel = DLRKernel(DLR(d_model=4, d_state=N, dt_min=dt_min, dt_max=dt_max))
    # deterministic part: the grid of frequencies
    assert gap(kernel.q(), np.mod(arrays["Lambda"].imag.astype(float), 2 * math.pi)) < 1e-6
    # random part: over many draws, the decay rates are log-uniform and the weights have deviation 1/N
    torch.manual_seed(0)
    kernel = DLRKernel(DLR(d_state=4096, dt_min=dt_min, dt_max=dt_max))
    log_dt = torch.log(2 * kernel.p.detach() ** 2)
    assert math.log(dt_min) <= log_dt.min() + 1e-5
    assert log_dt.max() - 1e-5 <= math.log(dt_max)
    assert log_dt.mean().item() == pytest.approx((math.log(dt_min) + math.log(dt_max)) / 2, abs=0.1)
    assert log_dt.std().item() == pytest.approx(math.log(dt_max / dt_min) / math.sqrt(12), rel=0.05)
    assert kernel.W.std().item() * 4096 == pytest.approx(1, rel=0.02)
    assert arrays["W"].real.std() * N == pytest.approx(1, rel=0.3)


def test_kernel_is_exact_at_a_million_positions() -> None:
    """The frequencies' starting grid is not rounded to float32, nor is a learned offset lost in it."""
    torch.manual_seed(0)
    kernel = DLRKernel(DLR(d_model=1, d_state=16, dt_min=1e-7, dt_max=1e-7))
    kernel.q.offset.data.uniform_(-1e-4, 1e-4)
    position = 2**20 - 1
    q = 2 * math.pi * np.arange(16) / 16 + kernel.q.offset.detach().numpy().astype(np.float64)
    p = kernel.p.detach().numpy().astype(np.float64)
    W = torch.view_as_complex(kernel.W.detach()).numpy()[0, 0].astype(np.complex128)
    exact = (W * np.exp((-(p**2) + 1j * q) * position)).sum().real
    scale = np.abs(W).sum()
    assert abs(kernel(position + 1)[0, 0, position].item() - exact) < 1e-6 * scale
