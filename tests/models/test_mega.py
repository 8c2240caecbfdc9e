"""MEGA: parity with the reference's arrays, chunks, streaming, memory, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid_parity import Part, attention_parts, check_layer, linear_parts, load, norm_parts, ssm_parts
from parity import check_streaming
from test_local_attention import Largest

from lrtasks.models import build, registry
from lrtasks.models.base import ResidualBlock
from lrtasks.models.mega import Mega, MegaChunk, MegaLayer
from lrtasks.models.ops.layers import silu_feedforward
from lrtasks.models.ops.scoped_attention import Scope
from lrtasks.spec import Spec

LAYERS = [
    *("bi_laplace", "bi_laplace_chunk", "bi_laplace_pad", "bi_relu2", "bi_softmax", "bi_softmax_chunk"),
    *("bi_softmax_pad", "causal_laplace", "causal_softmax", "causal_softmax_chunk", "causal_softmax_rotarybias"),
]
NORMS = {"bi_softmax_pad": ("scale", False), "bi_laplace_pad": ("batch", True)}


def reference_layer(file: str, arrays: dict[str, Any]) -> MegaLayer:
    """A layer of the file's settings."""
    d_model, d_z, d_v, states = arrays["in_cfg_dims"].tolist()
    norm, prenorm = NORMS.get(file, ("layer", True))
    settings: dict[str, Any] = {
        "d_model": d_model,
        "d_z": d_z,
        "d_v": d_v,
        "d_state": states,
        "attention": file.split("_")[1],
        "bias": "rotary" if "rotary" in file else "simple",
        "norm": norm,
        "prenorm": prenorm,
    }
    chunk, length, causal = int(arrays["in_cfg_chunk"]), len(arrays["in_x"]), "causal" in file
    config = Mega(**settings, max_positions=64) if chunk < 0 else MegaChunk(**settings, chunk=chunk)
    return MegaLayer(config, length, config.attention_scope(length, causal))


def layer_parts(layer: MegaLayer) -> list[Part]:
    return [
        *ssm_parts(layer.ssm, "move_"),
        *norm_parts(layer.norm),
        *attention_parts(layer.attention),
        *linear_parts("v_proj", layer.value),
        *linear_parts("mx_proj", layer.mix),
        *linear_parts("h_proj", layer.out),
    ]


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", LAYERS)
def test_layer_parity(data: Path, file: str, double: bool) -> None:
    arrays = load(data, f"mega_{file}")
    layer = reference_layer(file, arrays)
    # the reference keeps the sines of its rotary bias in float32
    check_layer(arrays, layer, layer_parts(layer), double, at_most=1e-6 if "rotary" in file else 0.0)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("kind", ["pre", "post"])
def test_feedforward_parity(data: Path, kind: str, double: bool) -> None:
    arrays = load(data, f"mega_ffn_{kind}")
    feedforward = silu_feedforward(10, 20, truncated=False)
    block = ResidualBlock(feedforward, 10, "layer", kind == "pre", 0.0)
    parts = [*norm_parts(block.norm), *linear_parts("fc1", feedforward.hidden), *linear_parts("fc2", feedforward.out)]
    check_layer(arrays, block, parts, double)


def test_all_arrays_are_compared(data: Path) -> None:
    files = {path.stem.removeprefix("mega_") for path in (data / "hybrids").glob("mega_*.npz")}
    assert files == {*LAYERS, "ffn_pre", "ffn_post"}


@pytest.mark.parametrize("attention", ["softmax", "relu2", "laplace"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_ragged_last_chunk(causal: bool, attention: str) -> None:
    """With 19 positions in chunks of 8, and 19 of 24 in padded input: the same, and as each chunk for itself."""
    spec = Spec("real", 24, 1)
    config = MegaChunk(d_model=6, d_state=2, chunk=8, attention=attention)
    layer = MegaLayer(config, 24, config.attention_scope(24, causal)).double()
    x = torch.randn(2, 24, 6, dtype=torch.float64)
    mask = (torch.arange(24) < 19).expand(2, -1)
    short = layer(x[:, :19])
    assert torch.allclose(layer(x, mask)[:, :19], short, rtol=0, atol=1e-12)
    z, v = torch.randn(2, 19, 3, dtype=torch.float64), torch.randn(2, 19, 12, dtype=torch.float64)
    parts = [layer.attention(z[:, i : i + 8], v[:, i : i + 8]) for i in (0, 8, 16)]
    assert torch.allclose(layer.attention(z, v), torch.cat(parts, 1), rtol=0, atol=1e-12)
    with pytest.warns(UserWarning, match="mega-chunk: chunk 7 does not divide the length 24"):
        build("mega-chunk", spec, spec, causal=causal, chunk=7)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("chunk", [8, 24, 100])
def test_a_full_last_chunk_and_a_single_one_need_no_padding(chunk: int) -> None:
    spec = Spec("real", 24, 1)
    build("mega-chunk", spec, spec, chunk=chunk)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("attention", ["softmax", "relu2", "laplace"])
@pytest.mark.parametrize("bias", ["simple", "rotary"])
def test_streaming_is_the_parallel_form(chunk: int | None, attention: str, bias: str) -> None:
    settings: dict[str, Any] = {"d_model": 8, "d_state": 2, "attention": attention, "bias": bias, "prenorm": True}
    config = Mega(**settings) if chunk is None else MegaChunk(**settings, chunk=chunk)
    layer = MegaLayer(config, 20, config.attention_scope(20, causal=True)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    check_streaming(layer, torch.randn(2, 20, 8, dtype=torch.float64), 1e-12)


def test_a_sample_of_padding_only_stays_finite() -> None:
    layer = MegaLayer(MegaChunk(d_model=6, d_state=2, chunk=8), 16, Scope(causal=False, chunk=8))
    x = torch.randn(2, 16, 6, requires_grad=True)
    y = layer(x, torch.tensor([[True], [False]]).expand(2, 16))
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


def test_memory_of_chunks_is_linear_in_the_length() -> None:
    """At 65,536 positions, forward and backward: no tensor beyond each query's chunk."""
    config, length = MegaChunk(d_model=2, d_state=1, chunk=64), 2**16
    layer = MegaLayer(config, length, config.attention_scope(length, causal=True))
    with Largest() as largest:
        layer(torch.randn(1, length, 2)).sum().backward()
    assert largest.numel <= length * 64


def test_initial_weights() -> None:
    """Normal draws of 0.02 without a cut, biases 0."""
    torch.manual_seed(0)
    (layer, feedforward) = registry.get("mega").make(d_model=128).blocks(Spec("real", 16, 1), causal=True)
    for linear in (layer.value, layer.mix, layer.out, feedforward.mixer.hidden, feedforward.mixer.out):
        weight = linear.weight.detach()
        assert abs(float(weight.std()) - 0.02) < 5e-4 and weight.abs().max() > 0.04 and not linear.bias.any()
    assert not layer.attention.beta.any()
