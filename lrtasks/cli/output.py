"""Tables on standard output, in the formats that commands offer."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.errors import UsageError, unknown

if TYPE_CHECKING:
    from lrtasks.record import RunRecord
    from lrtasks.results.formats import TextTable

FORMATS = ("text", "markdown", "csv", "json", "latex", "html")

OutFile = Annotated[Path | None, typer.Option("--out", "-o", help="File to write, instead of standard output.")]
JsonFormat = Annotated[bool, typer.Option("--json", help="The same as --format json.")]


def format_option(formats: Sequence[str]) -> Any:
    """The option ``--format`` of a command that offers ``formats``."""
    return typer.Option("--format", help=f"{', '.join(formats[:-1])} or {formats[-1]}.")


def chosen_format(form: str, as_json: bool, formats: Sequence[str]) -> str:
    """What ``--format`` says, unless ``--json`` was given.

    Raises:
        UsageError: if it is not one of ``formats``.
    """
    if as_json:
        return "json"
    if form not in formats:
        raise unknown("format", form, formats)
    return form


def print_tables(
    form: str,
    tables: Callable[[], tuple[Sequence[TextTable], Sequence[str]]],
    content: Callable[[], Any],
    out: Path | None = None,
) -> None:
    """Print tables and notes, or ``content`` where ``form`` is ``csv`` or ``json``; into ``out`` if it is given.

    Raises:
        UsageError: if ``out`` cannot be written.
    """
    from lrtasks.results.formats import render

    if form in ("csv", "json"):
        text = render(form, content=content())
    else:
        text = render(form, *tables(), width=None if out else terminal_width())
    if out is None:
        print(text)
        return
    from lrtasks.files import write_output

    try:
        write_output(out, f"{text}\n".encode())
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None
    print(f"wrote {out}")


def print_runs(
    records: Sequence[RunRecord], *, costs: bool = True, unequal_budgets: bool = False, by_length: bool = False
) -> None:
    """Print the table of some runs."""
    from lrtasks.results.frame import make_frame
    from lrtasks.results.table import make_table

    made = make_table(make_frame([(None, record) for record in records]), unequal_budgets=unequal_budgets)
    tables = made.tables(by_length=by_length) if costs else made.tables()[:1]
    print_tables("text", lambda: (tables, made.notes()), made.rows)


def terminal_width() -> int | None:
    """Columns of the terminal; ``None`` where standard output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
