"""One registry for tasks and one for models: names come from presets files and entry points; listing imports nothing.

A built-in entry is a pair of files in one folder: ``context_shift.py``, which registers a class, and
``context_shift.toml``, its presets. A package from outside names its class under the entry-point group
(``lrtasks.tasks``, ``lrtasks.models``) and puts its own presets file next to that class's module.
"""

from __future__ import annotations

import functools
import importlib
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from lrtasks.errors import UsageError, unknown
from lrtasks.parameters import Parametrised

T = TypeVar("T", bound=Parametrised)
Presets = dict[str, dict[str, Any]]


class Registry(Generic[T]):
    """Named classes of one kind, imported when first asked for.

    Args:
        kind: the word used in messages, ``"task"`` or ``"model"``.
        package: dotted name of the package that holds the built-in entries.
        group: entry-point group through which other packages add theirs.
    """

    def __init__(self, kind: str, package: str, group: str) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: make the class known as ``name``, which no other class may have."""

        def add(cls: type[T]) -> type[T]:
            if not (isinstance(cls, type) and issubclass(cls, Parametrised)):
                raise UsageError(f"{self.kind} {name!r} must be a class with parameters, found {cls!r}")
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

    def get(self, name: str) -> type[T]:
        """The class called ``name``, imported if need be.

        Raises:
            UsageError: if there is none (the close names are suggested), if two packages bring one of this name, or if
                the package that brings it cannot be imported.
        """
        if not isinstance(name, str):
            raise UsageError(f"the name of a {self.kind} must be a text, found {name!r}")
        points = self._entry_points().get(name, [])
        built_in = self._built_in_module(name)
        origins = [*([built_in] if built_in else []), *(point.value for point in points)]
        if len(origins) > 1:
            raise UsageError(f"two {self.kind}s are called {name!r}: {' and '.join(origins)}")
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
            raise UsageError(f"presets of {self.kind} {name!r} are not valid TOML: {error}") from None
        for preset, entries in presets.items():
            if not isinstance(entries, dict):
                raise UsageError(f"presets of {self.kind} {name!r} must be tables, found {preset} = {entries!r}")
        return presets

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
            cls = point.load()
        except Exception as error:
            raise UsageError(f"{self.kind} {name!r} from {point.value} cannot be imported: {error}") from error
        registered = [known for known, owner in self._classes.items() if owner is cls and known != name]
        if registered:
            raise UsageError(f"entry point {name!r} = {point.value} brings the {self.kind} called {registered[0]!r}")
        self.register(name)(cls)
