"""What a user may choose by name: models, tasks, and settings of any of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lrtasks import generators, models
from lrtasks.budget import DEFAULTS, Budget
from lrtasks.config import Config
from lrtasks.errors import UsageError, suggestion, unknown
from lrtasks.registry import Registry

OWNERS = ("task", "model", "budget")


def select(registry: Registry[Any], chosen: str | Sequence[str]) -> list[str]:
    """The names that ``chosen`` means: a list, a text with commas, or ``"all"``.

    Raises:
        UsageError: for an unknown name, or none.
    """
    known = registry.names()
    if chosen == "all":
        return known
    names = chosen.split(",") if isinstance(chosen, str) else list(chosen)
    for name in names:
        if name not in known:
            raise unknown(registry.kind, name, known)
    if not names:
        raise UsageError(f"no {registry.kind} is chosen; allowed: all, or some of {', '.join(known)}")
    return names


def split_setting(setting: str) -> tuple[str | None, str]:
    """Owner, if it is said, and bare name of a setting.

    >>> split_setting("model.kernel"), split_setting("length")
    (('model', 'kernel'), (None, 'length'))
    """
    owner, dot, rest = setting.partition(".")
    return (owner, rest) if dot and owner in OWNERS else (None, setting)


def override(settings: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """``settings`` with those of ``by``, which replace the same parameter even if only one of them says whose it is.

    >>> override({"budget.steps": 500, "length": 64}, {"steps": 20})
    {'length': 64, 'steps': 20}
    """
    winning = [split_setting(name) for name in by]

    def replaced(name: str) -> bool:
        owner, bare = split_setting(name)
        return any(bare == other and (owner is None or said is None or owner == said) for said, other in winning)

    return {name: value for name, value in settings.items() if not replaced(name)} | dict(by)


def lacking(settings: Iterable[str], of_models: Iterable[str], of_tasks: Iterable[str]) -> list[str]:
    """The settings that are no parameter of any of the models or tasks, nor of the budget."""
    known = parameter_names(of_models, of_tasks)
    return [setting for setting in settings if split_setting(setting)[1] not in known]


def require_known(
    settings: Iterable[str], of_models: Iterable[str], of_tasks: Iterable[str], options: Iterable[str] = ()
) -> None:
    """Check that each setting is a parameter of one of the models or tasks, or of the budget.

    Args:
        settings: names, bare or as ``task.NAME``, ``model.NAME`` or ``budget.NAME``.
        of_models: names of models.
        of_tasks: names of tasks.
        options: what else the user could have meant by an unknown name.

    Raises:
        UsageError: for one that is not; without this, every single run would be skipped for it.
    """
    of_models, of_tasks = _usable(models.registry, of_models), _usable(generators.registry, of_tasks)
    if not (of_models and of_tasks):
        return  # every run is skipped, for a reason of its own
    for setting in lacking(settings, of_models, of_tasks):
        known = sorted({*parameter_names(of_models, of_tasks), *options})
        raise UsageError(
            f"neither a chosen task nor a chosen model nor the budget has a parameter {setting!r}"
            f"{suggestion(split_setting(setting)[1], known)}"
        )


def require_known_preset(preset: str, of_models: Iterable[str], of_tasks: Iterable[str]) -> None:
    """Raise :class:`UsageError` for a preset that none of these models and tasks has."""
    classes: list[type[Config]] = [models.registry.get(name) for name in _usable(models.registry, of_models)]
    classes += [generators.registry.get(name) for name in _usable(generators.registry, of_tasks)]
    known = {*DEFAULTS, *(name for cls in classes for name in cls.presets if "/" not in name)}
    if preset not in known:
        raise unknown("preset", preset, known)


def parameter_names(of_models: Iterable[str], of_tasks: Iterable[str]) -> set[str]:
    """Names of all parameters of these models, these tasks and the budget."""
    known = set(Budget.parameter_names())
    known.update(name for model in of_models for name in models.registry.get(model).parameter_names())
    known.update(name for task in of_tasks for name in generators.registry.get(task).parameter_names())
    return known


def _usable(registry: Registry[Any], names: Iterable[str]) -> list[str]:
    """Names without those that cannot be used, of which it is said where their runs are skipped."""
    usable = registry.usable()
    return [name for name in names if name in usable]
