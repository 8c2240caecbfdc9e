"""Hyena: the plain form of operator and filter, padding, weight decay, invalid input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from parity import gap

from lrtasks.models import build
from lrtasks.models.hyena import Hyena, HyenaOperator, ImplicitFilter
from lrtasks.spec import Spec

SIGNAL, SYMBOLS = Spec("real", 24, 3), Spec("token", 24, 5)


def plain_filter(filter: ImplicitFilter, length: int) -> np.ndarray:
    """The kernel (channels, length), one lag at a time."""
    weights = {name: value.detach().numpy() for name, value in filter.named_parameters()}
    channels, bands = weights["out.weight"].shape[0], filter.bands
    taps = np.empty((channels, length))
    for t in range(length):
        w = 2 * math.pi * t / length
        f = [1e-4 + (bands - 1 - 1e-4) * i / max(bands - 1, 1) for i in range(bands)]
        waves = [np.exp(-1j * value * w) for value in f]
        h = np.array([t / (length - 1), *(wave.real for wave in waves), *(wave.imag for wave in waves)])
        for i in range(3):
            h = np.sin(weights["frequency"] * (weights[f"hidden.{i}.weight"] @ h + weights[f"hidden.{i}.bias"]))
        taps[:, t] = weights["out.weight"] @ h
        for c in range(channels):
            slow, fast = math.log(0.01) / 1.5, math.log(0.01) / 0.3
            rate = slow + (fast - slow) * c / (channels - 1)
            taps[c, t] *= math.exp(-abs(rate) * t / (length - 1))
    return taps


@pytest.mark.parametrize("features", [3, 5, 9])
def test_filter_is_the_plain_definition(features: int) -> None:
    filter = ImplicitFilter(Hyena(d_model=4, filter_features=features, filter_width=7), 30).double()
    # the decay rates are stored in float32
    assert gap(filter(30), plain_filter(filter, 30)) < 1e-6


def test_filter_of_fewer_lags_is_the_start_of_the_longer_one() -> None:
    filter = ImplicitFilter(Hyena(d_model=4, filter_width=7), 30)
    assert gap(filter(12), filter(30)[:, :12]) < 1e-6


def test_operator_is_the_plain_definition() -> None:
    d_model, length = 4, 13
    operator = HyenaOperator(Hyena(d_model=d_model, filter_width=7), length).double()
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    z = operator.input(x)
    taps = operator.short.weight[:, 0].flip(-1)
    short = operator.short.bias.expand_as(z).clone()
    for lag in range(3):
        short[:, lag:] += taps[:, lag] * z[:, : length - lag]
    x0, x1, v = short.chunk(3, -1)
    u, kernel = x1 * v, operator.filter(length).T
    y = operator.D * u
    for lag in range(length):
        y[:, lag:] += kernel[lag] * u[:, : length - lag]
    assert gap(operator(x), operator.out(x0 * y)) < 1e-12


def test_one_position_is_enough() -> None:
    model = build("hyena", Spec("real", 1, 3), Spec("real", 1, 2), d_model=8)
    assert model(torch.randn(2, 1, 3)).isfinite().all()
