"""Check a registered task or model, its presets included: the work of ``lrtasks check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lrtasks import generators, models
from lrtasks.check.task import task_problems
from lrtasks.errors import UsageError, in_one_line, unknown
from lrtasks.generators import Task
from lrtasks.spec import Spec

LENGTH = 61
"""Not a multiple of any chunk."""
SPECS = {
    "signals": (Spec("real", LENGTH, 3), Spec("real", LENGTH, 2)),
    "tokens": (Spec("token", LENGTH, 7), Spec("token", LENGTH, 5)),
    "signals, last positions": (Spec("real", LENGTH, 3), Spec("real", 9, 1)),
    "tokens, whole sequence": (Spec("token", LENGTH, 7), Spec("token", 1, 5, pooled=True)),
}
"""Inputs and targets on which models are checked."""


def check_registered(name: str, *, preset: str = "small", settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check the task or model called ``name``, and that all of its presets are valid.

    A model is checked causal and bidirectional on signals and tokens, with targets for every position, for the last
    ones and for the whole sequence.

    Args:
        name: a registered name or an address; the task's, if there is also a model of that name.
        preset: the preset that gives its parameters.
        settings: parameters that override the preset's.

    Returns:
        ``kind`` (``"task"`` or ``"model"``), ``name``, ``problems``, one entry each, and ``refused``: the cases that
        were not checked, by the reason that the model gives for not being built.

    Raises:
        UsageError: for an unknown name or preset, settings that are refused, or a package that cannot be used.
    """
    given, refused = dict(settings or {}), dict[str, list[str]]()
    if generators.registry.owns(name):
        from lrtasks.run_config import require_preset

        cls = generators.registry.get(name)
        require_preset(preset, [cls])
        kind, problems = "task", task_problems(cls.make(**{**cls.preset_values(preset)[0], **given}))
        for each in cls.presets:
            problems += _preset_problems(name, "dlr", each)
    elif name in models.names() or ":" in name:
        from lrtasks.run_config import RunConfig

        settings = {f"model.{key}": value for key, value in given.items()}
        hyper = RunConfig.make(_AnyTask(), name, preset=preset, settings=settings).model.parameters
        kind, problems = "model", _check_model(name, hyper, refused)
        for each, _, task in (key.partition("/") for key in _presets(name)):
            problems += _preset_problems(task or _AnyTask(), name, each)
    else:
        raise unknown("task or model", name, [*generators.names(), *models.names()])
    return {"kind": kind, "name": name, "problems": problems, "refused": refused}


def _presets(name: str) -> list[str]:
    return [] if ":" in name else list(models.registry.get(name).presets)


@dataclass(frozen=True)
class _AnyTask(Task):
    """A task that has no presets of its own and none in any model."""

    name: ClassVar[str] = "any task"


def _check_model(name: str, hyper: dict[str, Any], refused: dict[str, list[str]]) -> list[str]:
    from lrtasks.check.model import model_problems  # loads torch

    found: list[str] = []
    for direction in ("causal", "bidirectional"):
        for what, (input, target) in SPECS.items():
            case = f"{direction} on {what}"
            try:
                problems = model_problems(name, input=input, target=target, causal=direction == "causal", **hyper)
            except UsageError as error:
                refused.setdefault(str(error), []).append(case)
            except Exception as error:
                found.append(f"{case}: it cannot be built: {in_one_line(error)}")
            else:
                found += [f"{case}: {problem}" for problem in problems]
    if sum(map(len, refused.values())) == 2 * len(SPECS):
        found.append("it can be built for none of the inputs and targets that were tried")
    return found


def _preset_problems(task: str | Task, model: str, preset: str) -> Iterator[str]:
    from lrtasks.run_config import RunConfig  # loads torch

    try:
        RunConfig.make(task, model, preset=preset)
    except UsageError as error:
        yield f"preset {preset}: {error}"
