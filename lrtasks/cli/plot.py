"""``lrtasks plot``: figures over many models, for a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lrtasks.cli.output import OutFile
from lrtasks.cli.suite import Unequal
from lrtasks.cli.table import chosen_runs
from lrtasks.errors import UsageError, unknown


def plot(
    kind: Annotated[str, typer.Argument(help="curves, length, scatter or heatmap.")],
    folders: Annotated[list[Path] | None, typer.Argument(help="Results folders (default: runs).")] = None,
    out: OutFile = None,
    models: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    tasks: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    cost: Annotated[
        str | None, typer.Option(help="scatter: seconds-per-step, parameter-count, state-bytes or peak-memory-bytes.")
    ] = None,
    unequal_budgets: Unequal = False,
) -> None:
    """Draw a figure of all runs as PDF, PNG or SVG: a line or point per model, seeds as bands.

    curves: validation score against step; length: test score against length; scatter: score against cost; heatmap:
    scaled score of tasks × models. Example: lrtasks plot curves runs --tasks shift -o curves.pdf
    """
    from lrtasks.results import plots
    from lrtasks.results.frame import make_frame, read_runs
    from lrtasks.results.style import save
    from lrtasks.results.table import make_table

    if kind not in plots.KINDS:
        raise unknown("figure", kind, plots.KINDS)
    against = (cost or "seconds-per-step").replace("-", "_")
    if cost is not None and kind != "scatter":
        raise UsageError(f"--cost belongs to scatter, found {kind}")
    if against not in plots.COSTS:
        raise unknown("cost", cost or "", [name.replace("_", "-") for name in plots.COSTS])
    runs, problems = read_runs(folders or [Path("runs")])
    for problem in problems:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")
    frame = chosen_runs(make_frame(runs), models, tasks)
    table = make_table(frame, unequal_budgets=unequal_budgets)
    more = {"cost": against} if kind == "scatter" else {}
    figure = plots.KINDS[kind](table, [record for _, record in runs], **more)
    print(f"wrote {save(figure, out or Path(f'{kind}.pdf'))}")
