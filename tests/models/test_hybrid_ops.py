"""The shared parts of SeqBoat and MEGA: parity with the reference's arrays, and their plain definitions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hybrid_parity import check_close, load

from lrtasks.errors import UsageError
from lrtasks.models import build
from lrtasks.models.ops.layers import NORMS
from lrtasks.models.ops.positions import RelativeBias, RotaryBias, Sinusoids, rotate
from lrtasks.models.ops.scoped_attention import Scope, attend, attention_span, by_distance, laplace, relu2
from lrtasks.models.seqboat import Selection
from lrtasks.spec import Spec


@pytest.mark.parametrize("double", [True, False])
def test_functions(data: Path, double: bool) -> None:
    arrays = load(data, "functions")
    dtype, at_most = (torch.float64, 1e-9) if double else (torch.float32, 2e-4)

    def given(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name]).to(dtype)

    grid = given("in_grid")
    for name, function in (("relu2", relu2), ("laplace", laplace), ("silu", torch.nn.functional.silu)):
        check_close(function(grid), arrays[f"out_{name}"], at_most, name)
    x = given("in_norm_x")
    parameters = {
        "scale": ("scalenorm", ["param_scalenorm"]),
        "rms": ("rmsnorm", ["param_rms"]),
        "layer": ("layernorm", ["param_ln_w", "param_ln_b"]),
        "batch": ("batchnorm_train", ["param_bn_w", "param_bn_b"]),
    }
    for kind, (name, weights) in parameters.items():
        norm = NORMS[kind](6).to(dtype)
        with torch.no_grad():
            for parameter, weight in zip(norm.parameters(), weights, strict=True):
                parameter.copy_(given(weight))
        check_close(norm(x), arrays[f"out_{name}"], at_most, name)
    check_close(norm.running_mean, arrays["out_bn_running_mean"], at_most)
    check_close(norm.running_var, arrays["out_bn_running_var"], at_most)
    # the reference keeps its angles in float32
    check_close(rotate(given("in_rot")), arrays["out_rot"], max(at_most, 1e-6), "rotary")
    sinusoids = Sinusoids(int(arrays["in_sinu_dim"])).to(dtype)
    assert torch.allclose(sinusoids.scale, given("param_sinu_scale"))
    check_close(sinusoids(torch.zeros(1, 20, 8, dtype=dtype))[0], arrays["out_sinu"], max(at_most, 1e-6), "sinusoids")


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ["compress", "compress_nofull", "compress_empty"])
def test_compress_and_extract(data: Path, file: str, double: bool) -> None:
    arrays = load(data, file)
    dtype, at_most = (torch.float64, 1e-9) if double else (torch.float32, 2e-4)
    active = torch.from_numpy(arrays["in_mask"])
    x = torch.from_numpy(arrays["in_q"]).to(dtype).requires_grad_()
    selection = Selection.of(active)
    assert selection.width == max(1, int(arrays["out_max"]))
    assert torch.equal(selection.valid, torch.from_numpy(arrays["out_valid"]))
    rank = selection.extract(torch.arange(1.0, selection.width + 1).expand(5, -1).unsqueeze(-1)).squeeze(-1)
    assert torch.equal(rank.long(), torch.from_numpy(arrays["out_index"]))
    at = selection.compress(torch.arange(12.0).expand(5, -1).unsqueeze(-1)).squeeze(-1)
    assert torch.equal(selection.positions, at.long())
    compressed = selection.compress(x)
    check_close(compressed, arrays["out_compressed"], at_most, "compressed")
    extracted = selection.extract(compressed * torch.from_numpy(arrays["in_w"]) + 1)
    check_close(extracted, arrays["out_extracted"], at_most, "extracted")
    if "grad_q" in arrays:
        (extracted * torch.from_numpy(arrays["in_G"])).sum().backward()
        assert x.grad is not None
        check_close(x.grad, arrays["grad_q"], at_most, "gradient")


def test_relative_bias(data: Path) -> None:
    """At every distance, beyond the table too, pair by pair and as a Toeplitz matrix."""
    arrays = load(data, "relpos")
    bias = RelativeBias(int(arrays["in_max_positions"])).double()
    bias.table.data.copy_(torch.from_numpy(arrays["param_table"]))
    for length in arrays["in_lens"].tolist():
        position = torch.arange(length)
        check_close(bias(position - position.unsqueeze(1)), arrays[f"out_len{length}"], 1e-12)
        matrix = by_distance(Scope(causal=False), length, length, 0, position.device, bias)
        check_close(matrix, arrays[f"out_len{length}"], 1e-12)


def test_rotary_bias_is_the_product_of_rotated_vectors() -> None:
    bias = RotaryBias(6).double()
    # the same turn on adjacent pairs: feature m and feature m + 3 side by side
    a, b = (x.view(2, 3).T.flatten().expand(9, 6) for x in (bias.a, bias.b))
    wanted = rotate(a) @ rotate(b).T
    position = torch.arange(9)
    assert torch.allclose(bias(position - position.unsqueeze(1)), wanted, rtol=0, atol=1e-15)


@pytest.mark.parametrize("causal", [True, False])
def test_span_parity(data: Path, causal: bool) -> None:
    arrays = load(data, "span")
    ticks, window = torch.from_numpy(arrays["in_ticks"]), int(arrays["in_window"])
    scope = Scope(causal, window=window if causal else 2 * window)
    span = attention_span(ticks, (ticks > 0).sum(1), scope)
    # the reference adds 1e-8 to the number of keys
    check_close(span, arrays["out_causal" if causal else "out_bi"], 1e-6)


SCOPES = {
    "full": {},
    "window": {"window": 6},
    "window of many blocks": {"window": 260},
    "chunk": {"chunk": 8},
    "one chunk": {"chunk": 100},
}


def seen(scope: Scope, length: int) -> torch.Tensor:
    """Which key (column) each query (row) sees, by the definition of each scope."""
    i = torch.arange(length)
    key, query = i, i.unsqueeze(1)
    visible = torch.ones(length, length, dtype=torch.bool)
    if scope.window is not None:
        visible = (key - query).abs() <= (scope.window if scope.causal else scope.window // 2)
    if scope.chunk is not None:
        visible = key // scope.chunk == query // scope.chunk
    return visible & (key <= query) if scope.causal else visible


@pytest.mark.parametrize("causal", [True, False])
def test_a_tile_holds_all_keys_of_its_window(causal: bool) -> None:
    for window in range(2, 1000, 2):
        before, tiles = window if causal else window // 2, Scope(causal, window=window).tiles(4000)
        assert tiles.back * tiles.block >= before
        assert tiles.ahead * tiles.block >= (0 if causal else before)


@pytest.mark.parametrize("length", [1, 7, 50, 421])
@pytest.mark.parametrize("function", ["softmax", "relu2", "laplace"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SCOPES)
def test_attention_is_its_plain_definition(name: str, causal: bool, function: str, length: int) -> None:
    """In tiles as on all pairs: scale, bias by position, mask after the function, padding."""
    scope = Scope(causal, **SCOPES[name])
    q, k, v = (torch.randn(2, length, width, dtype=torch.float64, requires_grad=True) for width in (4, 4, 3))
    positions = torch.sort(torch.randint(500, (2, length)), 1).values
    keys = torch.arange(length) < torch.tensor([[length], [length - length // 3]])
    bias = RelativeBias(40).double()
    for valid, places in ((keys, positions), (None, None)):
        existing = torch.ones_like(keys) if valid is None else valid
        distances = torch.arange(length).expand(2, -1) if places is None else places
        visible = seen(scope, length) & existing.unsqueeze(1)
        biased = bias(distances.unsqueeze(1) - distances.unsqueeze(2))
        if function == "softmax":
            scores = (q @ k.transpose(1, 2) / 2 + biased).masked_fill(~visible, -1e300)
            weights = torch.softmax(scores, -1) * visible
        else:
            in_scope = seen(scope, length).sum(1, keepdim=True) if causal else visible.sum(2, keepdim=True)
            divisor = in_scope if scope.window is None else torch.tensor(scope.window)
            scores = q @ k.transpose(1, 2) / divisor.clamp_min(1) + biased
            weights = (relu2 if function == "relu2" else laplace)(scores) * visible
        found = attend(q, k, v, scope=scope, function=function, valid=valid, bias=bias, positions=places)
        assert found.isfinite().all()
        some = visible.any(2)
        plain = (weights @ v)[some]
        assert torch.allclose(found[some], plain, rtol=0, atol=1e-12)
        cotangent, values = torch.randn_like(plain), (q, k, v, bias.table)
        wanted = torch.autograd.grad(plain, values, cotangent)
        for one, other in zip(torch.autograd.grad(found[some], values, cotangent), wanted, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_batch_norm_of_one_position() -> None:
    norm = NORMS["batch"](3)
    with pytest.raises(UsageError, match="more than one row or position"):
        norm(torch.randn(1, 1, 3))
    assert norm(torch.randn(1, 2, 3)).shape == (1, 2, 3)
    assert norm.eval()(torch.randn(1, 1, 3)).shape == (1, 1, 3)


def test_batch_norm_in_a_causal_model_must_be_allowed() -> None:
    spec = Spec("real", 8, 1)
    with pytest.raises(UsageError, match="batch norm is not causal in training"):
        build("dlr", spec, spec, norm="batch")
    for settings in ({"causal": False}, {"allow_batch_norm": True}):
        assert build("dlr", spec, spec, norm="batch", **settings)(torch.randn(2, 8, 1)).shape == (2, 8, 1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", SCOPES)
def test_span_is_the_mean_distance_to_the_keys_seen(name: str, causal: bool) -> None:
    scope = Scope(causal, **SCOPES[name])
    active = torch.rand(3, 60) < torch.tensor([[0.5], [0.2], [0.0]])
    selection = Selection.of(active)
    span = attention_span(selection.positions, selection.counts, scope)
    for row, count in enumerate(selection.counts.tolist()):
        places = selection.positions[row, :count].double()
        visible = seen(scope, count) & ~torch.eye(count, dtype=torch.bool)
        distance = (places - places.unsqueeze(1)).abs() * visible
        assert torch.allclose(span[row, :count], distance.sum(1) / visible.sum(1).clamp_min(1))
        assert not span[row, count:].any()
