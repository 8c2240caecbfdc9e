"""Options of several commands, and parameters as options: ``--res 256`` and ``--set NAME=VALUE``."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lrtasks.config import Config, parse_assignment
from lrtasks.errors import UsageError, suggestion, unknown

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Results folder.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE: any parameter of task, model or budget; model.NAME=VALUE for your own model,"
        " LABEL.NAME=VALUE for one model of several.",
    ),
]
Trackers = Annotated[
    list[str] | None,
    typer.Option("--tracker", help="csv, tensorboard or wandb, with commas or repeated: written in the run's folder."),
]

Command = Callable[..., Any]


def complete_models(incomplete: str) -> list[str]:
    """Completion in the shell: names of models, with commas before."""
    from lrtasks.models import names

    return _completed(incomplete, names())


def complete_tasks(incomplete: str) -> list[str]:
    """Completion in the shell: names of tasks, with commas before."""
    from lrtasks.generators import names

    return _completed(incomplete, names())


def complete_names(incomplete: str) -> list[str]:
    """Completion in the shell: names of tasks and models."""
    return complete_tasks(incomplete) + complete_models(incomplete)


def _completed(incomplete: str, names: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in names if name.startswith(last)]


def config_options(argument: str, panel: str, *classes: type[Config]) -> Callable[[Command], Command]:
    """Add an option to a command for each parameter of ``classes``; the help shows them in a panel of their own.

    Args:
        argument: keyword argument through which the command gets the values that were given, by name.
        panel: title of the panel.
        classes: what has the parameters; a parameter that two classes have becomes one option.
    """
    entries = {entry["name"]: entry for cls in reversed(classes) for entry in cls.describe_parameters()}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            given = {name: values.pop(name) for name in entries}
            return command(**values, **{argument: {key: _read(key, v) for key, v in given.items() if v is not None}})

        signature = inspect.signature(command)
        hints = typing.get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in signature.parameters.items()
            if name != argument
        ]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(entry, panel))
            for name, entry in entries.items()
        ]
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        wrapper.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapper

    return decorate


def option_names(context: typer.Context) -> list[str]:
    """Names of the options that the command itself declares, without dashes."""
    return [name.lstrip("-") for option in context.command.params for name in option.opts if name.startswith("--")]


def parse_settings(
    arguments: list[str], assignments: Iterable[str] = (), *, options: Iterable[str] = ()
) -> dict[str, Any]:
    """Read ``--name value`` and ``--name=value`` pairs, then ``NAME=VALUE`` assignments.

    Args:
        arguments: words that the command has no option for.
        assignments: values of ``--set``.
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


def require_names(models: str, tasks: str) -> None:
    """Check names of models and tasks, with commas or ``all``, without loading torch.

    Raises:
        UsageError: for an unknown one; close names are suggested.
    """
    from lrtasks import generators
    from lrtasks import models as registered

    registered.registry.select(models)
    generators.registry.select(tasks)


def worker_number(text: str) -> int | str:
    """A number of workers; ``auto``, or a text that is no number, as it is."""
    return int(text) if text.isdecimal() else text


def print_json(content: Any) -> None:
    """Print ``content`` as JSON on standard output."""
    print(json.dumps(content, indent=1, allow_nan=False))


def _option(entry: dict[str, Any], panel: str) -> Any:
    several = entry["type"].startswith("tuple[str, ...")
    default = "" if entry["default"] in (None, []) else f" [default: {entry['default']}]"
    option = typer.Option(
        f"--{entry['name'].replace('_', '-')}",
        help=f"{entry['doc'][0].upper()}{entry['doc'][1:]}.{default}",
        metavar=None if several else _metavar(entry["type"]),
        rich_help_panel=panel,
    )
    return Annotated[(list[str] if several else str) | None, option]


def _metavar(kind: str) -> str:
    """A parameter's type as the help shows it."""
    names = {"int": "INTEGER", "float": "NUMBER", "bool": "true|false"}
    return names.get(kind.split(" ")[0], "TEXT")


def _read(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if value.startswith("--"):
        raise UsageError(f"option --{name.replace('_', '-')} needs a value, found the option {value}")
    return parse_assignment(f"{name}={value}")[1]


def _add(settings: dict[str, Any], assignment: str) -> None:
    name, value = parse_assignment(assignment)
    if name in settings and settings[name] != value:
        raise UsageError(f"{name} is given twice: {settings[name]!r} and {value!r}")
    settings[name] = value
