"""The config of a run: task, model, budget, seed and data; also its digest, folder and the command to repeat it."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from lrtasks.budget import DEFAULTS, Budget
from lrtasks.config import assign
from lrtasks.errors import UsageError, own_frames, require_known, unknown, with_line
from lrtasks.generators import Task, registry
from lrtasks.generators.base import misdeclared
from lrtasks.models.base import ModelLike
from lrtasks.models.factory import ModelFactory, model_factory, model_label, model_parameter_names, model_presets
from lrtasks.record import RunRecord, name_of_test_set
from lrtasks.registry import own_source, split_preset

LONGEST_NAME = 100
"""Largest number of characters of the model's name in a run's folder name; file systems allow 255 in total."""


@dataclass(frozen=True)
class RunConfig:
    """The config of one run.

    Attributes:
        model: the model, not built yet.
        seed: seeds initialisation and training stream.
        preset: the preset that supplied the values that the user did not set.
        settings: values that the user set, by ``OWNER.NAME``.
        task_address: value for ``--task``; ``None`` for a Python object.
        data: address of a stored dataset, or ``None`` for fresh samples.
        data_digest: digest of the stored dataset; set when the dataset has been opened.
        test_digests: digest of each dataset of ``budget.test_data``, by the name of its folder.
    """

    task: Task
    model: ModelFactory
    budget: Budget
    seed: int = 0
    preset: str = "small"
    settings: Mapping[str, Any] = field(default_factory=dict)
    task_address: str | None = None
    data: str | None = None
    data_digest: str | None = None
    test_digests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        task: str | Task,
        model: ModelLike,
        *,
        preset: str = "small",
        seed: int = 0,
        settings: Mapping[str, Any] | None = None,
        data: str | Path | None = None,
        name: str = "",
        options: Iterable[str] = (),
    ) -> RunConfig:
        """Resolve names, and take values that the user does not set from ``preset``.

        If several sources set the same value, the last one in this order wins: the preset's budget, the model's preset,
        the task's preset, the model's preset for this task, ``settings``.

        Args:
            task: a name or an address ``FILE.py:NAME``, optionally with a preset of the task (``word-problem@a5``), or
                a task object.
            model: any form of a model (:mod:`lrtasks.models.factory`).
            preset: ``"small"``, ``"paper"``, or another preset of the task or the model.
            seed: whole number in 0..2^63-1.
            settings: parameters of task, model and budget, by bare name or by ``OWNER.NAME``. Parameters of the model
                can also be given by ``LABEL.NAME`` (``dlr.d_state``, ``MyLayer.window``).
            data: a stored dataset of this task.
            name: label of a user's own model.
            options: other names that the user could have meant; the error message can suggest them.

        Raises:
            UsageError: for an unknown name (the message suggests similar names) or a value out of range.
        """
        require_task(task)
        task_name, task_preset = split_preset(task) if isinstance(task, str) else ("", "")
        task_class = registry.get(task_name) if isinstance(task, str) else type(task)
        model_class = model_presets(model)
        require_preset(preset, [task_class, *([model_class] if model_class else [])])
        if task_preset and task_preset not in task_class.presets:
            raise unknown(f"preset of {task_name}:", task_preset, task_class.presets)
        known = {"task": task_class.parameter_names(), "model": model_parameter_names(model)}
        known["budget"] = Budget.parameter_names()
        label = model_label(model, name)
        if not label.isprintable():
            raise UsageError(f"{label!r} cannot be the name of a model: use printable characters only")
        own = label.replace("-", "_") + "."  # LABEL.NAME of this model means model.NAME
        named: dict[str, Any] = {}
        for key, value in (settings or {}).items():
            name_of = f"model.{key[len(own) :]}" if key.replace("-", "_").startswith(own) else key
            if repr(named.setdefault(name_of, value)) != repr(value):
                raise UsageError(f"{name_of[6:]} of {label} is given twice: {named[name_of]} and {value}")
        given = assign(named, known, options=options)
        of_task, task_budget = task_class.preset_values(task_preset or preset)
        of_model, model_budget = model_class.preset_values(preset) if model_class else ({}, {})
        of_both, both_budget = dict[str, Any](), dict[str, Any]()
        for both in (f"{preset}/{task_class.name}", f"{preset}/{task_class.name}@{task_preset}"):
            values, budget_values = model_class.preset_values(both) if model_class else ({}, {})
            of_both |= values
            both_budget |= budget_values
        address = task if isinstance(task, str) else None
        if isinstance(task, str):
            task = task_class.make(**{**of_task, **given["task"]})
        elif given["task"]:
            raise UsageError("task parameters can be given with a task's name only; this task is made already")
        task.key(seed, "train")  # raises an error for an invalid seed
        for problem in misdeclared(task):
            raise UsageError(f"{type(task).__name__}: {problem}")
        budgets = (DEFAULTS.get(preset, {}), model_budget, task_budget, both_budget, given["budget"])
        fields = {key: value for budget in budgets for key, value in budget.items()}
        if "steps" in given["budget"] and "warmup_steps" not in given["budget"]:
            # if the user asks for fewer steps than the preset's warm-up, the whole run is warm-up
            fields["warmup_steps"] = min(fields.get("warmup_steps", 0), Budget.make(steps=fields["steps"]).steps)
        run_budget = Budget.make(**fields)
        _require_class_weights(task, run_budget)
        return cls(
            task=task,
            model=model_factory(model, {**of_model, **of_both, **given["model"]}, name=name),
            budget=run_budget,
            seed=int(seed),
            preset=preset,
            settings={f"{owner}.{key}": value for owner, values in given.items() for key, value in values.items()},
            task_address=address,
            data=None if data is None else str(data),
            test_digests=_digests(run_budget.test_data or ()),
        )

    def identity(self) -> dict[str, Any]:
        """Return the values that distinguish the run from others, ready for JSON."""
        source = own_source(type(self.task))
        task = self.task.identity() | ({} if source is None else {"task_source": source})
        # the content of a test set counts, not its address
        budget = self.budget.identifying() | ({"test_data": dict(self.test_digests)} if self.test_digests else {})
        shared = {"budget": budget, "data": self.data_digest, "seed": self.seed}
        return {**task, "model": self.model.identity, **shared}

    @property
    def digest(self) -> str:
        """Return the digest of :meth:`identity`, 32 hexadecimal digits."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def folder(self, out: Path) -> Path:
        """Return the run's folder below the results folder ``out``; its name contains part of the digest."""
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.model.name)
        return out / self.task.name / f"{name[:LONGEST_NAME]}-{self.digest[:8]}-seed{self.seed}"

    def title(self) -> str:
        """Return a title of the run for readers, with all settings that the user gave."""
        plain = {name: value if isinstance(value, tuple | list) else [value] for name, value in self.settings.items()}
        settings = "".join(f" {name.split('.')[-1]}={','.join(map(str, values))}" for name, values in plain.items())
        _, task_preset = split_preset(self.task_address or "")
        task = f"{self.task.name}@{task_preset}" if task_preset else self.task.name
        return f"{self.model.name} on {task}{settings} seed {self.seed}"

    def command(self) -> list[str]:
        """Return the words of the command that repeats the run."""
        model = self.model.address or self.model.name
        words = ["lrtasks", "eval", "--model", model, "--task", self.task_address or self.task.name]
        words += ["--preset", self.preset, "--seed", str(self.seed)]
        settings = dict(self.settings)
        if self.task_address is None:
            settings |= {f"task.{name}": value for name, value in self.task.parameters().items()}
        for name, value in settings.items():
            # NumPy numbers are written as plain numbers
            words += ["--set", f"{name}={json.dumps(value, default=lambda number: number.item())}"]
        return words if self.data is None else [*words, "--data", self.data]

    def command_text(self) -> str:
        """Return the command that repeats the run; for a Python model, the call with the model's name as argument."""
        if self.model.address is not None and not self.is_renamed:
            return shlex.join(self.command())
        data = [f"data={self.data!r}"] if self.data else []
        settings = [f"**{dict(self.settings)!r}"] if self.settings else []  # the names have dots
        name = [f"name={self.model.name!r}"] if self.is_renamed else []
        listed = ", ".join([f"preset={self.preset!r}", f"seed={self.seed}", *data, *name, *settings])
        model = repr(self.model.address) if self.is_renamed else self.model.name
        task = self.task if self.task_address is None else self.task_address
        return f"lrtasks.evaluate({model}, {task!r}, {listed})"

    @functools.cached_property
    def is_renamed(self) -> bool:
        """Whether the user renamed a model that has an address, so that no command can repeat the run.

        The first answer stays: the file may be broken or gone when a suite records that a run has ended.
        """
        return self.model.address is not None and self.model.name != model_label(self.model.address)

    def build(self) -> nn.Module:
        """Build the model on the CPU, in training mode; draw its parameters from torch's global generator.

        Raises:
            UsageError: if the model does not fit into the memory, cannot have this size or direction, or if the user's
                code raises an exception.
        """
        try:
            return self.model.build(self.task.input, self.task.target, self.task.causal).train()
        except UsageError:
            raise
        except Exception as error:
            if own_frames(error):
                raise UsageError(f"{self.model.name} raised {with_line(error)}") from error
            raise

    def record(self, status: str = "running", notes: Iterable[str] = ()) -> RunRecord:
        """Return a record of the run without results."""
        task = {
            "name": self.task.name,
            "version": self.task.version,
            "parameters": self.task.parameters(),
            "metric": self.task.metric,
            "address": self.task_address,
            "data": self.data_digest,
            "source": own_source(type(self.task)),
        }
        return RunRecord(
            command=self.command_text(),
            digest=self.digest,
            task=task,
            model={**self.model.identity, "address": self.model.address, "count": None, "state_bytes": None},
            preset=self.preset,
            budget=self.budget.identifying(),
            seed=self.seed,
            environment={},
            status=status,
            notes=list(notes),
        )


def build_model(model: ModelLike, task: str | Task, *, preset: str | None = None, **hyper: Any) -> nn.Module:
    """Build an untrained model for a task, on the CPU, in training mode.

    Args:
        model: any form of a model (:mod:`lrtasks.models.factory`).
        task: a name or a task; its input, target and direction determine the shape of the model.
        preset: supplies hyper-parameters (and parameters of a task given by name) that the caller does not set, as in
            :func:`lrtasks.evaluate`; without a preset they have their defaults.
        hyper: hyper-parameters by name.

    Returns:
        A module that maps ``task.batch(...)``'s ``x`` to ``(batch, task.target.length, task.target.width)``. Its
        parameters are drawn from torch's global generator.

    Raises:
        UsageError: for an unknown name or hyper-parameter (similar names are suggested) or a value out of range.
    """
    settings = {f"model.{name}": value for name, value in hyper.items()}
    if preset is not None:
        return RunConfig.make(task, model, preset=preset, settings=settings).build()
    require_task(task)
    made = registry.get(task).make() if isinstance(task, str) else task
    return model_factory(model, hyper).build(made.input, made.target, made.causal).train()


def require_task(task: object) -> None:
    """Raise :class:`UsageError` unless ``task`` is a name or a task whose class has a name."""
    if not isinstance(task, (str, Task)):
        raise UsageError(f"task must be a name or a task that lrtasks.make gave, found {task!r}")
    if isinstance(task, Task):
        task.require_name()


def require_preset(preset: str, classes: Iterable[type[Any]]) -> None:
    """Raise :class:`UsageError` for a preset that is not in :data:`DEFAULTS` or in one of these classes."""
    known = {*DEFAULTS, *(name for cls in classes for name in cls.presets if "/" not in name)}
    require_known("preset", preset, known)


def _digests(addresses: Iterable[str]) -> dict[str, str]:
    """Return the digest of each stored dataset, by the name of its folder."""
    found = {}
    for address in addresses:
        from lrtasks.data import open_dataset

        found[name_of_test_set(address)] = open_dataset(address).manifest.digest
    return found


def _require_class_weights(task: Task, budget: Budget) -> None:
    """Raise :class:`UsageError` unless ``class_weights``, if given, has one weight per class of ``task``."""
    if budget.class_weights is not None:
        classes = task.target.width if task.target.kind == "token" else 0
        if len(budget.class_weights) != classes:
            found = f"{classes} classes" if classes else "real values and no classes"
            given = len(budget.class_weights)
            raise UsageError(f"class_weights needs one weight per class: found {given}, but {task.name} has {found}")
