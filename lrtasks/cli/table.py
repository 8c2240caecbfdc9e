"""``lrtasks table``: tasks × models from run records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrtasks.cli.output import FORMATS, JsonFormat, OutFile, chosen_format, format_option, print_tables
from lrtasks.errors import UsageError, unknown

if TYPE_CHECKING:
    import pandas as pd


def table(
    folders: Annotated[list[Path] | None, typer.Argument(help="Results folders (default: runs).")] = None,
    form: Annotated[str, format_option(FORMATS)] = "text",
    models: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    tasks: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    transpose: Annotated[bool, typer.Option("--transpose", help="Show models as rows and tasks as columns.")] = False,
    unequal_budgets: Annotated[
        bool, typer.Option("--unequal-budgets", help="Allow runs of unequal budgets on one task, in rows of their own.")
    ] = False,
    by_length: Annotated[
        bool, typer.Option("--by-length", help="Also show the scores on further tests, such as other lengths.")
    ] = False,
    mean: Annotated[
        bool,
        typer.Option("--mean", help="Show the mean over seeds with its 95 % interval, not median and solved seeds."),
    ] = False,
    frame: Annotated[
        Path | None, typer.Option(help="Instead write the frame, one row per run, to this .parquet or .csv file.")
    ] = None,
    out: OutFile = None,
    as_json: JsonFormat = False,
) -> None:
    """Print scores, floors, the papers' figures and costs of all runs; several seeds as median and how many solved.

    Example: lrtasks table runs --format latex -o table.tex
    """
    form = chosen_format(form, as_json, FORMATS)
    if transpose and form in ("csv", "json"):
        raise UsageError(f"--transpose has no meaning with {form}, which lists single cells")
    from lrtasks.results.frame import write_frame
    from lrtasks.results.table import make_table

    runs = chosen_runs(read_frame(folders or [Path("runs")]), models, tasks)
    if frame is not None:
        write_frame(runs, frame)
        print(f"wrote {frame}")
        return
    made = make_table(runs, unequal_budgets=unequal_budgets, mean=mean)
    print_tables(form, lambda: (made.tables(transpose=transpose, by_length=by_length), made.notes()), made.rows, out)


def read_frame(folders: Sequence[Path]) -> pd.DataFrame:
    """The frame of all runs below ``folders``; what cannot be read is named on standard error.

    Raises:
        UsageError: if there is no run.
    """
    from lrtasks.results.frame import read_frame as read

    runs, problems = read(folders)
    for problem in problems:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")
    return runs


def chosen_runs(runs: pd.DataFrame, models: str, tasks: str) -> pd.DataFrame:
    """The runs whose model and task were chosen: names with commas, or ``all``.

    Raises:
        UsageError: for a name that no run has.
    """
    return _chosen("task", tasks, _chosen("model", models, runs))


def _chosen(column: str, chosen: str, runs: pd.DataFrame) -> pd.DataFrame:
    """The runs whose task or model was chosen."""
    if chosen == "all":
        return runs
    wanted = chosen.split(",")
    known = set(runs[column])
    for name in wanted:
        if name not in known:
            raise unknown(column, name, known)
    return runs[runs[column].isin(wanted)]
