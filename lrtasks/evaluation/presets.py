"""Join presets: what the model says, then the task, then the model for this task, then the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lrtasks.budget import DEFAULTS, Budget
from lrtasks.errors import UsageError, suggestion, unknown
from lrtasks.evaluation.choices import split_setting
from lrtasks.generators import Task, registry


@dataclass(frozen=True)
class Plan:
    """A task, a model by name and hyper-parameters, and a budget: all that a run needs but the seed."""

    task: Task
    model: str | None
    hyper: dict[str, Any]
    budget: Budget


def resolve(
    task: str | Task,
    model: str | None,
    *,
    preset: str = "small",
    parameters: Mapping[str, Any] | None = None,
    hyper: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
) -> Plan:
    """Fill in what ``preset`` says for whatever the user leaves open.

    Args:
        task: a name, or a task as it stands.
        model: the name of a registered model, or ``None`` for a user's own module.
        preset: ``"small"`` (minutes on two CPU cores), ``"paper"`` (the papers' own), or another that the task's or
            the model's presets file has.
        parameters: task parameters by name; only with a task name.
        hyper: hyper-parameters of the model.
        budget: fields of :class:`Budget`.

    Raises:
        UsageError: for unknown names anywhere, with the close ones, and values out of range.
    """
    from lrtasks import models

    parameters, hyper, budget = dict(parameters or {}), dict(hyper or {}), dict(budget or {})
    if not isinstance(task, (str, Task)):
        raise UsageError(f"task must be a name or a task that lrtasks.make gave, found {task!r}")
    model_class = models.registry.get(model) if model else None
    task_class = registry.get(task) if isinstance(task, str) else type(task)
    presets = [*task_class.presets, *(model_class.presets if model_class else ())]
    known = {*DEFAULTS, *(name for name in presets if "/" not in name)}
    if preset not in known:
        raise unknown("preset", preset, known)
    task_parameters, task_budget = task_class.preset_values(preset)
    if isinstance(task, str):
        task = task_class.make(**{**task_parameters, **parameters})
    elif parameters:
        raise UsageError("task parameters can be given with a task's name only; this task is made already")
    model_parameters, model_budget = model_class.preset_values(preset) if model_class else ({}, {})
    both_parameters, both_budget = model_class.preset_values(f"{preset}/{task.name}") if model_class else ({}, {})
    return Plan(
        task=task,
        model=model,
        hyper={**model_parameters, **both_parameters, **hyper},
        budget=Budget.make(**{**DEFAULTS.get(preset, {}), **model_budget, **task_budget, **both_budget, **budget}),
    )


def assign(
    task: str, model: str | None, settings: Mapping[str, Any], *, options: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Sort settings given by bare name into the task's, the model's and the budget's.

    A name that two of them have must be written ``task.NAME``, ``model.NAME`` or ``budget.NAME``, and so must the
    hyper-parameters of a user's own model (``model=None``), whose names are not known here.

    Args:
        task: the task's name.
        model: the registered model's name, or ``None``.
        settings: values by name.
        options: what else the user could have meant by an unknown name.

    Returns:
        ``{"parameters": ..., "hyper": ..., "budget": ...}``.

    Raises:
        UsageError: for a name that nothing has, that two have, or that is given twice.
    """
    from lrtasks import models

    owners: dict[str, tuple[str, list[str]]] = {
        "task": ("parameters", registry.get(task).parameter_names()),
        "model": ("hyper", models.registry.get(model).parameter_names() if model else []),
        "budget": ("budget", Budget.parameter_names()),
    }
    sorted_settings: dict[str, dict[str, Any]] = {key: {} for key, _ in owners.values()}
    for name, value in settings.items():
        said, bare = split_setting(name)
        having = [said] if said else [owner for owner, (_, known) in owners.items() if name in known]
        if len(having) > 1:
            choices = " or ".join(f"{owner}.{name}" for owner in having)
            raise UsageError(f"{name!r} is a parameter of {' and '.join(having)}: write {choices}")
        if not having:
            every = {*options, *(entry for _, known in owners.values() for entry in known)}
            others = sorted(entry for entry in every if entry.replace("-", "_") != name)
            listed = "; ".join(f"{owner} has: {', '.join(known)}" for owner, (_, known) in owners.items() if known)
            own = "" if model else "; your own model's are written model.NAME"
            raise UsageError(
                f"neither {task} nor {model or 'the model'} nor the budget has a parameter {name!r}"
                f"{suggestion(name, others)} ({listed}{own})"
            )
        mine = sorted_settings[owners[having[0]][0]]
        if bare in mine and mine[bare] != value:
            raise UsageError(f"{bare} is given twice: {mine[bare]!r} and {value!r}")
        mine[bare] = value
    return sorted_settings
