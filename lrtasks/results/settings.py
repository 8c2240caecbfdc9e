"""Settings that identify a run, and labels that show in which settings runs differ."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from lrtasks.budget import SHARED_BUDGET, Budget
from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError
from lrtasks.record import RunRecord, split_selected

Settings = Mapping[str, Any]

_NO_SETTINGS = ("parameters", "address", "count", "state_bytes")
_DIGEST = "source"
"""Digest of a user's own model or task: of its file, or a random text for a Python object without a file."""
_LONG_DIGEST = re.compile(r"[0-9a-f]{32,}")
"""Digest of a source file or a dataset; a label shows its first eight digits."""
_OBJECT = re.compile(r"(object|module) [0-9a-f]{16}")
"""Digest of a Python object without a file, which differs in every run."""
_MIXER_SETTING = re.compile(r"[\w-]+\.[\w-]+=.*", re.DOTALL)
"""Entry ``MIXER.NAME=VALUE`` in ``hyper`` of a stack: a setting of one of its mixers."""
_AMBIGUOUS = re.compile(r"none|null|true|false|default|\[.*|[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.DOTALL)
"""Texts that the command line would parse as a value of another type, or that stand for a missing value."""


def setup_of(record: RunRecord) -> Settings:
    """Return the settings that compared runs share: task, its parameters, version and data, and the shared budget."""
    task = record.task
    parameters = {f"task {name}": value for name, value in task["parameters"].items()}
    shared = {name: record.budget.get(name) for name in SHARED_BUDGET}
    identity = {name: task.get(name) for name in ("name", "version", "data", "source")}
    return without_none({**identity, **parameters, **shared})


def require_equal_budgets(runs: Iterable[tuple[str, Settings]], hint: str, may_differ: Collection[str] = ()) -> None:
    """Check that runs on one task with the same parameters have the same shared budget.

    Args:
        runs: name and setup (:func:`setup_of`) of each run.
        hint: the end of the message.
        may_differ: fields of the shared budget that may differ.

    Raises:
        UsageError: if the budgets differ; the message names two runs, the field and both values.
    """
    first: dict[str, tuple[str, Settings]] = {}
    for run, setup in runs:
        settings = {name: value for name, value in setup.items() if name not in SHARED_BUDGET}
        other, others = first.setdefault(key(settings), (run, setup))
        for name in SHARED_BUDGET:
            values = others.get(name), setup.get(name)
            if values[0] != values[1] and name not in may_differ:
                both = f"{values[0]} for {other} and {values[1]} for {run}"
                raise UsageError(f"unequal budgets on {setup['name']}: {name} is {both}; {hint}")


def variant_of(record: RunRecord) -> Settings:
    """Return the settings of the model: hyper-parameters, version or digest, and the model's own part of the budget.

    A setting that was selected on validation has the value ``"selected"``, since its own value belongs to the result.
    """
    names = record.selection.get("values", {})
    _, others = split_selected(record.model["parameters"], names)
    parameters = {f"model {name}": value for name, value in others.items()}
    tuning = {name: value for name, value in record.budget.items() if name not in SHARED_BUDGET}
    # a record lacks a budget field that was added later, if the field has its default
    selected = {name if name in Budget.parameter_names() else f"model {name}": "selected" for name in names}
    identity = {name: value for name, value in record.model.items() if name not in _NO_SETTINGS}
    settings = without_none({**identity, **parameters, **tuning, **selected})
    # the defaults of a user's own model are unknown, so keep ``None``: it differs from "not given"
    return {**parameters, **settings} if _DIGEST in settings else settings


def cell_of(record: RunRecord) -> tuple[str, str]:
    """Return setup and variant as texts, which are equal for runs that differ only in seed and selected settings."""
    return key(setup_of(record)), key(variant_of(record))


def settings_in(text: str) -> Settings:
    """Return the settings in a text of :func:`cell_of`; each setting of a mixer in a stack has its own name.

    >>> settings_in('{"name": "hybrid", "model hyper": ["gla.heads=2"]}')
    {'name': 'hybrid', 'model gla.heads': 2}
    """
    settings = json.loads(text)
    hyper = settings.get("model hyper")
    if not isinstance(hyper, list) or not all(_MIXER_SETTING.fullmatch(str(entry)) for entry in hyper):
        return dict(settings)
    del settings["model hyper"]
    return {**settings, **{f"model {name}": value for name, value in map(parse_assignment, hyper)}}


def any_object(settings: Settings) -> Settings:
    """Return the settings with the same digest for every Python object without a file."""
    return {**settings, _DIGEST: "object"} if _OBJECT.fullmatch(settings.get(_DIGEST) or "") else settings


def without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not ``None``, so that ``None`` equals a setting missing in an older record."""
    return {name: value for name, value in settings.items() if value is not None}


def key(settings: Settings) -> str:
    """Return a text that is equal for equal settings only."""
    return json.dumps(settings, sort_keys=True)


def distinguishing(settings: Sequence[Settings]) -> list[str]:
    """Return the sorted names of the settings that differ.

    The digest of a Python object without a file differs in every run. It is named only if the other settings do not
    distinguish all entries.
    """
    names = sorted({name for entry in settings for name in entry})
    texts = {name: [json.dumps(entry[name]) if name in entry else "" for entry in settings] for name in names}
    found = [name for name in names if len(set(texts[name])) > 1]
    files = {digest for entry in settings if _LONG_DIGEST.fullmatch(digest := entry.get(_DIGEST) or "")}
    words = [name for name in found if name != _DIGEST or len(files) > 1]
    counts = [len(set(zip(*(texts[name] for name in chosen), strict=True))) for chosen in (words, found)]
    return words if counts[0] == counts[1] else found


def label(entry: Settings, names: Iterable[str]) -> str:
    """Return the name of a model or task with the settings in ``names``.

    >>> label({"name": "longvq", "model window": None, "model quantise": True}, ["model window", "model quantise"])
    'longvq (window=none, quantise=true)'
    """
    own = [name for name in names if name in entry or _has_mixer_of(entry, name)]
    values = {name: as_given(entry[name]) if name in entry else _missing(entry, name) for name in own}
    short = {name: text[:8] if _LONG_DIGEST.fullmatch(text) else text for name, text in values.items()}
    shown = ", ".join(f"{bare(name)}={text}" for name, text in short.items())
    return f"{entry['name']} ({shown})" if shown else str(entry["name"])


def _has_mixer_of(entry: Settings, name: str) -> bool:
    """Return false for a setting ``MIXER.NAME`` of a stack that has no such mixer."""
    mixer, dot, _ = bare(name).partition(".")
    return not dot or mixer in re.split(r"[:,\s]+", str(entry.get("model layers")).replace("-", "_"))


def _missing(entry: Settings, name: str) -> str:
    """Return the label's text for a setting that the record lacks: the default of a setting that was added later."""
    if _DIGEST in entry or "." in name:  # a user's own model or task, or a mixer of a stack
        return "default"
    from lrtasks import generators, models

    registry = generators.registry if name.startswith("task ") else models.registry
    if " " in name and entry["name"] not in registry.names():  # its package is not installed here
        return as_given(None)
    declared = registry.get(entry["name"]) if " " in name else Budget
    defaults = {field.name: field.default for field in fields(declared) if field.metadata.get("later")}
    return as_given(defaults.get(bare(name)))


def labels(settings: Sequence[Settings], groups: Iterable[Sequence[Settings]] | None = None) -> list[tuple[str, Any]]:
    """Return label and sort key of each model or task; the label has the settings that differ under the same name.

    If all tasks of one name have the parameters of different presets, their labels are those of :func:`_presets`. Sort
    keys compare numbers by value: a learning rate of 0.003 comes before 0.01, a length of 256 before 1024.

    Args:
        settings: settings of the models or tasks.
        groups: settings are compared only within each of these groups; by default all are compared.
    """
    differing: dict[tuple[str, bool], set[str]] = {_kind(entry): set() for entry in settings}
    for group in [settings] if groups is None else groups:
        kinds = {_kind(entry) for entry in group}
        for kind in kinds:
            differing[kind].update(distinguishing([entry for entry in group if _kind(entry) == kind]))
    for name, own in differing:
        if own and (name, False) in differing:  # in any group: a column must not join a user's model and ours
            differing[name, own].add(_DIGEST)
    names = [sorted(differing[_kind(entry)]) for entry in settings]
    by_preset: dict[str, str] = {}
    for kind in differing:
        by_preset |= _presets([entry for entry in settings if _kind(entry) == kind])
    shown = [by_preset.get(key(entry)) or label(entry, own) for entry, own in zip(settings, names, strict=True)]
    return [(text, place(entry, own)) for text, entry, own in zip(shown, settings, names, strict=True)]


def _presets(entries: Sequence[Settings]) -> dict[str, str]:
    """Return ``NAME@PRESET`` (``NAME`` for the preset ``small``) of each setup by its :func:`key`.

    The result is empty if the setups differ in numbers alone (such as the length), if one of them has other parameters
    than the presets, or if two of them have the same preset.
    """
    from lrtasks import generators

    differ = [name for name in distinguishing(entries) if name.startswith("task ")]
    words = any(isinstance(entry.get(name), str | bool) for name in differ for entry in entries)
    name = entries[0]["name"]
    if not words or _DIGEST in entries[0] or name not in generators.registry.names():
        return {}
    cls = generators.registry.get(name)
    presets: dict[str, str] = {}
    for preset in sorted(cls.presets, key=lambda preset: preset == "small"):
        presets.setdefault(key(generators.make(name, preset=preset).parameters()), preset)
    found: dict[str, str] = {}
    for entry in entries:
        try:
            own = presets.get(key(cls.make(**owned("task ", entry)).parameters()))
        except UsageError:  # the task has other parameters now
            return {}
        if own is None or entry.get("data") or entry.get("version") != entries[0].get("version"):
            return {}
        found[key(entry)] = name if own == "small" else f"{name}@{own}"
    return found if len(set(found.values())) == len(found) else {}


def _kind(entry: Settings) -> tuple[str, bool]:
    """Return the name of a model or task, and whether it is a user's own, which has settings of its own."""
    return entry["name"], _DIGEST in entry


def place(entry: Settings, names: Iterable[str]) -> Any:
    """Return a sort key: the name, then the values of ``names`` (missing values, then numbers by value, then texts)."""

    def order(value: Any) -> tuple[int, float, str]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 1, float(value), ""
        return (0, 0.0, "") if value is None else (2, 0.0, as_given(value))

    return entry["name"], [order(entry.get(name)) for name in names]


def owned(owner: str, settings: Settings) -> dict[str, Any]:
    """Return the settings whose names begin with ``owner``, and remove ``owner`` from the names.

    >>> owned("task ", {"name": "shift", "task length": 256})
    {'length': 256}
    """
    return {name.removeprefix(owner): value for name, value in settings.items() if name.startswith(owner)}


def bare(name: str) -> str:
    """Return the name of a setting without its owner."""
    return name.split(" ")[-1]


def as_given(value: Any) -> str:
    """Return a value as a command takes it; a text that looks like a number, boolean or ``none`` gets quotes."""
    if isinstance(value, str):
        return json.dumps(value) if _AMBIGUOUS.fullmatch(value.lower()) else value
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
