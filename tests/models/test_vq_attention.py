"""Quantiser, and attention over quantised keys: parity with arrays, exactness, memory, streaming, statistics."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from hybrid_parity import GRADIENT, OUTPUT, Arrays, check_close, load
from hypothesis import given, settings
from hypothesis import strategies as st
from test_local_attention import Largest
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.ops import attention_functions
from lrtasks.models.ops.attention_functions import ATTENTION_FUNCTIONS, laplace, relu2
from lrtasks.models.ops.quantiser import FLOOR, Codebook
from lrtasks.models.ops.vq_attention import LocalBias, QuantisedAttention, attend_quantised

ATTENTION_FILES = [
    f"{function}_{kind}"
    for function in ATTENTION_FUNCTIONS
    for kind in ("bi_bias", "bi_bias_pad", "bi_nobias", "bi_nobias_pad", "causal_bias", "causal_nobias")
]


@pytest.fixture
def unrounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of the Laplace function were made with the exact square roots."""
    monkeypatch.setattr(attention_functions, "LAPLACE_MEAN", math.sqrt(1 / 2))
    monkeypatch.setattr(attention_functions, "LAPLACE_STD", math.sqrt(1 / (4 * math.pi)))


def codebook_of(arrays: Arrays, name: str = "in_codebook", **options: Any) -> Codebook:
    """A codebook in double precision with the centres of an array."""
    centres = torch.from_numpy(arrays[name])
    codebook = Codebook(*centres.shape, std=1.0, **options).double()
    codebook.total.copy_(centres)
    codebook.updates += 1
    return codebook


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


# quantiser


def test_quantiser_parity(data: Path) -> None:
    arrays = load(data, "vq_quantise")
    codebook = codebook_of(arrays, decay=float(arrays["in_eta"]), commitment=1.0)
    codebook.count.copy_(torch.from_numpy(arrays["in_count"]))
    codebook.total.copy_(torch.from_numpy(arrays["in_sum"]))
    if not np.allclose(codebook.centres().numpy(), arrays["in_codebook"]):
        pytest.fail("the array's codebook is not sum over count")
    keys, mask = torch.from_numpy(arrays["in_k"]).requires_grad_(), torch.from_numpy(~arrays["in_pad"])
    quantised = codebook(keys, mask)
    assert np.array_equal(quantised.codes.numpy(), arrays["out_code"])
    check_close(quantised.keys, arrays["out_khat"], 1e-12)
    loss = codebook.extra_losses()["commitment"]
    check_close(loss, arrays["out_commit"], 1e-12)
    check_close(codebook.count, arrays["out_count_new"], 1e-12)
    check_close(codebook.total, arrays["out_sum_new"], 1e-12)
    check_close(codebook.centres(), arrays["out_codebook_new"], 1e-12)
    loss.backward()
    wanted = 2 * (keys - quantised.keys) * mask.unsqueeze(-1) / mask.sum()
    assert keys.grad is not None and torch.allclose(keys.grad, wanted)


def test_statistics_do_not_move_in_evaluation() -> None:
    codebook = Codebook(4, 3, std=1.0).eval()
    before = {name: value.clone() for name, value in codebook.state_dict().items()}
    codebook(torch.randn(2, 9, 3))
    assert all(torch.equal(value, before[name]) for name, value in codebook.state_dict().items())


def test_first_centres_are_unpadded_keys_of_the_first_batch() -> None:
    codebook = Codebook(8, 3, std=1.0)
    keys = torch.randn(2, 20, 3)
    mask = (torch.arange(20) < 10).expand(2, -1)
    centres = codebook(keys, mask).centres
    distances = torch.cdist(centres, keys[:, :10].flatten(0, 1))
    assert len(set(distances.argmin(1).tolist())) == 8 and distances.min(1).values.max() < 1e-6


def test_a_codebook_larger_than_the_batch_works_and_says_so() -> None:
    codebook = Codebook(50, 3, std=1.0)
    keys = torch.randn(1, 20, 3)
    with pytest.warns(UserWarning, match="50 codes is larger than the 20 keys of a batch: codes will stay empty"):
        quantised = codebook(keys)
    assert torch.allclose(quantised.keys, keys, atol=1e-6)
    assert codebook.diagnostics()["codebook_usage"] == 0.4


def test_one_code_is_the_mean() -> None:
    codebook = Codebook(1, 3, std=1.0, decay=0.0)
    keys = torch.randn(2, 20, 3)
    codebook(keys)
    assert torch.allclose(codebook(keys).keys[0, 0], keys.mean((0, 1)), atol=1e-6)


@pytest.mark.parametrize("revive", [True, False])
def test_dead_codes(revive: bool) -> None:
    """Codes far from every key die; with revival they become keys, and their averages those of one key."""
    torch.manual_seed(0)
    codebook = Codebook(6, 3, std=1.0, decay=0.5, revive=revive)
    codebook.total[:3] += 10.0
    codebook.total[3:] = -100.0
    codebook.updates += 1
    keys = 10 + torch.randn(2, 40, 3)
    for _ in range(20):
        before = codebook.count.clone()
        codebook(keys)
        if revive and (before[3:] < 2 * FLOOR).any():
            break
    if not revive:
        assert codebook.diagnostics()["dead_codes"] == 3
        return
    assert (codebook.count[3:] == 1).all()
    assert torch.cdist(codebook.centres()[3:], keys.flatten(0, 1)).min(1).values.max() < 1e-6
    codebook(keys)
    assert codebook.diagnostics()["dead_codes"] == 0 and codebook.diagnostics()["codebook_usage"] > 0.5


def test_a_padded_key_never_revives_a_code() -> None:
    codebook = Codebook(5, 2, std=1.0, decay=0.0, revive=True)
    keys = torch.full((1, 30, 2), 7.0)
    keys[:, :10] = torch.randn(1, 10, 2)
    for _ in range(5):
        codebook(keys, (torch.arange(30) < 10).unsqueeze(0))
    assert codebook.centres().abs().max() < 6


def test_diagnostics_of_known_codes() -> None:
    codebook = codebook_of({"in_codebook": np.eye(4) * 2}).eval()
    keys = torch.eye(4, dtype=torch.float64)[[0, 0, 1, 1]].unsqueeze(0)
    codebook(keys)
    assert codebook.diagnostics() == pytest.approx(
        {"codebook_usage": 0.5, "codebook_perplexity": 2.0, "dead_codes": 0.0, "quantisation_error": 1.0}
    )
    (portrait,) = codebook.portraits()
    assert portrait.kind == "bars" and len(portrait.labels) == 4
    assert portrait.series["share of keys"].tolist() == [0.5, 0.5, 0.0, 0.0]


def test_two_runs_and_a_restored_checkpoint_agree() -> None:
    def train(codebook: Codebook, steps: range) -> Codebook:
        for step in steps:
            torch.manual_seed(step)
            codebook(torch.randn(2, 30, 4))
        return codebook

    def fresh(seed: int) -> Codebook:
        torch.manual_seed(seed)
        return Codebook(6, 4, std=1.0, decay=0.7, revive=True)

    whole, again, half = train(fresh(0), range(8)), train(fresh(0), range(8)), train(fresh(0), range(4))
    restored = fresh(1)
    restored.load_state_dict(half.state_dict())
    train(restored, range(4, 8))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]) and torch.equal(value, restored.state_dict()[name])


def _process(rank: int, address: str, keys: Tensor, centres: Tensor, results: Any) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(rank)
    mine = Codebook(5, 3, std=1.0, decay=0.9)  # its own draws, on each process others
    mine(keys[rank : rank + 1])
    given_centres = Codebook(5, 3, std=1.0, decay=0.9)
    given_centres.total.copy_(centres)
    given_centres.updates += 1
    given_centres(keys[rank : rank + 1])
    reviving = Codebook(5, 3, std=1.0, decay=0.0, revive=True)
    for _ in range(3):
        reviving(keys[rank : rank + 1])
    found = {"own": mine, "given": given_centres, "reviving": reviving}
    torch.save({name: codebook.state_dict() for name, codebook in found.items()}, f"{results}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.e2e
def test_statistics_are_summed_over_processes(tmp_path: Path) -> None:
    """Two processes with one row each hold what one process with both rows holds; first centres are one process's."""
    keys, centres = torch.randn(2, 30, 3), torch.randn(5, 3)
    mp.spawn(_process, args=(f"file://{tmp_path}/rendezvous", keys, centres, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, states in first.items():
        assert all(torch.equal(value, second[name][buffer]) for buffer, value in states.items())
    alone = Codebook(5, 3, std=1.0, decay=0.9)
    alone.total.copy_(centres)
    alone.updates += 1
    alone(keys)
    assert torch.allclose(alone.count, first["given"]["count"], atol=1e-6)
    assert torch.allclose(alone.total, first["given"]["total"], atol=1e-6)


# attention


@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("file", ATTENTION_FILES)
def test_attention_parity(data: Path, file: str, double: bool) -> None:
    arrays = load(data, f"vq_attn_{file}")
    function, causal, window = file.split("_")[0], "causal" in file, int(arrays["in_window"])
    assert int(arrays["in_block"]) == window
    attention = QuantisedAttention(
        4, 6, 24, window, causal=causal, function=function, codebook=codebook_of(arrays),  # type: ignore[arg-type]
        local_bias="nobias" not in file, qk_norm=False,
    )  # fmt: skip
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
    quantised = codebook_of(arrays).eval()(k.requires_grad_(), valid)
    y = attend_quantised(
        q * scale, quantised.keys, v, block=24, causal=causal, function=function, bias=bias, valid=valid  # type: ignore[arg-type]
    )  # fmt: skip
    check_close(y, arrays["out_y"], OUTPUT[True])
    (y * torch.from_numpy(arrays["in_G"])).sum().backward()
    check_close(k.grad, arrays["grad_k_straight_through"], GRADIENT[True])


def test_code_mean_parity(data: Path) -> None:
    """All keys far: queries in the first block, keys in the third."""
    arrays = load(data, "vq_codemean_gradient")
    q, k, v = (torch.from_numpy(arrays[f"in_{name}"]) for name in "qkv")
    k.requires_grad_()
    quantised = codebook_of(arrays).eval()(k)
    nothing = torch.zeros(2, 48, 4, dtype=torch.float64)
    y = attend_quantised(
        torch.cat([q * 0.5, nothing], 1),
        torch.cat([nothing, quantised.keys], 1),
        torch.cat([torch.zeros(2, 48, 6, dtype=torch.float64), v], 1),
        torch.cat([torch.zeros(2, 48, dtype=torch.int64), quantised.codes], 1),
        quantised.centres,
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
    assert files == {"vq_quantise", "vq_codemean_gradient", *(f"vq_attn_{file}" for file in ATTENTION_FILES)}


@settings(max_examples=60, deadline=None)
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
    attention = QuantisedAttention(
        2, 1, length, 8, causal=True, function="softmax", codebook=codebook, local_bias=False
    )
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
    codebook = Codebook(codes, 4, std=1.0).double().eval() if codes else None
    attention = QuantisedAttention(
        4, 6, 31, 4, causal=True, function=function, codebook=codebook, qk_norm=qk_norm
    ).double()  # fmt: skip
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
