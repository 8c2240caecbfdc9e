"""Long convolutions compared with direct sums: both directions, every kernel length, gradients, mixed precision."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from parity import gap
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.ops import convolution
from lrtasks.models.ops.convolution import fft_conv


def direct(u: Tensor, kernel: Tensor, backward: Tensor | None, lag: int) -> Tensor:
    """The sums of the docstring, one tap at a time."""
    length = u.shape[-1]
    y = torch.zeros_like(u)
    for j in range(min(kernel.shape[-1], length)):
        y[..., j:] += kernel[:, j : j + 1] * u[..., : length - j]
    for j in range(0 if backward is None else min(backward.shape[-1], length - lag)):
        y[..., : length - lag - j] += backward[:, j : j + 1] * u[..., lag + j :]
    return y


def draw(batch: int, channels: int, length: int, taps: int, ahead: int | None) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(length + taps)
    sizes = [(batch, channels, length), (channels, taps), None if ahead is None else (channels, ahead)]
    return [
        None if size is None else torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in sizes
    ]


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("length", "taps", "ahead"),
    [
        (1, 1, None),
        (1, 1, 1),
        (8, 8, None),
        (37, 37, 37),
        (37, 5, 37),
        (37, 37, 3),
        (20, 50, 50),
        (64, 1, 1),
        (50, 7, None),
    ],
)
def test_equals_direct_sums(length: int, taps: int, ahead: int | None, lag: int) -> None:
    inputs = draw(3, 2, length, taps, ahead)
    found, wanted = fft_conv(*inputs, lag=lag), direct(*inputs, lag)
    assert gap(found, wanted) < 1e-12
    cotangent = torch.randn(wanted.shape, dtype=torch.float64)
    leaves = [x for x in inputs if x is not None]
    ours = torch.autograd.grad(found, leaves, cotangent, materialize_grads=True)
    theirs = torch.autograd.grad(wanted, leaves, cotangent, materialize_grads=True)
    for a, b in zip(ours, theirs, strict=True):
        assert gap(a, b) < 1e-12


def test_chunks_of_sequences_and_channels_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(convolution.CHUNK, "cpu", 150)
    monkeypatch.setattr(convolution, "CHANNELS", 1)
    inputs = draw(5, 3, 30, 30, 30)
    found, wanted = fft_conv(*inputs), direct(*inputs, 1)
    assert gap(found, wanted) < 1e-12
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(wanted.square().sum(), inputs),
        strict=True,
    ):
        assert gap(a, b) < 1e-12


def test_computes_in_float32_under_autocast() -> None:
    u, kernel, _ = draw(2, 3, 64, 64, None)
    low = u.detach().to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = fft_conv(low, kernel.detach().float())
    assert found.dtype == torch.bfloat16
    # one rounding of the result, none inside
    assert gap(found.double(), direct(low.double(), kernel.detach(), None, 1)) < 2**-8


def test_transposed_input() -> None:
    u, kernel, _ = draw(2, 3, 16, 16, None)
    transposed = u.detach().transpose(1, 2).contiguous().transpose(1, 2)
    assert gap(fft_conv(transposed, kernel.detach()), direct(u, kernel, None, 1)) < 1e-12


@pytest.mark.parametrize("whole", [True, False])
def test_a_kernel_that_grows_with_the_length_streams_as_far_as_its_taps(whole: bool) -> None:
    u, state = torch.ones(1, 2), convolution.WindowState.empty(torch.ones(2, 3), 1, whole=whole)
    for _ in range(3):
        _, state = state.step(u)
    with pytest.raises(UsageError, match="was built for 3 positions, found one more") if whole else nullcontext():
        state.step(u)
