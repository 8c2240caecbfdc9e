"""Options that are parameters: ``--res 256`` and ``--set NAME=VALUE`` without a declaration for each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.parameters import parse_assignment


def parse_settings(arguments: list[str], assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Read ``--name value`` and ``--name=value`` pairs, then ``NAME=VALUE`` assignments.

    >>> parse_settings(["--res", "256", "--variant=clean"], ["shifts=4"])
    {'res': 256, 'variant': 'clean', 'shifts': 4}
    """
    settings: dict[str, Any] = {}
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("--") or argument == "--":
            raise UsageError(f"found {argument!r} where an option --NAME VALUE was expected")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            value = next(remaining, "--")
            if value.startswith("--"):
                raise UsageError(f"option --{name} needs a value: --{name} VALUE")
        _add(settings, f"{name}={value}")
    for assignment in assignments:
        _add(settings, assignment)
    return settings


def print_json(content: Any) -> None:
    """Print ``content`` as JSON on standard output."""
    print(json.dumps(content, indent=1, allow_nan=False))


def _add(settings: dict[str, Any], assignment: str) -> None:
    name, value = parse_assignment(assignment)
    if name in settings and settings[name] != value:
        raise UsageError(f"{name} is given twice: {settings[name]!r} and {value!r}")
    settings[name] = value
