"""SGConv: parity with the reference's arrays, number of scales, norm in checkpoints, streaming, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parity import check_outputs_and_gradients, gap

from lrtasks.check.model import check_model
from lrtasks.models import build
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.models.sgconv import SGConv, SGConvKernel, scales
from lrtasks.spec import Spec


def load_weights(kernel: SGConvKernel, arrays: dict[str, Any], weights: str, alpha: str) -> None:
    kernel.alpha.data.copy_(torch.from_numpy(arrays[alpha]))
    for i in range(len(kernel.w)):
        kernel.w.data[i].copy_(torch.from_numpy(arrays[f"{weights}{i}"]))


def with_stacked_gradients(arrays: dict[str, Any], prefix: str, count: int) -> dict[str, Any]:
    """The reference's one array per scale as one array, which is how the weights are kept here."""
    stacked = {
        f"grad_{prefix}ws_{kind}": np.stack([arrays[f"grad_{prefix}ws_{i}_{kind}"] for i in range(count)])
        for kind in ("f32_gap", "f64")
    }
    stacked[f"grad_{prefix}ws_f32_gap"] = stacked[f"grad_{prefix}ws_f32_gap"].max()
    return arrays | stacked


@pytest.mark.parametrize("double", [True, False])
def test_kernel_parity(data: Path, double: bool) -> None:
    arrays = dict(np.load(data / "dlr" / "sgconv_kernel.npz"))
    H, N, L, count = (int(arrays[size]) for size in ("H", "N", "L", "n_scales"))
    kernel = SGConvKernel(SGConv(d_model=H, d_state=N), L)
    assert len(kernel.w) == count
    kernel = kernel.double() if double else kernel
    load_weights(kernel, arrays, "init_w", "init_alpha")
    kernel.norm.copy_((kernel(N << count) * kernel.norm).norm(dim=-1, keepdim=True).detach())
    assert gap(kernel.norm, arrays["k_norm"]) < 1e-6
    assert gap(kernel(L), arrays["init_K_f32"]) < 1e-6
    # from here on the norm stays, whatever the weights
    kernel.norm.copy_(torch.from_numpy(arrays["k_norm"]))
    load_weights(kernel, arrays, "raw_ws_", "raw_alpha")
    arrays = with_stacked_gradients(arrays, "", count)
    leaves = {"alpha": kernel.alpha, "ws": kernel.w}
    check_outputs_and_gradients(arrays, lambda: kernel(L), leaves, double, output="K")


@pytest.mark.parametrize("double", [True, False])
def test_layer_parity(data: Path, double: bool) -> None:
    arrays = dict(np.load(data / "dlr" / "layer_sgconv_uni.npz"))
    H, N, L = (int(arrays[size]) for size in "HNL")
    kernel = SGConvKernel(SGConv(d_model=H, d_state=N), L)
    layer = LongConvLayer(kernel, H, L, None, glu=False)
    layer = layer.double() if double else layer
    load_weights(kernel, arrays, "raw_kernel_ws_", "raw_kernel_alpha")
    kernel.norm.copy_(torch.from_numpy(arrays["k_norm"]))
    arrays = with_stacked_gradients(arrays, "kernel_", len(kernel.w))
    leaves = {"D": layer.D, "output_linear_weight": layer.output.weight, "output_linear_bias": layer.output.bias}
    for name, leaf in leaves.items():
        leaf.data.copy_(torch.from_numpy(arrays[f"raw_{name}"]).view_as(leaf))
    u = torch.from_numpy(arrays["u"]).to(layer.D.dtype).requires_grad_()
    leaves |= {"input": u, "kernel_alpha": kernel.alpha, "kernel_ws": kernel.w}
    check_outputs_and_gradients(arrays, lambda: layer(u.transpose(1, 2)).transpose(1, 2), leaves, double)


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 2.5, 0.5])
def test_kernel_reaches_every_length(ratio: float) -> None:
    taps = 8
    length = int(taps * ratio)
    kernel = SGConvKernel(SGConv(d_model=3, d_state=taps, alpha_min=1), length)
    assert kernel(length).shape == (1, 3, length)
    count = scales(taps, length)
    assert count == 1 or taps * 2 ** (count - 2) < length
    assert kernel(taps * 2 ** (count - 1)).norm(dim=-1).detach().numpy() == pytest.approx(1, rel=1e-5)


def test_stretched_pieces_by_hand() -> None:
    """Half-pixel linear interpolation of (0, 4) by 2 is (0, 1, 3, 4); pieces are decayed by powers of α."""
    kernel = SGConvKernel(SGConv(d_model=1, d_state=2, alpha_max=0.5), 8)
    with torch.no_grad():
        kernel.w.copy_(torch.tensor([0.0, 4.0]).expand_as(kernel.w))
        kernel.norm.fill_(1)
    assert kernel(8)[0, 0].tolist() == [0.0, 4.0, 0.0, 2.0, 0.0, 0.25, 0.75, 1.0]


def test_norm_is_saved_and_not_learned() -> None:
    spec = Spec("real", 40, 1)
    model = build("sgconv", spec, spec, d_model=4, d_state=5)
    kernel = model.blocks[0].mixer.kernel
    before = kernel.norm.clone()
    with torch.no_grad():
        kernel.w.mul_(3)
    torch.manual_seed(1)
    other = build("sgconv", spec, spec, d_model=4, d_state=5)
    x = torch.randn(2, 40, 1)
    assert gap(other(x), model(x)) > 1e-3
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.blocks[0].mixer.kernel.norm, before)
    assert torch.equal(other(x), model(x))
    assert "norm" not in dict(kernel.named_parameters())


def test_start() -> None:
    torch.manual_seed(0)
    kernel = SGConvKernel(SGConv(d_model=2000, d_state=16), 64, directions=2)
    assert (kernel.w.std() * 16).item() == pytest.approx(1, rel=0.02)
    assert 0.5 <= kernel.alpha.min().item() < 0.52
    assert 0.98 < kernel.alpha.max().item() <= 1.0


def test_untrained_taps_are_not_used_at_lengths_beyond_the_built_one() -> None:
    """Two scales of 64 taps cover 70 positions; the other 58 taps get no gradient, so no input may use them."""
    model = build("sgconv", Spec("real", 70, 3), Spec("real", 70, 2), d_model=4, layers=1, d_state=64).double()
    model(torch.randn(2, 70, 3, dtype=torch.float64)).square().sum().backward()
    layer: Any = model.blocks[0]
    w = layer.mixer.kernel.w
    assert [int((grad != 0).any(0).sum()) for grad in w.grad[:, 0]] == [64, 6]
    model.target = Spec("real", 280, 2)
    x = torch.randn(2, 280, 3, dtype=torch.float64)
    with torch.no_grad():
        before = model.eval()(x)
        w[1, :, :, 6:] = 7.0
        assert torch.equal(model(x), before)


def test_every_parameter_gets_a_gradient_with_a_single_scale() -> None:
    """Several processes need a gradient of each. That of α, which then has no effect, is 0."""
    spec = Spec("real", 32, 2)
    check_model("sgconv", input=spec, target=spec, d_state=64)
    kernel = SGConvKernel(SGConv(d_model=3, d_state=64), 32)
    kernel(32).square().sum().backward()
    assert kernel.alpha.grad is not None and not kernel.alpha.grad.any()
