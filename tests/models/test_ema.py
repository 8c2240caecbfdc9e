"""MD-EMA: parity with the reference's arrays, its plain definition, streaming, slow and fast decays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hybrid_parity import GRADIENT, OUTPUT, check_close, check_gradients, fill, load, ssm_parts
from parity import check_streaming
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.mega import EMAKernel
from lrtasks.models.ops.convolution import SSM


def reference(data: Path, file: str, double: bool, truncated: bool = False) -> tuple[SSM, dict[str, Tensor]]:
    """A map with the file's parameters, and its arrays."""
    arrays = load(data, file)
    length, _, d_model = arrays["in_x"].shape
    states, directions = arrays["param_gamma"].shape[1], len(arrays["param_gamma"]) // d_model
    cut = int(arrays["in_truncation"]) if truncated else None
    ssm = SSM(EMAKernel(d_model, states, directions), d_model, length, cut)
    ssm.to(torch.float64 if double else torch.float32)
    fill(arrays, ssm_parts(ssm))
    return ssm, {**arrays, "x": torch.from_numpy(arrays["in_x"]).to(ssm.omega.dtype).transpose(0, 1)}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ["ema_uni", "ema_bi"])
def test_parity(data: Path, file: str, double: bool) -> None:
    ssm, arrays = reference(data, file, double)
    x = arrays["x"].clone().requires_grad_()
    check_close(ssm.kernel(x.shape[1]).flatten(0, 1), arrays["out_kernel"], OUTPUT[double], "kernel")
    y = ssm(x).transpose(0, 1)
    check_close(y, arrays["out_y"], OUTPUT[double])
    padded = ssm(x, torch.from_numpy(~arrays["in_pad"])).transpose(0, 1)
    check_close(padded, arrays["out_y_padmask"], OUTPUT[double], "with padding")
    (y * torch.from_numpy(arrays["in_G"])).sum().backward()
    assert x.grad is not None
    check_close(x.grad.transpose(0, 1), arrays["grad_x"], GRADIENT[double], "gradient of x")
    check_gradients(arrays, ssm_parts(ssm), GRADIENT[double])


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ["ema_uni", "ema_bi"])
def test_cut_kernel(data: Path, file: str, double: bool) -> None:
    ssm, arrays = reference(data, file, double, truncated=True)
    check_close(ssm(arrays["x"]).transpose(0, 1), arrays["out_y_truncated"], OUTPUT[double])


def test_streaming_parity(data: Path) -> None:
    """Outputs and states of the reference's incremental form: without the skip term, states weighted by p beta."""
    ssm, arrays = reference(data, "ema_uni", double=True)
    x, state, outputs, states = arrays["x"], ssm.initial_state(3), [], []
    for t in range(x.shape[1]):
        y, state = ssm.step(x[:, t], state)
        outputs.append(y - ssm.omega * x[:, t])
        states.append(state.memory * torch.sigmoid(ssm.kernel.delta[0]) * ssm.kernel.beta[0])
    split = int(arrays["in_split"])
    wanted = torch.cat([torch.from_numpy(arrays[f"out_{part}"]) for part in ("first", "second", "last")])
    check_close(torch.stack(outputs), wanted.numpy(), 1e-9)
    for step, name in ((split, "after_first"), (len(outputs) - 1, "after_second"), (len(outputs), "final")):
        check_close(states[step - 1], arrays[f"out_state_{name}"], 1e-9, name)


@pytest.mark.parametrize("cut", [None, 5])
def test_streaming_is_the_convolution(cut: int | None) -> None:
    ssm = SSM(EMAKernel(3, 4), 3, 20, cut).double()
    check_streaming(ssm, torch.randn(2, 20, 3, dtype=torch.float64), 1e-12)


def test_a_bidirectional_map_cannot_be_streamed() -> None:
    with pytest.raises(UsageError, match="causal=True"):
        SSM(EMAKernel(3, 4, 2), 3, 20).initial_state(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_is_its_formula_for_any_decay(dtype: torch.dtype) -> None:
    """From decays of 1 - 1e-6 per step, over 16,384 steps, to decays that round to nothing."""
    kernel = EMAKernel(3, 1).double()
    with torch.no_grad():
        kernel.delta.copy_(torch.tensor([-7.0, 0.0, 40.0]).view_as(kernel.delta))
        kernel.alpha.copy_(torch.tensor([-7.0, 0.0, 40.0]).view_as(kernel.alpha))
    p, a = torch.sigmoid(kernel.delta), torch.sigmoid(kernel.alpha)
    wanted = kernel.gamma * p * kernel.beta * (1 - p * a) ** torch.arange(16384, dtype=torch.float64)
    found = kernel.to(dtype)(16384)
    found.sum().backward()
    check_close(found, wanted.detach().numpy(), 1e-9 if dtype == torch.float64 else 1e-5)
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in kernel.parameters())


def test_initial_values() -> None:
    torch.manual_seed(0)
    ssm = SSM(EMAKernel(512, 16, 2), 512, 8)
    kernel = ssm.kernel.requires_grad_(False)
    delta, beta, gamma = kernel.delta, kernel.beta.mean((0, 1)), kernel.gamma
    assert delta.abs().max() <= 0.4 and 0.16 < float(delta.std()) < 0.2
    assert gamma.abs().max() <= 2 and 0.8 < float(gamma.std()) < 1
    assert torch.allclose(beta, torch.tensor([1.0, -1.0] * 8), atol=5e-3)
    untruncated = EMAKernel(512, 16, 2, truncated=False).requires_grad_(False)
    assert untruncated.gamma.abs().max() > 2 and abs(float(untruncated.gamma.std()) - 1) < 0.05


def test_float32_under_autocast() -> None:
    """The transform stays in float32; only the input is rounded."""
    ssm = SSM(EMAKernel(4, 4), 4, 64)
    x = torch.randn(2, 64, 4).bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = ssm(x)
    assert torch.allclose(mixed, ssm(x), rtol=0, atol=1e-5)
