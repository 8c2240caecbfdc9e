"""Presets: who overrides whom, and what every file of ours resolves to."""

from __future__ import annotations

import math
from typing import Any

import pytest

import lrtasks
from lrtasks import generators, models
from lrtasks.budget import DEFAULTS, Budget
from lrtasks.errors import UsageError
from lrtasks.evaluation.presets import assign, resolve

TASK_PRESETS = [(name, preset) for name in generators.names() for preset in generators.registry.presets(name)]
MODEL_PRESETS = [(name, preset) for name in models.names() for preset in models.registry.presets(name)]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Presets files of shift and dlr, as a test wants them."""
    contents: dict[str, Any] = {"task": {}, "model": {}}
    monkeypatch.setattr(generators.registry, "presets", lambda _: contents["task"])
    monkeypatch.setattr(models.registry, "presets", lambda _: contents["model"])
    return contents


def test_precedence(files: dict[str, Any]) -> None:
    files["task"] = {
        "paper": {"parameters": {"length": 64, "shifts": 4}, "training": {"lr": 0.2, "clip": 0.2, "steps": 2}}
    }
    files["model"] = {
        "paper": {
            "hyper": {"d_model": 16, "d_state": 8, "layers": 2},
            "training": {"lr": 0.1, "weight_decay": 0.1, "clip": 0.1, "steps": 1},
            "tasks": {"shift": {"hyper": {"d_state": 4, "layers": 3}, "training": {"clip": 0.3, "steps": 3}}},
        }
    }
    user = {"parameters": {"shifts": 2}, "hyper": {"layers": 4}, "budget": {"steps": 4}}
    plan = resolve("shift", "dlr", preset="paper", **user)
    assert plan.task.parameters() == {"length": 64, "shifts": 2}
    assert plan.hyper == {"d_model": 16, "d_state": 4, "layers": 4}
    expected = {**DEFAULTS["paper"], "lr": 0.2, "weight_decay": 0.1, "clip": 0.3, "steps": 4}
    assert plan.budget == Budget(**expected)


@pytest.mark.usefixtures("files")
def test_what_no_preset_says_is_the_default() -> None:
    plan = resolve("shift", "dlr")
    assert plan.task == lrtasks.make("shift")
    assert (plan.hyper, plan.budget) == ({}, Budget())


def test_a_task_that_is_made_keeps_its_parameters() -> None:
    task = lrtasks.make("shift", length=32)
    assert resolve(task, "dlr", preset="paper").task is task
    with pytest.raises(UsageError, match="this task is made already"):
        resolve(task, "dlr", parameters={"length": 64})


def test_a_task_is_a_name_or_a_task() -> None:
    with pytest.raises(UsageError, match=r"task must be a name or a task that lrtasks\.make gave, found 3"):
        resolve(3, "dlr")  # type: ignore[arg-type]


def test_a_users_model_gets_the_tasks_preset_alone() -> None:
    plan = resolve("shift", None, preset="paper", hyper={"width": 3})
    assert plan.hyper == {"width": 3}
    assert plan.budget.steps == DEFAULTS["paper"]["steps"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shfit", "dlr"), "unknown task 'shfit'; did you mean 'shift'"),
        (("shift", "drl"), "unknown model 'drl'; did you mean 'dlr'"),
        (("shift", "dlr", "papr"), "unknown preset 'papr'; did you mean 'paper'"),
    ],
)
def test_unknown_names(arguments: tuple[str, ...], message: str) -> None:
    task, model, *preset = arguments
    with pytest.raises(UsageError, match=message):
        resolve(task, model, preset=preset[0] if preset else "small")


@pytest.mark.parametrize(
    ("owner", "content", "message"),
    [
        ("task", {"parameter": {"length": 64}}, "unknown entry in preset small of the task: 'parameter'; did you mean"),
        (
            "model",
            {"trainning": {"lr": 1}},
            "unknown entry in preset small of dlr: 'trainning'; did you mean 'training'",
        ),
        ("model", {"tasks": {"shift": {"hypr": {}}}}, "small of dlr for shift: 'hypr'; did you mean 'hyper'"),
        ("model", {"training": {"stepps": 3}}, "budget has no parameter 'stepps'; did you mean 'steps'"),
        ("task", {"parameters": {"lenght": 3}}, "shift has no parameter 'lenght'; did you mean 'length'"),
    ],
)
def test_a_presets_file_with_a_misspelt_entry(
    files: dict[str, Any], owner: str, content: dict[str, Any], message: str
) -> None:
    files[owner] = {"small": content}
    with pytest.raises(UsageError, match=message):
        resolve("shift", "dlr")


def test_settings_find_their_owner() -> None:
    given = {"length": 64, "d_state": 8, "lr": 0.1, "task.shifts": 2, "model.layers": 3, "budget.steps": 5}
    assert assign("shift", "dlr", given) == {
        "parameters": {"length": 64, "shifts": 2},
        "hyper": {"d_state": 8, "layers": 3},
        "budget": {"lr": 0.1, "steps": 5},
    }
    # given once, though it is not equal to itself
    assert math.isnan(assign("shift", "dlr", {"lr": math.nan})["budget"]["lr"])


def test_hyper_parameters_of_a_users_model_are_written_with_their_owner() -> None:
    assert assign("shift", None, {"model.width": 3})["hyper"] == {"width": 3}
    with pytest.raises(UsageError, match=r"nor the model nor the budget has a parameter 'width'.*written model\.NAME"):
        assign("shift", None, {"width": 3})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lenght": 64}, "neither shift nor dlr nor the budget has a parameter 'lenght'; did you mean 'length'"),
        ({"sede": 64}, "did you mean 'seed'"),
        ({"length": 64, "task.length": 32}, "length is given twice: 64 and 32"),
    ],
)
def test_settings_without_one_owner(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        assign("shift", "dlr", given, options=["seed"])


def test_a_name_that_two_have_needs_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "parameter_names", classmethod(lambda _: ["steps", "length"]))
    message = r"'length' is a parameter of task and budget: write task\.length or budget\.length"
    with pytest.raises(UsageError, match=message):
        assign("shift", "dlr", {"length": 64})
    assert assign("shift", "dlr", {"budget.length": 64})["budget"] == {"length": 64}


@pytest.mark.parametrize(("name", "preset"), TASK_PRESETS)
def test_every_preset_of_every_task_makes_a_plan(name: str, preset: str) -> None:
    plan = resolve(name, None, preset=preset)
    assert plan.task.name == name
    plan.task.input.shape(1), plan.task.target.shape(1)


@pytest.mark.parametrize(("name", "preset"), MODEL_PRESETS)
def test_every_preset_of_every_model_makes_a_plan(name: str, preset: str) -> None:
    own = models.registry.presets(name)[preset].get("tasks", {})
    for task in ("shift", *own):
        plan = resolve(task, name, preset=preset)
        models.registry.get(name).make(**plan.hyper)


@pytest.mark.parametrize("kind", ["tasks", "models"])
@pytest.mark.parametrize("preset", ["small", "paper"])
def test_everything_of_ours_has_both_presets(kind: str, preset: str) -> None:
    registry = {"tasks": generators.registry, "models": models.registry}[kind]
    assert [name for name in registry.built_in() if preset not in registry.presets(name)] == []
