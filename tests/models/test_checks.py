"""check_model passes what keeps the contract and names what breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.models import build
from lrtasks.models.checks import check_model
from lrtasks.specs import Spec

SIGNAL, TARGET = Spec("real", 20, 3), Spec("real", 20, 2)
SYMBOLS, CLASSES = Spec("token", 20, 6), Spec("token", 20, 4)


class Conv(nn.Module):
    """A sound model, causal: what the broken ones derive from. ``ahead`` is how far it looks into the future."""

    def __init__(self, ahead: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 2, 4)
        self.padding = (3 - ahead, ahead)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)


class WrongShape(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 1:]


class Tuple(Conv):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), None


class WrongType(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).double() if x.dtype == torch.float32 else super().forward(x).float()


class NotANumber(Conv):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.where(torch.arange(y.shape[1])[:, None] == 7, y - torch.inf, y)


class Raises(Conv):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("too\nbad")


class Random(Conv):
    """Dropout that stays on."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, training=True)


class Remembers(Conv):
    last = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x) + self.last
        self.last = float(x.mean())
        return y


class BatchStatistics(Conv):
    """Batch norm without running averages: one row leaks into the others, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        # over the batch at each position by itself, so that nothing but rows mixes
        return super().forward(torch.stack([self.norm(x[:, t]) for t in range(x.shape[1])], 1) if len(x) > 1 else x)


class BatchSize(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * len(x)


class FutureMean(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-3 * x.mean((1, 2), keepdim=True)


class LeaksInsideChunks(Conv):
    """Sees the rest of its own chunk of 5 positions: causal from chunk to chunk only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.unflatten(1, (-1, 5)).mean((2, 3)).repeat_interleave(5, 1)[..., None]


class Writes(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5))


class WritesInTraining(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(0.5) if self.training else x)


class FailsInTraining(Conv):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise RuntimeError("no training here")
        return super().forward(x)


class Dead(Conv):
    """A parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Parameter(torch.ones(2))


class Detached(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Flat(Conv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 0 + 1


class WildGradient(Conv):
    """sqrt has no finite slope at 0."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + torch.sqrt((self.conv.bias - self.conv.bias.detach()).abs())


class LossOfWrongShape(Conv):
    def extra_losses(self) -> dict[str, Any]:
        return {"usage": self.conv.bias}


class LossOfNoTensor(Conv):
    def extra_losses(self) -> dict[str, Any]:
        return {"usage": 1.0}


class DiagnosticTensor(Conv):
    def diagnostics(self) -> dict[str, Any]:
        return {"rate": torch.ones(2)}


class DiagnosticNaN(Conv):
    def diagnostics(self) -> dict[str, Any]:
        return {"rate": [0.5, float("nan")]}


class NoDictionary(Conv):
    def diagnostics(self) -> Any:
        return None


class OptionsOfOthers(Conv):
    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"conv.weight": {"weight_decay": 0.0}}


class UnknownOption(Conv):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"gain": {"wd": 0.0}}


BROKEN: list[tuple[Callable[[], nn.Module], str]] = [
    (WrongShape, r"shape \(batch, target length, target width\) = \(3, 20, 2\), found \(3, 19, 2\)"),
    (Tuple, "must return a tensor, found tuple"),
    (WrongType, "output must be of type torch.float"),
    (NotANumber, "not finite, first at row 0, output position 7, channel 0"),
    (Raises, r"fails on an input of shape \(3, 20, 3\): ValueError: too bad"),
    (Random, "the same input gives another output in evaluation mode: by .* most at row"),
    (Remembers, "the same input gives another output"),
    (BatchStatistics, "depends on the other rows: by .* of its scale"),
    (BatchSize, r"depends on the number of rows: by 6\.7e-01 of its scale"),
    (lambda: Conv(ahead=1), "not causal: outputs up to input position 0 change .* most at output position 0, channel"),
    (FutureMean, "not causal: outputs up to input position 0 change"),
    (LeaksInsideChunks, "not causal"),
    (Writes, "writes to its input, first at row 0, position 0, channel 0"),
    (WritesInTraining, "writes to its input in training mode"),
    (FailsInTraining, "fails in training mode: RuntimeError: no training here"),
    (Dead, r"no gradient reaches skip \(list in unused="),
    (Detached, "the output is cut off"),
    (Flat, "the gradient is zero in every parameter"),
    (WildGradient, "gradients are not finite in conv.bias"),
    (LossOfWrongShape, r"extra_losses: usage must be a finite scalar tensor, found a tensor of shape \(2,\)"),
    (LossOfNoTensor, "extra_losses: usage must be a finite scalar tensor, found 1.0"),
    (DiagnosticTensor, "diagnostics: rate must be finite numbers"),
    (DiagnosticNaN, "diagnostics: rate must be finite numbers"),
    (NoDictionary, "diagnostics must return a dictionary"),
    (OptionsOfOthers, "parameter_options: conv.weight is not a parameter of this module"),
    (UnknownOption, "parameter_options: gain must be a dictionary with lr or weight_decay"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("make", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_names_what_is_broken(make: Callable[[], nn.Module], message: str, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_model(make(), input=SIGNAL, target=TARGET, dtype=dtype)
    assert "\n" not in str(caught.value)


def test_names_everything_at_once() -> None:
    class Both(Conv):
        def __init__(self) -> None:
            super().__init__(ahead=2)
            self.skip = nn.Parameter(torch.ones(2))

    with pytest.raises(UsageError, match=r"not causal.*no gradient reaches skip"):
        check_model(Both(), input=SIGNAL, target=TARGET)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_passes_what_is_sound(dtype: torch.dtype) -> None:
    check_model(Conv(), input=SIGNAL, target=TARGET, dtype=dtype)
    check_model(Conv(ahead=2), input=SIGNAL, target=TARGET, causal=False, dtype=dtype)
    check_model(Dead(), input=SIGNAL, target=TARGET, unused=["skip"], dtype=dtype)


def test_a_running_batch_norm_is_sound_in_evaluation_mode() -> None:
    class Normed(Conv):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x.flatten(0, 1)).view_as(x))

    check_model(Normed(), input=SIGNAL, target=TARGET)


def test_a_gradient_of_zero_is_allowed() -> None:
    class Gated(Conv):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y + 0 * self.gain * y

    check_model(Gated(), input=SIGNAL, target=TARGET)


def test_a_frozen_parameter_wants_no_gradient() -> None:
    model = Dead()
    model.skip.requires_grad_(False)
    check_model(model, input=SIGNAL, target=TARGET)


def test_takes_names_and_factories() -> None:
    check_model("attention", input=SYMBOLS, target=CLASSES, d_model=8, heads=2)
    check_model(lambda *_: Conv(), input=SIGNAL, target=TARGET)

    given = {}

    def factory(input: Spec, target: Spec, *, causal: bool, ahead: int) -> nn.Module:
        given.update(input=input, target=target, causal=causal)
        return Conv(ahead)

    check_model(factory, input=SIGNAL, target=TARGET, causal=False, ahead=1)
    assert given == {"input": SIGNAL, "target": TARGET, "causal": False}


def test_symbols_leak_too() -> None:
    def factory(input: Spec, target: Spec) -> nn.Module:
        return build("attention", input, target, causal=False, d_model=8, heads=2)

    check_model(factory, input=SYMBOLS, target=CLASSES, causal=False)
    with pytest.raises(UsageError, match="not causal"):
        check_model(factory, input=SYMBOLS, target=CLASSES)
    with pytest.raises(UsageError, match="not causal"):
        # two symbols only: the changed one is never the same by chance
        check_model(factory, input=Spec("token", 2, 2), target=Spec("token", 2, 2))


def test_of_the_last_positions_only_those_are_seen() -> None:
    class Last(Conv):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, -4:]

    short = Spec("real", 4, 2)
    check_model(Last(), input=SIGNAL, target=short)
    with pytest.raises(UsageError, match=r"not causal: outputs up to input position 16 change .* output position 0"):
        check_model(Last(ahead=1), input=SIGNAL, target=short)
    # the very last output may depend on everything
    check_model(lambda *_: nn.Sequential(Last(), Mean()), input=SIGNAL, target=Spec("real", 1, 2))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True)


def test_leaves_everything_as_it_was() -> None:
    model = Random()
    model.conv.bias.grad = torch.full((2,), 3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with pytest.raises(UsageError), torch.no_grad():
        check_model(model, input=SIGNAL, target=TARGET, dtype=torch.float64)
    assert torch.is_grad_enabled()
    assert model.training
    assert model.conv.weight.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.conv.bias.grad.tolist() == [3.0, 3.0]
    assert model.conv.weight.grad is None
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    evaluated = Conv().eval()
    check_model(evaluated, input=SIGNAL, target=TARGET)
    assert not evaluated.training


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("atention", {}, "unknown model 'atention'; did you mean 'attention'"),
        ("attention", {"head": 2}, "no parameter 'head'; did you mean 'heads'"),
        (Conv(), {"ahead": 2}, "takes no hyper-parameters"),
        (3, {}, "a name, a module or a factory, found int"),
        (lambda *_: 3, {}, "must return a torch.nn.Module, found int"),
        (lambda _: Conv(), {}, "the factory is called as factory"),
        (Conv(), {"dtype": torch.bfloat16}, "dtype must be torch.float32 or torch.float64, found torch.bfloat16"),
        (Dead(), {"unused": ["skp"]}, "'skp'; did you mean 'skip'"),
    ],
)
def test_bad_arguments(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_model(model, input=SIGNAL, target=TARGET, **options)


def test_a_model_that_holds_a_graph_is_refused_with_a_way_out() -> None:
    class Keeps(Conv):
        def forward(self, x: Tensor) -> Tensor:
            self.kept = super().forward(x)
            return self.kept

    model = Keeps()
    check_model(model, input=SIGNAL, target=TARGET)
    model(torch.randn(1, 20, 3))
    with pytest.raises(UsageError, match=r"cannot be copied.*pass a new one, or its factory"):
        check_model(model, input=SIGNAL, target=TARGET)


def test_is_public() -> None:
    assert lrtasks.check_model is check_model
