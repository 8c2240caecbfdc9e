"""All ways to specify a model."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from parity import check_streaming
from torch import Tensor, nn

import lrtasks
from lrtasks.config import parameter
from lrtasks.errors import UsageError
from lrtasks.evaluation.run import load_model
from lrtasks.models.base import state_bytes, streaming
from lrtasks.models.dlr import DLR
from lrtasks.models.factory import describe_parameters, model_factory, own_mixer
from lrtasks.record import read_record, read_records
from lrtasks.registry import load_object
from lrtasks.spec import Spec

TASK = lrtasks.make("shift", length=16, shifts=2)
BUDGET = {"steps": 4, "batch_size": 2, "eval_every": 2, "val_batches": 1, "test_batches": 1, "test_lengths": ()}


def three(input: Spec, target: Spec) -> int:  # noqa: ARG001
    return 3


def takes_any(d_model: int, **_: int) -> nn.Module:
    return nn.Linear(d_model, d_model)


LAYER = """
import torch

class MyMixer(torch.nn.Module):
    def __init__(self, d_model, window=2):
        super().__init__()
        self.out = torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x)

def model(input, target, *, causal, width=8):
    return torch.nn.Sequential(torch.nn.Linear(input.width, width), torch.nn.Linear(width, target.width))
"""

INNER = """
def inner(size):
    class Layer(MyMixer):
        window = size

    return Layer
"""


class Mixer(nn.Module):
    def __init__(self, d_model: int, window: int = 2) -> None:
        super().__init__()
        self.window = window
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Whole(nn.Module):
    def __init__(self, input: Spec, target: Spec, width: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(input.width, width), nn.Linear(width, target.width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def run(model: Any, out: Path, **arguments: Any) -> Any:
    return lrtasks.evaluate(model, TASK, budget=BUDGET, out=out, workers=0, device="cpu", quiet=True, **arguments)


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "mylayer.py"
    file.write_text(LAYER)
    monkeypatch.chdir(tmp_path)
    return file


def built(model: Any, **parameters: Any) -> nn.Module:
    return model_factory(model, parameters).build(TASK.input, TASK.target, True)


def test_a_mixer_is_put_into_the_stack(layer: Path) -> None:
    module = built(Mixer, window=5, layers=3, d_model=12)
    assert [block.mixer.mixer.window for block in module.blocks] == [5, 5, 5]  # type: ignore[union-attr]
    assert module(torch.zeros(1, 16, 3)).shape == (1, 16, 2)
    for address in ("mylayer.py:MyMixer", str(layer) + ":MyMixer"):
        assert len(built(address, layers=1).blocks) == 1
        assert model_factory(address).name == "MyMixer"


@pytest.mark.usefixtures("layer")
def test_a_whole_model_is_called_with_the_specs() -> None:
    assert built(Whole, width=7).net[0].out_features == 7
    assert built("mylayer.py:model", width=5)[0].out_features == 5
    assert model_factory(Whole, {"width": np.int64(7)}).parameters == {"width": 7}


def test_the_first_arguments_may_be_keywords_only() -> None:
    def mixer(*, d_model: int, window: int = 2) -> nn.Module:
        return Mixer(d_model, window)

    def model(input: Spec, *, target: Spec) -> nn.Module:
        return Whole(input, target)

    assert built(mixer, window=5, layers=1).blocks[0].mixer.mixer.window == 5  # type: ignore[index, union-attr]
    assert built(model).net[1].out_features == TASK.target.width  # type: ignore[index, union-attr]


def test_padding_reaches_a_mixer_without_a_mask_as_zeros() -> None:
    class Sums(Mixer):
        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.sum(1, keepdim=True)).expand_as(x)

    mixer, x, mask = own_mixer(Sums, 4, False, {}), torch.randn(1, 16, 4), torch.arange(16)[None] < 10
    assert torch.equal(mixer(x, mask), mixer(x * mask[..., None]))
    assert not torch.equal(mixer(x, mask), mixer(x))


@pytest.mark.parametrize("keyword", [True, False])
def test_a_mixer_receives_its_mask_by_name(keyword: bool) -> None:
    class Second(Mixer):
        def forward(self, x: Tensor, state: Any = None, mask: Tensor | None = None) -> Tensor:
            assert state is None and mask is not None
            return self.out(x) * mask[..., None]

    class Keyword(Mixer):
        def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
            assert mask is not None
            return self.out(x) * mask[..., None]

    mask = torch.arange(16)[None] < 10
    y = own_mixer(Keyword if keyword else Second, 4, True, {})(torch.randn(1, 16, 4), mask)
    assert y[:, :10].all() and not y[:, 10:].any()


def test_an_own_argument_has_precedence_over_a_parameter_of_the_stack() -> None:
    class Dropping(Mixer):
        def __init__(self, d_model: int, dropout: float) -> None:
            super().__init__(d_model)
            self.rate = dropout

    (block,) = built(Dropping, dropout=0.5, layers=1).blocks
    assert (block.mixer.mixer.rate, block.dropout.p) == (0.5, 0)
    (entry,) = (entry for entry in describe_parameters(Dropping) or () if entry["name"] == "dropout")
    assert (entry["default"], entry["doc"]) == ("", "your own argument")


def test_a_mixer_with_variable_arguments_keeps_the_parameters_of_the_stack() -> None:
    def recurrent(d_model: int, bias: bool = True, **options: Any) -> nn.Module:
        return nn.GRU(d_model, d_model, bias=bias, batch_first=True, **options)

    layer = own_mixer(recurrent, 4, True, {"num_layers": 2}).mixer
    assert layer.num_layers == 2  # type: ignore[union-attr]
    stack = [entry["name"] for entry in describe_parameters(lambda d_model: nn.Linear(d_model, d_model)) or ()]
    assert "layers" in stack
    assert [entry["name"] for entry in describe_parameters(recurrent) or ()] == [*stack, "bias", "**options"]
    sized = describe_parameters(lambda d_model, *sizes: nn.Linear(d_model, *sizes)) or ()
    assert [entry["name"] for entry in sized] == stack
    assert describe_parameters(nn.Linear(2, 2)) is None


@pytest.mark.usefixtures("layer")
@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        (lambda d_in, d_out: nn.Linear(d_in, d_out), {}, r"must have the form MIXER\(d_model, ...\) or MODEL"),
        (int, {}, "must have the form MIXER.* found arguments: unknown, as .*int.* has no signature"),
        (Whole, {"widht": 3}, "Whole.* cannot be called with .*widht"),
        (Mixer, {"windw": 3}, "Mixer.* cannot be called with .*windw.*; did you mean 'window'"),
        (
            lambda d_model, heads, size: nn.Linear(d_model, heads * size),
            {"size": 2},
            r"'heads'; write --set model\.heads=VALUE$",
        ),
        (Mixer, {"layers": 0}, "Mixer: layers must be at least 1"),
        (three, {}, "must give a torch.nn.Module, found int"),
        (nn.Linear(2, 2), {"width": 3}, "a module that is built already takes no hyper-parameters"),
        (Mixer, {"Mixer.windw": 3}, "did you mean 'Mixer.window'"),
        (nn.LazyLinear(2), {}, "has no shape yet"),
        (lambda d_model: nn.LazyLinear(d_model), {}, "has no shape yet; call lazy modules once in the constructor"),
        (Whole, {"width": math.nan}, "hyper-parameters must be numbers, strings, lists or mappings"),
        (takes_any, {"gla.heads": 2}, "cannot have an argument 'gla.heads'"),
        (Whole, {"width": {1, 2}}, "hyper-parameters must be numbers, strings, lists or mappings"),
        ("nofile.py:Net", {}, "there is no file .*nofile.py"),
        ("no.such:Net", {}, "no.such cannot be imported: ModuleNotFoundError"),
        ("mylayer.py:MyMixr", {}, "has no 'MyMixr'; did you mean 'MyMixer'"),
        (":Net", {}, "write FILE.py:NAME or package.module:NAME"),
        ("mylayer.py:", {}, "write FILE.py:NAME or package.module:NAME"),
    ],
)
def test_mistakes_are_told_in_one_line(model: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        built(model, **parameters)
    assert "\n" not in str(caught.value)


class Flagged(nn.Module):
    """A mixer with arguments of several kinds."""

    def __init__(
        self,
        d_model: int,
        causal_conv: bool = True,
        window: int | None = 4,
        kind: str | int = 1,
        bits: Literal["8", "16"] | None = None,
        dilations: Sequence[int] = (1, 2),
        gated: bool | None = True,
        limit: float = math.inf,
        sizes: str | Sequence[int] = (3,),
        start: Literal["zeros"] | Tensor = "zeros",
        cut: int | None = None,
        share: int | float = 1,
    ) -> None:
        super().__init__()
        self.cut, self.share = cut, share
        self.given = causal_conv, window, kind, bits, dilations, gated, limit, sizes, start

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("causal_conv", "off", "Flagged: causal_conv must be true or false, found 'off'"),
        ("causal_conv", 0, "Flagged: causal_conv must be true or false, found 0"),
        ("window", "none", "Flagged: window must be a number, or null for none, found 'none'"),
        ("cut", "none", "Flagged: cut must be a number, or null for none, found 'none'"),
        ("cut", True, "Flagged: cut must be a number, or null for none, found True"),
        ("dilations", 3, r"Flagged: dilations must be a list such as \[1, 2\], found 3"),
        ("window", 2.5, "Flagged: window must be a whole number, found 2.5"),
        ("window", 2.0, "Flagged: window must be a whole number, found 2.0"),
        ("bits", 12, "Flagged: bits must be one of '8', '16' or none, found 12"),
        ("bits", "eight", "Flagged: bits must be one of '8', '16' or none, found 'eight'"),
        ("dilations", "1,2,4", r"Flagged: dilations must be a list such as \[1, 2\], found '1,2,4'"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        built(Flagged, **{name: value})
    allowed: Any = built(Flagged, cut=None, share=0.5)
    assert (allowed.blocks[0].mixer.mixer.cut, allowed.blocks[0].mixer.mixer.share) == (None, 0.5)
    others = {"causal_conv": False, "gated": None, "sizes": "3,5", "start": 0.5}
    found: Any = built(Flagged, layers=1, window=None, kind="word", bits=8, dilations=[4], **others)
    assert found.blocks[0].mixer.mixer.given == (False, None, "word", "8", [4], None, math.inf, "3,5", 0.5)


def test_defaults_of_own_arguments_are_ready_for_json() -> None:
    entries = json.loads(json.dumps(describe_parameters(Flagged), allow_nan=False))
    defaults = {entry["name"]: entry["default"] for entry in entries}
    assert (defaults["window"], defaults["dilations"], defaults["limit"]) == (4, "(1, 2)", "inf")


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (lambda y: (y, y[:, -1]), "returned a tuple"),
        (lambda y: y[:, -1], r"returned float32 of shape \(2, 64\)"),
        (lambda y: y[..., :-1], r"returned float32 of shape \(2, 16, 63\)"),
        (lambda y: y.double(), r"returned float64 of shape \(2, 16, 64\)"),
    ],
)
def test_a_wrong_output_of_a_mixer_is_told_by_its_name(output: Any, found: str) -> None:
    class Wrong(Mixer):
        def forward(self, x: Tensor) -> Tensor:
            return output(super().forward(x))

    with pytest.raises(UsageError, match=rf"Wrong.forward {found}.* here float32 of shape \(2, 16, 64\)"):
        built(Wrong)(torch.randn(2, 16, TASK.input.width))


def test_a_model_that_does_not_fit_into_memory_is_said_in_one_line() -> None:
    def huge(input: Spec, target: Spec) -> nn.Module:
        return nn.Linear(input.width, target.width * 10**14)

    with pytest.raises(UsageError, match=r"^not enough memory to build .*huge; choose a smaller model$"):
        lrtasks.build_model(huge, TASK)


@pytest.mark.parametrize(
    ("name", "hyper"), [("deltanet", {"head_dim": 10**19}), ("focus", {"d_ffn": 2**62}), ("mega", {"d_v": 2**62})]
)
def test_a_width_beyond_any_memory_is_refused_in_one_line(name: str, hyper: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"^not enough memory to build {name}; choose a smaller model$"):
        lrtasks.build_model(name, TASK, **hyper)


def test_a_mixer_may_return_the_type_of_autocast() -> None:
    mixer, x = own_mixer(Mixer, 4, True, {}), torch.randn(2, 16, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert (mixer(x).dtype, x.dtype) == (torch.bfloat16, torch.float32)


def test_a_built_module_is_put_into_training_mode() -> None:
    assert built(Whole(TASK.input, TASK.target).eval()).training


def test_an_error_in_the_users_code_stays_as_it_is() -> None:
    def failing(d_model: int) -> nn.Module:
        raise TypeError(f"no {d_model}")

    with pytest.raises(TypeError, match="no 64"):
        built(failing)


def test_a_given_direction_has_precedence_over_that_of_the_task() -> None:
    class Directed(Mixer):
        def __init__(self, d_model: int, causal: bool) -> None:
            super().__init__(d_model)
            self.causal = causal

    for of_task, given, causal in ((True, {}, True), (False, {}, False), (True, {"causal": False}, False)):
        stack: Any = model_factory(Directed, {"layers": 1, **given}).build(TASK.input, TASK.target, of_task)
        assert stack.blocks[0].mixer.mixer.causal is causal


def test_an_annotation_that_cannot_be_evaluated_limits_no_strings() -> None:
    def mixer(d_model: int, size: Literal["auto"] | Nowhere = 4) -> nn.Module:  # type: ignore[name-defined]  # noqa: F821
        return Mixer(d_model, window=size)

    (block,) = built(mixer, layers=1, size="auto").blocks  # type: ignore[misc]
    assert block.mixer.mixer.window == "auto"


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "1 / 0", "class"])
def test_a_file_that_fails_on_import_is_told_in_one_line(tmp_path: Path, code: str) -> None:
    (tmp_path / "bad.py").write_text(code)
    with pytest.raises(UsageError, match=r"bad.py cannot be imported: (SystemExit|ZeroDivisionError|SyntaxError)"):
        model_factory(f"{tmp_path / 'bad.py'}:Net")


def test_a_file_inside_a_package_is_named_as_a_module(layer: Path) -> None:
    inner = layer.parent / "pack" / "inner.py"
    inner.parent.mkdir()
    layer.rename(inner.parent / "mylayer.py")
    inner.write_text("from .mylayer import MyMixer")
    with pytest.raises(UsageError, match=r"relative import .*; write package\.module:NAME for a file that imports"):
        model_factory("pack/inner.py:MyMixer")
    assert model_factory("pack.inner:MyMixer").name == "MyMixer"


def test_an_edited_file_is_another_run(layer: Path) -> None:
    first = run("mylayer.py:MyMixer", layer.parent / "runs")
    assert run("mylayer.py:MyMixer", layer.parent / "runs").digest == first.digest
    layer.write_text(LAYER.replace("self.out(x)", "-self.out(x)"))
    second = run("mylayer.py:MyMixer", layer.parent / "runs")
    assert second.digest != first.digest
    folders = [folder for folder, _ in read_records(layer.parent / "runs")[0]]
    assert len(folders) == 2
    of_first = next(folder for folder in folders if read_record(folder).digest == first.digest)
    with pytest.raises(UsageError, match=r"the source of mylayer\.py:MyMixer has been edited since the run"):
        load_model(of_first)
    model_class = load_object("mylayer.py:MyMixer", "model")
    assert load_model(of_first, model=model_class) and load_model(next(f for f in folders if f != of_first))


def test_an_edit_counts_when_the_file_is_imported_again(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, Python runs the earlier code, which must not pass for a run of the edited file."""
    monkeypatch.syspath_prepend(layer.parent)
    layer = layer.rename(layer.with_name("oftenedited.py"))
    module = importlib.import_module("oftenedited")
    before = model_factory(module.MyMixer).source
    layer.write_text(LAYER.replace("self.out(x)", "-self.out(x) * 2"))
    assert model_factory(module.MyMixer).source == before
    assert model_factory(importlib.reload(module).MyMixer).source != before


@pytest.mark.parametrize("make", [lambda w: lambda d_model: Mixer(d_model, w), lambda w: partial(Mixer, window=w)])
def test_inner_functions_are_taken_over_by_name_alone(tmp_path: Path, make: Any) -> None:
    """Two functions that one function returns have the same name, and can differ in what no digest sees."""
    assert run(make(2), tmp_path).digest != run(make(3), tmp_path).digest
    named = run(make(2), tmp_path, name="two")
    assert run(make(2), tmp_path, name="two").digest == named.digest
    assert run(make(3), tmp_path, name="three").digest != named.digest
    assert len(read_records(tmp_path)[0]) == 4


@pytest.mark.parametrize(
    "definition", ["partial(MyMixer, window={})", "lambda d_model: MyMixer(d_model, {})", "inner({})"]
)
def test_an_object_at_an_address_has_the_name_of_the_address(layer: Path, definition: str) -> None:
    lines = [f"{name} = {definition.format(window)}" for name, window in (("narrow", 2), ("wide", 3))]
    layer.write_text("\n".join(["from functools import partial", LAYER, INNER, *lines]))
    narrow, wide = (model_factory(f"mylayer.py:{name}") for name in ("narrow", "wide"))
    assert (narrow.name, wide.name) == ("narrow", "wide")
    assert narrow.identity == model_factory("mylayer.py:narrow").identity
    assert model_factory("mylayer.py:narrow", name="mine").name == "mine"
    assert narrow.source == wide.source == model_factory("mylayer.py:MyMixer").source
    layer.write_text(layer.read_text() + "\n")
    assert model_factory("mylayer.py:narrow").source != narrow.source


def test_modules_are_taken_over_by_name_alone(tmp_path: Path) -> None:
    """Two modules of one class can differ in what no digest sees: an activation, a frozen layer, an attribute."""
    one, other = Whole(TASK.input, TASK.target), Whole(TASK.input, TASK.target)
    other.net[0].requires_grad_(False)
    first, second = run(one, tmp_path), run(other, tmp_path)
    assert first.digest != second.digest
    assert len(read_records(tmp_path)[0]) == 2
    named = run(Whole(TASK.input, TASK.target), tmp_path, name="whole")
    again = Whole(TASK.input, TASK.target)
    assert run(again, tmp_path, name="whole").digest == named.digest


def test_a_parameter_that_was_added_later_identifies_a_model_only_with_another_value() -> None:
    assert "conv" not in model_factory("transformer").parameters
    assert "conv" not in model_factory("transformer", {"conv": False}).parameters
    assert model_factory("transformer", {"conv": True}).parameters["conv"] is True


def test_a_finished_run_loads_its_weights_into_the_module(tmp_path: Path) -> None:
    trained, fresh = Whole(TASK.input, TASK.target), Whole(TASK.input, TASK.target)
    run(trained, tmp_path, name="whole")
    run(fresh, tmp_path, name="whole")
    for one, other in zip(trained.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_of_a_class_that_is_named_as_a_registered_model_is_no_run_of_that(tmp_path: Path) -> None:
    run(Mixer, tmp_path, name="dlr")
    ((folder, _),) = read_records(tmp_path)[0]
    with pytest.raises(UsageError, match="is a run of the Python object dlr; pass it: load_model"):
        load_model(folder)
    assert len(load_model(folder, model=Mixer).blocks) == 2  # type: ignore[arg-type]


@dataclass(frozen=True)
class MyDLR(DLR):
    """A subclass of a registered model, which inherits its name."""


def test_a_subclass_of_a_registered_model_has_its_own_name(tmp_path: Path) -> None:
    assert run(MyDLR, tmp_path, hyper={"d_model": 8, "d_state": 4}).model["name"] == "MyDLR"
    ((folder, _),) = read_records(tmp_path)[0]
    with pytest.raises(UsageError, match="is a run of the Python object MyDLR; pass it: load_model"):
        load_model(folder)
    assert load_model(folder, model=MyDLR)
    assert model_factory(DLR).name == "dlr"
    assert model_factory(MyDLR, name="mine").name == "mine"


@pytest.mark.parametrize("hyper", [{"d_model": 8, "d_state": 4}, {"d_model": 8, "gain": 2.0}])
def test_a_subclass_with_the_name_of_a_registered_model_is_told_from_it(tmp_path: Path, hyper: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Namesake(DLR):
        name: ClassVar[str] = "dlr"
        gain: float = parameter(1.0, "factor")

    run(Namesake, tmp_path, hyper=hyper)
    ((folder, _),) = read_records(tmp_path)[0]
    with pytest.raises(UsageError, match=r"the name of the registered model dlr; pass its class: .* model=CLASS"):
        load_model(folder)
    assert load_model(folder, model=Namesake)


class Unmasked(nn.Module):
    """A mixer with a streaming form whose ``forward`` takes no mask."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x.cumsum(1))
        return y

    def initial_state(self, batch: int) -> Tensor:
        return self.linear.weight.new_zeros(batch, self.linear.in_features)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(state + x), state + x


class Slotted:
    __slots__ = ("sum",)

    def __init__(self, sum: Tensor) -> None:
        self.sum = sum


def test_a_state_may_be_an_object_with_slots() -> None:
    class InSlots(Unmasked):
        def initial_state(self, batch: int) -> Any:
            return Slotted(super().initial_state(batch))

        def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
            y, total = super().step(x, state.sum)
            return y, Slotted(total)

    assert state_bytes(built(InSlots, d_model=8, layers=2)) == 2 * 8 * 4


def test_a_compiled_stack_has_a_state_and_other_lengths(tmp_path: Path) -> None:
    task = lrtasks.make("cumsum", length=16)
    model = torch.compile(lrtasks.build_model("lstm", task, d_model=4), backend="eager")
    record = lrtasks.evaluate(model, task, budget={**BUDGET, "test_lengths": (24,)}, out=tmp_path, quiet=True)
    assert (record.model["state_bytes"], record.notes) == (2 * 4 * 4, [])
    assert "r2" in record.scores["24"]


def test_a_scripted_mixer_is_trained(tmp_path: Path) -> None:
    def scripted(d_model: int) -> nn.Module:
        return torch.jit.script(nn.Linear(d_model, d_model))

    lrtasks.check_model(scripted, input=TASK.input, target=TASK.target, d_model=4)
    assert lrtasks.evaluate(scripted, TASK, budget=BUDGET, out=tmp_path, quiet=True).status == "done"


def test_a_mixer_without_mask_keeps_its_streaming_form() -> None:
    model = lrtasks.build_model(Unmasked, lrtasks.make("cumsum", length=16), d_model=8, layers=2)
    assert state_bytes(model) == 2 * 8 * 4  # two layers of float32
    check_streaming(model, torch.randn(3, 16, 3), 1e-5)
    with pytest.raises(UsageError, match=r"^Mixer has no streaming form"):
        streaming(own_mixer(Mixer, 8, True, {})).initial_state(1)
