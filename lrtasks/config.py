"""Parameters as data: frozen dataclasses whose fields are documented, checked on creation and settable by name.

Tasks, models, training budgets and backends all declare their parameters in this way. ``lrtasks describe`` can
therefore list all of them, and a misspelt name is an error everywhere.

A *setting* is a parameter under the name that a user gives: ``length``, or ``task.length`` with the owner
(:data:`OWNERS`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import numbers
import operator
import types
import typing
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from lrtasks.errors import UsageError, suggestion, unknown

P = TypeVar("P", bound="Config")

Presets = Mapping[str, Mapping[str, Any]]
"""Settings by preset: a bare name is a parameter of the class; ``budget.NAME`` is a field of the training budget. A
model may have additional settings for one task under ``"PRESET/TASK"``, or under ``"PRESET/TASK@TASK_PRESET"``."""


def parameter(
    default: Any,
    doc: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    choices: Sequence[Any] | None = None,
    later: bool = False,
) -> Any:
    """Declare one field of a :class:`Config` dataclass.

    Args:
        default: value if the user gives none.
        doc: one line for ``lrtasks describe``, with unit or range where it matters.
        at_least: smallest allowed value (inclusive).
        at_most: largest allowed value (inclusive).
        above: bound that the value must exceed (exclusive).
        choices: the only allowed values.
        later: the parameter was added after the class was published. :meth:`Config.identifying` leaves the parameter
            out while it has its default, so that samples and digests that depend on the parameters stay the same.
    """
    rules = {"doc": doc, "at_least": at_least, "at_most": at_most, "above": above, "choices": choices}
    rules["later"] = later or None
    return dataclasses.field(default=default, metadata=rules)


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of everything that has parameters; subclasses are frozen dataclasses made of :func:`parameter` fields.

    Class attributes:
        presets: named sets of parameters and budget fields.
    """

    presets: ClassVar[Presets] = {}

    def __post_init__(self) -> None:
        for field, hint in _fields(type(self)):
            given = getattr(self, field.name)
            try:
                value = converted(hint, given)
            except ValueError:
                close = suggestion(given, _literals(hint)) if isinstance(given, str) else ""
                must = f"{self._title()}: {field.name} must be {type_phrase(hint)}"
                raise UsageError(f"{must}, found {given!r}{close}") from None
            _check_bounds(self._title(), field, value)
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Check the conditions that involve several fields; raise :class:`UsageError` if one is not met."""

    @classmethod
    def _title(cls) -> str:
        return getattr(cls, "name", cls.__name__.lower())

    @classmethod
    def parameter_names(cls) -> list[str]:
        """Return the names of the parameters, in order of declaration."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def make(cls: type[P], **values: Any) -> P:
        """Build from keyword arguments; for an unknown name, raise :class:`UsageError` with similar names."""
        names = cls.parameter_names()
        for name in (name for name in values if name not in names):
            known = [f"{cls._title()}.{own}" for own in names] if "." in name else names  # LABEL.NAME, misspelt
            hint = f"{suggestion(name, known)} (it has: {', '.join(names) or 'none'})"
            raise UsageError(f"{cls._title()} has no parameter {name!r}{hint}")
        return cls(**values)

    @classmethod
    def preset_values(cls, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters and the budget fields that preset ``name`` sets; both are empty without this preset.

        Raises:
            UsageError: for a setting that is neither a parameter of the class nor prefixed with ``budget.``.
        """
        own, budget, known = dict[str, Any](), dict[str, Any](), cls.parameter_names()
        for setting, value in cls.presets.get(name, {}).items():
            of_budget = setting.startswith("budget.")
            if not of_budget and setting not in known:
                raise unknown(f"parameter in preset {name} of {cls._title()}:", setting, known)
            (budget if of_budget else own)[setting.removeprefix("budget.")] = value
        return own, budget

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as a plain dictionary that can be written as JSON."""
        return {name: _plain(getattr(self, name)) for name in self.parameter_names()}

    def identifying(self) -> dict[str, Any]:
        """Return the parameters, except those that were added ``later`` and have their default."""
        fields = dataclasses.fields(self)
        left_out = {f.name for f in fields if f.metadata.get("later") and getattr(self, f.name) == f.default}
        return {name: value for name, value in self.parameters().items() if name not in left_out}

    @classmethod
    def describe_parameters(cls) -> list[dict[str, Any]]:
        """Return one entry per parameter, ready for JSON: name, type, default, doc and limits."""
        entries = []
        for field, hint in _fields(cls):
            rules = {key: _plain(value) for key, value in field.metadata.items() if value is not None}
            entries.append({"name": field.name, "type": type_name(hint), "default": _plain(field.default), **rules})
        return entries


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split ``NAME=VALUE`` from the command line; read the value as JSON, or keep it as a string if it is not JSON.

    >>> parse_assignment("shifts=4")
    ('shifts', 4)
    >>> parse_assignment("variant=clean")
    ('variant', 'clean')

    Dashes in the name become underscores. ``True`` and ``False`` are read as true and false, too.

    Raises:
        UsageError: if there is no name or no equals sign.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--set takes NAME=VALUE, found {text!r}")
    name = name.strip().replace("-", "_")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, {"true": True, "false": False}.get(value.strip().lower(), value)


OWNERS = ("task", "model", "budget")
"""Possible owners of a setting."""


def split_setting(setting: str) -> tuple[str | None, str]:
    """Return the owner (``None`` if it is not given) and the bare name of a setting.

    >>> split_setting("model.kernel"), split_setting("length")
    (('model', 'kernel'), (None, 'length'))

    Any other prefix names a mixer inside a model:

    >>> split_setting("gla.heads")
    ('model', 'gla.heads')
    """
    owner, dot, rest = setting.partition(".")
    if dot and owner in OWNERS:
        return owner, rest
    return "model" if dot else None, setting


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of nested settings, each under its name with dots.

    >>> dict(flat({"task": {"name": "shift", "shape": [2, 3]}, "seed": 0}))
    {'task.name': 'shift', 'task.shape': [2, 3], 'seed': 0}
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def override(settings: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Replace settings by the settings in ``by``. A bare name and a name with its owner mean the same parameter.

    >>> override({"budget.steps": 500, "length": 64, "lr": 0.1}, {"steps": 20, "task.length": 32})
    {'lr': 0.1, 'steps': 20, 'task.length': 32}
    """
    winning = [split_setting(name) for name in by]

    def replaced(name: str) -> bool:
        owner, bare = split_setting(name)
        return any(bare == other and (owner is None or said is None or owner == said) for said, other in winning)

    return {name: value for name, value in settings.items() if not replaced(name)} | dict(by)


def assign(
    settings: Mapping[str, Any], known: Mapping[str, Sequence[str] | None], *, options: Iterable[str] = ()
) -> dict[str, dict[str, Any]]:
    """Sort settings (by bare name or ``OWNER.NAME``) by owner; return the values of each owner by bare name.

    Args:
        known: for each owner, the names of its parameters. ``None`` means that the names are not known (a user's own
            model); its settings must then be given as ``OWNER.NAME``.
        options: other names that the user could have meant; the error message can suggest them.

    Raises:
        UsageError: for a name that no owner has, that two owners have, or that is given twice.
    """
    owned: dict[str, dict[str, Any]] = {owner: {} for owner in known}
    for name, value in settings.items():
        said, bare = split_setting(name)
        having = [said] if said else [owner for owner, names in known.items() if name in (names or ())]
        if len(having) > 1:
            choices = " or ".join(f"{owner}.{name}" for owner in having)
            raise UsageError(f"{name!r} is a parameter of {' and '.join(having)}: write {choices}")
        if not having:
            every = sorted({*options, *(entry for names in known.values() for entry in names or ())})
            others = [entry for entry in every if entry.replace("-", "_") != name]
            hint = suggestion(name, others)
            # list the parameters of the owners of close names; without such owners, of all owners except the budget
            near = [owner for owner, names in known.items() if any(repr(entry) in hint for entry in names or ())]
            owners = near or [owner for owner in known if owner != "budget"]
            listed = [f"{owner} has: {', '.join(names)}" for owner in owners if (names := known[owner])]
            listed += [] if near else ["lrtasks describe budget lists those of budget"]
            listed += [f"write {o}.{name} for a {o} of your own" for o, names in known.items() if names is None]
            no = f"no {' or '.join(known)} parameter is called {name!r}"
            raise UsageError(f"{no}{hint} ({'; '.join(listed)})")
        values = owned[having[0]]
        if bare in values and values[bare] != value:
            raise UsageError(f"{bare} is given twice: {values[bare]!r} and {value!r}")
        values[bare] = value
    return owned


_FIELDS = weakref.WeakKeyDictionary[type[Config], list[tuple[dataclasses.Field[Any], Any]]]()
"""Parameters of each class that was used, with their types: reading types takes most of the time of making a config."""


def _fields(cls: type[Config]) -> list[tuple[dataclasses.Field[Any], Any]]:
    if cls not in _FIELDS:
        hints = typing.get_type_hints(cls)
        _FIELDS[cls] = [(field, hints[field.name]) for field in dataclasses.fields(cls)]
    return _FIELDS[cls]


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def type_name(hint: Any) -> str:
    """Return a type as it is written in code, without the prefix ``typing.``."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def converted(hint: Any, value: Any) -> Any:
    """Return ``value`` as int, float, bool, str, a choice, a tuple of those, or an optional of those.

    Raises:
        ValueError: if ``value`` does not fit ``hint``.
        TypeError: if ``hint`` is none of these types.
    """
    origin, options = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            with contextlib.suppress(ValueError):
                return converted(option, value)
    elif origin is typing.Literal:
        # a choice like "32" arrives from the command line as a number
        texts = (value, str(value)) if isinstance(value, numbers.Real) else (value,)
        for choice in options:
            if any(type(choice) is type(text) and choice == text for text in texts):
                return choice
    elif origin is tuple:
        return _converted_tuple(options, value)
    elif hint is type(None):  # ``--set max_kernel=none`` gives the text; a field ``str | None`` keeps the text
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
    elif hint in (bool, str):
        if isinstance(value, hint):
            return value
    elif hint not in (int, float):
        raise TypeError(f"a parameter cannot be declared as {type_name(hint)}")
    elif type(value) is not bool and isinstance(value, numbers.Real):
        if hint is int and isinstance(value, numbers.Integral):
            return int(value)
        with contextlib.suppress(OverflowError):
            number = float(value)
            if math.isfinite(number) and (hint is float or number.is_integer()):
                return hint(number)
    raise ValueError


def _converted_tuple(items: tuple[Any, ...], value: Any) -> Any:
    if isinstance(value, str) and items[0] is not str:  # 128,256 on the command line
        value = [parse_assignment(f"item={part}")[1] for part in value.split(",")]
    elif isinstance(value, (int, float)) and items[-1] is Ellipsis:
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError
    if items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    return tuple(converted(item, entry) for item, entry in zip(items, value, strict=True))


def _literals(hint: Any) -> list[str]:
    """Return all strings that the ``Literal`` types in ``hint`` allow."""
    if get_origin(hint) is typing.Literal:
        return [choice for choice in get_args(hint) if isinstance(choice, str)]
    return [text for option in get_args(hint) for text in _literals(option)]


def type_phrase(hint: Any) -> str:
    """Return the values that a type allows, in words."""
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_phrase(option) for option in get_args(hint))
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin is tuple:
        items = get_args(hint)
        if len(items) == 2 and items[1] is Ellipsis:
            return f"a list whose entries are each {type_phrase(items[0])}"
        return f"a list of {len(items)}: " + ", ".join(type_phrase(item) for item in items)
    phrases = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "none"}
    return phrases.get(hint, str(hint))


_LIMITS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le}


def _check_bounds(title: str, field: dataclasses.Field[Any], value: Any) -> None:
    limits = {rule: field.metadata[rule] for rule in _LIMITS if field.metadata.get(rule) is not None}
    choices = field.metadata.get("choices")
    for number in value if isinstance(value, tuple) else (value,):
        if choices is not None and number is not None and number not in choices:
            names = [str(choice) for choice in choices]
            close = suggestion(str(number), names)
            raise UsageError(f"{title}: {field.name} must be one of {', '.join(names)}, found {number!r}{close}")
        is_number = isinstance(number, (int, float))
        if is_number and not all(_LIMITS[rule](number, limit) for rule, limit in limits.items()):
            allowed = " and ".join(f"{rule.replace('_', ' ')} {limit:,}" for rule, limit in limits.items())
            raise UsageError(f"{title}: {field.name} must be {allowed}, found {number!r}")
