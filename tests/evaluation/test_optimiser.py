"""Parameter groups and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.evaluation.optimiser import make_optimiser, set_rate


class Declaring(nn.Module):
    """One parameter with its own rate and no decay, one without decay, one as the budget says, one frozen."""

    def __init__(self, options: dict[str, dict[str, float]] | None = None) -> None:
        super().__init__()
        self.slow, self.bare, self.rest = (nn.Parameter(torch.ones(2)) for _ in range(3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.options = options or {"slow": {"lr": 1e-5, "weight_decay": 0.0}, "bare": {"weight_decay": 0.0}}

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return self.options


def groups(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, tuple[float, float]]:
    names = {id(value): name for name, value in model.named_parameters()}
    return {
        names[id(value)]: (group["lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for value in group["params"]
    }


def test_modules_declare_their_groups() -> None:
    model = nn.Sequential(Declaring(), nn.Linear(2, 2))
    optimiser = make_optimiser(model, Budget(lr=0.1, weight_decay=0.5, betas=(0.8, 0.9)))
    rest = (0.1, 0.5)
    assert groups(model, optimiser) == {
        "0.slow": (1e-5, 0.0),
        "0.bare": (0.1, 0.0),
        "0.rest": rest,
        "1.weight": rest,
        "1.bias": rest,
    }
    assert isinstance(optimiser, torch.optim.AdamW)
    assert all(group["betas"] == (0.8, 0.9) for group in optimiser.param_groups)


def test_the_schedule_multiplies_each_rate() -> None:
    model = Declaring()
    optimiser = make_optimiser(model, Budget(lr=0.1))
    for factor in (0.5, 0.25):  # of the starting rate, not of the last one
        set_rate(optimiser, factor)
        found = {name: lr for name, (lr, _) in groups(model, optimiser).items()}
        assert found == pytest.approx({"slow": 1e-5 * factor, "bare": 0.1 * factor, "rest": 0.1 * factor})


def test_declared_parameters_do_not_decay() -> None:
    model = Declaring({"bare": {"weight_decay": 0.0}})
    optimiser = make_optimiser(model, Budget(lr=0.1, weight_decay=0.5))
    for value in model.parameters():
        value.grad = torch.zeros(2)
    optimiser.step()
    assert torch.equal(model.bare.data, torch.ones(2))
    assert torch.allclose(model.rest.data, torch.full((2,), 1 - 0.1 * 0.5))


def test_complex_parameters_are_trained() -> None:
    model = nn.Module()
    model.pole = nn.Parameter(torch.ones(2, dtype=torch.cfloat))
    optimiser = make_optimiser(model, Budget(lr=0.1, weight_decay=0.0))
    model.pole.grad = torch.tensor([1j, -1.0], dtype=torch.cfloat)
    optimiser.step()
    assert torch.allclose(model.pole.data, torch.tensor([1 - 0.1j, 1.1 + 0j]), atol=1e-4)


def test_options_of_a_shared_parameter_hold_whatever_its_name() -> None:
    model = nn.Module()
    model.first = nn.Linear(2, 2, bias=False)
    model.second = Declaring({"rest": {"lr": 1e-5}})
    model.first.weight = model.second.rest
    assert groups(model, make_optimiser(model, Budget(lr=0.1)))["first.weight"] == (1e-5, 0.0)


def test_options_of_a_parameter_with_two_names_in_its_module() -> None:
    model = Declaring({"tied": {"lr": 1e-5}})
    model.tied = model.rest
    assert groups(model, make_optimiser(model, Budget(lr=0.1)))["rest"] == (1e-5, 0.0)


def test_a_factor_on_the_budgets_rate_of_a_parameter_inside() -> None:
    model = nn.Sequential(Declaring({"rest": {"weight_decay": 0.3}}))
    model.parameter_options = lambda: {"0.rest": {"lr_factor": 2.0}}  # type: ignore[assignment]
    assert groups(model, make_optimiser(model, Budget(lr=0.1)))["0.rest"] == (0.2, 0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slow": {"learning_rate": 1.0}}, "may set lr, lr_factor, weight_decay of slow, found {'learning_rate': 1.0}"),
        ({"slow": {"lr": "fast"}}, r": lr of slow must be a number of at least 0, found 'fast'"),
        ({"slow": {"lr_factor": math.nan}}, r": lr_factor of slow must be a number of at least 0, found nan"),
        ({"slow": {"weight_decay": None}}, r": weight_decay of slow must be a number of at least 0, found None"),
        ({"sloww": {"lr": 1.0}}, r"names 'sloww', which it does not have; it has: slow, bare, rest, frozen"),
    ],
)
def test_what_a_module_cannot_declare(options: dict[str, dict[str, float]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_optimiser(nn.Sequential(Declaring(options)), Budget())


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameters to train"):
        make_optimiser(nn.Identity(), Budget())


@pytest.mark.parametrize(
    ("schedule", "after"),
    [
        ("constant", lambda _: 1.0),
        ("linear", lambda share: 1 - share),
        ("cosine", lambda share: 0.5 + 0.5 * math.cos(math.pi * share)),
    ],
)
def test_rates_after_warm_up(schedule: str, after: Callable[[float], float]) -> None:
    budget = Budget.make(steps=12, warmup_steps=4, schedule=schedule)
    expected = [0.25, 0.5, 0.75, 1.0, *(after(done / 8) for done in range(8))]
    assert [budget.rate(step) for step in range(12)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_of_nothing_but_warm_up(schedule: str) -> None:
    budget = Budget.make(steps=4, warmup_steps=4, schedule=schedule)
    assert [budget.rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"warmup_steps": 11, "steps": 10}, r"warmup_steps must be at most steps \(10\), found 11"),
        ({"betas": (0.9, 1.0)}, r"betas must be below 1, found \[0.9, 1.0\]"),
    ],
)
def test_bad_budgets(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Budget.make(**settings)
