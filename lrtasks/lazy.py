"""Lazy names: a package loads the module of a name when the name is first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the module-level ``__getattr__`` and ``__dir__`` of the module called ``package``.

    ``names`` holds the location of each public name: ``"module:attribute"``, or ``"module"`` for the module itself.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module_name, _, attribute = names[name].partition(":")
        module = importlib.import_module(module_name)
        return getattr(module, attribute) if attribute else module

    return get, lambda: sorted(names)
