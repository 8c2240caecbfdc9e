"""Filters per bin: reference arrays, scipy's lfilter, gradients, causality, and the circular form's lack of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hybrid_parity import GRADIENT, OUTPUT, check_close, load
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import freqz, lfilter
from torch import Tensor

from lrtasks.models.ops.iir import (
    circular_filter,
    filter_bins,
    filter_step,
    frequency_response,
    impulse_response,
    pole_radius,
    stable_coefficients,
)


def padded_on_2r_points(x: Tensor, theta: Tensor) -> Tensor:
    """H sampled on twice as many points: an attempt at causality that still leaks, computed here only."""
    length = x.shape[-1]
    omega = torch.arange(length + 1, dtype=theta.dtype) * (torch.pi / length)
    spectrum = torch.fft.rfft(x, n=2 * length) * frequency_response(theta, omega).sum(-2)
    return torch.fft.irfft(spectrum, n=2 * length)[..., :length]


FORMS = {
    "causal_reset": filter_bins,
    "causal_carry": lambda x, theta: filter_bins(x, theta, theta.new_zeros(len(x), *theta.shape[1:2], 2, 2)),
    "paper_fft_conj": circular_filter,
    "fft_noconj": lambda x, theta: circular_filter(x, theta, conjugate=False),
    "fft_padded2R": padded_on_2r_points,
}


def lfilter_reference(x: np.ndarray, theta: np.ndarray, past: np.ndarray | None) -> np.ndarray:
    """The sum over F by scipy, bin after bin."""
    y = np.zeros_like(x)
    for b, c, f in np.ndindex(x.shape[0], x.shape[1], theta.shape[3]):
        y1, y2 = (0.0, 0.0) if past is None else past[b, c, f]
        for i in range(x.shape[2]):
            theta0, theta1 = theta[b, c, i, f]
            initial = np.array([-theta0 * y1 - theta1 * y2, -theta1 * y1])
            out, _ = lfilter([1.0], [1.0, theta0, theta1], x[b, c, i], zi=initial)
            y[b, c, i] += out
            if past is not None:
                y1, y2 = out[-1], (out[-2] if len(out) > 1 else y1)
    return y


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_parity(data: Path, form: str, double: bool) -> None:
    arrays = load(data, "focus_iir")
    dtype = torch.float64 if double else torch.float32
    signal, theta = (torch.from_numpy(arrays[f"in_{name}"]).to(dtype).requires_grad_() for name in ("x", "theta"))
    x = signal.transpose(1, 2).unflatten(2, (-1, int(arrays["in_bin"])))
    y = FORMS[form](x, theta.transpose(1, 2)).flatten(2).transpose(1, 2)
    check_close(y, arrays[f"out_{form}"], OUTPUT[double])
    if form == "causal_reset":
        (y * torch.from_numpy(arrays["in_G"]).to(dtype)).sum().backward()
        assert signal.grad is not None and theta.grad is not None
        check_close(signal.grad, arrays["grad_x_reset"], GRADIENT[double])
        check_close(theta.grad, arrays["grad_theta_reset"], GRADIENT[double])
        check_close(impulse_response(theta, x.shape[-1]), arrays["out_impulse"], OUTPUT[double])


def test_jacobians(data: Path) -> None:
    """Which outputs of a bin weigh which inputs: the causal form none after it, every other form some."""
    arrays = load(data, "focus_causality")
    theta = torch.from_numpy(arrays["in_theta"]).view(1, 1, 1, 1, 2)
    forms = {"causal": "causal_reset", "paper": "paper_fft_conj", "noconj": "fft_noconj", "padded2R": "fft_padded2R"}
    for name, form in forms.items():

        def run(x: Tensor, form: str = form) -> Tensor:
            return FORMS[form](x.view(1, 1, 1, -1), theta).flatten()

        jacobian = torch.autograd.functional.jacobian(run, torch.zeros(10, dtype=torch.float64))
        check_close(jacobian, arrays[f"out_J_{name}"], 1e-9, name)
        ahead = float(jacobian.triu(1).abs().max())
        assert ahead < 1e-12 if name == "causal" else ahead > 0.5, (name, ahead)


def test_pole_radius(data: Path) -> None:
    arrays = load(data, "focus_poles")
    theta = torch.from_numpy(np.stack([arrays["in_t0"], arrays["in_t1"]], -1))
    check_close(pole_radius(theta), arrays["out_radius"], 1e-9)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    length=st.sampled_from([1, 2, 3, 4, 5, 7, 16, 33, 150]),
    bins=st.integers(1, 4),
    filters=st.integers(1, 3),
    signed=st.booleans(),
    carry=st.booleans(),
)
def test_equals_lfilter(seed: int, length: int, bins: int, filters: int, signed: bool, carry: bool) -> None:
    """Also for bins shorter than the filter's order, and one position at a time."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    x, theta = draw(2, 3, bins, length), stable_coefficients(2 * draw(2, 3, bins, filters, 2), signed=signed)
    past = draw(2, 3, filters, 2) if carry else None
    wanted = lfilter_reference(x.numpy(), theta.numpy(), None if past is None else past.numpy())
    check_close(filter_bins(x, theta, past), wanted, 1e-9)
    state, outputs = past, []
    for position in range(bins * length):
        number, inside = divmod(position, length)
        if state is None or (past is None and not inside):
            state = x.new_zeros(2, 3, filters, 2)
        y, state = filter_step(x[:, :, number, inside], theta[:, :, number], state)
        outputs.append(y)
    check_close(torch.stack(outputs, -1).unflatten(-1, (bins, length)), wanted, 1e-9)


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("length", [1, 2, 6])
def test_gradients(length: int, carry: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 3, length, dtype=torch.float64, requires_grad=True)
    theta = torch.rand(1, 2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    past = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True) if carry else None
    assert torch.autograd.gradcheck(filter_bins, (x, theta, past))


@pytest.mark.parametrize("carry", [False, True])
def test_filters_shared_by_samples_and_bins(carry: bool) -> None:
    """Axes of size 1 count for every sample and bin."""
    torch.manual_seed(0)
    x, theta = torch.randn(2, 3, 4, 9, dtype=torch.float64), torch.rand(1, 3, 1, 2, 2, dtype=torch.float64)
    past = torch.randn(2, 3, 2, 2, dtype=torch.float64) if carry else None
    wanted = filter_bins(x, theta.expand(2, -1, 4, -1, -1), past)
    check_close(filter_bins(x, theta, past), wanted.numpy(), 1e-12)


@pytest.mark.parametrize(("dtype", "at_most"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("radius", [0.97, 0.999])
def test_equal_poles(radius: float, dtype: torch.dtype, at_most: float) -> None:
    """A double pole r near 1 has the response (n + 1) r^n; other closed forms divide by zero or cancel there."""
    theta = torch.tensor([-2 * radius, radius**2], dtype=dtype)
    impulse = np.zeros(4096, np.longdouble)
    impulse[0] = 1
    wanted = lfilter(impulse[:1], np.array([1, *theta.tolist()], np.longdouble), impulse).astype(np.float64)
    response = impulse_response(theta, 4096)
    assert np.abs(response.double().numpy() - wanted).max() < at_most * np.abs(wanted).max()
    n = np.arange(200)
    assert np.abs(wanted[:200] - (n + 1) * radius**n).max() < 0.01 * np.abs(wanted).max()


@pytest.mark.parametrize("signed", [False, True])
def test_coefficients_are_stable(signed: bool) -> None:
    """Both poles inside the unit circle; low-pass filters with signed coefficients only."""
    theta = stable_coefficients(1.5 * torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)), signed=signed)
    assert pole_radius(theta).max() < 1
    low, high = frequency_response(theta.double(), torch.tensor([0, torch.pi], dtype=torch.float64)).abs().unbind(-1)
    assert bool((low > high).any()) == signed


def test_frequency_response() -> None:
    theta, omega = torch.tensor([0.6, 0.9], dtype=torch.float64), torch.linspace(0, 3, 50, dtype=torch.float64)
    _, wanted = freqz([1.0], [1.0, 0.6, 0.9], worN=omega.numpy())
    np.testing.assert_allclose(frequency_response(theta, omega).numpy(), wanted, atol=1e-12)


def test_mixed_precision() -> None:
    """Under autocast the filters still run in float32, on bfloat16 signals as well."""
    x, theta = torch.randn(1, 2, 3, 64), 0.99 * torch.rand(1, 2, 3, 1, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, rounded = filter_bins(x, theta), filter_bins(x.bfloat16(), theta)
    wanted = filter_bins(x.double(), theta.double())
    assert found.dtype == torch.float32 and rounded.dtype == torch.bfloat16
    check_close(found, wanted.numpy(), 1e-5)
    check_close(rounded, filter_bins(x.bfloat16().double(), theta.double()).numpy(), 1e-2)
