"""``lrtasks table``: tasks × models from run records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lrtasks.cli.options import print_json
from lrtasks.errors import UsageError, unknown

FORMATS = ("text", "markdown", "csv", "json")


def table(
    folders: Annotated[list[Path] | None, typer.Argument(help="Results folders (default: runs).")] = None,
    form: Annotated[str, typer.Option("--format", help="text, markdown, csv or json.")] = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Print the scores of all runs beside floors and the papers' figures."""
    form = "json" if as_json else form
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    from lrtasks.results import read_records
    from lrtasks.results.table import make_table

    records, problems = [], []
    folders = folders or [Path("runs")]
    for folder in folders:
        found, unreadable = read_records(folder)
        records += [record for _, record in found]
        problems += unreadable
    for problem in problems:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")
    if not records:
        raise UsageError(f"no run records below {', '.join(str(folder) for folder in folders)}")
    made = make_table(records)
    if form == "json":
        print_json(made.rows())
    else:
        print({"text": made.text, "markdown": made.markdown, "csv": made.csv}[form]())
