"""Attention over quantised keys: parity with arrays, exactness, memory, streaming, precision."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hybrid_parity import GRADIENT, OUTPUT, check_close, load
from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_attention import Largest
from test_quantiser import codebook_of
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.longvq import Codebook, LongVQ, QuantisedAttention
from lrtasks.models.ops import scoped_attention
from lrtasks.models.ops.positions import LocalBias
from lrtasks.models.ops.quantised_attention import attend_quantised
from lrtasks.models.ops.scoped_attention import AttentionFunction, laplace, relu2

ATTENTION_FUNCTIONS = get_args(AttentionFunction)
ATTENTION_FILES = [
    f"{function}_{kind}"
    for function in ATTENTION_FUNCTIONS
    for kind in ("bi_bias", "bi_bias_pad", "bi_nobias", "bi_nobias_pad", "causal_bias", "causal_nobias")
]


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of the Laplace function were made with the exact square roots."""
    monkeypatch.setattr(scoped_attention, "LAPLACE_MEAN", math.sqrt(1 / 2))
    monkeypatch.setattr(scoped_attention, "LAPLACE_STD", math.sqrt(1 / (4 * math.pi)))


@functools.cache
def quadratic(length: int, causal: bool) -> Tensor:
    """Keys that each query sees."""
    seen = torch.ones(length, length, dtype=torch.bool)
    return seen.tril() if causal else seen


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, function: str, bias: LocalBias | None, valid: Tensor | None
) -> Tensor:
    """``function(q kᵀ + bias) v`` with all pairs of positions."""
    length = q.shape[1]
    scores = q @ k.transpose(1, 2)
    if bias is not None:
        place = torch.arange(length)
        scores = scores + bias(place - place.unsqueeze(1))
    seen = quadratic(length, causal).expand_as(scores)
    if valid is not None:
        seen = seen & valid.unsqueeze(1)
    if function == "softmax":
        return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
    return ((relu2(scores) if function == "relu2" else laplace(scores)) * seen) @ v


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ATTENTION_FILES)
def test_attention_parity(data: Path, file: str, double: bool) -> None:
    arrays = load(data, f"vq_attn_{file}")
    function, causal, window = file.split("_")[0], "causal" in file, int(arrays["in_window"])
    assert int(arrays["in_block"]) == window
    options = {"attention": function, "local_bias": "nobias" not in file, "qk_norm": False}
    attention = QuantisedAttention(LongVQ.make(d_k=4, d_v=6, window=window, **options), 24, causal)
    attention.codebook = codebook_of(arrays)
    dtype = torch.float64 if double else torch.float32
    attention.to(dtype).eval()
    if attention.bias is not None:
        with torch.no_grad():
            attention.bias.table.copy_(torch.from_numpy(arrays["in_bias"][: len(attention.bias.table)]))
    q, k, v = (torch.from_numpy(arrays[f"in_{name}"]).to(dtype).requires_grad_() for name in "qkv")
    mask = torch.from_numpy(~arrays["in_pad"]) if file.endswith("_pad") else None
    y = attention(q, k, v, mask)
    cotangent = torch.from_numpy(arrays["in_G"]).to(dtype)
    check_close(y, arrays["out_y"], OUTPUT[double])
    (y * cotangent).sum().backward()
    at_most = GRADIENT[double]
    check_close(q.grad, arrays["grad_q"], at_most, "gradient of q")
    check_close(v.grad, arrays["grad_v"], at_most, "gradient of v")
    check_close(k.grad, arrays["grad_k_near_only"], at_most, "gradient of k")
    if attention.bias is not None:
        found = attention.bias.table.grad
        assert found is not None
        check_close(found, arrays["grad_bias"][: len(found)], at_most, "gradient of the bias")
        assert not arrays["grad_bias"][len(found) :].any()


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("file", ATTENTION_FILES)
def test_one_block_gives_every_key_its_straight_through_gradient(data: Path, file: str) -> None:
    arrays = load(data, f"vq_attn_{file}")
    bias = None
    if "nobias" not in file:
        bias = LocalBias(int(arrays["in_window"]), False).double()
        with torch.no_grad():
            bias.table.copy_(torch.from_numpy(arrays["in_bias"]))
    causal, function = "causal" in file, file.split("_")[0]
    q, k, v = (torch.from_numpy(arrays[f"in_{name}"]) for name in "qkv")
    valid = torch.from_numpy(~arrays["in_pad"]) if file.endswith("_pad") else torch.ones(2, 24, dtype=torch.bool)
    scale: Any = 4**-0.5
    if function != "softmax":
        scale = 1 / (torch.arange(1.0, 25.0)[:, None] if causal else valid.sum(1).view(2, 1, 1)).double()
    _, quantised, _ = codebook_of(arrays).eval()(k.requires_grad_(), valid)
    y = attend_quantised(
        q * scale, quantised, v, block=24, causal=causal, function=function, bias=bias, valid=valid  # type: ignore[arg-type]
    )  # fmt: skip
    check_close(y, arrays["out_y"], OUTPUT[True])
    (y * torch.from_numpy(arrays["in_G"])).sum().backward()
    check_close(k.grad, arrays["grad_k_straight_through"], GRADIENT[True])


def test_code_mean_parity(data: Path) -> None:
    """All keys far: queries in the first block, keys in the third."""
    arrays = load(data, "vq_codemean_gradient")
    q, k, v = (torch.from_numpy(arrays[f"in_{name}"]) for name in "qkv")
    k.requires_grad_()
    codes, quantised, centres = codebook_of(arrays).eval()(k)
    nothing = torch.zeros(2, 48, 4, dtype=torch.float64)
    y = attend_quantised(
        torch.cat([q * 0.5, nothing], 1),
        torch.cat([nothing, quantised], 1),
        torch.cat([torch.zeros(2, 48, 6, dtype=torch.float64), v], 1),
        torch.cat([torch.zeros(2, 48, dtype=torch.int64), codes], 1),
        centres,
        block=24,
        causal=False,
        function="softmax",
        valid=(torch.arange(72) >= 48).expand(2, -1),
        key_gradients="code-mean",
    )[:, :24]
    check_close(y, arrays["out_y"], 1e-9)
    (y * torch.from_numpy(arrays["in_G"])).sum().backward()
    check_close(k.grad, arrays["grad_k_codemean"], 1e-9)


def test_all_arrays_are_compared(data: Path) -> None:
    files = {path.stem for path in (data / "hybrids").glob("vq_*.npz")}
    assert files - {"vq_quantise"} == {"vq_codemean_gradient", *(f"vq_attn_{file}" for file in ATTENTION_FILES)}


@settings(max_examples=60)
@given(
    length=st.integers(1, 40),
    block=st.integers(1, 12),
    size=st.integers(1, 7),
    causal=st.booleans(),
    function=st.sampled_from(ATTENTION_FUNCTIONS),
    biased=st.booleans(),
    padded=st.booleans(),
    working=st.sampled_from([1, 500, 2**25]),
    seed=st.integers(0, 2**31),
)
def test_is_exactly_the_quadratic_form(
    length: int, block: int, size: int, causal: bool, function: Any, biased: bool, padded: bool, working: int, seed: int
) -> None:
    """Values, and gradients of queries, values and bias, for any cut into blocks and segments."""
    torch.manual_seed(seed)
    q, k, v, g = (torch.randn(2, length, width, dtype=torch.float64) for width in (3, 3, 5, 5))
    centres = torch.randn(size, 3, dtype=torch.float64)
    codes = torch.cdist(k, centres).argmin(-1)
    quantised = centres[codes]
    valid = torch.rand(2, length) < 0.7 if padded else None
    if valid is not None:
        valid[:, 0] = True
    bias = LocalBias(block, causal).double() if biased else None
    leaves = [q.requires_grad_(), v.requires_grad_(), *(bias.parameters() if bias is not None else ())]
    y = attend_quantised(
        q, quantised, v, codes, centres,
        block=block, causal=causal, function=function, bias=bias, valid=valid, working=working,
    )  # fmt: skip
    wanted = plain_attention(q, quantised, v, causal, function, bias, valid)
    assert torch.allclose(y, wanted, rtol=0, atol=1e-10)
    if not y.isfinite().all():
        return
    for found, expected in zip(
        torch.autograd.grad((y * g).sum(), leaves), torch.autograd.grad((wanted * g).sum(), leaves), strict=True
    ):
        assert torch.allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("function", ATTENTION_FUNCTIONS)
def test_code_means_give_the_sum_over_a_code_the_exact_gradient(causal: bool, function: Any) -> None:
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(2, 50, width, dtype=torch.float64) for width in (3, 3, 5, 5))
    centres = torch.randn(4, 3, dtype=torch.float64)
    codes = torch.cdist(k, centres).argmin(-1)

    def gradient(block: int, **options: Any) -> Tensor:
        keys = centres[codes].requires_grad_()
        y = attend_quantised(
            q, keys, v, codes, centres, block=block, causal=causal, function=function, **options
        )  # fmt: skip
        (found,) = torch.autograd.grad((y * g).sum(), keys)
        return torch.zeros(2, 4, 3, dtype=torch.float64).scatter_add(1, codes.unsqueeze(-1).expand_as(found), found)

    exact = gradient(50)
    assert torch.allclose(gradient(6, key_gradients="code-mean"), exact, rtol=0, atol=1e-10)
    assert torch.allclose(gradient(6, key_gradients="code-mean", working=1), exact, rtol=0, atol=1e-10)
    assert not torch.allclose(gradient(6), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
def test_memory_is_bounded_at_65536_positions(causal: bool) -> None:
    """Forward and backward: no tensor beyond a segment's, or the sequence's own; no table of sums for all blocks."""
    length, window, size, width, working = 2**16, 64, 256, 16, 2**21
    q, k, v = (torch.randn(1, length, width, requires_grad=True) for _ in range(3))
    centres = torch.randn(size, width)
    codes = torch.randint(size, (1, length))
    bias = LocalBias(window, causal)
    with Largest() as largest:
        attend_quantised(
            q, k, v, codes, centres, block=window, causal=causal, function="softmax", bias=bias, working=working
        ).sum().backward()
    assert q.grad is not None and k.grad is not None and v.grad is not None
    # three blocks of padding, and the column of ones, on top of the sequence
    assert largest.numel <= max(working, (length + 4 * window) * (width + 1))
    assert length // window * size * width > 1.9 * working  # what all running sums together would take


def test_the_normaliser_is_kept_in_float32() -> None:
    """One code with 3,000 equal keys: in bfloat16 the counts and sums of weights would stop at 256."""
    length = 3000
    q, k = torch.ones(1, length, 2), torch.ones(1, length, 2)
    codebook = Codebook(2, 2, std=1.0).eval()
    codebook.total.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    attention = QuantisedAttention(LongVQ(d_k=2, d_v=1, window=8, local_bias=False), length, causal=True)
    attention.codebook = codebook
    v = torch.ones(1, length, 1)
    with torch.autocast("cpu", torch.bfloat16):
        y = attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert (y.float() - 1).abs().max() < 0.02


def test_large_scores_do_not_overflow() -> None:
    """Also where a code without keys scores highest."""
    q = torch.full((1, 12, 1), 1e4)
    centres = torch.tensor([[1.0], [50.0], [-1.0]])
    codes = torch.tensor([0, 2] * 6).unsqueeze(0)
    v = torch.arange(12.0).view(1, 12, 1).requires_grad_()
    y = attend_quantised(
        q, centres[codes], v, codes, centres, block=2, causal=False, function="softmax"
    )  # fmt: skip
    assert torch.allclose(y, torch.full_like(y, 5.0), atol=1e-3)  # at 1e4, float32 has steps of 1e-3
    y.sum().backward()
    assert v.grad is not None and v.grad.isfinite().all()


@pytest.mark.parametrize("codes", [0, 1, 5])
@pytest.mark.parametrize("function", ATTENTION_FUNCTIONS)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_streaming_is_the_parallel_form(codes: int, function: Any, qk_norm: bool) -> None:
    """With five codes, with one, and without a codebook."""
    torch.manual_seed(0)
    config = LongVQ(d_k=4, d_v=6, window=4, attention=function, qk_norm=qk_norm, quantise=bool(codes))
    attention = QuantisedAttention(config, 31, causal=True).double()
    if codes:
        attention.codebook = Codebook(codes, 4, std=1.0).double().eval()
    with torch.no_grad():
        attention.bias.table.normal_()  # type: ignore[union-attr]
    q, k, v = (torch.randn(2, 31, width, dtype=torch.float64) for width in (4, 4, 6))
    state = attention.initial_state(2, v)
    with torch.no_grad():
        for t, wanted in enumerate(attention(q, k, v).unbind(1)):
            y, state = attention.step(q[:, t], k[:, t], v[:, t], state)
            assert torch.allclose(y, wanted, rtol=0, atol=1e-12), t
    if not codes:
        with pytest.raises(UsageError, match="built for 31 positions"):
            attention.step(q[:, 0], k[:, 0], v[:, 0], state)


def test_local_bias_is_zero_beyond_its_window() -> None:
    bias = LocalBias(2, causal=False)
    assert bias(torch.tensor([[-9, -3, 3, 9]])).tolist() == [[0.0] * 4]
    assert torch.equal(bias(torch.arange(-2, 3)), bias.table)
    assert LocalBias(2, causal=True)(torch.tensor([1])).tolist() == [0.0]
