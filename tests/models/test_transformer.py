"""The Transformer: its plain form, initialisation, post-norm, feed-forward width."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import local_visible, plain_attention
from parity import gap
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models import build
from lrtasks.models.ops.positions import rotate
from lrtasks.spec import Spec

SIGNAL, SYMBOLS = Spec("real", 11, 3), Spec("token", 11, 5)


def plain_transformer(weights: dict[str, Tensor], x: Tensor, layers: int, heads: int, causal: bool) -> Tensor:
    """x + Att(LN(x)), then x + MLP(LN(x)), from the state dictionary alone."""

    def linear(name: str, value: Tensor) -> Tensor:
        return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, value: Tensor) -> Tensor:
        centred = value - value.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    length = x.shape[1]
    visible = local_visible(length, length, causal)
    h = linear("encoder", x)
    for layer in range(layers):
        attention, mlp = f"blocks.{2 * layer}", f"blocks.{2 * layer + 1}"
        parts = linear(f"{attention}.mixer.qkv", norm(f"{attention}.norm", h)).chunk(3, -1)
        q, k, v = (torch.stack(part.chunk(heads, -1), 1) for part in parts)
        mixed = plain_attention(rotate(q) / math.sqrt(q.shape[-1]), rotate(k), v, visible)
        h = h + linear(f"{attention}.mixer.out", torch.cat(mixed.unbind(1), -1))
        h = h + linear(f"{mlp}.mixer.out", F.gelu(linear(f"{mlp}.mixer.hidden", norm(f"{mlp}.norm", h))))
    return linear("decoder", norm("final_norm", h))


@pytest.mark.parametrize("causal", [True, False])
def test_is_the_plain_definition(causal: bool) -> None:
    model = build("transformer", SIGNAL, SIGNAL, causal=causal, d_model=12, heads=3, layers=2).double()
    x = torch.randn(2, 11, 3, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) / 3)
        expected = plain_transformer(dict(model.state_dict()), x, 2, 3, causal)
        assert gap(model(x), expected) < 1e-10


def test_starts_as_gpt_2_does() -> None:
    torch.manual_seed(0)
    layers = 8
    model = build("transformer", SYMBOLS, SYMBOLS, d_model=128, layers=layers)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            expected = 0.02 / math.sqrt(2 * layers) if name.endswith(".out.weight") else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.1), name


def test_post_norm_and_expansion_are_options() -> None:
    model = build("transformer", SIGNAL, SIGNAL, d_model=8, heads=2, prenorm=False, expansion=3)
    assert model.get_parameter("blocks.1.mixer.hidden.weight").shape == (24, 8)
    x = torch.randn(2, 11, 3)
    h = model.encoder(x)
    for block in model.blocks:
        h = F.layer_norm(h + block.mixer(h), (8,))
    assert gap(model(x), model.decoder(h)) < 1e-5
