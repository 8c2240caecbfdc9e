"""Options that commands share, parameters as options (``--res 256``, ``--set NAME=VALUE``), and printing of results."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import re
import shutil
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from lrtasks.config import Config, parse_assignment
from lrtasks.errors import UsageError, require_known, suggestion, unknown

if TYPE_CHECKING:
    from lrtasks.results.formats import TextTable

Command = Callable[..., Any]


def completion(*packages: str) -> Callable[[str], list[str]]:
    """Return a function for the shell that completes names of tasks or models, also after other names and a comma."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        names = [name for package in packages for name in importlib.import_module(f"lrtasks.{package}").names()]
        return [before + comma + name for name in names if name.startswith(last)]

    return complete


complete_tasks, complete_models = completion("generators"), completion("models")
complete_names = completion("generators", "models")

AsJson = Annotated[bool, Option("--json", help="Print JSON on standard output.")]
JsonFormat = Annotated[bool, Option("--json", help="The same as --format json.")]
Device = Annotated[str, Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, Option("--out", "-o", help="Results folder.")]
OutFile = Annotated[Path | None, Option("--out", "-o", help="File to write, instead of standard output.")]
Folders = Annotated[list[Path] | None, Argument(help="Results folders (default: runs).")]
Chosen = Annotated[str, Option(help="Names, separated by commas, or all.")]
TaskName = Annotated[str, Argument(help="A task (lrtasks list) or FILE.py:NAME.", autocompletion=complete_tasks)]
TaskSettings = Annotated[list[str] | None, Option("--set", help="NAME=VALUE: a task parameter.")]
Settings = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="NAME=VALUE: any parameter of task, model or budget; model.NAME=VALUE for your own model,"
        " LABEL.NAME=VALUE for one model of several.",
    ),
]
Unequal = Annotated[bool, Option("--unequal-budgets", help="Allow unequal budgets on one task; each gets its own row.")]


def config_options(argument: str, panel: str, *classes: type[Config], **defaults: Any) -> Callable[[Command], Command]:
    """Add an option to a command for each parameter of ``classes``; the help shows them in a separate panel.

    The command receives the given values by name as its keyword argument ``argument``. A parameter that several classes
    have becomes one option. The help shows ``defaults`` instead of the defaults of the classes.
    """
    entries = {entry["name"]: entry for cls in reversed(classes) for entry in cls.describe_parameters()}
    for name, default in defaults.items():
        entries[name]["default"] = default
    only = inspect.Parameter.KEYWORD_ONLY
    declared = [
        inspect.Parameter(name, only, default=None, annotation=_option(entry, panel)) for name, entry in entries.items()
    ]

    def read(**values: Any) -> dict[str, Any]:
        return {name: _read(name, value) for name, value in values.items() if value is not None}

    return _with_options(argument, declared, read)


def shared_options(argument: str, shared: Command) -> Callable[[Command], Command]:
    """Add the options of ``shared`` to a command; the command gets the result of ``shared`` as ``argument``."""
    return _with_options(argument, _declared(shared), shared)


def _with_options(argument: str, options: Sequence[inspect.Parameter], read: Command) -> Callable[[Command], Command]:
    """Add options to a command; the command gets the result of ``read`` as ``argument``."""

    def decorate(command: Command) -> Command:
        own = {option.name: option for option in _declared(command) if option.name != argument}
        every = {**own, **{option.name: option for option in options}}

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            made = read(**{option.name: values[option.name] for option in options})
            return command(**{argument: made}, **{name: values[name] for name in own})

        wrapper.__dict__["__signature__"] = inspect.Signature(list(every.values()))
        wrapper.__annotations__ = {name: option.annotation for name, option in every.items()}
        return wrapper

    return decorate


def _declared(command: Command) -> list[inspect.Parameter]:
    """Return the parameters of a function as keyword-only parameters with evaluated types."""
    hints = typing.get_type_hints(command, include_extras=True)
    return [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
    ]


def _option(entry: dict[str, Any], panel: str) -> Any:
    several = entry["type"].startswith("tuple[str, ...")
    default = "" if entry["default"] in (None, []) else f" (default: {_as_typed(entry['default'])})"
    kinds = {"int": "INTEGER", "float": "NUMBER", "bool": "true|false"}
    choices = "|".join(re.findall(r"'([^']*)'", entry["type"])) if entry["type"].startswith("Literal") else "TEXT"
    option = Option(
        f"--{entry['name'].replace('_', '-')}",
        help=f"{entry['doc'][0].upper()}{entry['doc'][1:]}{default}.",
        metavar=None if several else kinds.get(entry["type"].split(" ")[0], choices),
        rich_help_panel=panel,
    )
    return Annotated[(list[str] if several else str) | None, option]


def _as_typed(value: Any) -> str:
    """Return a value in the form in which a user types it: ``false``, ``0.9,0.999``."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).lower()


def _read(name: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    if value.startswith("--"):
        raise UsageError(f"option --{name.replace('_', '-')} needs a value, found the option {value}")
    return parse_assignment(f"{name}={value}")[1]


def option_names(context: Context) -> list[str]:
    """Return the names of the options that the command itself declares, without dashes."""
    return [name.lstrip("-") for option in context.command.params for name in option.opts if name.startswith("--")]


def parse_settings(
    arguments: list[str], assignments: Iterable[str] = (), *, options: Iterable[str] = ()
) -> dict[str, Any]:
    """Read ``--name value`` and ``--name=value`` pairs, then ``NAME=VALUE`` assignments.

    ``options`` are the names of the command's flags, for a hint if the user misspelt one.

    Raises:
        UsageError: for a word that has neither form, a missing value, or a name that has two values.

    >>> parse_settings(["--res", "256", "--variant=clean"], ["shifts=4"])
    {'res': 256, 'variant': 'clean', 'shifts': 4}
    """
    found, remaining = list[str](), iter(arguments)
    for argument in remaining:
        if not argument.startswith("--") or argument == "--":
            hint = f"; write lrtasks suite --file {argument}" if argument.endswith(".toml") else ""
            raise UsageError(f"found {argument!r} where an option --NAME VALUE was expected{hint}")
        name, equals, value = argument[2:].partition("=")
        if not equals:
            value = next(remaining, "--")
            if value.startswith("--"):
                known = suggestion(name, options) or f": --{name} VALUE (this command has no flag --{name})"
                raise UsageError(f"option --{name} needs a value{known}")
        found.append(f"{name}={value}")
    settings: dict[str, Any] = {}
    for assignment in (*found, *assignments):
        add_once(settings, *parse_assignment(assignment))
    return settings


def add_once(settings: dict[str, Any], name: str, value: Any, owner: str = "") -> None:
    """Add a setting; raise :class:`UsageError` if it has another value already."""
    if name in settings and settings[name] != value:
        raise UsageError(f"{owner}{name} is given twice: {settings[name]!r} and {value!r}")
    settings.setdefault(name, value)


def given_settings(
    context: Context, settings: Iterable[str] | None, budget: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return settings by name: budget fields, options that the command does not declare, and ``--set`` values."""
    given: dict[str, Any] = {f"budget.{name}": value for name, value in (budget or {}).items()}
    flags = [option for option in context.command.params if getattr(option, "is_flag", False)]
    names = [name.lstrip("-") for flag in flags for name in flag.opts]
    for name, value in parse_settings(context.args, settings or (), options=names).items():
        add_once(given, name, value)
    return given


def task_parameters(context: Context, task: str, settings: Iterable[str] | None) -> dict[str, Any]:
    """Return :func:`given_settings`; each of them must be a parameter of ``task``.

    Raises:
        UsageError: for an unknown task, or a name that is not a parameter of the task.
    """
    from lrtasks import generators

    names = generators.registry.get(task).parameter_names()
    given = given_settings(context, settings)
    for name in (name for name in given if name not in names):
        raise unknown(f"option or parameter of {task}", name, [*option_names(context), *names])
    return given


def require_names(models: str, tasks: str) -> tuple[list[str], list[str]]:
    """Check names of models and tasks (comma-separated, or ``all``) without loading torch; return them as two lists.

    Raises:
        UsageError: for an unknown name, with close names, or for an address in a file that does not exist.
    """
    from lrtasks import generators
    from lrtasks import models as registered

    chosen = registered.registry.select(models), generators.registry.select(tasks)
    for name in itertools.chain(*chosen):
        place = Path(name.rpartition(":")[0])
        if place.suffix == ".py" and not place.exists():
            raise UsageError(f"{name!r}: there is no file {place.absolute()}")
    return chosen


def require_alone(context: Context, name: str, why: str, allowed: Sequence[str]) -> None:
    """Raise :class:`UsageError`, with the reason ``why``, if an option other than ``name`` and ``allowed`` is given."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name not in (name, *allowed) and source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{option.opts[0]} has no meaning with --{name}, which {why}")


def worker_number(text: str) -> int | str:
    """Convert a number of workers to an int; return any other text, such as ``auto``, unchanged."""
    return int(text) if text.isdecimal() else text


FORMATS = ("text", "markdown", "csv", "json", "latex", "html")


def format_option(formats: Sequence[str] = FORMATS, default: str = "by the suffix of --out, or text") -> Any:
    """Return the option ``--format`` of a command that offers ``formats``; the help names the default."""
    return Option("--format", help=f"{', '.join(formats[:-1])} or {formats[-1]} (default: {default}).")


ENDINGS = {".txt": "text", ".md": "markdown", ".csv": "csv", ".json": "json", ".tex": "latex", ".html": "html"}
"""Formats by the suffix of a file."""


def chosen_format(form: str | None, as_json: bool, formats: Sequence[str] = FORMATS, out: Path | None = None) -> str:
    """Return the format that ``--json``, ``--format`` or the suffix of ``out`` names, in this order, else ``text``.

    Raises:
        UsageError: if the format is not in ``formats``, or the ending belongs to none of them.
    """
    if form is None and out is not None and out.suffix and not as_json:
        form = ENDINGS.get(out.suffix.lower())
        if form not in formats:
            endings = ", ".join(ending for ending, name in ENDINGS.items() if name in formats)
            raise UsageError(f"--out writes {endings}, found {out}; --format allows any name")
    form = form or "text"
    require_known("format", form, formats)
    return "json" if as_json else form


def print_tables(
    form: str, tables: Sequence[TextTable], notes: Sequence[str], content: Any, out: Path | None = None
) -> None:
    """Print tables and notes, or ``content`` if ``form`` is ``csv`` or ``json``; with ``out``, write that file."""
    from lrtasks.results.formats import render

    text = render(form, tables, notes, content, width=None if out else terminal_width())
    if out is None:
        print(text)
    else:
        write_file(out, f"{text}\n".encode())


def terminal_width() -> int | None:
    """Return the number of columns of the terminal; ``None`` if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_json(content: Any) -> None:
    """Print ``content`` as JSON on standard output."""
    print(json.dumps(content, indent=1, allow_nan=False))


def write_file(path: Path, content: bytes) -> None:
    """Write a file that the user named, and print its name."""
    from lrtasks.files import write_output

    write_output(path, content)
    print(f"wrote {path}")
