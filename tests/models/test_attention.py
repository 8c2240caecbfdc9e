"""Attention: parity with the reference arrays, the plain definition, rotary positions, padding, invalid input."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from attention_reference import PRECISIONS, check_attention_parity, plain_attention
from parity import gap

from lrtasks.models import build
from lrtasks.models.attention import Attention, AttentionLayer
from lrtasks.models.ops.attention import MultiHeadAttention, attend
from lrtasks.models.ops.positions import rotate
from lrtasks.spec import Spec

SIGNAL, SYMBOLS = Spec("real", 24, 3), Spec("token", 24, 5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("causal", [True, False])
def test_parity(data: Path, causal: bool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = dict(np.load(data / "dlr" / f"attention_rotary_{'causal' if causal else 'noncausal'}.npz"))
    attention = MultiHeadAttention(16, 4, causal=causal, learned_scale=True)
    check_attention_parity(arrays, attention, attention, precision, monkeypatch)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_layer_parity(data: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = dict(np.load(data / "dlr" / "layer_attention_block_causal.npz"))
    layer = AttentionLayer(Attention(d_model=16), causal=True)
    attention = layer.attention
    with torch.no_grad():
        layer.output.weight.copy_(torch.from_numpy(arrays["raw_output_linear_weight"]))
        layer.output.bias.copy_(torch.from_numpy(arrays["raw_output_linear_bias"][:, 0]))
    check = check_attention_parity(arrays, layer, attention, precision, monkeypatch, prefix="attn_")
    check(layer.output.weight.grad, "grad_output_linear_weight")
    check(layer.output.bias.grad[:, None], "grad_output_linear_bias")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("queries", [1, 3, 7])
@pytest.mark.parametrize("padded", [True, False])
def test_attend_is_the_plain_definition(causal: bool, queries: int, padded: bool) -> None:
    q, k, v = (torch.randn(2, 2, length, 4, dtype=torch.float64) for length in (queries, 7, 7))
    visible = torch.ones(queries, 7, dtype=torch.bool).expand(2, 1, -1, -1)
    if causal:
        visible = visible.tril(7 - queries)
    valid = None
    if padded:
        valid = torch.ones(2, 7, dtype=torch.bool)
        valid[0, :2], valid[1, 3] = False, False
        visible = visible & valid[:, None, None]
    expected = plain_attention(q, k, v, visible)
    found = attend(q, k, v, causal=causal, valid=valid)
    seeing = visible.any(-1)[..., None].expand_as(expected)
    assert seeing.any()
    assert gap(found[seeing], expected[seeing]) < 1e-12
    assert found.isfinite().all()


def test_queries_without_keys_have_finite_gradients() -> None:
    q, k, v = (torch.randn(2, 1, 5, 4, requires_grad=True) for _ in range(3))
    valid = torch.tensor([[False] * 5, [False, False, True, True, True]])
    for causal in (True, False):
        attend(q, k, v, causal=causal, valid=valid).square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


def test_rotary_angles_stay_exact_far_out() -> None:
    width, position = 8, 2**20 - 1
    x = torch.randn(1, width)
    turned = rotate(x, torch.tensor([position]))
    for m in range(width // 2):
        angle = math.fmod(position * 10000 ** (-2 * m / width), 2 * math.pi)
        a, b = x[0, 2 * m].item(), x[0, 2 * m + 1].item()
        expected = (a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle))
        assert turned[0, 2 * m : 2 * m + 2].tolist() == pytest.approx(expected, abs=1e-6)


def test_rotated_products_depend_on_the_difference_of_positions() -> None:
    x, y = torch.randn(2, 1, 6, dtype=torch.float64)
    products = [
        (rotate(x, torch.tensor([i + 5])) * rotate(y, torch.tensor([i]))).sum().item() for i in (0, 1, 1000, 10**6)
    ]
    assert products == pytest.approx([products[0]] * 4, rel=1e-9)
    assert products[0] != pytest.approx((x * y).sum().item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rotary_defaults_to_positions_from_zero_in_any_precision(dtype: torch.dtype) -> None:
    x = torch.randn(2, 300, 4, dtype=torch.float64)
    turned = rotate(x.to(dtype))
    assert turned.dtype == dtype
    assert torch.equal(turned, rotate(x.to(dtype), torch.arange(300)))
    # two roundings of the type at most: the angles themselves are not in half precision
    assert gap(turned.double(), rotate(x)) <= 2 * torch.finfo(dtype).eps


def test_scale_is_one_learned_number_for_all_heads() -> None:
    model = build("attention", SIGNAL, SIGNAL, d_model=32, heads=2)
    scale = model.get_parameter("blocks.0.mixer.attention.scale")
    assert scale.tolist() == pytest.approx([1 / math.sqrt(16)])


def test_feed_forward_parts_come_after_the_output_map() -> None:
    torch.manual_seed(0)
    layer = Attention(d_model=8, heads=2, feedforward=2, expansion=3).mixer(10, True)
    plain = Attention(d_model=8, heads=2).mixer(10, True)
    plain.load_state_dict(layer.state_dict(), strict=False)
    u = torch.randn(2, 10, 8)
    expected = plain(u)
    for part in layer.parts:
        norm, feedforward = part
        hidden = torch.nn.functional.gelu(norm(expected) @ feedforward.hidden.weight.T + feedforward.hidden.bias)
        assert hidden.shape[-1] == 24
        expected = expected + hidden @ feedforward.out.weight.T + feedforward.out.bias
    assert len(layer.parts) == 2
    assert gap(layer(u), expected) < 1e-5


def test_glu_gates_the_output_map() -> None:
    layer = Attention(d_model=8, heads=2, glu=True).mixer(10, True)
    u = torch.randn(2, 10, 8)
    value, gate = layer.output[0](u + torch.nn.functional.gelu(layer.attention(u))).chunk(2, -1)
    assert gap(layer(u), value * torch.sigmoid(gate)) < 1e-6


def test_autocast_keeps_the_result() -> None:
    model = build("attention", SIGNAL, SIGNAL)
    x = torch.randn(2, 24, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert gap(y.float(), model(x)) < 0.05
