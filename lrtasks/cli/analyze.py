"""``lrtasks analyze``: why a run scored what it scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lrtasks.cli.options import AsJson, print_json


def analyze(
    run: Annotated[Path, typer.Argument(help="A run's folder (the one with record.json).")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the plots (default: RUN/analysis).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a run's breakdowns and diagnostics, and draw them with the learning curve and what the model holds.

    Example: lrtasks analyze runs/shift/dlr-1a2b3c4d-seed0
    """
    from lrtasks.results import analysis

    record, written = analysis.analyze(run, out or run / "analysis")
    if as_json:
        content = json.loads(record.to_json())
        print_json(
            {key: content[key] for key in ("slices", "diagnostics")} | {"plots": [str(path) for path in written]}
        )
        return
    from lrtasks.results.formats import render

    diagnostics = analysis.diagnostics_table(record)
    tables = [*analysis.slice_tables(record), *([diagnostics] if diagnostics.lines else [])]
    print(render("text", tables, [record.command]))
    for path in written:
        print(f"wrote {path}")
