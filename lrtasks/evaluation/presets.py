"""Join presets: what the model says, then the task, then the model for this task, then the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lrtasks.errors import UsageError, suggestion, unknown
from lrtasks.evaluation.budget import DEFAULTS, Budget
from lrtasks.evaluation.choices import split_setting
from lrtasks.generators import Task, registry

TASK_ENTRIES = ("parameters", "training")
MODEL_ENTRIES = ("hyper", "training", "tasks")
BOTH_ENTRIES = ("hyper", "training")
"""What presets files may say: a task's, a model's, and a model's for one task."""


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
    # a task that is made may be of a class that no registry knows
    named = task if isinstance(task, str) else task.name
    task_presets = registry.presets(named) if isinstance(task, str) or named in registry.names() else {}
    model_presets = models.registry.presets(model) if model else {}
    known = {*DEFAULTS, *task_presets, *model_presets}
    if preset not in known:
        raise unknown("preset", preset, known)
    for_task = _checked(task_presets.get(preset, {}), TASK_ENTRIES, f"preset {preset} of the task")
    if isinstance(task, str):
        task = registry.get(task).make(**{**for_task.get("parameters", {}), **parameters})
    elif parameters:
        raise UsageError("task parameters can be given with a task's name only; this task is made already")
    for_model = _checked(model_presets.get(preset, {}), MODEL_ENTRIES, f"preset {preset} of {model}")
    for_both = for_model.get("tasks", {}).get(task.name, {})
    _checked(for_both, BOTH_ENTRIES, f"preset {preset} of {model} for {task.name}")
    return Plan(
        task=task,
        model=model,
        hyper={**for_model.get("hyper", {}), **for_both.get("hyper", {}), **hyper},
        budget=Budget.make(
            **{
                **DEFAULTS.get(preset, {}),
                **for_model.get("training", {}),
                **for_task.get("training", {}),
                **for_both.get("training", {}),
                **budget,
            }
        ),
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


def _checked(preset: dict[str, Any], allowed: Iterable[str], where: str) -> dict[str, Any]:
    for name in preset:
        if name not in allowed:
            raise unknown(f"entry in {where}:", name, allowed)
    return preset
