"""A model under test, whichever way it is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from toys import Net, plain

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.evaluation.subject import build_subject

TASK = lrtasks.make("shift", length=16, shifts=2)


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in module.parameters()])


@pytest.mark.parametrize("model", ["dlr", "toys:plain", plain])
def test_the_seed_seeds_the_initialisation(model: Any) -> None:
    first, again, other = (weights(build_subject(model, TASK, {}, seed).module) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_names_and_hyper_parameters() -> None:
    named = build_subject("dlr", TASK, {"d_state": 8}, 0)
    assert (named.name, named.hyper["d_state"], named.hyper["layers"]) == ("dlr", 8, 1)
    addressed = build_subject("toys:plain", TASK, {"width": 3}, 0)
    assert (addressed.name, addressed.hyper) == ("toys:plain", {"width": 3})
    assert addressed.module.encoder.out_features == 3
    made = build_subject(plain, TASK, {"width": 3}, 0)
    assert (made.name, made.hyper) == ("plain", {"width": 3})
    module = Net(TASK.input, TASK.target)
    taken = build_subject(module, TASK, {}, 0)
    assert (taken.name, taken.hyper) == ("Net", {})
    assert taken.module is module


def test_a_registered_model_knows_whether_the_task_is_causal() -> None:
    assert build_subject("dlr", TASK, {}, 0).module.causal is True
    assert build_subject(plain, TASK, {}, 0).module.causal is True


def test_two_modules_are_told_apart_by_structure_and_start() -> None:
    def digests(**settings: Any) -> tuple[str | None, str | None]:
        torch.manual_seed(settings.pop("seed", 0))
        subject = build_subject(Net(TASK.input, TASK.target, **settings), TASK, {}, 0)
        return subject.structure, subject.start

    assert digests() == digests()
    assert digests(seed=1)[0] == digests()[0] and digests(seed=1)[1] != digests()[1]
    assert digests(width=9)[0] != digests()[0]
    assert digests(dropout=0.1)[0] != digests()[0]


def test_two_modules_are_told_apart_by_what_they_keep_beside_weights() -> None:
    def structure(**kept: Any) -> str | None:
        torch.manual_seed(0)
        module = Net(TASK.input, TASK.target)
        for name, value in kept.items():
            setattr(module, name, value)
        return build_subject(module, TASK, {}, 0).structure

    kept = [{}, {"window": 4}, {"window": None}, {"window": "4"}, {"window": 4, "mode": ("a", {"b": 1.5})}]
    assert len({structure(**entry) for entry in kept}) == len(kept)
    assert structure(window=4) == structure(window=4)
    # an object is another one in each process, a private name nobody else's business
    assert structure(window=4, clock=object(), clocks=[object()], _calls=3) == structure(window=4)


def test_a_module_with_values_that_are_no_arrays() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(16), nn.Linear(2, 2))
    before = build_subject(module, TASK, {}, 0).start
    module[1].num_batches_tracked += 1
    assert build_subject(module, TASK, {}, 0).start != before


def test_a_factory_need_not_take_causal() -> None:
    assert build_subject(lambda input, target: Net(input, target), TASK, {}, 0).hyper == {}


@pytest.mark.parametrize(
    ("model", "hyper", "message"),
    [
        ("dlrr", {}, "unknown model 'dlrr'; did you mean 'dlr'"),
        ("dlr", {"d_stat": 8}, "dlr has no parameter 'd_stat'; did you mean 'd_state'"),
        ("nowhere:net", {}, "model 'nowhere:net': cannot import 'nowhere'"),
        (":net", {}, "model ':net': cannot import ''"),
        ("toys:plane", {}, "model 'toys:plane': 'toys' has no 'plane'; did you mean 'plain'"),
        ("toys:BUDGET", {}, "a model must be a name, a module or a factory, found dict"),
        (3, {}, "a model must be a name, a module or a factory, found int"),
        ("toys:plain", {"wdith": 3}, r"called as factory\(input, target, causal=..., wdith=...\).*wdith"),
        (lambda: None, {}, r"called as factory\(input, target\): too many"),
        (lambda *, causal: causal, {}, r"called as factory\(input, target, causal=...\)"),
        (lambda *_, **__: None, {}, "must return a torch.nn.Module, found NoneType"),
        (
            lambda input, target, **_: Net(input, target),
            {"dtype": torch.float32},
            "must be numbers, texts, lists",
        ),
        (nn.Linear(3, 2), {"width": 3}, r"takes no hyper-parameters, found \['width'\]"),
    ],
)
def test_models_that_cannot_be(model: Any, hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_subject(model, TASK, hyper, 0)


def test_strided_parameters_and_buffers_are_read() -> None:
    class Strided(nn.Module):
        def __init__(self, value: float = 1.0) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((3, 2), 1 + value * 1j).imag)
            self.register_buffer("ones", (value * torch.ones(1)).expand(4))
            self.register_buffer("diagonal", (value * torch.eye(4)).diagonal())

    starts = [build_subject(Strided(value), TASK, {}, 0).start for value in (1.0, 1.0, 2.0)]
    assert starts[0] == starts[1] != starts[2]


def test_lazy_modules_are_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"^0.weight, 0.bias of model Sequential: no shape yet; call the model once"):
        build_subject(nn.Sequential(nn.LazyLinear(2)), TASK, {}, 0)
