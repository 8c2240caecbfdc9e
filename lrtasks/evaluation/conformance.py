"""Whether a registered task or model keeps its contract, presets included: what ``lrtasks check`` asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lrtasks import generators, models
from lrtasks.errors import UsageError, unknown
from lrtasks.evaluation.presets import resolve
from lrtasks.generators import Task
from lrtasks.generators.checks import task_problems
from lrtasks.spec import Spec

LENGTH = 61
"""Not a multiple of any chunk."""
SPECS = {
    "signals": (Spec("real", LENGTH, 3), Spec("real", LENGTH, 2)),
    "tokens": (Spec("token", LENGTH, 7), Spec("token", LENGTH, 5)),
    "signals, last positions": (Spec("real", LENGTH, 3), Spec("real", 9, 1)),
    "tokens, whole sequence": (Spec("token", LENGTH, 7), Spec("token", 1, 5, pooled=True)),
}
"""Inputs and targets that models are checked on."""


@dataclass(frozen=True)
class _AnyTask(Task):
    """A task that no preset knows: what a model's presets say of every task."""

    name: ClassVar[str] = "any task"


@dataclass
class Conformance:
    """What was found about one name.

    Attributes:
        kind: ``"task"`` or ``"model"``.
        name: the registered name.
        problems: what is wrong, one entry each.
        refused: for models, by the reason they give, what they cannot be built for, and so was not checked.
    """

    kind: str
    name: str
    problems: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)


def check_registered(name: str, *, preset: str = "small", settings: Mapping[str, Any] | None = None) -> Conformance:
    """Check the task or model called ``name``.

    A task is checked at a preset's parameters; a model at its hyper-parameters, on signals and tokens, for every
    position, the last ones and the whole sequence, causal and bidirectional. All presets must be valid.

    Args:
        name: a registered name; a task's, if there is a model of that name too.
        preset: whose parameters are taken.
        settings: parameters of the task or hyper-parameters of the model that override the preset's.

    Raises:
        UsageError: for an unknown name or preset, settings that are refused, or a package that cannot be used.
    """
    given = dict(settings or {})
    if name in generators.names():
        plan = resolve(name, None, preset=preset, parameters=given)
        found = Conformance("task", name, task_problems(plan.task))
        for each in generators.registry.get(name).presets:
            found.problems += _preset_problems(name, None, each)
    elif name in models.names():
        hyper = {**resolve(_AnyTask(), name, preset=preset).hyper, **given}
        models.registry.get(name).make(**hyper)
        found = Conformance("model", name)
        _check_model(found, hyper)
        for each in models.registry.get(name).presets:
            found.problems += _preset_problems(each.partition("/")[2] or _AnyTask(), name, each.partition("/")[0])
    else:
        raise unknown("task or model", name, [*generators.names(), *models.names()])
    return found


def _check_model(found: Conformance, hyper: dict[str, Any]) -> None:
    from lrtasks.models.checks import model_problems

    for direction in ("causal", "bidirectional"):
        for what, (input, target) in SPECS.items():
            case = f"{direction} on {what}"
            try:
                problems = model_problems(found.name, input=input, target=target, causal=direction == "causal", **hyper)
            except UsageError as error:
                found.refused.setdefault(str(error), []).append(case)
            except Exception as error:  # whatever other people's code does
                found.problems.append(f"{case}: it cannot be built: {type(error).__name__}: {error}")
            else:
                found.problems += [f"{case}: {problem}" for problem in problems]
    if sum(map(len, found.refused.values())) == 2 * len(SPECS):
        found.problems.append("it can be built for nothing")


def _preset_problems(task: str | Task, model: str | None, preset: str) -> Iterator[str]:
    """What is wrong with one preset, of a task or of a model for a task."""
    try:
        plan = resolve(task, model, preset=preset)
        if model is not None:
            models.registry.get(model).make(**plan.hyper)
    except UsageError as error:
        yield f"preset {preset}: {error}"
