"""One registry for tasks and one for models: names come from presets files and entry points, nothing is imported to list.

A built-in entry is a pair of files in one folder: ``context_shift.py``, which registers a class, and
``context_shift.toml``, its presets. A package from outside names its class under the entry-point group
(``lrtasks.tasks``, ``lrtasks.models``) and puts its own presets file next to that class's module.
"""

from __future__ import annotations

import functools
import importlib
import tomllib
from collections.abc import Callable
from importlib import metadata, resources
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
        """Class decorator: make the class known as ``name``."""

        def add(cls: type[T]) -> type[T]:
            known = self._classes.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise UsageError(f"two {self.kind}s are called {name!r}: {known.__module__} and {cls.__module__}")
            cls.name = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """All names, sorted: built-in ones, entry points, and what was registered by hand."""
        return sorted({*self._built_in(), *self._entry_points(), *self._classes})

    def get(self, name: str) -> type[T]:
        """The class called ``name``; raises :class:`UsageError` with the close names if there is none."""
        if name not in self._classes:
            if name in self._built_in():
                importlib.import_module(f"{self._package}.{self._built_in()[name]}")
            elif name in self._entry_points():
                self._load_entry_point(name)
            else:
                raise unknown(self.kind, name, self.names())
        return self._classes[name]

    def presets(self, name: str) -> Presets:
        """The presets of ``name`` (an empty dictionary if its module has no presets file)."""
        built_in = self._built_in().get(name)
        if built_in is not None:
            text = (resources.files(self._package) / f"{built_in}.toml").read_text()
        else:
            package, _, module = self.get(name).__module__.rpartition(".")
            if not package:
                return {}
            file = resources.files(package) / f"{module}.toml"
            if not file.is_file():
                return {}
            text = file.read_text()
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"presets of {self.kind} {name!r} are not valid TOML: {error}") from None

    @functools.cache  # noqa: B019 - a registry lives as long as the process
    def _built_in(self) -> dict[str, str]:
        files = resources.files(self._package).iterdir()
        stems = [file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")]
        return {stem.replace("_", "-"): stem for stem in stems}

    @functools.cache  # noqa: B019
    def _entry_points(self) -> dict[str, list[metadata.EntryPoint]]:
        found: dict[str, list[metadata.EntryPoint]] = {}
        for point in metadata.entry_points(group=self._group):
            found.setdefault(point.name, []).append(point)
        return found

    def _load_entry_point(self, name: str) -> None:
        points = self._entry_points()[name]
        if len(points) > 1:
            origins = " and ".join(point.value for point in points)
            raise UsageError(f"two {self.kind}s are called {name!r}: {origins}")
        try:
            cls = points[0].load()
        except Exception as error:
            raise UsageError(f"{self.kind} {name!r} from {points[0].value} cannot be imported: {error}") from error
        self.register(name)(cls)
