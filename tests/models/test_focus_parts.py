"""Focus and Focus-H: convolution, hypernetwork, initial filters, memory, and diagnostics in the record."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from focus_models import built, convolution, signal, spec
from parity import gap
from scipy.signal import freqz
from test_local_attention import Largest
from torch import nn

from lrtasks.models import build
from lrtasks.models.focus import BinSummary, Focus, FocusH, GlobalKernel, Hypernetwork

pytestmark = pytest.mark.filterwarnings("ignore:.*divide the length")


def test_one_convolution_or_one_per_layer() -> None:
    def convolutions(model: nn.Module) -> int:
        return sum(isinstance(module, GlobalKernel) for module in model.modules())

    assert convolutions(built(layers=3)) == 1
    assert convolutions(built(layers=3, shared=False)) == 3
    assert convolutions(built("focus-h")) == 0
    shared, own = built(layers=1), built(layers=1, shared=False)
    state = {
        name.replace("0.summary.", "0.layers.0.coefficients.summary."): value
        for name, value in shared.state_dict().items()
    }
    own.load_state_dict(state)
    assert gap(own(signal()), shared(signal())) < 1e-12


def test_the_shared_summary_is_that_of_the_encoded_input() -> None:
    """The second layer's filters depend on the encoded input alone, not on what the first layer makes of it."""
    model = built()
    model(signal())
    before = model.blocks[0].layers[1].filter.theta
    with torch.no_grad():
        model.blocks[0].layers[0].out.weight += 1.0
        model.blocks[0].layers[0].mix.bias += 1.0
    model(signal())
    assert torch.equal(model.blocks[0].layers[1].filter.theta, before)


def test_pooling_windows() -> None:
    """Window o of a bin of 10 covers floor(10 o / 4) up to ceil(10 (o + 1) / 4)."""
    summary = BinSummary(convolution(3, 40), 10, 4).double()
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    y, found = summary.conv(x), summary(x)
    assert found.shape == (2, 3, 3, 4)
    for number in range(3):
        for o, (first, stop) in enumerate([(0, 3), (2, 5), (5, 8), (7, 10)]):
            wanted = y[:, 10 * number + first : 10 * number + stop].amax(1)
            assert gap(found[:, :, number, o], wanted) < 1e-12


def test_dropout_of_taps_in_training_only() -> None:
    conv, x = convolution(3, 20, dropout=0.5), torch.randn(1, 20, 3)
    assert not torch.equal(conv(x), conv(x))
    conv.eval()
    assert torch.equal(conv(x), conv(x))


def test_taps_start_small() -> None:
    assert convolution(100, 100).kernel.taps.std().item() == pytest.approx(0.002, rel=0.03)


@pytest.mark.parametrize("signed", [False, True])
def test_filters_start_mild(signed: bool) -> None:
    """θ1 near 0.1 and θ0 near 0.1, or 0 if signed; the same spread in both models."""
    torch.manual_seed(0)
    config = Focus(filters=2, signed=signed)
    networks = [Hypernetwork(config, None).coefficients(torch.randn(500, 4)) for _ in range(40)]
    learned = FocusH(d_model=4000, filters=2, signed=signed).coefficients(48, 12).initial_state(1)[0]
    for theta in (torch.cat(networks), learned[0]):
        theta0, theta1 = theta.detach().flatten(0, -2).median(0).values.tolist()
        assert abs(theta1 - 0.12) < 0.05 and abs(theta0 - (0 if signed else 0.12)) < 0.1
        spread = theta.detach()[..., 1].logit().std()
        assert 0.4 < float(spread) < 1.2


def test_memory_is_linear_in_the_length() -> None:
    """At 65,536 positions, forward and backward: no tensor beyond each query's chunk."""
    length = 2**16
    model = build("focus", spec(length), spec(length), d_model=2, layers=1, chunk=32)
    with Largest() as largest:
        model(torch.randn(1, length, 2)).sum().backward()
    assert largest.numel <= length * 32


@pytest.mark.parametrize("name", ["focus", "focus-h"])
def test_filter_responses(name: str) -> None:
    """Nine frequencies by sample and bin in the record, images and impulse responses for drawing."""
    model = built(name, filters=2)
    assert not dict(model.blocks[0].layers[0].filter.diagnostics())
    model(signal(batch=3))
    filter = model.blocks[0].layers[0].filter
    figures = json.loads(json.dumps(filter.diagnostics()))
    theta = filter.theta.numpy()
    found = np.array(figures["frequency_response"])
    samples, bins, first = (2, 4, 1) if name == "focus" else (1, 1, 0)
    assert found.shape == (samples, bins, 9) and 0 < figures["pole_radius"] < 1
    assert not first or (found[:, 0] == 1).all()
    for sample in range(samples):
        for number in range(bins - first):
            responses = [
                np.abs(sum(freqz([1], [1, *pair], worN=np.linspace(0, np.pi, 9))[1] for pair in channel[number]))
                for channel in theta[sample]
            ]
            assert np.abs(found[sample, number + first] - np.mean(responses, 0)).max() < 1e-4
    *images, impulses = filter.portraits()
    assert [image.title for image in images] == [f"frequency response, sample {i}" for i in range(samples)]
    assert all(image.series["response"].shape == (bins, 65) for image in images)
    assert list(impulses.series) == [f"bin {number}" for number in range(first, bins)]
    assert all(response[0] == 2 for response in impulses.series.values())  # two filters, each 1 at first
