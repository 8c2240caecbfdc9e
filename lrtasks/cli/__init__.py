"""The command line: parse arguments, run a command, report errors. Commands import heavy packages themselves."""

from __future__ import annotations

import contextlib
import errno
import inspect
import itertools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from lrtasks import __version__
from lrtasks.errors import PACKAGE, UsageError, in_one_line, own_frames, suggestion, with_line
from lrtasks.machine import set_process_defaults

# the base class of typer's own errors; newer versions of typer contain a copy of click, older ones import click
_CommandLineError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")

_SINGLE_DASH = re.compile(r"-[a-np-zA-Z][\w-]+(=.*)?")
"""A long option with one dash. Typer would read it as several short options, and the letter h prints the help."""

_EMPTY = re.compile(r"--[\w-]+=")
"""A long option with an empty value."""

INTERRUPTED = 130
"""Exit code that newer versions of typer return instead of raising KeyboardInterrupt."""

_python_format = warnings.formatwarning

COMMANDS = {
    "Look around": {
        "list": "look:list_names",
        "describe": "look:describe",
        "preview": "look:preview",
        "check": "look:check",
    },
    "Train and score": {
        "eval": "runs:evaluate",
        "suite": "suites:suite",
        "sweep": "suites:sweep",
        "profile": "suites:profile",
        "bench": "bench:bench",
    },
    "Results": {
        "table": "results:table",
        "compare": "results:compare",
        "plot": "results:plot",
        "analyze": "results:analyze",
        "report": "results:report",
    },
    "Data": {"generate": "data:generate", "data": "data:app"},
}
"""The module and function of each command, grouped by the panels of ``--help``."""
TAKE_PARAMETERS = ("preview", "check", "eval", "suite", "sweep", "profile", "generate")
"""Commands that take parameters as options."""


def make_app(words: Sequence[str] = ()) -> typer.Typer:
    """Return the command line for ``words``. Import only the command that they name, or all if they name none."""
    app = typer.Typer(
        name="lrtasks",
        help="The diagnostic gym for long-range sequence models.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    every = {name for commands in COMMANDS.values() for name in commands}
    wanted = every.intersection(words[:1]) or every
    for panel, commands in COMMANDS.items():
        for name in (name for name in commands if name in wanted):
            module, attribute = commands[name].split(":")
            command = getattr(import_module(f"lrtasks.cli.{module}"), attribute)
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
                continue
            extra = name in TAKE_PARAMETERS
            context = {"allow_extra_args": extra, "ignore_unknown_options": extra}
            # typer keeps the line breaks of a docstring at every width of the terminal
            paragraphs = inspect.cleandoc(command.__doc__).split("\n\n")
            text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
            app.command(name, help=text, rich_help_panel=panel, context_settings=context)(command)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lrtasks {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The diagnostic gym for long-range sequence models."""


def main() -> None:
    """Run the command line. Exit with code 0 on success, 2 for a user's mistake, else 1. Print errors on one line."""
    debug = "--debug" in sys.argv[1:]
    set_process_defaults()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, for example by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")  # an output that is not UTF-8 gets "?"
    warnings.formatwarning = _formatted
    try:
        for word in filter(_SINGLE_DASH.fullmatch, sys.argv[1:]):
            raise UsageError(f"unknown option {word}; options other than -o and -h have two dashes: -{word}")
        for before, word in itertools.pairwise(sys.argv):
            # such as the value of a shell variable that is not set; as a path, it would mean "."
            if not word or _EMPTY.fullmatch(word):
                option = (word or before).rstrip("=")
                what = f"option {option}" if option.startswith("-") else "argument"
                raise UsageError(f"{what} has an empty value; give a value or leave it out")
        words = [word for word in sys.argv[1:] if word != "--debug"]
        code = make_app(words)(args=words, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except UsageError as error:
        _fail(str(error), 2, debug)
    except _CommandLineError as error:
        _fail(_wrong_value(error) or error.format_message() + _misspelt(error), 2, debug)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted; give the same command again to continue", 1, debug)
    except BrokenPipeError:  # the reader of the output has ended, for example `head`
        _forget_output()
        sys.exit(1)
    except OSError as error:  # a full disk, a missing folder, a closed output
        if error.errno == errno.ENAMETOOLONG:
            _fail(f"a name is too long for the file system: {str(error.filename)[:100]}…", 2, debug)
        _forget_output()
        file = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or in_one_line(error)}{file}; what was finished before is kept", 1, debug)
    except SystemExit as error:  # typer returns codes here; an exit code of the user's code could claim success
        if isinstance(error.__context__, BrokenPipeError):  # rich and typer exit if the reader has ended
            _forget_output()
            sys.exit(1)
        inside = traceback.extract_tb(error.__traceback__)[1:]
        if not any(Path(frame.filename).is_relative_to(PACKAGE) for frame in inside):  # typer's completion for shells
            sys.exit(error.code)
        _fail("the code of the model or task called sys.exit", 1, debug)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if own_frames(error) else f" ({Path(last.filename).name}, line {last.lineno}, in {last.name})"
        _fail(with_line(error) + ("" if debug else f"{place}; --debug shows the traceback"), 1, debug)
    sys.exit(code if isinstance(code, int) else 0)


def _forget_output() -> None:
    """Discard the rest of standard output, which Python would try to write when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning of this package on one line, like an error; format any other warning as Python does."""
    if category is UserWarning and Path(filename).is_relative_to(PACKAGE):
        return f"lrtasks: {message}\n"
    return _python_format(message, category, filename, lineno, line)


def _wrong_value(error: Any) -> str:
    """Return what an option allows and what was found, if pydantic refused its value, else an empty string.

    Newer versions of typer convert values with pydantic; the messages of both do not contain the value.
    """
    found = getattr(error.__cause__, "errors", None)
    if found is None:
        return ""
    first = found()[0]
    allowed = first["msg"].removeprefix("Input should be ").partition(",")[0]
    allowed = allowed.replace("valid integer", "whole number").replace("valid ", "")
    return f"{error.param.opts[0]} must be {allowed}, found {first['input']!r}"


def _misspelt(error: Any) -> str:
    """Return a hint if a required option is missing because it was misspelt, else an empty string."""
    missing = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or missing is None:
        return ""
    words = [word for word in sys.argv[1:] if word.startswith("--") and word not in missing.opts]
    return next((f" Found {word}{hint}" for word in words if (hint := suggestion(word, missing.opts))), "")


def _fail(message: str, code: int, debug: bool) -> None:
    if debug and message:
        traceback.print_exc()
    if message:  # the message is empty if the help was shown instead
        sys.stderr.write(f"lrtasks: {' '.join(message.split())}\n")
    sys.exit(code)
