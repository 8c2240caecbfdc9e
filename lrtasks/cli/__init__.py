"""The command line: parse, call, print. Whatever is heavy is imported inside the commands."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import typer

from lrtasks.cli.analyze import analyze
from lrtasks.cli.bench import bench
from lrtasks.cli.check import check
from lrtasks.cli.compare import compare
from lrtasks.cli.data import app as data
from lrtasks.cli.evaluate import evaluate
from lrtasks.cli.generate import generate
from lrtasks.cli.inspect import describe, list_names, preview
from lrtasks.cli.report import report
from lrtasks.cli.suite import suite
from lrtasks.cli.sweep import sweep
from lrtasks.cli.table import table
from lrtasks.errors import UsageError, suggestion

EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}

# The base of typer's own errors; newer versions of typer carry their own click, older ones import it.
_CommandLineError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")

PACKAGE = Path(__file__).parents[1]

INTERRUPTED = 130
"""What newer versions of typer return in place of raising KeyboardInterrupt."""

_python_format = warnings.formatwarning

app = typer.Typer(
    name="lrtasks",
    help="The diagnostic gym for long-range sequence models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("list")(list_names)
app.command("describe")(describe)
app.command("preview", context_settings=EXTRA)(preview)
app.command("check", context_settings=EXTRA)(check)
app.command("eval", context_settings=EXTRA)(evaluate)
app.command("suite", context_settings=EXTRA)(suite)
app.command("sweep", context_settings=EXTRA)(sweep)
app.command("table")(table)
app.command("compare")(compare)
app.command("analyze")(analyze)
app.command("bench")(bench)
app.command("report")(report)
app.command("generate", context_settings=EXTRA)(generate)
app.add_typer(data, name="data")


def main() -> None:
    """Run the command line: exit code 0 done, 2 a user's mistake (one line on standard error), 1 anything else."""
    warnings.formatwarning = _formatted
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except UsageError as error:
        _fail(str(error), 2)
    except _CommandLineError as error:
        _fail(error.format_message() + _misspelt(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted; what was cut off goes on when the same command is given again", 1)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _fail(f"a name is too long for the file system: {str(error.filename)[:100]}…", 2)
        if not isinstance(error, BrokenPipeError):
            raise
        # the reader went away, as `| head` does: nobody is left to write to, not at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _formatted(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of this package as one line, as its errors are; of any other as Python has it."""
    if category is UserWarning and Path(filename).is_relative_to(PACKAGE):
        return f"lrtasks: {message}\n"
    return _python_format(message, category, filename, lineno, line)


def _misspelt(error: Any) -> str:
    """A hint for a required option that is missing because it was written otherwise."""
    missing = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or missing is None:
        return ""
    words = [word for word in sys.argv[1:] if word.startswith("--") and word not in missing.opts]
    return next((f" Found {word}{hint}" for word in words if (hint := suggestion(word, missing.opts))), "")


def _fail(message: str, code: int) -> None:
    if message:  # there is none where the help was shown instead
        sys.stderr.write(f"lrtasks: {' '.join(message.split())}\n")
    sys.exit(code)
