"""What a run is, before it begins: its folder, its record, the command that repeats it."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lrtasks import models
from lrtasks.evaluation.environment import describe_environment
from lrtasks.evaluation.presets import Plan
from lrtasks.evaluation.subject import Subject
from lrtasks.generators.base import Task
from lrtasks.models.base import Backbone, ModelLike, state_bytes
from lrtasks.record import RunRecord

LONGEST_NAME = 100
"""Characters of a model's name that its runs' folders show; file systems allow 255 for all of it."""


def new_record(
    plan: Plan, preset: str, seed: int, command: str, *, subject: Subject | None = None, data_digest: str | None = None
) -> RunRecord:
    """The record of a run that has not begun; without a ``subject`` it lacks what only the built model can tell."""
    task = {
        "name": plan.task.name,
        "version": plan.task.version,
        "parameters": plan.task.parameters(),
        "metric": plan.task.metric,
        "data": data_digest,
    }
    model: dict[str, Any] = {**_model_identity(plan, subject), "count": None, "state_bytes": None}
    if subject is not None:
        module = subject.module
        trained = [value for value in module.parameters() if value.requires_grad]
        model["count"] = sum(value.numel() * (1 + value.is_complex()) for value in trained)  # two numbers make one
        model["state_bytes"] = state_bytes(module) if isinstance(module, Backbone) else None
    return RunRecord(
        command=command,
        task=task,
        model=model,
        preset=preset,
        budget=plan.budget.parameters(),
        seed=seed,
        environment=describe_environment(),
    )


def run_folder(
    out: Path, plan: Plan, seed: int, *, subject: Subject | None = None, data_digest: str | None = None
) -> Path:
    """The folder of a run: the same for the same task, model, budget, data and seed, and for nothing else.

    A registered model is known by its hyper-parameters; a user's own is told by ``subject``.
    """
    identity = {
        **plan.task.identity(),
        "model": _model_identity(plan, subject),
        "start": subject.start if subject else None,
        "budget": plan.budget.parameters(),
        "data": data_digest,
    }
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    name = identity["model"]["name"]
    readable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)[:LONGEST_NAME]
    return out / plan.task.name / f"{readable}-{digest}-seed{seed}"


def repeat_command(
    model: str,
    task: str | Task,
    preset: str,
    seed: int,
    *,
    parameters: Mapping[str, Any],
    hyper: Mapping[str, Any],
    budget: Mapping[str, Any],
    data: str | Path | None,
) -> list[str]:
    """The words of the command that carries out a run of a model that has a name or an address."""
    name = task if isinstance(task, str) else task.name
    parameters = parameters if isinstance(task, str) else task.parameters()
    words = ["lrtasks", "eval", "--model", model, "--task", name, "--preset", preset, "--seed", str(seed)]
    for owner, values in {"task": parameters, "model": hyper, "budget": budget}.items():
        for key, value in values.items():
            # a NumPy number is written as the number it is
            words += ["--set", f"{owner}.{key}={json.dumps(value, default=lambda number: number.item())}"]
    return words if data is None else [*words, "--data", str(data)]


def command_text(
    model: ModelLike,
    task: str | Task,
    preset: str,
    seed: int,
    given: Mapping[str, Mapping[str, Any]],
    data: str | Path | None,
) -> str:
    """What repeats a run: the command, or for a user's own object the call, with its class's name in place of it.

    ``given`` holds ``parameters``, ``hyper`` and ``budget`` as the user gave them.
    """
    if isinstance(model, str):
        return shlex.join(repeat_command(model, task, preset, seed, **given, data=data))
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__qualname__", "factory")
    settings = {"preset": preset, "seed": seed, **{key: dict(values) for key, values in given.items() if values}}
    if data is not None:
        settings["data"] = str(data)
    listed = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"lrtasks.evaluate({name}, {task!r}, {listed})"


def _model_identity(plan: Plan, subject: Subject | None) -> dict[str, Any]:
    if subject is not None:
        return {"name": subject.name, "parameters": subject.hyper, "structure": subject.structure}
    assert plan.model is not None
    config = models.registry.get(plan.model).make(**plan.hyper)
    return {"name": plan.model, "parameters": config.parameters(), "structure": None}
