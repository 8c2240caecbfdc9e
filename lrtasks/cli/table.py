"""``lrtasks table``: tasks × models from run records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrtasks.cli.options import print_json
from lrtasks.cli.sheets import FORMATS, JsonFormat, chosen_format, format_option, print_sheets
from lrtasks.errors import UsageError, unknown

if TYPE_CHECKING:
    from lrtasks.results import RunRecord


def table(
    folders: Annotated[list[Path] | None, typer.Argument(help="Results folders (default: runs).")] = None,
    form: Annotated[str, format_option(FORMATS)] = "text",
    models: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    tasks: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    transpose: Annotated[bool, typer.Option("--transpose", help="Show models as rows and tasks as columns.")] = False,
    unequal_budgets: Annotated[
        bool, typer.Option("--unequal-budgets", help="Allow runs of unequal budgets on one task, in rows of their own.")
    ] = False,
    as_json: JsonFormat = False,
) -> None:
    """Print scores with their intervals, floors, the papers' figures and costs of all runs."""
    form = chosen_format(form, as_json, FORMATS)
    if transpose and form in ("csv", "json"):
        raise UsageError(f"--transpose has no meaning with {form}, which lists single cells")
    from lrtasks.results import formats
    from lrtasks.results.table import make_table

    records = read_results(folders or [Path("runs")])
    records = _chosen("model", models, records, [record.model["name"] for record in records])
    records = _chosen("task", tasks, records, [record.task["name"] for record in records])
    made = make_table(records, unequal_budgets=unequal_budgets)
    if form == "json":
        print_json(made.rows())
    elif form == "csv":
        print(formats.csv_lines(made.rows()))
    else:
        scores = made.scores().transposed() if transpose else made.scores()
        print_sheets(form, [scores, made.costs()], made.notes())


def read_results(folders: Sequence[Path]) -> list[RunRecord]:
    """All records below ``folders``; what cannot be read is said on standard error.

    Raises:
        UsageError: if there are none.
    """
    from lrtasks.results import read_records

    records, problems = [], []
    for folder in folders:
        found, unreadable = read_records(folder)
        records += [record for _, record in found]
        problems += unreadable
    for problem in problems:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")
    if not records:
        where = ", ".join(str(folder) for folder in folders)
        unread = f" that can be read; {len(problems)} cannot" if problems else ""
        raise UsageError(f"no run records below {where}{unread}")
    return records


def _chosen(kind: str, chosen: str, records: Sequence[RunRecord], names: Sequence[str]) -> list[RunRecord]:
    """The records whose name, in the list ``names``, was chosen."""
    if chosen == "all":
        return list(records)
    wanted = chosen.split(",")
    for name in wanted:
        if name not in names:
            raise unknown(kind, name, set(names))
    return [record for record, name in zip(records, names, strict=True) if name in wanted]
