"""Options of several commands, and those that are parameters: ``--res 256`` and ``--set NAME=VALUE``, undeclared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError, suggestion, unknown

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Results folder.")]


def option_names(context: typer.Context) -> list[str]:
    """Names of the options that the command itself declares, without dashes."""
    return [name.lstrip("-") for option in context.command.params for name in option.opts if name.startswith("-")]


def parse_settings(
    arguments: list[str], assignments: Iterable[str] = (), *, options: Iterable[str] = ()
) -> dict[str, Any]:
    """Read ``--name value`` and ``--name=value`` pairs, then ``NAME=VALUE`` assignments.

    Args:
        arguments: words that the command has no option for.
        assignments: what was given by ``--set``.
        options: names of the command's own options, for a hint where one was misspelt.

    Raises:
        UsageError: for a word that is neither, a missing value, or a name that has two values.

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
                raise UsageError(f"option --{name} needs a value{suggestion(name, options) or f': --{name} VALUE'}")
        _add(settings, f"{name}={value}")
    for assignment in assignments:
        _add(settings, assignment)
    return settings


def task_parameters(context: typer.Context, task: str, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """The parameters of ``task`` among the words that a command has no option for, and those given by ``--set``.

    Raises:
        UsageError: as :func:`parse_settings`, for an unknown task, or a name that is no parameter of it.
    """
    from lrtasks import generators

    options, names = option_names(context), generators.registry.get(task).parameter_names()
    given = parse_settings(context.args, assignments, options=options)
    for name in given:
        if name not in names:
            raise unknown(f"option or parameter of {task}", name, [*options, *names])
    return given


def worker_number(text: str) -> int | str:
    """A number of workers as it is meant; ``auto``, or what is no number, as it is."""
    return int(text) if text.isdecimal() else text


def print_json(content: Any) -> None:
    """Print ``content`` as JSON on standard output."""
    print(json.dumps(content, indent=1, allow_nan=False))


def _add(settings: dict[str, Any], assignment: str) -> None:
    name, value = parse_assignment(assignment)
    if name in settings and settings[name] != value:
        raise UsageError(f"{name} is given twice: {settings[name]!r} and {value!r}")
    settings[name] = value
