"""check_model accepts models that keep the contract, and names the fault of all others."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import broken_models
import numpy as np
import pytest
import torch
from broken_models import BROKEN, CLASSES, NOT_STORED, SIGNAL, SYMBOLS, TARGET, Conv, Dead, IgnoresMask, Random, Streams
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.check import BrokenContractError, check_registered, problems_of
from lrtasks.check.model import check_model
from lrtasks.errors import UsageError
from lrtasks.models import build
from lrtasks.spec import Spec

LONG = Spec("real", 517, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BROKEN)
def test_names_what_is_broken(name: str, dtype: torch.dtype) -> None:
    make, message = BROKEN[name]
    with pytest.raises(UsageError, match=message) as caught:
        check_model(make(), input=SIGNAL, target=TARGET, dtype=dtype)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make", "message"), NOT_STORED, ids=lambda value: getattr(value, "__name__", None))
def test_names_what_is_not_stored(make: Callable[[], nn.Module], message: str) -> None:
    def factory(*_: Spec) -> nn.Module:
        return make()

    (problem,) = problems_of(check_model, factory, input=SIGNAL, target=TARGET, causal=True)
    assert re.search(message, problem)


def test_padding_must_not_reach_the_rest_of_a_model_that_looks_ahead() -> None:
    class Pooled(IgnoresMask):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            return super().forward(x).mean(1, keepdim=True)

    for model, target in ((IgnoresMask(), TARGET), (Pooled(), Spec("real", 1, 2, pooled=True))):
        (problem,) = problems_of(check_model, model, input=SIGNAL, target=target, causal=False)
        assert problem.startswith("outputs at valid positions depend on values at padding (mask False): by ")
    assert problems_of(check_model, Conv(ahead=2), input=SIGNAL, target=TARGET, causal=False) == [], (
        "it takes no mask at all"
    )


def test_a_wrong_streaming_form_is_found_on_long_inputs_and_for_pooled_or_last_targets() -> None:
    class Wrong(broken_models.StreamsWrong, broken_models.Summary):
        pass

    class Last(broken_models.StreamsWrong):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, -4:]

    class Late(Streams):
        steps = 0

        def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            self.steps += 1
            y, state = super().step(x, state)
            return y * (self.steps < 300), state

    late, long, last = (Spec("real", length, 2) for length in (517, 1030, 4))
    cases = (
        (broken_models.StreamsWrong(), 1030, long),
        (Late(), 517, late),
        (Last(), 20, last),
        (Wrong(), 20, broken_models.SUMMARY),
    )
    for model, length, target in cases:
        (problem,) = problems_of(check_model, model, input=Spec("real", length, 3), target=target)
        assert problem.startswith("step, one position after the other, gives other outputs than forward")


def test_nothing_is_said_beside_what_is_wrong() -> None:
    for name, (make, _) in BROKEN.items():
        assert len(problems_of(check_model, make(), input=SIGNAL, target=TARGET)) == 1, name


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
    check_model(Streams(), input=SIGNAL, target=TARGET, dtype=dtype)
    check_model(broken_models.Oscillates(), input=LONG, target=LONG, dtype=dtype)
    check_model(broken_models.Summary(), input=SIGNAL, target=broken_models.SUMMARY, dtype=dtype)
    with torch.no_grad():
        check_model(Conv(), input=SIGNAL, target=TARGET, dtype=dtype)


@pytest.mark.parametrize("when", ["", " in training mode"])
@pytest.mark.parametrize("prenorm", [True, False])
def test_a_mixer_must_not_write_to_its_input(when: str, prenorm: bool) -> None:
    class Writes(nn.Linear):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model, d_model)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(0.5) if self.training or not when else x)

    (problem,) = problems_of(check_model, Writes, input=SIGNAL, target=TARGET, prenorm=prenorm)
    assert problem.startswith(f"a mixer writes to its input{when}, first at row 0, position 0, channel 0; write")


def test_a_mixer_has_both_halves_of_a_streaming_form_or_none() -> None:
    class Half(nn.Linear):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model, d_model)

        def step(self, x: Tensor, state: Any) -> Any:
            return self(x), state

    (problem,) = problems_of(check_model, Half, input=SIGNAL, target=TARGET)
    assert "Half has step only: a streaming form is" in problem


def test_a_running_batch_norm_is_sound_in_evaluation_mode() -> None:
    class Normed(Conv):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.norm(x.flatten(0, 1)).view_as(x))

    check_model(Normed(), input=SIGNAL, target=TARGET)


def test_what_training_keeps_in_buffers_or_leaves_unused_is_sound() -> None:
    class Keeps(Conv):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x: Tensor) -> Tensor:
            y = F.dropout(super().forward(x), 0.1, self.training) + self.mean
            if self.training:
                y = y * (random.random() + np.random.random())
                self.calls += 1
                self.mean.copy_(y.mean((0, 1)).detach())
            return y

    check_model(Keeps(), input=SIGNAL, target=TARGET)


def test_a_gradient_of_zero_is_allowed() -> None:
    class Gated(Dead):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y - y.mean(-1, keepdim=True) + 0 * self.gain * y

        def extra_losses(self) -> dict[str, Tensor]:
            return {"usage": self.skip.sum()}  # its only gradient

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


def test_a_model_is_checked_in_both_directions_on_both_inputs_with_each_kind_of_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def note(_: str, *, input: Spec, target: Spec, causal: bool, **__: Any) -> None:
        seen.append((causal, input.kind, input.length, target.length, target.pooled))

    monkeypatch.setattr("lrtasks.check.model.check_model", note)
    assert check_registered("attention")["problems"] == []
    forms = [("real", 517, 517, False), ("token", 64, 64, False), ("real", 61, 9, False), ("token", 61, 1, True)]
    assert seen == [(causal, *form) for causal in (True, False) for form in forms]

    def differ(_: str, *, input: Spec, target: Spec, **__: Any) -> None:
        raise BrokenContractError("model", [f"differs by {input.length}e-5 at position {target.length}"])

    monkeypatch.setattr("lrtasks.check.model.check_model", differ)
    assert check_registered("attention")["problems"] == ["every case: differs by 517e-5 at position 517"]


class Peeking(nn.Module):
    """Adds a little of the next input at one position."""

    def __init__(self, place: int, size: float = 1e-4) -> None:
        super().__init__()
        self.place, self.size, self.weight = place, size, nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])[:, None] == self.place
        return self.weight * (x + self.size * torch.where(at, x.roll(-1, 1), 0))


@pytest.mark.parametrize(
    ("place", "length"), [*((place, 64) for place in (3, 7, 31, 17, 41, 62)), (255, 517), (511, 517)]
)
def test_a_small_leak_at_the_end_of_a_chunk_or_at_an_evenly_spaced_position_is_found(place: int, length: int) -> None:
    spec = Spec("real", length, 3)
    with pytest.raises(UsageError, match=f"not causal: outputs up to input position {place} change"):
        check_model(Peeking(place), input=spec, target=spec)


def test_a_leak_below_the_rounding_of_float32_is_found_in_float64() -> None:
    spec = Spec("real", 64, 3)
    check_model(Peeking(3, 1e-8), input=spec, target=spec)
    with pytest.raises(UsageError, match="not causal: outputs up to input position 3 change"):
        check_model(Peeking(3, 1e-8), input=spec, target=spec, dtype=torch.float64)


def test_symbols_leak_too() -> None:
    def factory(input: Spec, target: Spec) -> nn.Module:
        return build("attention", input, target, causal=False, d_model=8, heads=2)

    check_model(factory, input=SYMBOLS, target=CLASSES, causal=False)
    with pytest.raises(UsageError, match="not causal"):
        check_model(factory, input=SYMBOLS, target=CLASSES)
    for seed in range(4):  # of two symbols, the changed one is never the same by chance
        with pytest.raises(UsageError, match="not causal"):
            check_model(factory, input=Spec("token", 2, 2), target=Spec("token", 2, 2), seed=seed)
    check_model(factory, input=Spec("token", 2, 1), target=Spec("token", 2, 2))


def test_of_the_last_positions_only_those_are_seen() -> None:
    class Last(Streams):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
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
    random.seed(5)
    np.random.seed(5)
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
        (3, {}, "a name, a class, a function or a module, found int"),
        (lambda *_: 3, {}, "must give a torch.nn.Module, found int"),
        (lambda _: Conv(), {}, "must have the form MIXER"),
        (Conv(), {"dtype": torch.bfloat16}, "dtype must be torch.float32 or torch.float64, found torch.bfloat16"),
        (Dead(), {"unused": ["skp"]}, "'skp'; did you mean 'skip'"),
        (Dead(), {"unused": ["conv.bias"]}, "no gradient reaches skip"),
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
