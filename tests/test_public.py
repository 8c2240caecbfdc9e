"""The names that ``import lrtasks`` offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from quick_runs import TASK, run
from torch import nn

import lrtasks
from lrtasks.generators.base import GROUPS
from lrtasks.spec import Spec


class Layer(nn.Module):
    def __init__(self, d_model: int, window: int = 2) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, window)
        self.back = nn.Linear(window, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.out(x))


def test_every_public_name_is_there() -> None:
    assert all(getattr(lrtasks, name) is not None for name in lrtasks.__all__)
    assert set(lrtasks.__all__) == set(dir(lrtasks))


def test_tasks_and_models_are_listed() -> None:
    assert lrtasks.list_tasks() == lrtasks.generators.names()
    assert lrtasks.list_models() == lrtasks.models.names()
    by_group = [name for group in GROUPS for name in lrtasks.list_tasks(group)]
    assert sorted(by_group) == lrtasks.list_tasks()
    with pytest.raises(lrtasks.UsageError, match="did you mean 'state'"):
        lrtasks.list_tasks("stat")


def test_a_model_is_built_for_a_task() -> None:
    x = torch.from_numpy(TASK.batch(range(2)).x)
    assert lrtasks.build_model("dlr", TASK, d_state=4, d_model=8)(x).shape == (2, 16, 2)
    assert lrtasks.build_model(Layer, TASK, window=3)(x).shape == (2, 16, 2)

    def evaluating(input: Spec, target: Spec) -> nn.Module:
        return nn.Linear(input.width, target.width).eval()

    assert lrtasks.build_model(evaluating, TASK).training
    preset: Any = lrtasks.build_model("dlr", "shift", preset="trend", d_model=8)
    assert (preset.input.length, preset.decoder.in_features, preset.training) == (1024, 8, True)
    with pytest.raises(lrtasks.UsageError, match="did you mean 'd_state'"):
        lrtasks.build_model("dlr", TASK, d_stat=4)
    with pytest.raises(lrtasks.UsageError, match="dlr has no parameter 'length'"):
        lrtasks.build_model("dlr", "shift", preset="small", length=8)
    for name in (None, "small"):
        with pytest.raises(lrtasks.UsageError, match="hyena is a causal model"):
            lrtasks.build_model("hyena", "pathfinder", preset=name)


def test_bare_settings_are_keywords(tmp_path: Path) -> None:
    """Check that ``length`` goes to the task and ``window`` to the layer."""
    record = run(Layer, tmp_path, "shift", length=8, shifts=2, window=3)
    assert record.task["parameters"]["length"] == 8
    assert record.model["parameters"] == {"window": 3}
    with pytest.raises(lrtasks.UsageError, match=r"called 'lenght'; did you mean 'length'.*task has: length"):
        run(Layer, tmp_path, "shift", lenght=8)


def test_an_unknown_keyword_is_compared_with_the_arguments(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match="called 'seeds'; did you mean 'seed'"):
        run("dlr", tmp_path, seeds=2)


def test_an_empty_results_folder_is_refused() -> None:
    """An empty path would be the current folder."""
    with pytest.raises(lrtasks.UsageError, match="out must be a path, found ''"):
        lrtasks.evaluate("dlr", "shift", out="")


@pytest.mark.parametrize("argument", ["parameters", "hyper", "budget", "name", "out", "trackers"])
def test_an_argument_of_a_wrong_type_is_named(argument: str) -> None:
    arguments: dict[str, Any] = {argument: 5}
    with pytest.raises(lrtasks.UsageError, match=rf"^{argument} must be .*, found 5$"):
        lrtasks.evaluate(Layer, TASK, **arguments)


@pytest.mark.parametrize("folder", [None, 3])
def test_a_model_is_loaded_from_a_path(folder: Any) -> None:
    with pytest.raises(lrtasks.UsageError, match=f"load_model takes the folder of a run, found {folder}"):
        lrtasks.load_model(folder)


def test_a_tracker_must_be_named_by_a_text(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match="unknown tracker '5'"):
        run(Layer, tmp_path, trackers=["csv", 5])


@pytest.mark.parametrize("task", [5, None, type(TASK)])
def test_a_model_needs_a_task(task: Any) -> None:
    with pytest.raises(lrtasks.UsageError, match="task must be a name or a task"):
        lrtasks.build_model("dlr", task)


def test_a_budget_is_taken_whole(tmp_path: Path) -> None:
    budget = lrtasks.Budget(steps=3, lr=0.02, eval_every=3, val_batches=1, test_batches=1, batch_size=2)
    record = lrtasks.evaluate(Layer, TASK, preset="paper", budget=budget, out=tmp_path, workers=0, quiet=True)
    assert record.budget == budget.identifying()


def test_a_python_object_is_passed_again_to_load_its_weights(tmp_path: Path) -> None:
    run(Layer, tmp_path, "shift", length=8, shifts=2, window=3)
    (folder,) = (file.parent for file in tmp_path.rglob("record.json"))
    with pytest.raises(lrtasks.UsageError, match=r"Python object Layer; pass it: load_model\(folder, model=OBJECT\)"):
        lrtasks.load_model(folder)
    trained, fresh = (lrtasks.load_model(folder, model=Layer, trained=trained) for trained in (True, False))
    x = torch.ones(1, 8, 3)
    assert trained(x).shape == (1, 8, 2)
    assert not torch.equal(trained(x), fresh(x))


@pytest.mark.parametrize("task", ["shift", "shift@trend"])
def test_a_trained_model_is_loaded_at_another_length(task: str, tmp_path: Path) -> None:
    run("dlr", tmp_path, task, length=16, shifts=8, d_model=8, d_state=4)
    (folder,) = (file.parent for file in tmp_path.rglob("record.json"))
    model = lrtasks.load_model(folder, length=32)
    assert not model.training
    assert model(torch.zeros(1, 32, 3)).shape == (1, 32, 8)
