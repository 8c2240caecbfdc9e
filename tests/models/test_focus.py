"""Focus and Focus-H: reference arrays, what each output may see, streaming, what a record shows, bad input."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_parity import GRADIENT, OUTPUT, Part, check_close, check_gradients, fill, load
from parity import check_streaming, gap
from scipy.signal import freqz
from test_local_attention import Largest
from torch import Tensor, nn

from lrtasks.errors import UsageError
from lrtasks.models import build, registry
from lrtasks.models.base import offered, state_bytes
from lrtasks.models.checks import check_model
from lrtasks.models.focus import Focus
from lrtasks.models.focus_h import FocusH
from lrtasks.models.ops.focus_layer import FocusLayer
from lrtasks.models.ops.global_conv import GlobalConv, smooth
from lrtasks.models.ops.hypernetwork import BinSummary, CoefficientNetwork, Hypernetwork
from lrtasks.specs import Spec

pytestmark = pytest.mark.filterwarnings("ignore:.*divide the length")

SMALL: dict[str, Any] = {"d_model": 6, "layers": 2, "chunk": 8}


def spec(length: int = 48) -> Spec:
    return Spec("real", length, 2)


def built(name: str = "focus", length: int = 48, causal: bool = True, **settings: Any) -> Any:
    """A model in double precision and evaluation mode, its parameters large enough for everything to matter."""
    torch.manual_seed(0)
    model = build(name, spec(length), spec(length), causal=causal, **{**SMALL, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def signal(length: int = 48, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


# reference arrays


@pytest.mark.parametrize("double", [True, False])
def test_global_convolution_parity(data: Path, double: bool) -> None:
    arrays = load(data, "longconv")
    dtype = torch.float64 if double else torch.float32
    channels, taps = arrays["in_kernel"].shape[1:]
    conv = GlobalConv(channels, taps, float(arrays["in_lambda"]), None, 0.2).to(dtype).eval()
    with torch.no_grad():
        conv.kernel.copy_(torch.from_numpy(arrays["in_kernel"][0]))
        conv.D.copy_(torch.from_numpy(arrays["in_skip"][0]))
    check_close(conv.taps(), arrays["out_squashed"][0], OUTPUT[double])
    u = torch.from_numpy(arrays["in_u"]).to(dtype)
    check_close(conv.convolve(u.transpose(1, 2)).transpose(1, 2), arrays["out_y"][:, 0], OUTPUT[double])
    conv.threshold, conv.smoothing = float(arrays["in_lambda_smooth"]), int(arrays["in_smooth_window"])
    check_close(conv.taps(), arrays["out_smoothed_then_squashed"][0], OUTPUT[double])


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
    return config._layer(bins * bin_length, bin_length, chunk, causal=True)


def reference_parts(layer: FocusLayer) -> list[Part]:
    coefficients = layer.coefficients
    assert isinstance(coefficients, Hypernetwork) and coefficients.summary is not None
    assert layer.attention.bias is not None
    conv, network = coefficients.summary.conv, coefficients.network
    maps = {"mix": conv.mix, "mlp1": network.hidden, "mlp2": network.out, "q": layer.query, "joint": layer.mix}
    return [
        *(Part(f"W{name}", module.weight) for name, module in maps.items()),
        *(Part(f"b{name}", module.bias) for name, module in maps.items()),
        *(Part("Uh", layer.out.weight), Part("kernel", conv.kernel), Part("skip", conv.D)),
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
    theta = coefficients(x, None, None)
    check_close(coefficients.summary(x), arrays["out_embedding"][:, :, :-1], OUTPUT[double])  # of all bins but the last
    check_close(theta.transpose(1, 2), arrays["out_theta_shifted"][:, 1:], OUTPUT[double])
    filtered = layer.filter(x, theta)
    check_close(filtered, arrays["out_filtered"], OUTPUT[double])
    k, v = layer._mix(filtered)[:2]
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


# what an output may see

CAUSAL: list[dict[str, Any]] = [
    {"filtering": "carry", "filters": 2},
    {"signed": True, "bins": 6, "bias": "none"},
    {"norm": "rms", "prenorm": True, "d_k": 4, "d_v": 5},
    {"bins": 37, "filters": 2},
    {"bins": 30, "chunk": None},
]


@pytest.mark.parametrize("settings", [*CAUSAL, {"shared": False, "smooth": 3, "pooled": 7, "kernel_length": 9}])
def test_causal_with_every_option(settings: dict[str, Any]) -> None:
    small = Spec("real", 37, 2)
    check_model("focus", input=small, target=small, dtype=torch.float64, **{**SMALL, **settings})


@pytest.mark.parametrize("settings", CAUSAL)
def test_focus_h_is_causal_with_every_option(settings: dict[str, Any]) -> None:
    small = Spec("real", 37, 2)
    check_model("focus-h", input=small, target=small, dtype=torch.float64, **{**SMALL, **settings})


def reach(model: nn.Module, position: int, length: int = 48) -> list[int]:
    """Outputs that change with the input at ``position``."""
    x = signal(length, 1)
    other = x.clone()
    other[:, position] += 1.0
    with torch.no_grad():
        change = (model(other) - model(x)).abs().amax((0, 2))
    return (change > 1e-9).nonzero().flatten().tolist()


def test_bins_are_joined_by_coefficients_only() -> None:
    """One layer of four bins of 12 and chunks of 4: an input moves the later outputs of its bin, and later bins."""
    # the first position of a bin has nothing to be filtered with
    assert reach(built(layers=1, chunk=4), 30) == [*range(30, 36), *range(37, 48)]
    # without a hypernetwork nothing crosses an edge of bins, unless filters carry their outputs over it
    assert reach(built("focus-h", layers=1, chunk=4), 30) == list(range(30, 36))
    assert max(reach(built("focus-h", layers=1, chunk=4, filtering="carry"), 30)) > 36
    # the first bin is not filtered: its inputs move the rest of their chunk, then the bins after
    assert reach(built(layers=1, chunk=4), 5) == [5, 6, 7, *range(13, 24), *range(25, 36), *range(37, 48)]


def test_circular_filters_are_refused_where_causality_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"filtering='circular' is not causal.*allow_non_causal=true"):
        built(filtering="circular")
    for name in ("focus", "focus-h"):
        with pytest.warns(UserWarning, match=f"{name}: filtering='circular' is not causal"):
            model = built(name, filtering="circular", allow_non_causal=True)
        assert model.blocks[0].diagnostics() == {"causal": False}
        assert min(reach(model, 30)) < 30
        with pytest.raises(UsageError, match="no streaming form"):
            model.initial_state(1)
    assert built().blocks[0].diagnostics() == {"causal": True}
    assert built(causal=False, filtering="circular").blocks[0].diagnostics() == {"causal": False}
    forced = {**SMALL, "filtering": "circular", "allow_non_causal": True}
    with pytest.warns(UserWarning, match="mean nothing"), pytest.raises(UsageError, match="not causal: outputs up to"):
        check_model("focus", input=spec(), target=spec(), **forced)


def test_the_conjugate_turns_the_circular_form_around() -> None:
    outputs = [built("focus-h", causal=False, filtering="circular", conjugate=flag)(signal()) for flag in (True, False)]
    assert gap(*outputs) > 1e-3


def test_a_bidirectional_model_sees_its_chunk() -> None:
    """Attention sees all of the query's chunk; filters look back as before, unless they are circular."""
    found = reach(built(layers=1, causal=False), 30)
    assert found == [24, 25, 26, 27, 28, 29, *range(30, 48)]
    # a circular filter's bin is 24 to 35, the chunks there 24 to 31 and 32 to 39
    assert reach(built(layers=1, causal=False, filtering="circular"), 30) == list(range(24, 48))


@pytest.mark.parametrize(("name", "options"), [("focus", {}), ("focus", {"shared": False}), ("focus-h", {})])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_weighs_nothing(name: str, options: dict[str, Any], causal: bool) -> None:
    """What stands in the padding, at the end or elsewhere, moves no other output; nor does its length at the end."""
    model = built(name, causal=causal, filtering="reset" if causal else "circular", **options)
    x, at = signal(), torch.arange(48)
    for mask in (at < 29, (at < 8) | (at > 10)):
        padding = mask.expand(2, -1)
        other = torch.where(mask.unsqueeze(-1), x, 3.0)
        assert gap(model(other, padding)[:, mask], model(x, padding)[:, mask]) < 1e-9
    model = built(name, causal=causal, **options)
    assert gap(model(x, (at < 29).expand(2, -1))[:, :29], model(x[:, :29])) < 1e-9


# streaming


@pytest.mark.parametrize("settings", CAUSAL)
@pytest.mark.parametrize("name", ["focus", "focus-h"])
def test_streaming_is_the_parallel_form(name: str, settings: dict[str, Any]) -> None:
    check_streaming(built(name, 37, **settings), signal(37), 1e-9)


@pytest.mark.parametrize("settings", [{}, {"smooth": 3, "pooled": 5}, {"kernel_length": 7, "pooled": 20}])
def test_streaming_with_a_convolution_in_every_layer(settings: dict[str, Any]) -> None:
    check_streaming(built(length=37, shared=False, **settings), signal(37), 1e-9)


def test_state_does_not_grow() -> None:
    """Two outputs per filter and the keys and values of a chunk; with a hypernetwork the inputs of its convolution."""
    sizes = {length: [state_bytes(built(name, length)) for name in ("focus", "focus-h")] for length in (48, 96)}
    assert sizes[48][1] == sizes[96][1] == 8 * 2 * (6 * 2 + 8 * (3 + 6))
    assert sizes[96][0] - sizes[48][0] == 8 * 6 * 48


# parts


def test_one_convolution_or_one_per_layer() -> None:
    def convolutions(model: nn.Module) -> int:
        return sum(isinstance(module, GlobalConv) for module in model.modules())

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
    summary = BinSummary(GlobalConv(3, 40, 0.0, None, 0.0), 10, 4).double()
    x = torch.randn(2, 40, 3, dtype=torch.float64)
    y, found = summary.conv(x), summary(x)
    assert found.shape == (2, 3, 3, 4)
    for number in range(3):
        for o, (first, stop) in enumerate([(0, 3), (2, 5), (5, 8), (7, 10)]):
            wanted = y[:, 10 * number + first : 10 * number + stop].amax(1)
            assert gap(found[:, :, number, o], wanted) < 1e-12


def test_smoothing_counts_zeros_beyond_the_ends() -> None:
    kernel = torch.tensor([[3.0, 6.0, 9.0, 12.0]])
    assert smooth(kernel, 3).tolist() == [[3.0, 6.0, 9.0, 7.0]]


def test_dropout_of_taps_in_training_only() -> None:
    conv, x = GlobalConv(3, 20, 0.0, None, 0.5), torch.randn(1, 20, 3)
    assert not torch.equal(conv(x), conv(x))
    conv.eval()
    assert torch.equal(conv(x), conv(x))


@pytest.mark.parametrize("signed", [False, True])
def test_filters_start_mild(signed: bool) -> None:
    """θ1 near 0.1 and θ0 near 0.1, or 0 if signed; the same spread in both models."""
    torch.manual_seed(0)
    networks = [CoefficientNetwork(4, 16, 2, signed=signed)(torch.randn(500, 4)) for _ in range(40)]
    learned = FocusH(d_model=4000, filters=2, signed=signed).coefficients(48, 12)(torch.empty(0), None, None)
    for theta in (torch.cat(networks), learned[0, :, 0]):
        theta0, theta1 = theta.detach().flatten(0, -2).median(0).values.tolist()
        assert abs(theta1 - 0.12) < 0.05 and abs(theta0 - (0 if signed else 0.12)) < 0.1
        spread = theta.detach()[..., 1].logit().std()
        assert 0.4 < float(spread) < 1.2


def test_kernels_have_options_of_their_own() -> None:
    options = {name: given() for name, given in offered(built(), "parameter_options")}
    assert {"kernel": {"lr": 1e-3, "weight_decay": 0.0}} in options.values()
    assert {"raw": {"weight_decay": 0.0}} in [given() for _, given in offered(built("focus-h"), "parameter_options")]


def test_memory_is_linear_in_the_length() -> None:
    """At 65,536 positions, forward and backward: no tensor beyond each query's chunk."""
    for length in (2**15, 2**16):
        model = build("focus", spec(length), spec(length), d_model=2, layers=1, chunk=32)
        with Largest() as largest:
            model(torch.randn(1, length, 2)).sum().backward()
        assert largest.numel <= length * 32


@pytest.mark.parametrize(
    ("name", "settings"), [("focus", {}), ("focus", {"shared": False, "filters": 3}), ("focus-h", {})]
)
def test_estimate_of_what_training_keeps(name: str, settings: dict[str, Any]) -> None:
    """Near what a forward pass saves for its gradient."""
    stack = build(name, spec(1024), spec(1024), **{**SMALL, **settings, "d_model": 32, "chunk": 64}).blocks[0]
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(torch.randn(4, 1024, 32, requires_grad=True))
    found = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert stack.training_bytes(4, torch.device("cpu"))["kept"] == pytest.approx(found, rel=0.15)


# what a record shows


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


# bad input


@pytest.mark.parametrize("name", ["focus", "focus-h"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"filters": 0}, "filters must be at least 1 .*found 0"),
        ({"bins": 49}, r"bins must be at most the sequence length \(48\), found 49"),
        ({"chunk": 0}, "chunk must be at least 1, found 0"),
        ({"conjugate": False}, "conjugate has no meaning with filtering='reset'"),
        ({"filtering": "circlar"}, "filtering must be .* 'circlar'.*circular"),
        ({"norm": "batch"}, "batch norm is not causal in training"),
    ],
)
def test_bad_input(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(name, spec(), spec(), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smooth": 4}, "smooth must be odd, found 4"),
        ({"bins": 1}, "bins must be at least 2, found 1"),
    ],
)
def test_bad_input_of_the_hypernetwork(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build("focus", spec(), spec(), **settings)


@pytest.mark.filterwarnings("default")
def test_ragged_bins_and_chunks_are_padded_and_said_so() -> None:
    with pytest.warns(UserWarning, match="5 bins do not divide the length 48; 5 bins of 10 .* padded by 2"):
        built(bins=5)
    with pytest.warns(UserWarning, match="10 bins do not divide the length 48; 10 bins of 5 .* padded by 2"):
        built(bins=10)
    with pytest.warns(UserWarning, match="20 bins do not divide the length 48; 16 bins of 3 .* padded by 0"):
        built(bins=20)
    with pytest.warns(UserWarning, match="chunk 7 does not divide the length 48; the last chunk is padded by 1"):
        built(chunk=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(bins=4, chunk=8)
        registry.get("focus").make().build(spec(256), spec(256), causal=True)
