"""The factored exponential kernel against its plain definition in float64: values, gradients, large positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from parity import gap
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lrtasks.models.ops import exponentials, loops, nonuniform
from lrtasks.models.ops.exponentials import Frequencies, block_size, exp_kernel

# (groups, rows, states, length); groups 0: one set of exponents shared by all rows
SHAPES = [
    (0, 1, 1, 1),
    (0, 3, 5, 7),
    (0, 2, 16, 64),
    (0, 5, 33, 1000),
    (0, 64, 8, 50),
    (0, 1, 3, 4097),
    (7, 1, 4, 129),
    (3, 2, 9, 300),
    (5, 4, 16, 2),
]
PARTS = ["complex", "real rates", "frequencies", "real weight"]


def plain(weight: Tensor, rate: Tensor | None, freq: Tensor | None, length: int) -> Tensor:
    """The definition: a table of all exponentials, in complex128."""
    pole = rate if rate is not None else freq
    zero = torch.zeros_like(pole, dtype=torch.float64)
    exponent = torch.complex(zero if rate is None else rate.double(), zero if freq is None else freq.double())
    table = torch.exp(exponent.unsqueeze(-1) * torch.arange(length, dtype=torch.float64))
    return (weight.to(torch.complex128) @ table).real


def draw(
    shape: tuple[int, int, int, int], parts: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    groups, rows, states, length = shape
    generator = torch.Generator().manual_seed(math.prod(shape) + rows)
    per = (groups, states) if groups else (states,)
    real = parts in ("real rates", "real weight")
    full = (groups, rows, states) if groups else (rows, states)
    weight = torch.randn(full, generator=generator, dtype=dtype if real else dtype.to_complex())
    rate = -3 / length * torch.rand(per, generator=generator, dtype=torch.float64)
    freq = 2 * math.pi * torch.rand(per, generator=generator, dtype=torch.float64)
    return weight, None if parts == "frequencies" else rate, None if parts == "real rates" else freq


def leaf(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().clone().requires_grad_()


def check(weight: Tensor, rate: Tensor | None, freq: Tensor | None, length: int, at_most: float) -> None:
    """Values and all gradients, relative to the largest of each."""
    inputs = [leaf(x) for x in (weight, rate, freq)]
    exact = [leaf(x) for x in (weight, rate, freq)]
    found, wanted = exp_kernel(*inputs, length), plain(*exact, length)
    assert found.dtype == weight.dtype.to_real()
    cotangent = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found.backward(cotangent.to(found.dtype))
    wanted.backward(cotangent)
    assert gap(found, wanted) <= at_most
    for name, a, b in zip(("weight", "rate", "freq"), inputs, exact, strict=True):
        if b is not None:
            ours, theirs = torch.view_as_real(a.grad + 0j), torch.view_as_real(b.grad + 0j)
            assert gap(ours, theirs) <= at_most, name


@pytest.mark.parametrize(("dtype", "at_most"), [(torch.float64, 1e-11), (torch.float32, 2e-6)])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", ["loops", "operations"])
def test_equals_the_plain_definition(
    form: str,
    shape: tuple[int, int, int, int],
    parts: str,
    dtype: torch.dtype,
    at_most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By products with tables from compiled loops, and with tables from operations of torch."""
    monkeypatch.setattr(loops, "MOST_THREADS", 1 << 10 if form == "loops" else 0)
    check(*draw(shape, parts, dtype), shape[-1], at_most)


@pytest.fixture
def always_nonuniform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exponentials, "SHORTEST_NONUNIFORM", 0)
    monkeypatch.setattr(nonuniform, "faster", lambda *_: True)


@pytest.mark.usefixtures("always_nonuniform")
class TestNonuniform:
    """Non-uniform transforms, in float32, against the definition."""

    @pytest.mark.parametrize("parts", ["complex", "frequencies"])
    @pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[-1] >= 50], ids=str)
    def test_equals_the_plain_definition(self, shape: tuple[int, int, int, int], parts: str) -> None:
        check(*draw(shape, parts, torch.float32), shape[-1], 2e-6)

    def test_real_weights(self) -> None:
        _, rate, freq = draw((0, 3, 40, 500), "complex", torch.float32)
        check(torch.randn(3, 40, generator=torch.Generator().manual_seed(0)), rate, freq, 500, 2e-6)

    @pytest.mark.parametrize("chunk", [100, 1 << 19])
    @pytest.mark.parametrize("shape", [(0, 3, 200, 3000), (4, 2, 70, 2053), (3, 1, 90, 100)], ids=str)
    def test_decays_of_all_sizes(
        self, shape: tuple[int, int, int, int], chunk: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From none over the whole length to nearly all over one position: every class, and what is left out of all."""
        monkeypatch.setattr(nonuniform, "CHUNK", chunk)
        weight, rate, freq = draw(shape, "complex", torch.float32)
        rate = -torch.logspace(-5, 1, rate.numel(), dtype=torch.float64).flip(0).reshape(rate.shape)
        rate[..., -1] = 0.0
        check(weight, rate, freq, shape[-1], 2e-6)

    def test_frequencies_at_the_ends_of_the_grid(self) -> None:
        freq = math.pi * torch.tensor(
            [0, 1e-9, 1e-3, 0.999, 1 - 1e-9, 1, 1 + 1e-9, 1.5, 2, -0.5, 7], dtype=torch.float64
        )
        weight = torch.randn(2, len(freq), dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        check(weight, torch.full_like(freq, -1e-3), freq, 1001, 2e-6)

    def test_phases_hold_to_a_million_positions(self) -> None:
        check(*draw((0, 2, 3, (1 << 20) - 777), "complex", torch.float32), (1 << 20) - 777, 1e-5)


def test_nonuniform_transforms_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(nonuniform, "nonuniform_kernel", lambda *inputs: used.append(inputs) or torch.zeros(1))
    weight, rate, freq = draw((0, 2, 2048, 4096), "complex", torch.float32)
    exp_kernel(weight, rate, freq, 4096)
    assert len(used) == 1
    double = weight.to(torch.complex128)
    for inputs in ((weight, rate, freq, 1023), (double, rate, freq, 4096), (weight, rate, None, 4096)):
        exp_kernel(*inputs)  # short, in float64, real
    assert len(used) == 1


def test_nonuniform_transforms_are_chosen_by_their_cost() -> None:
    def chosen(shape: tuple[int, int, int], decay: Tensor, length: int) -> bool:
        decay = decay.double().expand(shape[0], shape[2])
        return nonuniform.faster(shape, decay, torch.ones_like(decay), length)

    slow, broad = torch.tensor(5e-6), torch.logspace(-4, -1, 512)
    assert chosen((1, 32, 4096), slow, 4096)
    assert chosen((128, 1, 512), slow, 4096)
    assert not chosen((1, 32, 64), slow, 4096)  # few exponentials: a matrix product is less work
    assert not chosen((1, 32, 512), broad, 4096)  # many classes, with transforms of their own
    assert not chosen((1, 32, 4096), torch.tensor(-1e-9), 4096)  # grows
    assert not chosen((1, 32, 4096), torch.tensor(math.nan), 4096)  # diverged


def test_growing_and_diverged_kernels_are_evaluated() -> None:
    """Non-uniform transforms do not suit them, so that matrix products take over."""
    weight, rate, freq = draw((0, 4, 512, 2048), "complex", torch.float32)
    check(weight, -rate, freq, 2048, 2e-6)
    assert exp_kernel(weight, rate * math.nan, freq, 2048)[:, 1:].isnan().all()


@pytest.mark.parametrize("threads", [0, 1 << 10], ids=["operations", "loops"])
@pytest.mark.parametrize("shape", [(0, 6, 5, 64), (0, 2, 4, 30), (5, 2, 3, 100)], ids=str)
def test_small_chunks_give_the_same(
    shape: tuple[int, int, int, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "MOST_THREADS", threads)
    monkeypatch.setitem(exponentials.CHUNK, "cpu", 40)
    monkeypatch.setattr(exponentials, "CHUNK_OF_LOOPS", 300)
    check(*draw(shape, "complex", torch.float64), shape[-1], 1e-11)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loops_with_decays_of_all_sizes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers below the smallest normal number count as zero; some decay that fast within one position."""
    monkeypatch.setattr(loops, "MOST_THREADS", 1 << 10)
    monkeypatch.setattr(exponentials, "SHORTEST_NONUNIFORM", 1 << 40)
    weight, _, freq = draw((4, 2, 70, 2053), "complex", dtype)
    rate = -torch.logspace(-5, 3, 4 * 70, dtype=torch.float64).reshape(4, 70)
    check(weight, rate, freq, 2053, 1e-11 if dtype == torch.float64 else 2e-6)


def test_tables_of_loops_have_no_denormal_numbers() -> None:
    """Products with denormal numbers take several times as long."""
    decays = -torch.logspace(-3, 2, 32, dtype=torch.float64).unsqueeze(0)
    table = exponentials._powers(exponentials._base(decays, torch.ones_like(decays), 1), torch.empty(1, 3000, 64))
    sizes = table.abs()
    assert sizes.max() == 1
    assert ((sizes == 0) | (sizes >= torch.finfo(torch.float32).tiny)).all()


@pytest.mark.parametrize("shape", [(0, 2, 3, 1 << 20), (2, 1, 3, (1 << 20) - 777)], ids=str)
def test_phases_hold_to_a_million_positions(shape: tuple[int, int, int, int]) -> None:
    weight, rate, freq = draw(shape, "complex", torch.float32)
    check(weight, rate, freq, shape[-1], 1e-5)
    # the same in float32 throughout is what must not happen
    table = torch.exp(1j * freq.float().unsqueeze(-1) * torch.arange(shape[-1], dtype=torch.float32))
    assert gap((weight @ table).real, plain(weight, None, freq, shape[-1])) > 1e-2


def test_gradient_of_a_frequency_at_the_last_position() -> None:
    """d cos(q l)/dq = -l sin(q l): the factor l and the phase both count."""
    last = (1 << 20) - 1
    freq = torch.tensor([2.0 * math.pi * 1234 / 4096 + 1e-3], dtype=torch.float64, requires_grad=True)
    exp_kernel(torch.ones(1, 1, dtype=torch.complex64), None, freq, last + 1)[0, last].backward()
    assert freq.grad.item() == pytest.approx(-last * math.sin(freq.item() * last), rel=1e-5)


def test_imaginary_part_by_a_turned_weight() -> None:
    weight, rate, freq = draw((0, 3, 5, 40), "complex", torch.float64)
    table = torch.exp(torch.complex(rate, freq).unsqueeze(-1) * torch.arange(40))
    assert gap(exp_kernel(-1j * weight, rate, freq, 40), (weight @ table).imag) < 1e-12


@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("parts", PARTS)
def test_precision_holds_under_autocast_and_reduced_products(parts: str, length: int) -> None:
    weight, rate, freq = draw((0, 8, 64, length), parts, torch.float32)
    inputs = [leaf(x) for x in (weight, rate, freq)]
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = exp_kernel(*inputs, length)
            found.square().sum().backward()
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = [leaf(x) for x in (weight, rate, freq)]
    wanted = plain(*exact, length)
    wanted.square().sum().backward()
    assert gap(found, wanted) < 2e-6
    for ours, theirs in zip(inputs[1:], exact[1:], strict=True):
        assert theirs is None or gap(ours.grad, theirs.grad) < 1e-5


def test_half_precision_weights_give_float32() -> None:
    assert exp_kernel(torch.ones(1, 2, dtype=torch.bfloat16), None, torch.ones(2), 5).dtype == torch.float32


def test_complex_weight_of_real_exponentials() -> None:
    weight, rate, _ = draw((0, 3, 5, 40), "complex", torch.float64)
    assert gap(exp_kernel(weight, rate, None, 40), plain(weight.real, rate, None, 40)) < 1e-12


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 4096), (128, 4096), (64, 64), (3, 1000), (100, 7)])
def test_blocks_cover_the_length(rows: int, length: int) -> None:
    block = block_size(rows, length)
    blocks = -(-length // block)
    assert 1 <= block <= length
    # neither table is much larger than the other, unless there is one block only
    assert blocks == 1 or block / 8 <= rows * blocks <= 4 * block


class TestFrequencies:
    grid = 2 * math.pi * torch.arange(4096, dtype=torch.float64) / 4096

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_grid_survives_casts(self, dtype: torch.dtype) -> None:
        frequencies = Frequencies(self.grid).to(dtype)
        assert frequencies.offset.dtype == dtype
        assert torch.equal(frequencies(), self.grid)

    def test_grid_travels_with_the_state(self) -> None:
        frequencies = Frequencies(torch.zeros(4096, dtype=torch.float64))
        source = Frequencies(self.grid).half()
        source.offset.data.fill_(0.25)
        frequencies.load_state_dict(source.state_dict())
        assert torch.equal(frequencies(), self.grid + 0.25)

    def test_values_are_exact_and_learned(self) -> None:
        frequencies = Frequencies(self.grid + 1e-12)
        values = frequencies()
        assert torch.equal(values, self.grid + 1e-12)
        values[7].backward()
        assert frequencies.offset.grad[7] == 1


def switches() -> dict[str, object]:
    """What torch says of the precision of float32 products, by its old way and its new ones; or that it refuses."""

    def read(switch: Callable[[], object]) -> object:
        try:
            return switch()
        except RuntimeError:
            return "refused"

    backends = torch.backends
    return {
        "old": read(torch.get_float32_matmul_precision),
        "old, CUDA": read(lambda: backends.cuda.matmul.allow_tf32),
        "new": backends.fp32_precision,
        "new, CUDA": backends.cuda.matmul.fp32_precision,
        "new, CPU": backends.mkldnn.matmul.fp32_precision,
    }


class Switches(TorchDispatchMode):
    """Records the switches at each product."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in str(func):
            self.found.append(switches())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def clean_switches() -> Iterator[None]:
    yield
    torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        backend.fp32_precision = "none"


CHANGES = {
    "nothing": lambda: None,
    "old, high": lambda: torch.set_float32_matmul_precision("high"),
    "old, medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old, CUDA": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "new": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "new, CUDA": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "new, CPU": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
}


@pytest.mark.usefixtures("clean_switches")
@pytest.mark.parametrize("change", CHANGES)
def test_switches_of_precision_agree_inside_and_are_untouched_after(change: str) -> None:
    """Torch refuses to multiply on a GPU where its old and new switches disagree; the kernel's products are exact."""
    CHANGES[change]()
    before = switches()
    weight, rate, freq = (leaf(x) for x in draw((0, 8, 64, 4097), "complex", torch.float32))
    with Switches() as inside:
        exp_kernel(weight, rate, freq, 4097).sum().backward()
    assert inside.found
    for found in inside.found:
        assert (found["old"], found["old, CUDA"]) == ("highest", False)
        assert {found["new, CUDA"], found["new, CPU"]} <= {"none", "ieee"}
    assert switches() == before
    # what is inherited stays so
    torch.backends.fp32_precision = "ieee"
    if change == "new":
        assert {switches()[name] for name in ("new, CUDA", "new, CPU")} == {"ieee"}
