"""What a run was set to: in which settings two runs differ, and in which they must not."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.record import RunRecord

SHARED_BUDGET = ("steps", "batch_size", "train_samples", "val_batches", "test_batches", "stop_at", "precision")
"""Budget fields in which compared models must agree; the others (learning rate, ...) belong to a model's tuning."""

Settings = Mapping[str, Any]

_OTHERWISE = re.compile(r"none|null|true|false|[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
"""Texts that would be read as a value of another type."""


def task_settings(record: RunRecord) -> Settings:
    """The task with its parameters, version and data."""
    task = record.task
    parameters = {f"task {name}": value for name, value in task["parameters"].items()}
    return _said({"name": task["name"], **parameters, "version": task["version"], "data": task.get("data")})


def shared_budget(record: RunRecord) -> Settings:
    """The part of the budget in which compared models must agree."""
    return _said({name: record.budget.get(name) for name in SHARED_BUDGET})


def model_settings(record: RunRecord) -> Settings:
    """The model with its hyper-parameters and its part of the budget."""
    model = record.model
    parameters = {f"model {name}": value for name, value in model["parameters"].items()}
    tuning = {name: value for name, value in record.budget.items() if name not in SHARED_BUDGET}
    said = _said({"name": model["name"], **parameters, **tuning, "structure": model.get("structure")})
    if "structure" in said:  # of a user's own model only what was given is known: none is not the default
        return {**said, **parameters}
    return said


def key(settings: Settings) -> str:
    """A text that is the same for equal settings and for no others."""
    return json.dumps(settings, sort_keys=True)


def differing(settings: Sequence[Settings]) -> list[str]:
    """Names of the settings that are not the same in all, sorted."""
    names = {name for entry in settings for name in entry}
    return sorted(name for name in names if len({_told(entry, [name]) for entry in settings}) > 1)


def telling(settings: Sequence[Settings]) -> list[str]:
    """What :func:`differing` gives, but the structure of a user's own models only if nothing else tells them apart."""
    names = differing(settings)
    words = [name for name in names if name != "structure"]
    counts = [len({_told(entry, chosen) for entry in settings}) for chosen in (words, names)]
    return words if counts[0] == counts[1] else names


def label(entry: Settings, names: Iterable[str]) -> str:
    """The name with some of the settings.

    >>> label({"name": "longvq", "model window": None, "model quantise": True}, ["model window", "model quantise"])
    'longvq (window=none, quantise=true)'
    """
    missing = "default" if "structure" in entry else as_given(None)
    shown = ", ".join(f"{bare(name)}={as_given(entry[name]) if name in entry else missing}" for name in names)
    return f"{entry['name']} ({shown})" if shown else str(entry["name"])


def labels(settings: Sequence[Settings]) -> list[str]:
    """Label each by its name and by what differs among those of one name."""
    alike = {entry["name"]: telling([e for e in settings if e["name"] == entry["name"]]) for entry in settings}
    return [label(entry, alike[entry["name"]]) for entry in settings]


def bare(name: str) -> str:
    """The name of a setting without its owner."""
    return name.split(" ")[-1]


def as_given(value: Any) -> str:
    """A value as a command takes it; a text that looks like another value in quotation marks."""
    if isinstance(value, str):
        return json.dumps(value) if _OTHERWISE.fullmatch(value.lower()) else value
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def by_number(text: str) -> list[tuple[float, str]]:
    """Sort key: runs of digits count as numbers, so that length=1024 comes after length=256."""
    return [(float(part) if part.isdigit() else math.inf, part) for part in re.split(r"(\d+)", text)]


def require_equal_budgets(records: Sequence[RunRecord]) -> None:
    """Check that runs on one task with the same parameters had the same shared budget.

    Raises:
        UsageError: if not; the message names two runs, the field and both values.
    """
    first: dict[str, RunRecord] = {}
    for record in records:
        task = task_settings(record)
        other = first.setdefault(key(task), record)
        for name in SHARED_BUDGET:
            values = [entry.budget.get(name) for entry in (other, record)]
            if values[0] != values[1]:
                raise UsageError(
                    f"unequal budgets on {task['name']}: {name} is {values[0]} for {run_name(other)} and {values[1]} "
                    f"for {run_name(record)}; a table that holds both has to be asked for (--unequal-budgets)"
                )


def run_name(record: RunRecord) -> str:
    """Model and seed, for a message."""
    return f"{record.model['name']} seed {record.seed}"


def versions_note(records: Iterable[RunRecord]) -> list[str]:
    """A note for the reader of figures that several versions of lrtasks have made; none if it was one."""
    versions = {str(record.environment["lrtasks"]) for record in records if "lrtasks" in record.environment}
    listed = " and ".join(sorted(versions, key=by_number))
    return [f"made by lrtasks {listed}, whose models may differ"] if len(versions) > 1 else []


def _told(entry: Settings, names: Iterable[str]) -> str:
    """A text that is the same for entries that have the same to say of ``names``."""
    return json.dumps([[name in entry, entry.get(name)] for name in names])


def _said(settings: dict[str, Any]) -> Settings:
    """Without what is none: a record from before a setting existed is one that does not use it."""
    return {name: value for name, value in settings.items() if value is not None}
