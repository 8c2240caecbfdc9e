"""SeqBoat: rows, routers, streaming, variants, diagnostics, memory, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import check_streaming
from test_local_attention import Largest

from lrtasks.errors import UsageError
from lrtasks.models import build, registry
from lrtasks.models.ops.scoped_attention import Scope, SharedAttention
from lrtasks.models.seqboat import SeqBoat, SeqBoatLayer
from lrtasks.spec import Spec


def small_layer(causal: bool, length: int = 40, **settings: Any) -> SeqBoatLayer:
    """One layer whose weights are large enough for the router to decide, in float64 and evaluation mode."""
    torch.manual_seed(0)
    config = SeqBoat(**{"d_model": 8, "d_state": 4, **settings})
    layer = SeqBoatLayer(config, length, config.attention_scope(length, causal)).double().eval()
    enlarge(layer)
    return layer


@torch.no_grad()
def enlarge(module: torch.nn.Module) -> None:
    """Give all matrices entries of about 0.5."""
    for name, parameter in module.named_parameters():
        if name.endswith("weight") and parameter.dim() == 2:
            parameter.normal_(std=0.5)


@pytest.mark.parametrize("scope", [{"window": 6}, {"scope": "full"}, {"scope": "chunk", "chunk": 7}])
def test_a_row_does_not_depend_on_a_full_one(scope: dict[str, Any]) -> None:
    """Each row gives the same output alone and beside a row that is active at every position."""
    layer = small_layer(False, **scope)
    x = torch.randn(3, 40, 8, dtype=torch.float64)
    layer(x)
    router = layer.sparse[0].router
    with torch.no_grad():
        router.logits.weight.zero_()
        router.logits.weight[1, 0] = 1.0
        layer.ssm.kernel.gamma.zero_()
        layer.ssm.omega.fill_(1.0)
    x[0, :, 0] = 1.0  # now the decision is the sign of the first feature
    together = layer(x)
    counts = layer.sparse[0].activity.active.sum(1)
    assert counts[0] == 40 and (counts[1:] < 40).all() and (counts[1:] > 0).all()
    for row in range(3):
        assert torch.allclose(layer(x[row : row + 1])[0], together[row], rtol=0, atol=1e-12)


@pytest.mark.parametrize("attention", ["softmax", "relu2", "laplace"])
@pytest.mark.parametrize("settings", [{}, {"scope": "full"}, {"scope": "chunk"}, {"feedforward": "sparse"}])
def test_nothing_active(settings: dict[str, Any], attention: str) -> None:
    """Modules give zeros, gradients are finite, figures too."""
    layer = small_layer(False, attention=attention, **settings).train()
    for module in layer.sparse:
        module.router.logits.bias.data[0] = 100.0
    x = torch.randn(2, 40, 8, dtype=torch.float64, requires_grad=True)
    for module in layer.sparse:
        assert not module(x).any()
    layer(x).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert layer.sparse[0].diagnostics() == {
        "activation_rate": 0.0,
        "activation_rate_std": 0.0,
        "compressed_length": 0.0,
        "temperature": pytest.approx(8**0.5),
        "attention_span": 0.0,
    }


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_the_router_learns_through_the_confidence_alone(router: str) -> None:
    """dL/du = <G, Y> c (1 - c) / τ where the module ran, 0 elsewhere; dL/d log τ = -<G, Y> c (1 - c) margin."""
    module = small_layer(False, router=router).sparse[0]
    h, cotangent = torch.randn(2, 2, 40, 8, dtype=torch.float64)
    h.requires_grad_()
    y = module(h)
    (y * cotangent).sum().backward()
    with torch.no_grad():
        active, c = module.router(h)
        assert 0 < active.sum() < active.numel()
        weighted = (y * cotangent).sum(-1) / c
        slope = torch.where(active, weighted * c * (1 - c), 0)
        assert not y[~active].any()
        tau = module.router.log_tau.exp()
        wanted = torch.einsum("bl,bld->d", slope, h) / tau
        found = module.router.logits.weight.grad
        assert torch.allclose(found[-1], wanted, rtol=0, atol=1e-12)
        if router == "softmax":
            assert torch.allclose(found[0], -wanted, rtol=0, atol=1e-12)
        wanted_tau = -(slope * module.router.margin(h)).sum()
        assert torch.allclose(module.router.log_tau.grad, wanted_tau, rtol=0, atol=1e-12)


STREAMED = [
    {"window": 5},
    {"window": 5, "attention": "relu2", "bias": "compressed"},
    {"window": 5, "attention": "laplace", "prenorm": True},
    {"window": 5, "bias": "rotary"},
    {"scope": "full", "attention": "relu2", "max_positions": 9},
    {"scope": "chunk", "chunk": 4, "attention": "laplace"},
    {"window": 5, "router": "always", "kernel_length": 7},
    {"window": 5, "router": "moe", "feedforward": "sparse"},
    {"scope": "chunk", "chunk": 4, "router": "always"},
    {"window": 5, "ssm": "s4d", "router": "gumbel"},
]


@pytest.mark.parametrize("settings", STREAMED)
def test_streaming_is_the_parallel_form(settings: dict[str, Any]) -> None:
    """One token at a time with a first-in-first-out memory; rows push at different positions."""
    layer = small_layer(True, **settings)
    x = torch.randn(3, 40, 8, dtype=torch.float64)
    layer(x)
    active = layer.sparse[0].activity.active
    if layer.sparse[0].router is not None:
        assert active.sum(1).min() > 5 and active.sum(1).max() < 40 and not torch.equal(active[0], active[1])
    check_streaming(layer, x, 1e-12)


def test_streaming_memory_is_bounded_by_the_window() -> None:
    layer = small_layer(True, window=5)
    state = layer.initial_state(2)
    for _ in range(12):
        _, state = layer.step(torch.randn(2, 8, dtype=torch.float64), state)
    assert state[1][0].k.shape == (2, 6, 4)


def test_a_stream_ends_when_its_memory_would_lose_a_key_that_is_seen() -> None:
    """After 3 stored keys, not after 3 positions; never with a window."""
    for scope, most in ((Scope(causal=True), 3), (Scope(causal=True, window=2), 9)):
        attention = SharedAttention((4, 2), 3, scope, "softmax", None)
        state = attention.initial_state(2)
        for stored in (False, False, *[True] * most):
            active = torch.tensor([stored, False])
            _, state = attention.step(torch.randn(2, 4), torch.randn(2, 2), state, active)
        if most == 3:
            with pytest.raises(UsageError, match="was built for 3 positions, found one more"):
                attention.step(torch.randn(2, 4), torch.randn(2, 2), state, active)


VARIANTS = [
    *({"router": router} for router in ("softmax", "sigmoid", "gumbel", "moe", "always")),
    *({"attention": attention} for attention in ("relu2", "laplace")),
    *({"bias": bias} for bias in ("compressed", "rotary")),
    *({"norm": norm, "prenorm": True} for norm in ("scale", "batch")),
    *({"feedforward": feedforward} for feedforward in ("after", "sparse")),
    {"scope": "chunk", "chunk": 6},
    {"ssm": "s4d", "kernel_length": 9},
    {"window": 16},
    {"sinusoids": True, "dropout": 0.2},
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("settings", VARIANTS)
def test_variants_learn(settings: dict[str, Any], causal: bool) -> None:
    """A few steps on one batch, with padding, lower the loss; all parameters move."""
    torch.manual_seed(0)
    spec = Spec("real", 24, 2)
    model = build("seqboat", spec, spec, causal=causal, d_model=16, d_state=4, allow_batch_norm=True, **settings)
    enlarge(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = torch.optim.Adam(model.parameters(), 3e-2)
    x, mask = 2 * torch.randn(4, 24, 2), torch.arange(24) < torch.tensor([[24], [20], [9], [1]])
    losses = []
    for _ in range(6):
        loss = ((model(x, mask) - x.flip(2))[mask] ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]
    assert not [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]


def test_gumbel_router() -> None:
    """Noise in training only; the count of updates sets the temperature and survives a checkpoint."""
    layer = small_layer(False, router="gumbel")
    module, x = layer.sparse[0], torch.randn(2, 40, 8, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x)) and module.router.updates == 0
    layer.train()
    assert not torch.equal(layer(x), layer(x)) and module.router.updates == 2
    layer.eval()
    module.router.updates.fill_(100_000)
    copy = small_layer(False, router="gumbel")
    copy.load_state_dict(layer.state_dict())
    assert copy.sparse[0].diagnostics() == {}
    assert torch.equal(copy(x), layer(x))
    assert copy.sparse[0].diagnostics()["temperature"] == pytest.approx(2 * 0.999995**100_000)
    h = torch.randn(5, 8, dtype=torch.float64)
    active, confidence = module.router(h)
    u = module.router.logits(h)
    assert torch.allclose(confidence, torch.softmax(u / (2 * 0.999995**100_000), -1)[:, 1], rtol=0, atol=1e-12)
    assert torch.equal(active, u[:, 1] > u[:, 0])
    module.router.updates.fill_(1_000_000)
    assert module.router.temperature() == 0.5


def test_moe_router_compares_directions_only() -> None:
    router = small_layer(False, router="moe").sparse[0].router
    h = torch.randn(5, 8, dtype=torch.float64)
    assert torch.allclose(router.experts.norm(dim=1), torch.tensor(0.32).double())
    embeddings = router.experts / router.experts.norm(dim=1, keepdim=True)
    wanted = torch.softmax(h @ router.reduce.weight.T @ embeddings.T, 1)[:, 1]
    assert torch.allclose(router(h)[1], wanted, rtol=0, atol=1e-12)
    before = router(h)[1]
    router.experts.data[0] *= 3
    assert torch.allclose(router(h)[1], before, rtol=0, atol=1e-12)


def test_diagnostics() -> None:
    """Rates over valid positions, spread over samples, and the span of a window by its definition."""
    layer = small_layer(True, window=3)
    mask = torch.arange(40) < torch.tensor([[40], [25]])
    layer(torch.randn(2, 40, 8, dtype=torch.float64), mask)
    module = layer.sparse[0]
    active = module.activity.active
    assert not active[~mask].any()
    rates = [float(active[0].sum() / 40), float(active[1].sum() / 25)]
    spans = []
    for row in active:
        places = row.nonzero().flatten().tolist()
        for rank in range(1, len(places)):
            past = places[max(0, rank - 3) : rank]
            spans.append(sum(places[rank] - place for place in past) / len(past))
    assert module.diagnostics() == pytest.approx(
        {
            "activation_rate": sum(rates) / 2,
            "activation_rate_std": abs(rates[0] - rates[1]) / 2,
            "compressed_length": float(active.sum(1).max()) / 40,
            "temperature": 8**0.5,
            "attention_span": sum(spans) / len(spans),
        }
    )
    (portrait,) = module.portraits()
    assert ((portrait.series["confidence"] > 0.5) == active.numpy()).all()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("settings", [{}, {"router": "always"}, {"bias": "compressed"}])
def test_memory_is_linear_in_the_length(settings: dict[str, Any], causal: bool) -> None:
    """At 65,536 positions, forward and backward: no tensor beyond each query's window and block of keys."""
    window, sizes = 32, []
    layer = small_layer(causal, 2**16, d_model=2, d_state=1, window=window, **settings).float()
    for length in (2**15, 2**16):
        with Largest() as largest:
            layer(torch.randn(1, length, 2)).sum().backward()
        sizes.append(largest.numel)
        assert largest.numel <= length * 2 * window
    assert 2**16 * 8 < sizes[1] < 2.2 * sizes[0]


def test_parameter_counts_of_the_paper() -> None:
    """Per layer of the paper's models: ListOps, Image and Path, without embedding and head."""
    spec = Spec("real", 4096, 1)
    counts = {"listops": (80, 64, 2002, 65_366), "image": (160, 96, 1024, 219_330), "path": (128, 64, 1024, 143_042)}
    for d_model, d_z, positions, wanted in counts.values():
        config = SeqBoat(d_model=d_model, d_z=d_z, max_positions=positions)
        (block,) = config.blocks(spec, causal=False)
        assert sum(parameter.numel() for parameter in block.parameters()) == wanted


def test_the_default_window_fits_the_length() -> None:
    scopes = {
        (length, causal): SeqBoat().attention_scope(length, causal).window
        for length in (1, 33, 1000)
        for causal in (True, False)
    }
    assert scopes == {
        (1, True): 1, (1, False): 2, (33, True): 33, (33, False): 32, (1000, True): 256, (1000, False): 256
    }  # fmt: skip


def test_a_padded_chunk_is_said() -> None:
    spec = Spec("real", 24, 1)
    with pytest.warns(UserWarning, match="chunk 7 does not divide the length 24; the last chunk is padded by 4"):
        build("seqboat", spec, spec, scope="chunk", chunk=7, router="always")


@pytest.mark.parametrize(
    ("name", "setting", "value"), [("seqboat-full", "scope", "full"), ("seqboat-local", "router", "always")]
)
def test_named_variants(name: str, setting: str, value: str) -> None:
    """The variant is SeqBoat with one other default."""
    settings = registry.get(name).make().parameters()
    assert settings == {**SeqBoat().parameters(), setting: value}


def test_mixed_precision() -> None:
    """Bfloat16 products change the output by their rounding only; weights are made in float32."""
    layer = small_layer(True, window=9, router="always").float()
    x = torch.randn(2, 40, 8)
    wanted = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(x)
    assert (mixed - wanted).abs().max() < 0.03 * wanted.abs().max()


@pytest.mark.parametrize("preset", ["lra-text", "lra-retrieval", "lra-image", "lra-pathfinder", "speech", "enwik8"])
def test_presets_of_the_paper_build(preset: str) -> None:
    spec = Spec("token", 8192, 10)
    with torch.device("meta"):
        hyper = SeqBoat.preset_values(preset)[0]
        model = build("seqboat", spec, Spec("token", 1, 10, pooled=True), causal=False, **hyper)
    assert len(model.blocks) == hyper["layers"] + hyper.get("sinusoids", False)
