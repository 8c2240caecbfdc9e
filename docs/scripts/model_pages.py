"""Generated parts about models: the table of models, and hyper-parameters and presets on each family's page."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lrtasks.evaluation.presets import resolve
from parameter_tables import code, parameter_table, settings
from regions import link, regions, table
from task_pages import sentence

from lrtasks import generators, models
from lrtasks.budget import Budget
from lrtasks.models.base import ModelConfig, state_bytes

FOLDER = Path(__file__).parents[1] / "models"


def table_of_models(page: Path, _: Sequence[str]) -> str:
    """The table of models: what each is, and its size at the preset ``small`` on shift."""
    rows = []
    for name in models.registry.built_in():
        count, state = size(name)
        shown = f"[{name}]({link(page, home(name))})"
        rows.append(
            [shown, sentence(models.registry.get(name)), f"{count:,}", "none" if state is None else f"{state:,}"]
        )
    return table(["model", "what it is", "parameters at `small`", "bytes of streaming state"], rows)


def model(_: Path, words: Sequence[str]) -> str:
    """Hyper-parameters and presets of one model, and what sets its variants apart."""
    name, *variants = words
    common = _entries(ModelConfig)
    own = {key: entry for key, entry in _entries(models.registry.get(name)).items() if entry != common.get(key)}
    parts = [f"### {name}", parameter_table(own.values()), _presets(name)]
    for variant in variants:
        parts += [f"### {variant}", _variation(variant, name), _presets(variant)]
    return "\n\n".join(parts)


def common(_: Path, __: Sequence[str]) -> str:
    """Hyper-parameters that every model has."""
    return parameter_table(ModelConfig.describe_parameters())


def budget(_: Path, __: Sequence[str]) -> str:
    """Fields of the training budget."""
    return parameter_table(Budget.describe_parameters())


def home(name: str) -> Path:
    """The page that describes a model.

    Raises:
        ValueError: if there is none, or more than one.
    """
    pages = [
        page for page in sorted(FOLDER.glob("*.md")) for words in regions(page) if words[0] == "model" and name in words
    ]
    if len(pages) != 1:
        raise ValueError(f"model {name} needs one page with a region '<!-- generated: model {name} -->', found {pages}")
    return pages[0]


@functools.cache
def size(name: str) -> tuple[int, int | None]:
    """Parameters, and bytes of streaming state, of a model at the preset ``small`` on shift."""
    plan = resolve("shift", name, preset="small")
    built = models.build(name, plan.task.input, plan.task.target, causal=True, **plan.hyper)
    return sum(value.numel() for value in built.parameters()), state_bytes(built)


def _entries(cls: type[ModelConfig]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in cls.describe_parameters()}


def _variation(variant: str, name: str) -> str:
    """In which parameters a variant differs from the model that it varies."""
    base, own = _entries(models.registry.get(name)), _entries(models.registry.get(variant))
    changed = [entry for key, entry in own.items() if entry != base.get(key)]
    missing = [f"no `{key}`" for key in base if key not in own]
    if all(
        entry["name"] in base and {**entry, "default": None} == {**base[entry["name"]], "default": None}
        for entry in changed
    ):
        told = [f"`{entry['name']}` {code(entry['default'])} by default" for entry in changed] + missing
        return f"As `{name}`, with {', '.join(told)}." if told else f"Its parameters are those of `{name}`."
    return f"As `{name}`, with {', '.join(['these', *missing])}:\n\n{parameter_table(changed)}"


def _presets(name: str) -> str:
    rows = []
    for preset, content in models.registry.presets(name).items():
        rows.append([f"`{preset}`", "every task", *_preset(content)])
        rows += [[f"`{preset}`", _tasks([task]), *_preset(entry)] for task, entry in content.get("tasks", {}).items()]
    return table(["preset", "for", "hyper-parameters", "training"], rows)


def _preset(content: Mapping[str, Any]) -> list[str]:
    return [settings(content.get("hyper", {})), settings(content.get("training", {}))]


def _tasks(names: Sequence[str]) -> str:
    known = generators.registry.built_in()
    assert all(name in known for name in names)
    return ", ".join(f"also on {name}" for name in names)
