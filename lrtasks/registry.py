"""One registry for tasks and one for models: names come from presets files and entry points; listing imports nothing.

A built-in entry is a pair of files in one folder: ``context_shift.py``, which registers a class, and
``context_shift.toml``, its presets. A package from outside names its class under the entry-point group
(``lrtasks.tasks``, ``lrtasks.models``) and puts its own presets file next to that class's module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from lrtasks.errors import UsageError, in_one_line, unknown
from lrtasks.parameters import Parametrised

T = TypeVar("T", bound=Parametrised)
Presets = dict[str, dict[str, Any]]

_NAME = re.compile(r"[^\W_][\w.-]{0,99}")


class Registry(Generic[T]):
    """Named classes of one kind, imported when first asked for.

    Args:
        kind: the word used in messages, ``"task"`` or ``"model"``.
        package: dotted name of the package that holds the built-in entries.
        group: entry-point group through which other packages add theirs.
        base: ``"module:Class"`` that every entry is a subclass of; imported when the first entry is.
    """

    def __init__(self, kind: str, package: str, group: str, base: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._base = base
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: make the class known as ``name``, which no other class may have.

        Raises:
            UsageError: if another class has this name, for what is no class of this kind, or for a name that could not
                be a folder's or an option's.
        """

        def add(cls: type[T]) -> type[T]:
            if not _NAME.fullmatch(name) or name == "all":
                raise UsageError(
                    f"{name!r} can be no {self.kind}'s name: it must be made of letters, digits, '_', '-' and '.', "
                    "begin with a letter or digit, and not be 'all'"
                )
            if not (isinstance(cls, type) and issubclass(cls, self._base_class())):
                wanted = self._base.replace(":", ".")
                raise UsageError(f"{self.kind} {name!r} must be a subclass of {wanted}, found {cls!r}")
            owner = self._classes.get(name)
            taken = owner is not None and (owner.__module__, owner.__qualname__) != (cls.__module__, cls.__qualname__)
            built_in = self._built_in_module(name)
            if taken or (built_in is not None and built_in != cls.__module__):
                other = owner.__module__ if owner is not None else built_in
                raise UsageError(f"two {self.kind}s are called {name!r}: {other} and {cls.__module__}")
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """All names, sorted: built-in ones, entry points, and what was registered by hand."""
        return sorted({*self.built_in(), *self._entry_points(), *self._classes})

    def built_in(self) -> list[str]:
        """Names of what this package itself brings, sorted."""
        return sorted(self._built_in())

    def problems(self) -> dict[str, str]:
        """Why a name of another package cannot be used, by name: one line each, none for names that can.

        Unlike :meth:`names` this imports those packages.
        """
        found = {}
        for name in sorted(self._entry_points()):
            try:
                self.get(name)
                self.presets(name)
            except UsageError as error:
                found[name] = " ".join(str(error).split())
        return found

    def usable(self) -> list[str]:
        """The names that :meth:`problems` finds nothing wrong with, sorted."""
        problems = self.problems()
        return [name for name in self.names() if name not in problems]

    def get(self, name: str) -> type[T]:
        """The class called ``name``, imported if need be.

        Raises:
            UsageError: if there is none (the close names are suggested), if two packages bring one of this name, or if
                the package that brings it cannot be imported or brings something else than a class of this kind.
        """
        if not isinstance(name, str):
            raise UsageError(f"the name of a {self.kind} must be a text, found {name!r}")
        points = self._entry_points().get(name, [])
        built_in = self._built_in_module(name)
        origins = [*([built_in] if built_in else []), *(_origin(point) for point in points)]
        if len(origins) > 1:
            raise UsageError(
                f"two {self.kind}s are called {name!r}: {' and '.join(origins)}; rename one of them or uninstall it"
            )
        if name not in self._classes:
            if built_in is not None:
                importlib.import_module(built_in)
            elif points:
                self._load(name, points[0])
            else:
                raise unknown(self.kind, name, self.names())
        return self._classes[name]

    def presets(self, name: str) -> Presets:
        """The presets of ``name``, by preset; empty if no presets file stands next to the class's module.

        Raises:
            UsageError: for an unknown name, or a file that is not TOML made of tables.
        """
        built_in = self._built_in().get(name)
        if built_in is not None:
            file: Traversable = resources.files(self._package) / f"{built_in}.toml"
        else:
            module = sys.modules[self.get(name).__module__]
            source = getattr(module, "__file__", None)
            if source is None:  # a class made in an interactive session
                return {}
            file = Path(source).with_suffix(".toml")
        try:
            presets = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        except ValueError as error:
            raise UsageError(f"presets of {self.kind} {name!r} are not valid TOML ({file}): {error}") from None
        for entry in _not_tables(presets):
            raise UsageError(f"presets of {self.kind} {name!r} must be tables ({file}), found {entry}")
        return presets

    def _base_class(self) -> type:
        module, _, attribute = self._base.partition(":")
        base: type = getattr(importlib.import_module(module), attribute)
        return base

    @functools.cache  # noqa: B019 - a registry lives as long as the process
    def _built_in(self) -> dict[str, str]:
        files = resources.files(self._package).iterdir()
        stems = [file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")]
        return {stem.replace("_", "-"): stem for stem in stems}

    def _built_in_module(self, name: str) -> str | None:
        stem = self._built_in().get(name)
        return None if stem is None else f"{self._package}.{stem}"

    @functools.cache  # noqa: B019
    def _entry_points(self) -> dict[str, list[metadata.EntryPoint]]:
        found: dict[str, list[metadata.EntryPoint]] = {}
        for point in metadata.entry_points(group=self._group):
            found.setdefault(point.name, []).append(point)
        return found

    def _load(self, name: str, point: metadata.EntryPoint) -> None:
        try:
            # what a package prints on import must not get between the lines of a command's output
            with contextlib.redirect_stdout(sys.stderr):
                cls = point.load()
        except (Exception, SystemExit) as error:  # whatever other people's code does, the rest goes on working
            problem = f"cannot be imported: {in_one_line(error)}"
            raise UsageError(f"{self.kind} {name!r} from {_origin(point)} {problem}") from error
        registered = [known for known, owner in self._classes.items() if owner is cls and known != name]
        if registered:
            raise UsageError(f"entry point {name!r} = {point.value} brings the {self.kind} called {registered[0]!r}")
        if isinstance(cls, type) and issubclass(cls, self._base_class()) and issubclass(cls, Parametrised):
            cls.name = name  # type: ignore[attr-defined]
            for problem in malformed(cls):
                raise UsageError(f"{self.kind} {name!r} from {_origin(point)}: {problem}")
        self.register(name)(cls)


def malformed(cls: type[Parametrised]) -> Iterator[str]:
    """What is wrong with how a class declares its parameters, in words; nothing if it can be made and described."""
    # a field that the decorator has seen is replaced by its default
    unseen = [
        name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, dataclasses.Field)
    ]
    if unseen:
        yield f"{', '.join(unseen)} became no parameter: put @dataclass(frozen=True) on top of class {cls.__name__}"
        return
    for field in dataclasses.fields(cls):
        how = f"write {field.name}: TYPE = parameter(DEFAULT, 'what it is')"
        if field.default is dataclasses.MISSING:
            yield f"parameter {field.name} has no default; {how}"
        elif "doc" not in field.metadata:
            yield f"parameter {field.name} has no description; {how}"
    try:
        cls.describe_parameters()
        cls()
    except UsageError:
        pass  # its own check refuses its defaults, which is its business
    except Exception as error:
        yield f"it cannot be made with its defaults: {in_one_line(error)}"


def _origin(point: metadata.EntryPoint) -> str:
    """Where an entry point leads, and the package that brings it."""
    return point.value if point.dist is None else f"{point.value} (package {point.dist.name})"


def _not_tables(presets: dict[str, Any], path: str = "") -> Iterator[str]:
    """What a presets file has in place of a table: ``small = 3``, ``small.hyper = 3``, ``small.tasks.shift = 3``."""
    for key, value in presets.items():
        name = f"{path}{key}"
        if not isinstance(value, dict):
            yield f"{name} = {value!r}"
        elif not path or key == "tasks" or path.endswith(".tasks."):
            yield from _not_tables(value, f"{name}.")
