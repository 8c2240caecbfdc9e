"""The command line: parse, call, print. Whatever is heavy is imported inside the commands."""

from __future__ import annotations

import sys
from typing import Any

import typer

from lrtasks.cli.evaluate import evaluate
from lrtasks.cli.inspect import describe, list_names, preview
from lrtasks.cli.table import table
from lrtasks.errors import UsageError

EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}

# The base of typer's own errors; newer versions of typer carry their own click, older ones import it.
_CommandLineError: Any = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")

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
app.command("eval", context_settings=EXTRA)(evaluate)
app.command("table")(table)


def main() -> None:
    """Run the command line: exit code 0 done, 2 a user's mistake (one line on standard error), 1 anything else."""
    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        _fail(str(error), 2)
    except _CommandLineError as error:
        _fail(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted; the same command goes on where it was", 1)
    except BrokenPipeError:
        # the reader went away (as `| head` does)
        sys.stderr.close()
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"lrtasks: {' '.join(message.split())}\n")
    sys.exit(code)
