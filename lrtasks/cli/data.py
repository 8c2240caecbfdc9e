"""``lrtasks data``: check and describe stored datasets."""

from __future__ import annotations

from typing import Annotated

import typer

from lrtasks.cli.options import AsJson, print_json

app = typer.Typer(help="Check and describe stored datasets.", no_args_is_help=True)

Address = Annotated[str, typer.Argument(metavar="DIR", help="Folder or fsspec address of a dataset.")]


@app.command()
def verify(path: Address, as_json: AsJson = False) -> int:
    """Compare every file with the manifest and name all problems; exit code 1 if there are any.

    Example: lrtasks data verify data/pathfinder64
    """
    from lrtasks.data import verify as find

    problems = find(path)
    if as_json:
        print_json({"path": path, "whole": not problems, "problems": problems})
    else:
        print("\n".join(problems) or f"{path}: whole and unchanged")
    return 1 if problems else 0


@app.command()
def info(path: Address, as_json: AsJson = False) -> None:
    """Print what a dataset is: task, parameters, seed, counts, format, size, versions.

    Example: lrtasks data info data/pathfinder64
    """
    from lrtasks.data import info as describe

    summary = describe(path)
    if as_json:
        print_json(summary)
        return
    for name, value in summary.items():
        shown = ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, dict) else value
        print(f"{name:12}{', '.join(shown) if isinstance(shown, list) else shown}")
