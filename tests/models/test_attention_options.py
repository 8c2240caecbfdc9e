"""Options of the transformer: positions, sliding window, short convolutions and canon layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from modern import arrays, check_outputs, plain_short_conv, settings
from parity import gap
from torch import Tensor

from lrtasks.check.model import check_model
from lrtasks.models import build
from lrtasks.models.base import Backbone, state_bytes
from lrtasks.models.ops.attention import MultiHeadAttention, alibi_slopes, attend, attend_local
from lrtasks.models.ops.positions import rotate_halves
from lrtasks.spec import Spec

SIGNAL = Spec("real", 37, 3)
OPTIONS: list[dict[str, Any]] = [
    {"positions": "nope"},
    {"positions": "alibi"},
    {"window": 1},
    {"window": 5},
    {"window": 100},
    {"positions": "alibi", "window": 5},
    {"conv": True},
    {"canon": "ABCD"},
    {"canon": "BD", "window": 5, "positions": "nope", "prenorm": False},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["alibi_a", "alibi_b", "nope_a", "rope_halves_a", "window_a", "window_b"])
def test_equals_the_arrays(name: str, dtype: torch.dtype) -> None:
    found = arrays(f"op_attention_{name}")
    cfg = settings(found)

    def forward(given: dict[str, Tensor]) -> tuple[Tensor]:
        q, k, v = (given[each] for each in "qkv")
        if "base" in cfg:
            places = torch.arange(q.shape[2])
            q, k = rotate_halves(q, places), rotate_halves(k, places)
        q = q * q.shape[-1] ** -0.5
        if "window" in cfg:
            return (attend_local(q, k, v, chunk=cfg["window"], window=cfg["window"], causal=True),)
        return (attend(q, k, v, causal=True, slopes=alibi_slopes(cfg["H"]) if "slopes" in cfg else None),)

    check_outputs(found, forward, dtype)


@pytest.mark.parametrize(
    ("heads", "exponents"), [(1, [8]), (2, [4, 8]), (3, [4, 8, 2]), (6, [2, 4, 6, 8, 1, 3]), (8, range(1, 9))]
)
def test_slopes_of_alibi(heads: int, exponents: list[int]) -> None:
    assert alibi_slopes(heads).tolist() == [2.0**-each for each in exponents]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 11, 16, 23])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("positions", ["rope", "nope", "alibi"])
def test_window_is_the_plain_definition(causal: bool, length: int, padded: bool, positions: Any) -> None:
    """In blocks of the window, against softmax over an explicit matrix of what is visible."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3, causal=causal, window=5, positions=positions).double()
    x, mask = torch.randn(2, length, 12, dtype=torch.float64), torch.ones(2, length, dtype=torch.bool)
    if padded:
        mask[0, : length // 3] = False
        mask[1, length - length // 3 :] = False
    q, k, v = layer._heads(layer.qkv(x), torch.arange(length))
    distance = torch.arange(length)[:, None] - torch.arange(length)
    scores = q @ k.mT
    if positions == "alibi":
        scores = scores - alibi_slopes(3)[:, None, None] * distance.abs()
    visible = (distance.abs() < 5) & ((distance >= 0) | (not causal)) & mask[:, None, None]
    weights = torch.softmax(scores.masked_fill(~visible, -1e30), -1)
    expected = layer._merge(weights @ v)
    assert gap(layer(x, mask if padded else None)[mask], expected[mask]) < 1e-12


@pytest.mark.parametrize("options", OPTIONS)
def test_options_conform(options: dict[str, Any]) -> None:
    """Causality, padding, streaming and gradients."""
    check_model(
        "transformer", input=SIGNAL, target=SIGNAL, dtype=torch.float64, d_model=8, heads=2, layers=2, **options
    )


def test_bytes_of_a_window() -> None:
    """8 w d bytes."""
    built = build("transformer", Spec("real", 4096, 1), Spec("real", 4096, 1), d_model=64, layers=1, window=64)
    assert state_bytes(built) == 32_768


def model(**hyper: Any) -> Backbone:
    torch.manual_seed(0)
    return build("transformer", SIGNAL, SIGNAL, d_model=8, heads=2, norm="none", **hyper).double()


def test_canon_layers_stand_at_their_sites() -> None:
    """A block with all four, against its parts called by hand."""
    built = model(canon="ABCD")
    x = torch.randn(2, 37, 8, dtype=torch.float64)

    def canon(conv: Any, value: Tensor) -> Tensor:
        return value + plain_short_conv(value, conv.weight)

    first, second = built.blocks
    attention, mlp = first.mixer, second.mixer
    qkv = canon(attention.conv, attention.qkv(canon(first.canon, x)))
    q, k, v = attention._heads(qkv, torch.arange(37))
    h = x + attention._merge(attend(q, k, v, causal=True))
    assert gap(first(x), h) < 1e-12
    hidden = canon(mlp.canon, mlp.hidden(canon(second.canon, h)))
    assert gap(second(h), h + mlp.out(torch.nn.functional.gelu(hidden))) < 1e-12


def test_short_convolutions_of_queries_keys_and_values() -> None:
    built = model(conv=True)
    layer = built.blocks[0].mixer
    x = torch.randn(2, 37, 8, dtype=torch.float64)
    qkv = torch.nn.functional.silu(plain_short_conv(layer.qkv(x), layer.conv.weight))
    q, k, v = layer._heads(qkv, torch.arange(37))
    assert gap(layer(x), layer._merge(attend(q, k, v, causal=True))) < 1e-12


def test_a_window_of_alibi_may_look_ahead() -> None:
    build("transformer", SIGNAL, SIGNAL, causal=False, window=5, positions="alibi")
