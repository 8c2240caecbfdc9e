"""LongVQ: parity with arrays, the dense hybrid, streaming, training, diagnostics, bad input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_parity import GRADIENT, OUTPUT, Part, check_close, fill, load, ssm_parts
from test_quantised_attention import plain_attention, unrounded  # noqa: F401
from test_quantiser import codebook_of
from torch import nn
from torch.utils._pytree import tree_leaves

from lrtasks.check.model import check_model
from lrtasks.models import build, registry
from lrtasks.models.base import Backbone, ResidualBlock, offered
from lrtasks.models.longvq import LongVQ, LongVQLayer, State
from lrtasks.spec import Spec

BLOCKS = [
    f"{kind}_{function}{norm}"
    for kind in ("bi", "causal")
    for function in ("softmax", "laplace")
    for norm in ("", "_qknorm")
]
SPEC = Spec("real", 40, 3)


def linear(name: str, layer: nn.Linear) -> list[Part]:
    return [Part(f"W{name}", layer.weight), Part(f"b{name}", layer.bias)]


def norm_parts(name: str, norm: nn.Module) -> list[Part]:
    return [Part(f"{name}_w", norm.weight), Part(f"{name}_b", norm.bias)]


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", BLOCKS)
def test_block_parity(data: Path, file: str, double: bool) -> None:
    """Layer and feed-forward sub-layer; with one block of near keys, every key has its straight-through gradient."""
    arrays = load(data, f"longvq_block_{file}")
    window, causal = int(arrays["in_window"]), "causal" in file
    config = LongVQ(
        d_model=8, d_k=4, d_v=6, d_ffn=16, d_state=4, window=window, codebook=5, attention=file.split("_")[1],  # type: ignore[arg-type]
        qk_norm="qknorm" in file,
    )  # fmt: skip
    layer, feedforward = config.blocks(Spec("real", 24, 8), causal)
    assert isinstance(layer, LongVQLayer) and isinstance(feedforward, ResidualBlock)
    attention = layer.attention
    attention.codebook = codebook_of(arrays, "param_codebook")
    dtype = torch.float64 if double else torch.float32
    block = nn.Sequential(layer, feedforward).to(dtype).eval()
    bias = attention.bias.table
    inner = feedforward.mixer
    parts = [
        *ssm_parts(layer.ssm),
        *norm_parts("norm1", layer.norm),
        *norm_parts("norm2", feedforward.norm),
        *linear("g", layer.gate),
        *linear("q", layer.maps.query),
        *linear("k", layer.maps.key),
        *linear("v", layer.value),
        *linear("o", layer.out),
        *linear("go", layer.update),
        *linear("f1", inner.hidden),
        *linear("f2", inner.out),
        Part("bias", bias, slice(len(bias))),
    ]  # fmt: skip
    assert len(parts) == len(list(block.parameters()))
    fill(arrays, parts)
    x = torch.from_numpy(arrays["in_x"]).to(dtype).requires_grad_()
    seen: dict[str, torch.Tensor] = {}
    attention.register_forward_hook(lambda *call: seen.update(attn=call[2]))
    layer.norm.register_forward_hook(lambda *call: seen.update(layer=call[1][0]))
    for positions in (window, 24):  # in blocks, and in one
        attention.block = positions
        y = block(x)
        check_close(seen["attn"], arrays["out_attn"], OUTPUT[double], "attention")
        check_close(seen["layer"], arrays["out_layer"], OUTPUT[double], "layer")
        check_close(y, arrays["out_block"], OUTPUT[double])
    commit = attention.codebook.extra_losses()["commitment"]
    check_close(commit / 1e-4, arrays["out_commit"], OUTPUT[double], "commitment loss")
    ((y * torch.from_numpy(arrays["in_G"]).to(dtype)).sum() + commit).backward()
    assert x.grad is not None
    check_close(x.grad, arrays["grad_x_quadratic_st"], GRADIENT[double], "gradient of x")


def test_all_arrays_are_compared(data: Path) -> None:
    assert {path.stem for path in (data / "hybrids").glob("longvq_*.npz")} == {
        f"longvq_block_{file}" for file in BLOCKS
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("attention", ["softmax", "laplace", "relu2"])
def test_dense_hybrid_attends_to_the_keys_themselves(causal: bool, attention: str) -> None:
    config = LongVQ(d_model=6, quantise=False, window=5, attention=attention)  # type: ignore[arg-type]
    layer = LongVQLayer(config, 20, causal).double()
    assert layer.attention.codebook is None and not list(offered(layer, "extra_losses"))
    q, k, v = (torch.randn(2, 20, width, dtype=torch.float64) for width in (3, 3, 12))
    mask = (torch.arange(20) < 16).expand(2, -1)
    unit = [x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * 3**-0.25 for x in (q, k)]
    if attention != "softmax":
        unit[0] = unit[0] / (torch.arange(1.0, 21.0).unsqueeze(1) if causal else 16)
    wanted = plain_attention(*unit, v, causal, attention, layer.attention.bias, mask)
    found = layer.attention(q, k, v, mask)
    assert torch.allclose(found[:, :16], wanted[:, :16], rtol=0, atol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {"ssm": "s4d-lin", "shared_qk": True, "window": 5},
        {"quantise": False},
        {"key_gradients": "code-mean", "window": 5},
        {"attention": "relu2", "local_bias": False, "window": 5, "qk_norm": False},
        {"prenorm": True, "codebook": 4, "window": 6},
        {"attention": "laplace", "window": 3, "local_bias": False},
        {"quantise": False, "qk_norm": False},
        {"shared_qk": True, "ssm": "s4d-legs", "window": 1},
        {"attention": "relu2", "codebook": 2, "window": 40},
    ],
)
def test_options_conform(causal: bool, settings: dict[str, Any]) -> None:
    """Causality, independent rows, streaming, finite gradients: as for the defaults."""
    hyper = {"d_model": 8, "layers": 1, "codebook": 16, "d_state": 4, **settings}
    check_model("longvq", input=SPEC, target=SPEC, causal=causal, dtype=torch.float64, **hyper)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_a_bfloat16_module_streams_with_exact_counts(qk_norm: bool) -> None:
    tokens = Spec("token", 700, 5)
    model = build("longvq", tokens, tokens, d_model=8, layers=1, codebook=2, window=4, qk_norm=qk_norm)
    model.eval().bfloat16()
    x = torch.randint(5, (1, 700))
    state = model.initial_state(1)
    with torch.no_grad():
        whole = model(x)
        for position in range(700):
            y, state = model.step(x[:, position], state)
    torch.testing.assert_close(y.float(), whole[:, -1].float(), rtol=0.05, atol=0.05)
    (sums,) = (leaf.sums for leaf in tree_leaves(state) if isinstance(leaf, State))
    assert sums.dtype == torch.float32 and sums[..., -1].sum() == 692


def trained(seed: int, steps: range, restored: dict[str, Any] | None = None) -> tuple[Backbone, dict[str, Any]]:
    """Train on random signals as a run does; return the model and the content of its checkpoint."""
    torch.manual_seed(seed)
    model = build("longvq", SPEC, SPEC, d_model=8, layers=2, codebook=16, window=8, dropout=0.1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if restored is not None:
        model.load_state_dict(restored["model"])
        optimiser.load_state_dict(restored["optimiser"])
    for step in steps:
        torch.manual_seed(step)
        x = torch.randn(4, 40, 3)
        loss = (model(x) - x.cumsum(1)).square().mean()
        (loss + sum(sum(extra().values()) for _, extra in offered(model, "extra_losses"))).backward()
        optimiser.step()
        optimiser.zero_grad()
    return model, copy.deepcopy({"model": model.state_dict(), "optimiser": optimiser.state_dict()})


def test_one_seed_gives_one_codebook_and_a_checkpoint_restores_it() -> None:
    _, whole = trained(0, range(6))
    _, again = trained(0, range(6))
    _, half = trained(0, range(3))
    _, resumed = trained(1, range(3, 6), half)
    books = [name for name in whole["model"] if "codebook" in name]
    assert len(books) == 6
    assert not torch.equal(whole["model"][books[1]], half["model"][books[1]])
    for name, value in whole["model"].items():
        assert torch.equal(value, again["model"][name]) and torch.equal(value, resumed["model"][name]), name


def test_what_it_reports() -> None:
    model, _ = trained(0, range(2))
    losses = {name: extra() for name, extra in offered(model, "extra_losses")}
    assert list(losses) == ["blocks.0.attention.codebook", "blocks.2.attention.codebook"]
    assert all(loss["commitment"] > 0 for loss in losses.values())
    for _, report in offered(model, "diagnostics"):
        figures = report()
        assert set(figures) == {"codebook_usage", "codebook_perplexity", "dead_codes", "quantisation_error"}
        assert 0 < figures["codebook_usage"] <= 1 <= figures["codebook_perplexity"] <= 16
        assert 0 < figures["quantisation_error"] < 1
    assert [len(portraits()) for _, portraits in offered(model, "portraits")] == [1, 1]


def test_gradients_reach_distant_keys_only_with_code_means() -> None:
    """The last output teaches a key three blocks before it; without code means the key learns nothing from it."""

    def gradient(key_gradients: str) -> float:
        torch.manual_seed(0)
        config = LongVQ(d_model=8, codebook=4, window=5, key_gradients=key_gradients)  # type: ignore[arg-type]
        layer = LongVQLayer(config, 40, causal=True)
        q, k, v = torch.randn(1, 40, 4), torch.randn(1, 40, 4, requires_grad=True), torch.randn(1, 40, 16)
        layer.attention(q, k, v)[:, -1].sum().backward()
        assert k.grad is not None and k.grad[:, 30:].abs().max() > 0
        return float(k.grad[:, :30].abs().max())

    assert gradient("near") == 0 and gradient("code-mean") > 0


def test_training_under_bfloat16_keeps_the_averages_in_float32() -> None:
    model = build("longvq", SPEC, SPEC, d_model=8, codebook=4, window=8)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 40, 3))  # starts the codebook
        y = model(torch.randn(2, 40, 3))
        y.float().square().sum().backward()
    assert y.isfinite().all()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    codebook = model.blocks[0].attention.codebook
    assert codebook.total.dtype == codebook.count.dtype == torch.float32
    assert float(codebook.count.sum()) == pytest.approx(0.99 * 4 + 0.01 * 80, rel=1e-5)


def test_padding_counts_in_no_statistic() -> None:
    layer = LongVQLayer(LongVQ(d_model=8, codebook=6, window=4), 30, causal=True)
    layer(torch.randn(2, 30, 8), (torch.arange(30) < 21).expand(2, -1))
    assert float(layer.attention.codebook.usage.counts.sum()) == 42


def test_the_first_training_call_sees_neither_the_future_nor_other_rows() -> None:
    """The codebook starts from keys of that batch, but only after it."""

    def first_call(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        model = build("longvq", SPEC, SPEC, d_model=8, layers=2, codebook=4, window=5).double().train()
        y: torch.Tensor = model(x)
        assert int(model.blocks[0].attention.codebook.updates) == 1
        return y.detach()

    x = torch.randn(2, 40, 3, dtype=torch.float64)
    other = x.clone()
    other[:, 25:] += 1.0
    other[1] += 1.0
    assert torch.allclose(first_call(other)[0, :25], first_call(x)[0, :25], rtol=0, atol=1e-10)


def test_initial_weights() -> None:
    """Normal draws of 0.02, biases 0; centres of the norm that normalised keys have."""
    torch.manual_seed(0)
    layer, _ = registry.get("longvq").make(d_model=128).blocks(SPEC, causal=True)
    for linear in (layer.value, layer.gate, layer.out, layer.update, layer.maps.query, layer.maps.key):
        assert abs(float(linear.weight.detach().std()) - 0.02) < 1e-3 and not linear.bias.any()
    centres = layer.attention.codebook.centres()
    assert centres.shape == (512, 64) and float(centres.square().mean().sqrt()) == pytest.approx(64**-0.25, rel=0.02)
