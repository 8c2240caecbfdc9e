"""Generated regions about models: the table of models, and hyper-parameters and presets on each family's page."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parameter_tables import code, parameter_table, settings
from regions import link, regions, table
from task_pages import sentence

from lrtasks import models
from lrtasks.budget import Budget
from lrtasks.models.base import ModelConfig, parameter_count, state_bytes
from lrtasks.run_config import RunConfig

FOLDER = Path(__file__).parents[1] / "models"


def table_of_models(page: Path, _: Sequence[str]) -> str:
    """Return the table of models: a description, and the size at the preset ``small`` on shift."""
    rows = []
    for name in models.registry.built_in():
        count, state = size(name)
        shown = "none" if state is None else f"{state:,}"
        rows.append([named(page, name), sentence(models.registry.get(name)), f"{count:,}", shown])
    return table(["model", "what it is", "parameters at `small`", "bytes of streaming state"], rows)


def families(page: Path, _: Sequence[str]) -> str:
    """Return the table of the pages about models, with the models of each page."""
    found: dict[Path, list[str]] = {}
    for name in models.registry.built_in():
        found.setdefault(_pages(name)[0], []).append(name)
    rows = [
        [
            f"[{own.read_text().partition(chr(10))[0].removeprefix('# ').partition(':')[0]}]({link(page, own)})",
            ", ".join(map("`{}`".format, names)),
        ]
        for own, names in found.items()
    ]
    return table(["family", "models"], sorted(rows))


def named(page: Path, name: str) -> str:
    """Return the name of a model as a link to its page."""
    pages = _pages(name)
    return f"[{name}]({link(page, pages[0])})" if pages else name


def model(page: Path, words: Sequence[str]) -> str:
    """Return hyper-parameters and presets of one model, and the differences of its variants."""
    name, *variants = words
    common = _entries(ModelConfig) | _shared(page)
    own = {key: entry for key, entry in _entries(models.registry.get(name)).items() if entry != common.get(key)}
    parts = [f"### {name}", parameter_table(own.values()), _presets(name)]
    for variant in variants:
        parts += [f"### {variant}", _variation(variant, name), _presets(variant)]
    return "\n\n".join(parts)


def common(_: Path, __: Sequence[str]) -> str:
    """Return the table of the hyper-parameters that every model has."""
    return parameter_table(ModelConfig.describe_parameters())


def shared(page: Path, _: Sequence[str]) -> str:
    """Return the table of the hyper-parameters that all models of a page have, as most of them have them."""
    return parameter_table(_shared(page).values())


def budget(_: Path, __: Sequence[str]) -> str:
    """Return the table of the fields of the training budget."""
    return parameter_table(Budget.describe_parameters())


def _pages(name: str) -> list[Path]:
    """Return the pages that describe a model; a test requires that there is one."""
    return [
        page for page in sorted(FOLDER.glob("*.md")) for words in regions(page) if words[0] == "model" and name in words
    ]


@functools.cache
def size(name: str) -> tuple[int, int | None]:
    """Return a model's number of parameters and bytes of streaming state at the preset ``small`` on shift."""
    built = RunConfig.make("shift", name).build()
    return parameter_count(built), state_bytes(built)


def _entries(cls: type[ModelConfig]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in cls.describe_parameters()}


@functools.cache
def _shared(page: Path) -> dict[str, dict[str, Any]]:
    """Return what the region ``shared`` of a page lists, by name; a model lists its own form if it differs."""
    found = regions(page)
    if ["shared"] not in found:
        return {}
    models_of_page = [_entries(models.registry.get(words[1])) for words in found if words[0] == "model"]
    common = _entries(ModelConfig)
    shared = {}
    for name in models_of_page[0]:
        forms = [entries.get(name) for entries in models_of_page]
        most = max(forms, key=forms.count)
        if None not in forms and most is not None and most != common.get(name) and 2 * forms.count(most) > len(forms):
            shared[name] = most
    return shared


def _variation(variant: str, name: str) -> str:
    """Describe the parameters in which the model ``variant`` differs from the model ``name``."""
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
    """Return a table with one row per preset, followed by one row for each task with other settings."""
    cls = models.registry.get(name)
    rows = []
    for preset in (key for key in cls.presets if "/" not in key):
        for key in (preset, *(key for key in cls.presets if key.startswith(f"{preset}/"))):
            task, values = key.removeprefix(preset).removeprefix("/"), cls.preset_values(key)
            if not task or any(values):
                rows.append([f"`{preset}`", f"also on {task}" if task else "every task", *map(settings, values)])
    return table(["preset", "for", "hyper-parameters", "training"], rows)
