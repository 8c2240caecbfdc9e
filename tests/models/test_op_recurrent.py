"""The recurrent ops, compared with reference arrays and with their plain loops; padding, state and autocast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from modern import arrays, check_outputs, plain_short_conv
from parity import check_streaming, gap
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models import lstm, xlstm
from lrtasks.models.ops import decay, loops, scans
from lrtasks.models.ops import delta_rule as delta
from lrtasks.models.ops.layers import ShortConv

B, H, K, V = 2, 3, 4, 5
Inputs = dict[str, Tensor]
KINDS = ("random", "constant", "strong", "mixed", "equal keys")


def log_decay(kind: str, *shape: int) -> Tensor:
    """g <= 0: about -1; 0; -20; either of the last two by chance."""
    if kind in ("constant", "equal keys"):
        return torch.zeros(shape)
    if kind == "strong":
        return torch.full(shape, -20.0)
    g = F.logsigmoid(torch.randn(shape))
    return torch.where(torch.rand(shape) < 0.3, torch.tensor(-20.0), g) if kind == "mixed" else g


def keys(kind: str, length: int) -> Tensor:
    """Of length 1; one and the same everywhere for ``equal keys``."""
    k = torch.randn(B, length, H, K)
    return F.normalize(k[:, :1].expand_as(k) if kind == "equal keys" else k, dim=-1)


def heads(kind: str, length: int) -> Inputs:
    return {"q": torch.randn(B, length, H, K), "k": keys(kind, length), "v": torch.randn(B, length, H, V)}


def scalar_inputs(kind: str, length: int) -> Inputs:
    return heads(kind, length) | {"g": log_decay(kind, B, length, H)}


def shared_inputs(kind: str, length: int) -> Inputs:
    q, k = torch.randn(B, length, 1, K), keys(kind, length)[:, :, :1]
    return scalar_inputs(kind, length) | {"q": q, "k": k}


def channel_inputs(kind: str, length: int) -> Inputs:
    return heads(kind, length) | {"g": log_decay(kind, B, length, H, K)}


def strength(kind: str, length: int) -> Tensor:
    beta = 2 * torch.randn(B, length, H).sigmoid()
    return torch.full_like(beta, 1.99) if kind == "equal keys" else beta


def delta_inputs(kind: str, length: int) -> Inputs:
    return scalar_inputs(kind, length) | {"beta": strength(kind, length)}


def kda_inputs(kind: str, length: int) -> Inputs:
    return channel_inputs(kind, length) | {"beta": strength(kind, length)}


def product_inputs(kind: str, length: int) -> Inputs:
    k, beta, v = keys(kind, 3 * length), strength(kind, 3 * length), torch.randn(B, 3 * length, H, V)
    return scalar_inputs(kind, length) | {"k": k, "v": v, "beta": beta}


def low_rank_inputs(kind: str, length: int) -> Inputs:
    kk = keys(kind, length)
    a = torch.full_like(kk, 1.99) if kind == "equal keys" else torch.randn(kk.shape).sigmoid()
    rest = {"r": torch.randn(kk.shape), "w": log_decay(kind, *kk.shape), "k": torch.randn(kk.shape)}
    return rest | {"v": torch.randn(B, length, H, V), "a": -kk, "b": kk * a}


def mlstm_inputs(kind: str, length: int) -> Inputs:
    i = {"strong": torch.full((B, length, H), -40.0), "mixed": torch.randn(B, length, H)}
    i["mixed"] += 40 * i["mixed"].sign()  # two equal ones would leave open which of them the maximum's gradient meets
    f = torch.randn(B, length, H) * (20 if kind == "mixed" else 1) - (20 if kind == "strong" else 0)
    inputs = heads(kind, length) | {"i": i.get(kind, torch.randn(B, length, H)), "f": f}
    if kind == "mixed":  # all products positive: a normaliser near 0 would magnify every rounding
        inputs["q"], inputs["k"] = inputs["q"].abs(), inputs["k"].abs()
    return inputs


def selective_inputs(kind: str, length: int) -> Inputs:
    dt = {"constant": 0.0, "strong": 20.0}.get(kind)
    u, B_, C = torch.randn(B, length, V), torch.randn(B, length, K), torch.randn(B, length, K)
    steps = F.softplus(torch.randn(B, length, V)) if dt is None else torch.full((B, length, V), dt)
    return {"u": u, "dt": steps, "A": -torch.rand(V, K) * 4, "B": B_, "C": C}


@dataclass
class Op:
    """A recurrence, called with the inputs by name; what comes first tells the length."""

    inputs: Callable[[str, int], Inputs]
    fast: Callable[..., Any]
    chunk: int

    def loop(self, **inputs: Any) -> Any:
        return self.fast(**inputs, plain=True)


def in_chunks(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A matrix state by products of chunks, as on a GPU or with many threads, in place of the compiled loop."""

    def run(**inputs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loops, "MOST_THREADS", 0)
            return rule(**inputs)

    return run


OPS = {
    "scalar decay": Op(scalar_inputs, decay.scalar_decay, loops.BLOCK),
    "scalar decay in chunks": Op(scalar_inputs, in_chunks(decay.scalar_decay), decay.CHUNK),
    "scalar decay, shared keys": Op(shared_inputs, decay.scalar_decay, loops.BLOCK),
    "scalar decay, shared keys, in chunks": Op(shared_inputs, in_chunks(decay.scalar_decay), decay.CHUNK),
    "channel decay": Op(channel_inputs, decay.channel_decay, loops.BLOCK),
    "channel decay in chunks": Op(channel_inputs, in_chunks(decay.channel_decay), decay.CHUNKS[0]),
    "gated delta": Op(delta_inputs, delta.delta_rule, loops.BLOCK),
    "gated delta in chunks": Op(delta_inputs, in_chunks(delta.delta_rule), delta.CHUNK),
    "delta product": Op(product_inputs, delta.delta_rule, loops.BLOCK),
    "delta product in chunks": Op(product_inputs, in_chunks(delta.delta_rule), delta.CHUNK),
    "kda": Op(kda_inputs, delta.delta_rule, loops.BLOCK),
    "kda in chunks": Op(kda_inputs, in_chunks(delta.delta_rule), delta.CHUNK),
    "low rank": Op(low_rank_inputs, delta.low_rank_rule, loops.BLOCK),
    "low rank in chunks": Op(low_rank_inputs, in_chunks(delta.low_rank_rule), delta.LOW_RANK_CHUNKS[0]),
    "mlstm": Op(mlstm_inputs, xlstm.mlstm, xlstm.CHUNK),
    "selective scan": Op(selective_inputs, scans.selective_scan, scans.BLOCK),
}


def draw(op: str, kind: str, length: int, dtype: torch.dtype) -> Inputs:
    torch.manual_seed(length)
    return {name: value.to(dtype) for name, value in OPS[op].inputs(kind, length).items()}


def with_gradients(function: Callable[..., Any], inputs: Inputs, cotangent: Tensor) -> list[Tensor]:
    """y, the state (of a stabilised memory with its scale taken out) and the gradients of sum(cotangent * y)."""
    given = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    y, state = function(**given)
    (y * cotangent.to(y.dtype)).sum().backward()
    state = state[0] if isinstance(state, tuple) else state
    return [y.detach(), state.detach(), *(value.grad for value in given.values() if value.grad is not None)]


def largest_gap(found: list[Tensor], wanted: list[Tensor]) -> float:
    return max(gap(a, b) for a, b in zip(found, wanted, strict=True))


def gradient_gap(found: list[Tensor], wanted: list[Tensor], kind: str) -> float:
    """Of each its own scale; one for all where some are nothing but rounding: exp(-20), or a saturated gate."""
    if kind not in ("strong", "mixed"):
        return largest_gap(found, wanted)
    return gap(*(torch.cat([value.flatten().double() for value in values]) for values in (found, wanted)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_chunked_equals_the_loop(op: str, kind: str) -> None:
    """Values, states and gradients, around multiples of the chunk; for hard decays and keys, past two chunks."""
    chunk = OPS[op].chunk
    for length in (1, 2, chunk - 1, chunk, chunk + 1, 2 * chunk + 1)[0 if kind == "random" else -1 :]:
        inputs = draw(op, kind, length, torch.float64)
        cotangent = torch.randn_like(OPS[op].fast(**inputs)[0])
        wanted = with_gradients(OPS[op].loop, inputs, cotangent)
        y, state, *gradients = with_gradients(OPS[op].fast, inputs, cotangent)
        assert largest_gap([y, state], wanted[:2]) < 1e-9, length
        assert gradient_gap(gradients, wanted[2:], kind) < 1e-9, length
    single = {name: value.float() for name, value in inputs.items()}
    assert all(torch.equal(value.double(), inputs[name]) for name, value in single.items())  # drawn in float32
    y, state, *gradients = with_gradients(OPS[op].fast, single, cotangent)
    assert largest_gap([y, state], wanted[:2]) < 2e-5
    assert gradient_gap(gradients, wanted[2:], kind) < 2e-4


@pytest.mark.parametrize(("d_key", "d_value"), [(16, 48), (40, 20)])
def test_the_loop_of_the_delta_rules_takes_any_width(d_key: int, d_value: int) -> None:
    """Heads of several vectors of the loop, whole or padded."""
    torch.manual_seed(0)
    length = 2 * loops.BLOCK + 1
    r, k, a, b = (0.2 * torch.randn(B, length, H, d_key, dtype=torch.float64) for _ in range(4))
    w, v = F.logsigmoid(torch.randn_like(r)), torch.randn(B, length, H, d_value, dtype=torch.float64)
    inputs = {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b, "state": torch.randn(B, H, d_key, d_value).double()}
    cotangent = torch.randn_like(v)
    wanted = with_gradients(partial(delta.low_rank_rule, plain=True), inputs, cotangent)
    assert largest_gap(with_gradients(delta.low_rank_rule, inputs, cotangent), wanted) < 1e-12


@pytest.mark.parametrize("op", OPS)
def test_padding_writes_nothing_and_decays_nothing(op: str) -> None:
    """Padding anywhere leaves the outputs and the state as if only the valid positions stood there."""
    length, valid = 83, torch.rand(83, generator=torch.Generator().manual_seed(0)) < 0.7
    inputs = draw(op, "random", length, torch.float64)
    mask = valid.expand(B, length)
    kept = {
        name: torch.unflatten(value, 1, (length, -1))[:, valid].flatten(1, 2) if len(value) == B else value
        for name, value in inputs.items()
    }
    for function in (OPS[op].fast, OPS[op].loop):
        y, state = function(**inputs, mask=mask)
        wanted_y, wanted_state = OPS[op].fast(**kept)
        pairs = [(y[:, valid], wanted_y), *zip(flat(state), flat(wanted_state), strict=True)]
        assert max(gap(a, b) for a, b in pairs) < 1e-12


def flat(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


@pytest.mark.parametrize("op", OPS)
def test_the_state_goes_on_where_it_stopped(op: str) -> None:
    length, cut = 83, 41
    inputs = draw(op, "random", length, torch.float64)
    whole, end = OPS[op].fast(**inputs)

    def part(first: int, last: int) -> Inputs:
        return {
            name: torch.unflatten(value, 1, (length, -1))[:, first:last].flatten(1, 2) if len(value) == B else value
            for name, value in inputs.items()
        }

    y, middle = OPS[op].fast(**part(0, cut))
    further, state = OPS[op].fast(**part(cut, length), state=middle)
    assert gap(torch.cat((y, further), 1), whole) < 1e-12
    assert all(gap(a, b) < 1e-12 for a, b in zip(flat(state), flat(end), strict=True))
    if isinstance(middle, Tensor):
        start = middle.requires_grad_()
        for which in (0, 1):  # outputs, last state
            results = (form(**part(cut, length), state=start)[which].sum() for form in (OPS[op].fast, OPS[op].loop))
            assert gap(*(torch.autograd.grad(result, start)[0] for result in results)) < 1e-12


@pytest.mark.parametrize("op", OPS)
def test_autocast_changes_nothing(op: str) -> None:
    inputs = draw(op, "random", 70, torch.float32)
    wanted = OPS[op].fast(**inputs)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = OPS[op].fast(**inputs)[0]
    assert torch.equal(found, wanted)
    rounded = {name: value.bfloat16() for name, value in inputs.items()}
    assert OPS[op].fast(**rounded)[0].dtype == torch.float32


@pytest.mark.parametrize("strength", [0.5, 5.0, 50.0])
def test_decays_of_any_strength_stay_finite(strength: float) -> None:
    """The single product where it is safe, sub-blocks where it would overflow: gradients too."""
    torch.manual_seed(0)
    inputs = channel_inputs("random", 200) | {"g": -strength * torch.rand(B, 200, H, K)}
    inputs = {name: value.double() for name, value in inputs.items()}
    cotangent = torch.randn(B, 200, H, V).double()
    wanted = with_gradients(partial(decay.channel_decay, plain=True), inputs, cotangent)
    single = {name: value.float() for name, value in inputs.items()}
    found = with_gradients(in_chunks(decay.channel_decay), single, cotangent)
    assert all(value.isfinite().all() for value in found)
    assert largest_gap(found, wanted) < 3e-5


@pytest.mark.parametrize(
    "op", ["scalar decay", "scalar decay in chunks", "channel decay", "channel decay in chunks", "kda", "kda in chunks"]
)
def test_gradients_of_strong_decays_keep_their_digits(op: str) -> None:
    """Where exp(g) is small, so is its gradient: no large numbers may cancel in it, in float32 either."""
    for strength, length in ((5.0, 70), (20.0, 3)):
        inputs = draw(op, "random", length, torch.float64)
        inputs["g"] = -strength + torch.rand_like(inputs["g"])
        cotangent = torch.randn(B, length, H, V)
        loop = lambda op=op, **given: OPS[op].loop(**given)[0]  # noqa: E731
        results = []
        for dtype, run in ((torch.float64, loop), (torch.float32, lambda op=op, **given: OPS[op].fast(**given)[0])):
            given = {name: value.to(dtype) for name, value in inputs.items()} | {
                "g": inputs["g"].to(dtype, copy=True).requires_grad_()
            }
            results.append(torch.autograd.grad((run(**given) * cotangent).sum(), given["g"])[0])
        assert gap(results[1], results[0]) < 3e-6


@pytest.mark.parametrize("form", ["sequential", "blocks", None])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 100])
def test_diagonal_scan_equals_the_loop(length: int, dtype: torch.dtype, form: scans.Form | None) -> None:
    torch.manual_seed(length)
    a = torch.randn(B, length, V, dtype=dtype)
    a = a / a.abs() * torch.rand(B, length, V)
    given = [a.to(dtype), torch.randn(B, length, V, dtype=dtype), torch.randn(B, V, dtype=dtype)]
    cotangent = torch.randn(B, length, V, dtype=dtype)
    results = []
    for used in ("plain", form):
        leaves = [value.clone().requires_grad_() for value in given]
        y = scans.diagonal_scan(*leaves, form=used)  # type: ignore[arg-type]
        (y * cotangent).sum().abs().backward()
        results.append([y.detach(), *(value.grad for value in leaves)])
    at_most = 2e-6 if dtype == torch.float32 else 1e-12
    for found, wanted in zip(*reversed(results), strict=True):
        assert float((found - wanted).abs().max() / wanted.abs().max()) < at_most


def test_diagonal_scan_by_constants_and_without_a_start() -> None:
    """A decay without batch and length, real against complex, as LRU has it."""
    torch.manual_seed(0)
    a, b = torch.rand(V, dtype=torch.float64, requires_grad=True), torch.randn(B, 20, V, dtype=torch.complex128)
    h = scans.diagonal_scan(a, b)
    (of_a,) = torch.autograd.grad(h.abs().sum(), a)
    wanted = scans.diagonal_scan(a, b, form="plain")
    (wanted_of_a,) = torch.autograd.grad(wanted.abs().sum(), a)
    assert torch.allclose(h, wanted, atol=1e-12) and gap(of_a, wanted_of_a) < 1e-12


@pytest.mark.parametrize("largest_state", [loops.LARGEST_STATE, 0], ids=["compiled", "torch"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize(("dtype", "at_most"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_slstm_equals_the_loop(
    length: int,
    masked: bool,
    largest_state: int,
    dtype: torch.dtype,
    at_most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "LARGEST_STATE", largest_state)
    torch.manual_seed(length)
    x_if, x_zo = torch.randn(2, B, length, H, 2, K) * 5
    bias, R = torch.randn(H, 4, K) * 5, torch.randn(H, 4, K, K)
    mask = torch.rand(B, length) < 0.7 if masked else None
    cotangent = torch.randn(B, length, H, K)
    results = []
    for plain in (False, True):
        computed = torch.float64 if plain else dtype
        leaves = [value.to(computed, copy=True).requires_grad_() for value in (x_if, x_zo, bias, R)]
        y = xlstm.slstm(*leaves, mask, plain=plain)
        (y * cotangent).sum().backward()
        results.append([y.detach(), *(value.grad for value in leaves)])
    assert largest_gap(*results) < at_most


@pytest.mark.parametrize("scale", [1, 300])
@pytest.mark.parametrize("length", [2, 40])
@pytest.mark.parametrize(("dtype", "at_most"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_gru_equals_torch(
    length: int, scale: int, dtype: torch.dtype, at_most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gradients of the input, of the initial state and of the weights; gates that saturate stay finite."""
    torch.manual_seed(length)
    rnn = torch.nn.GRU(K, V, batch_first=True).to(dtype)
    x, state = torch.randn(B, length, K).to(dtype) * scale, torch.randn(1, B, V).to(dtype)
    cotangent, of_last = torch.randn(B, length, V).to(dtype), torch.randn(1, B, V).to(dtype)
    results = []
    for largest_state in (loops.LARGEST_STATE, 0):
        monkeypatch.setattr(loops, "LARGEST_STATE", largest_state)
        leaves = x.clone().requires_grad_(), state.clone().requires_grad_()
        y, last = lstm.gru(rnn, *leaves)
        gradients = torch.autograd.grad((y * cotangent).sum() + (last * of_last).sum(), (*leaves, *rnn.parameters()))
        results.append([y.detach(), last.detach(), *gradients])
    assert all(value.isfinite().all() for value in results[0])
    assert largest_gap(*results) < at_most


@pytest.mark.parametrize("rule", [delta.low_rank_rule, in_chunks(delta.low_rank_rule)], ids=["loop", "chunks"])
def test_gradients_of_a_delta_rule_with_a_state(rule: Callable[..., Any]) -> None:
    """Of outputs and last state, with respect to all inputs and the first state."""
    torch.manual_seed(0)
    r, w, k, a, b = (torch.randn(1, 18, 1, 2).double().requires_grad_() for _ in range(5))
    v, S = torch.randn(1, 18, 1, 3).double().requires_grad_(), torch.randn(1, 1, 2, 3).double().requires_grad_()
    names = ("r", "w", "k", "v", "a", "b", "state")
    inputs = (r, w, k, v, a, b, S)

    def run(r: Tensor, w: Tensor, *rest: Tensor) -> Any:
        return rule(**dict(zip(names, (r, F.logsigmoid(w), *(x / 2 for x in rest)), strict=True)))

    assert torch.autograd.gradcheck(run, inputs)


def test_delta_rules_use_the_loop_with_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw("gated delta", "random", 20, torch.float32)
    used = []
    monkeypatch.setattr(loops, "low_rank_forward", lambda *arrays: used.append(len(arrays)))
    for threads in (1, loops.MOST_THREADS, loops.MOST_THREADS + 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        delta.delta_rule(**inputs)
    assert len(used) == 2


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("length", [2, 15, 16, 17, 40])
def test_the_compiled_selective_scan_equals_the_loop(length: int, negative: bool) -> None:
    """In float32, with gradients of both states, for steps from 0 to such that exponentials underflow."""
    inputs = draw("selective scan", "random", length, torch.float32) | {"state": torch.randn(B, V, K)}
    inputs["dt"] *= torch.tensor([0, 1, 1, 5, 100])
    cotangent, of_state = torch.randn(B, length, V), torch.randn(B, V, K)
    results = []
    for dtype, plain in ((torch.float32, False), (torch.float64, True)):
        given = {name: value.to(dtype, copy=True).requires_grad_() for name, value in inputs.items()}
        y, state = scans.selective_scan(**given, negative=negative, plain=plain)
        gradients = torch.autograd.grad((y * cotangent).sum() + (state * of_state).sum(), list(given.values()))
        results.append([y.detach(), state.detach(), *gradients])
    assert largest_gap(*results) < 2e-5


def test_compiled_exponentials() -> None:
    """To the last bit but one; infinite where they overflow, almost 0 where they underflow; a NaN stays a NaN."""
    for x in torch.linspace(-87.3, 88.3, 2001).numpy():
        true = math.exp(x)
        assert abs(loops._exp(x) - true) <= 2 * np.spacing(np.float32(true))
    found = [loops._exp(np.float32(x)) for x in (0, -1e9, -math.inf, 1e9, math.inf, math.nan)]
    assert found[0] == 1 and 0 <= found[1] == found[2] < 1e-37 and found[3] == found[4] == math.inf
    assert math.isnan(found[5])


def test_negative_transitions_of_the_selective_scan() -> None:
    inputs = draw("selective scan", "random", 130, torch.float64) | {"negative": True}
    cotangent = torch.randn(B, 130, V).double()
    negative = {"negative": True}
    given = {name: value for name, value in inputs.items() if name != "negative"}
    results = [
        with_gradients(lambda f=function, **x: f(**x, **negative), given, cotangent)  # type: ignore[misc]
        for function in (scans.selective_scan, partial(scans.selective_scan, plain=True))
    ]
    assert largest_gap(*results) < 1e-9
    # an exponential near 0 turns the sign of the state at every position
    big = torch.full((1, 3, 1), 50.0).double()
    one = torch.ones(1, 3, 1).double()
    y, _ = scans.selective_scan(
        one * torch.tensor([1.0, 0, 0]).view(1, 3, 1), big, -torch.ones(1, 1).double(), one, one, negative=True
    )
    assert y.flatten().tolist() == pytest.approx([50, -50, 50])


def scaled(q: Tensor) -> Tensor:
    return q * q.shape[-1] ** -0.5


def swapped(x: Tensor) -> Tensor:
    """``(B, H, L, .)`` to ``(B, L, H, .)`` and back."""
    return x.transpose(1, 2)


def retention(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    q, k, v = (swapped(x[name]) for name in "qkv")
    g = torch.log1p(-(2.0 ** (-5 - torch.arange(q.shape[2], dtype=torch.float64)))).to(q).expand(q.shape[:3])
    return (swapped(op(scaled(q), k, v, g)[0]),)


def linear_attention(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    y, S = op(scaled(x["q"]), x["k"], x["v"], x["q"].new_zeros(x["q"].shape[:3]), x["S0"])
    return y, S


def normalised_linear_attention(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    values = F.pad(x["v"], (0, 1), value=1.0)
    y, _ = op(scaled(x["q"]), x["k"], values, x["q"].new_zeros(x["q"].shape[:3]))
    return (y[..., :-1] / (y[..., -1:] + 1e-10),)


def delta_array(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    y, S = op(scaled(x["q"]), x["k"], x["v"], x["beta"], x.get("g"), x["S0"])
    return y, S


def mamba(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    u, delta, B_, C, z = (x[name].mT for name in ("u", "delta", "B", "C", "z"))
    y, h = op(u, F.softplus(delta + x["delta_bias"]), x["A"], B_, C)
    return ((y + x["D"] * u) * F.silu(z)).mT, h


def mamba2(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    dt = F.softplus(x["dt"] + x["dt_bias"])
    y, _ = op(x["C"], x["B"], x["x"] * dt.unsqueeze(-1), x["A"] * dt)
    return (y + x["D"].unsqueeze(-1) * x["x"],)


def mlstm_array(x: Inputs, op: Callable[..., Any]) -> tuple[Tensor, ...]:
    q, k, v, i, f = (swapped(x[name]) for name in "qkvif")
    return (swapped(op(q, k, v, i.squeeze(-1), f.squeeze(-1))[0]),)


def convolution(x: Inputs, residual: bool) -> tuple[Tensor, ...]:
    layer = ShortConv(x["x"].shape[-1], silu=not residual, residual=residual)
    return (torch.func.functional_call(layer, {"weight": x["weight"]}, x["x"]),)


ARRAYS = {
    "op_simple_gla_a": (lambda x, op: op(scaled(x["q"]), x["k"], x["v"], x["g"], x["S0"]), decay.scalar_decay),
    "op_gla_a": (lambda x, op: op(scaled(x["q"]), x["k"], x["v"], x["gk"], x["S0"]), decay.channel_decay),
    "op_retention_a": (retention, decay.scalar_decay),
    "op_linear_attn_a": (linear_attention, decay.scalar_decay),
    "op_linear_attn_normalized_a": (normalised_linear_attention, decay.scalar_decay),
    "op_delta_neg_a": (delta_array, delta.delta_rule),
    "op_gated_delta_neg_a": (delta_array, delta.delta_rule),
    "op_kda_a": (delta_array, delta.delta_rule),
    "op_gated_delta_product_a": (
        lambda x, op: op(x["q"], x["k"], x["v"], x["beta"], x["g"], x["S0"]),
        delta.delta_rule,
    ),
    "op_rwkv7_a": (lambda x, op: op(*(x[name] for name in "rwkvab"), x["S0"]), delta.low_rank_rule),
    "op_mamba_a": (mamba, scans.selective_scan),
    "op_mamba2_a": (mamba2, decay.scalar_decay),
    "op_mlstm_a": (mlstm_array, xlstm.mlstm),
    "op_short_conv_silu_a": (lambda x, _: convolution(x, residual=False), ShortConv),
    "op_canon_a": (lambda x, _: convolution(x, residual=True), ShortConv),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("most_threads", [loops.MOST_THREADS, 0])
def test_reference_arrays(name: str, most_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MOST_THREADS", most_threads)
    found = arrays(name)
    call, fast = ARRAYS[name]
    for op, dtype in ((partial(fast, plain=True), torch.float64), (fast, torch.float64), (fast, torch.float32)):
        check_outputs(found, lambda x, op=op: call(x, op), dtype, ("y", "state"))  # type: ignore[misc]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_short_convolutions_stream(bias: bool, residual: bool, silu: bool) -> None:
    torch.manual_seed(0)
    layer = ShortConv(V, bias=bias, silu=silu, residual=residual).double()
    x = torch.randn(B, 9, V).double()
    check_streaming(layer, x, 1e-12)
    assert layer.parameter_options() == {name: {"weight_decay": 0.0} for name, _ in layer.named_parameters()}
    plain = plain_short_conv(x, layer.weight, layer.bias)
    plain = F.silu(plain) if silu else plain
    assert gap(layer(x), (x + plain if residual else plain).detach()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_short_convolutions_are_those_of_torch(dtype: torch.dtype) -> None:
    """Values and gradients; the channels lie side by side, as fast attention needs them."""
    torch.manual_seed(0)
    layer = ShortConv(V, bias=True).to(dtype)
    x, weights = torch.randn(B, 9, V, dtype=dtype), torch.randn(B, 9, V)

    def results(of: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        y = of(x)
        layer.zero_grad()
        (y * weights.to(y)).sum().backward()
        return [value.double() for value in (y.detach(), x.grad, layer.weight.grad, layer.bias.grad)]  # type: ignore[union-attr]

    found = results(layer, x)
    assert layer(x).stride(-1) == 1
    layer.double()
    expected = results(lambda x: F.silu(plain_short_conv(x, layer.weight, layer.bias)), x.double())
    assert max(map(gap, found, expected)) < {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}[dtype]
