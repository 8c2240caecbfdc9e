"""The kernels of flash-linear-attention: their inputs, when they are not used and, on a GPU, their results."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.models.ops import fla
from lrtasks.models.ops.decay import channel_decay, scalar_decay
from lrtasks.models.ops.delta_rule import delta_rule, low_rank_rule

B, L, H, K, V = 2, 9, 4, 16, 32


def loop(q: Tensor, k: Tensor, v: Tensor, erase: Callable[..., Tensor], g: Tensor, scale: float, start: Tensor) -> Any:
    """S <- exp(g) S, then S <- erase(S), then S <- S + k v^T; y = scale S^T q: all that the kernels have in common."""
    S, y = start.clone(), []
    for t in range(q.shape[1]):
        S = erase(g[:, t].exp()[..., None] * S, S, t)
        S = S + k[:, t, :, :, None] * v[:, t, :, None]
        y.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], S))
    return torch.stack(y, 1), S


def read(S: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("bhk,bhkv->bhv", k, S).unsqueeze(-2)


def decays(q, k, v, g=None, scale=None, initial_state=None, output_final_state=False):  # type: ignore[no-untyped-def]
    assert output_final_state
    g = g if g.dim() == 4 else g[..., None].expand_as(k)
    return loop(q, k, v, lambda S, *_: S, g, scale or K**-0.5, initial_state)


def deltas(  # type: ignore[no-untyped-def]
    q, k, v, g=None, beta=None, scale=None, initial_state=None, output_final_state=False, num_householder=1
):
    assert output_final_state
    n = num_householder
    g = q.new_zeros(q.shape[:3]) if g is None else g
    g = g if g.dim() == 4 else g[..., None].expand(*g.shape, K)
    g = torch.stack([g] + [torch.zeros_like(g)] * (n - 1), 2).flatten(1, 2)
    beta = beta[..., None]
    y, S = loop(
        q.repeat_interleave(n, 1),
        k,
        beta * v,
        lambda S, _, t: S - beta[:, t, ..., None] * k[:, t, ..., None] * read(S, k[:, t]),
        g,
        scale or K**-0.5,
        initial_state,
    )
    return y[:, n - 1 :: n], S


def rwkv7(r, w, k, v, a, b, scale=1.0, initial_state=None, output_final_state=False):  # type: ignore[no-untyped-def]
    assert output_final_state
    return loop(r, k, v, lambda S, old, t: S + b[:, t, ..., None] * read(old, a[:, t]), w, scale, initial_state)


KERNELS = {
    "simple_gla": ("chunk_simple_gla", decays),
    "gla": ("chunk_gla", decays),
    "gated_delta_rule": ("chunk_gated_delta_rule", deltas),
    "kda": ("chunk_kda", deltas),
    "gated_delta_product": ("chunk_gated_delta_product", deltas),
    "rwkv7": ("chunk_rwkv7", rwkv7),
}


@pytest.fixture(autouse=True)
def imported_anew() -> None:
    """Let each test decide whether the package can be imported, and which Triton there is."""
    fla._import_problem.cache_clear()
    fla._triton_problem.cache_clear()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A package ``fla`` whose kernels are loops on the CPU; the list says which were called."""
    called: list[str] = []

    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    module("fla"), module("fla.ops")
    for name, (function, kernel) in KERNELS.items():

        def noted(kernel: Any = kernel, name: str = name, **given: Any) -> Any:
            called.append(name)
            assert all(
                given[gate].dtype == torch.float32 for gate in ("g", "w", "beta", "initial_state") if gate in given
            )
            return kernel(**{key: x.float() if isinstance(x, Tensor) else x for key, x in given.items()})

        setattr(module(f"fla.ops.{name}"), function, noted)
    monkeypatch.setattr(fla, "DEVICES", ("cpu", "cuda"))
    return called


def inputs(op: Any, *, n_h: int = 1, gate: str = "head", groups: int = H, device: str = "cpu") -> list[Tensor | None]:
    torch.manual_seed(0)
    q, k, v = torch.randn(B, L, groups, K), torch.randn(B, L * n_h, groups, K), torch.randn(B, L * n_h, H, V)
    g: Tensor | None = -torch.rand(B, L, H, *([K] if gate == "channel" else []))
    found: list[Tensor | None]
    if op is low_rank_rule:
        erased = F.normalize(k, dim=-1)
        found = [q, -torch.rand(B, L, H, K), k, v, -erased, erased * torch.rand(B, L, H, K)]
    elif op is delta_rule:
        found = [q, F.normalize(k, dim=-1), v, 2 * torch.rand(B, L * n_h, H), None if gate == "none" else g]
    else:
        found = [q, k, v, g]
    half = op is low_rank_rule or n_h > 1  # kernels that take bfloat16 alone
    return [x if x is None else x.to(device, torch.bfloat16 if half else x.dtype) for x in found]


CASES: list[tuple[str, Any, dict[str, Any]]] = [
    ("simple_gla", scalar_decay, {}),
    ("simple_gla", scalar_decay, {"groups": 2}),
    ("gla", channel_decay, {"gate": "channel"}),
    ("gated_delta_rule", delta_rule, {"gate": "none"}),
    ("gated_delta_rule", delta_rule, {}),
    ("kda", delta_rule, {"gate": "channel"}),
    ("gated_delta_product", delta_rule, {"n_h": 2}),
    ("gated_delta_product", delta_rule, {"n_h": 2, "gate": "none"}),
    ("rwkv7", low_rank_rule, {}),
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "op", "options"), CASES)
def test_kernels_are_given_what_the_op_defines(
    stand_in: list[str], name: str, op: Any, options: dict[str, Any], padded: bool
) -> None:
    found, state = inputs(op, **options), torch.randn(B, H, K, V)
    mask = torch.arange(L) < torch.tensor([[L], [L - 3]]) if padded else None
    y, S = fla.on("auto", op)(*found, state=state, mask=mask)
    expected, end = op(*found, state=state, mask=mask)
    assert stand_in == [name]
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(S, end, rtol=1e-4, atol=1e-4)


def test_one_position_and_op_backend_torch_use_no_kernel(stand_in: list[str]) -> None:
    q, k, v, g = inputs(channel_decay, gate="channel")
    fla.on("torch", channel_decay)(q, k, v, g)
    fla.on("auto", channel_decay)(*(x[:, :1] for x in (q, k, v, g) if x is not None))
    assert stand_in == []


@pytest.mark.parametrize(("op", "options"), [(low_rank_rule, {}), (delta_rule, {"n_h": 2})])
def test_kernels_for_bfloat16_alone_are_not_given_float32(
    stand_in: list[str], op: Any, options: dict[str, Any]
) -> None:
    found = [None if x is None else x.float() for x in inputs(op, **options)]
    with pytest.warns(UserWarning, match="does not take torch.float32"):
        y, _ = fla.on("auto", op)(*found)
    torch.testing.assert_close(y, op(*found)[0])
    assert stand_in == []


@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, K), (torch.float32, 12)])
def test_what_the_kernels_do_not_take_is_computed_by_torch_with_a_warning(
    stand_in: list[str], dtype: torch.dtype, width: int
) -> None:
    q, k, v, g = (x[..., :width].to(dtype) for x in inputs(channel_decay, gate="channel") if x is not None)
    with pytest.warns(UserWarning, match="flash-linear-attention is not used"):
        y, _ = fla.on("auto", channel_decay)(q, k, v, g)
    torch.testing.assert_close(y, channel_decay(q, k, v, g)[0])
    assert stand_in == []


@pytest.mark.parametrize(
    ("op", "gate", "capability", "triton", "kernel"),
    [
        (scalar_decay, "head", (9, 0), "3.6.0", False),
        (delta_rule, "none", (9, 0), "3.7.0+git1", False),
        (delta_rule, "head", (9, 0), "3.7.1", True),
        (delta_rule, "head", (9, 0), "3.3.1", True),
        (delta_rule, "head", (8, 0), "3.6.0", True),
        (channel_decay, "channel", (9, 0), "3.6.0", True),
    ],
)
def test_kernels_that_triton_compiles_wrongly_are_not_used(
    stand_in: list[str],
    monkeypatch: pytest.MonkeyPatch,
    op: Any,
    gate: str,
    capability: tuple[int, int],
    triton: str,
    kernel: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = ModuleType("triton")
    found.__dict__["__version__"] = triton
    monkeypatch.setitem(sys.modules, "triton", found)
    given, state = inputs(op, gate=gate), torch.randn(B, H, K, V)
    with nullcontext() if kernel else pytest.warns(UserWarning, match=f"Triton {re.escape(triton)}.*3\\.7\\.1"):
        y, _ = fla.on("auto", op)(*given, state=state)
    torch.testing.assert_close(y, op(*given, state=state)[0], rtol=1e-4, atol=1e-4)
    assert bool(stand_in) is kernel


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla, "DEVICES", ("cpu",))
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.warns(UserWarning, match="lrtasks\\[gpu\\]"):
        fla.on("auto", channel_decay)(*inputs(channel_decay, gate="channel"))


@pytest.mark.parametrize("model", ["deltanet", "gated-deltanet", "kda", "mamba2", "gla", "retnet", "rwkv7"])
def test_layers_use_their_kernels(stand_in: list[str], monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr(fla, "SINGLE", (*fla.SINGLE, "rwkv7"))
    task = lrtasks.make("shift", length=16, shifts=2)
    widths = {"gla": {"expand_k": 1.0}, "mamba2": {"head_dim": 16, "d_state": 16}}.get(model, {})
    made = lrtasks.build_model(model, task, d_model=64, **widths)
    x = torch.from_numpy(task.batch(range(2)).x)
    with torch.no_grad():
        by_kernel = made(x)
        assert stand_in
        fla_free = lrtasks.build_model(model, task, d_model=64, op_backend="torch", **widths)
        fla_free.load_state_dict(made.state_dict())
        torch.testing.assert_close(by_kernel, fla_free(x), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fla_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="op_backend=fla needs a GPU"):
        lrtasks.build_model("gla", lrtasks.make("shift", length=16), op_backend="fla")


@pytest.mark.skipif(not torch.cuda.is_available() or find_spec("fla") is None, reason="needs a GPU and lrtasks[gpu]")
@pytest.mark.filterwarnings("error:flash-linear-attention is not used")
@pytest.mark.parametrize(("name", "op", "options"), CASES)
def test_kernels_equal_torch_in_float64_on_a_gpu(name: str, op: Any, options: dict[str, Any]) -> None:
    if name in fla.GATED and (problem := fla._triton_problem()):
        pytest.skip(problem)

    def run(run_op: Any, dtype: torch.dtype | None) -> list[Tensor]:
        given = [None if x is None else x.to(dtype or x.dtype) for x in inputs(op, device="cuda", **options)]
        leaves = [x if x is None else x.requires_grad_() for x in given]
        y, S = run_op(*leaves)
        (y.sin().sum() + S.sum()).backward()
        return [y.detach(), S.detach(), *(x.grad for x in leaves if x is not None and x.grad is not None)]

    differences = [
        float((ours.double() - exact).abs().max() / exact.abs().max())
        for ours, exact in zip(run(fla.on("fla", op), None), run(op, torch.float64), strict=True)
    ]
    print(f"{name} {options}: y, S, gradients differ by", *(f"{each:.1e}" for each in differences))
    bound = 2e-2 if name not in fla.SINGLE else 2e-3
    assert max(differences[:2]) < bound
    assert max(differences[2:]) < 2e-2
