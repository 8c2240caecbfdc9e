"""S4D compared with a plain float64 form: kernel, gradients, both initialisations, streaming, invalid input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from parity import gap

from lrtasks.models.s4d import S4D, S4DKernel, starting_frequencies


def plain(leaves: dict[str, torch.Tensor], length: int) -> torch.Tensor:
    """Sum over all N eigenvalues, conjugates spelt out, of C (exp(Δλ) - 1)/λ exp(Δλ l), in complex128."""
    dt = torch.exp(leaves["log_dt"])[:, None]
    half = torch.complex(-torch.exp(leaves["r"]), leaves["omega"])
    weight = torch.view_as_complex(leaves["C"])
    eigenvalue = torch.cat([half, half.conj()], -1)
    weight = torch.cat([weight, weight.conj()], -1)
    table = torch.exp((dt * eigenvalue)[..., None] * torch.arange(length))
    total = torch.einsum("chn,hnl->chl", weight * (torch.exp(dt * eigenvalue) - 1) / eigenvalue, table)
    assert total.imag.abs().max() < 1e-9 * total.real.abs().max()
    return total.real


@pytest.mark.parametrize(("double", "at_most"), [(True, 1e-10), (False, 1e-5)])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("start", ["lin", "legs"])
def test_kernel_equals_the_plain_form(start: Any, directions: int, double: bool, at_most: float) -> None:
    torch.manual_seed(0)
    kernel = S4DKernel(S4D(d_model=5, d_state=16, start=start), directions)
    kernel = kernel.double() if double else kernel
    with torch.no_grad():
        kernel.r.add_(0.3 * torch.randn(kernel.r.shape))
        kernel.omega.offset.add_(0.3 * torch.randn(kernel.r.shape))
    mine = {"log_dt": kernel.log_dt, "r": kernel.r, "omega": kernel.omega.offset, "C": kernel.C}
    exact = {name: leaf.detach().double().requires_grad_() for name, leaf in mine.items()}
    exact["omega"] = kernel.omega().detach().requires_grad_()
    found, wanted = kernel(200), plain(exact, 200)
    assert gap(found, wanted) <= at_most
    cotangent = torch.randn(wanted.shape, dtype=torch.float64)
    found.backward(cotangent.to(found.dtype))
    wanted.backward(cotangent)
    for name, leaf in mine.items():
        assert gap(leaf.grad, exact[name].grad) <= at_most, name


def test_legs_start_is_the_spectrum_of_the_normal_part_of_hippo() -> None:
    """A = A_normal - P Pᵀ with A the HiPPO-LegS matrix and P_i = sqrt(i + 1/2)."""
    n = np.arange(32)
    hippo = -np.where(n[:, None] > n, np.sqrt(np.outer(2 * n + 1, 2 * n + 1)), np.diag(n + 1.0))
    normal = hippo + np.outer(np.sqrt(n + 0.5), np.sqrt(n + 0.5))
    eigenvalues = np.linalg.eigvals(normal)
    assert np.allclose(eigenvalues.real, -0.5)
    expected = np.sort(eigenvalues.imag[eigenvalues.imag > 0])
    assert np.allclose(starting_frequencies("legs", 32), expected)


def test_start() -> None:
    torch.manual_seed(0)
    kernel = S4DKernel(S4D(d_model=3000, d_state=8))
    assert torch.equal(kernel.omega()[0], math.pi * torch.arange(4, dtype=torch.float64))
    assert torch.allclose(torch.exp(kernel.r), torch.tensor(0.5))
    assert kernel.log_dt.mean().item() == pytest.approx(math.log(1e-2), abs=0.1)
    assert torch.view_as_complex(kernel.C).abs().square().mean().item() == pytest.approx(1, rel=0.05)
