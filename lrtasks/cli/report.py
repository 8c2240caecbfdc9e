"""``lrtasks report``: one page that shows what the models can do."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lrtasks.errors import UsageError


def report(
    folders: Annotated[list[Path] | None, typer.Argument(help="Results folders (default: runs).")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    unequal_budgets: Annotated[
        bool, typer.Option("--unequal-budgets", help="Allow runs of unequal budgets on one task, in rows of their own.")
    ] = False,
    heat_map: Annotated[Path | None, typer.Option(help="Also write the heat map alone, as SVG.")] = None,
) -> None:
    """Write one HTML page: scores of tasks × models, learning curves, breakdowns, costs, and each run's settings.

    Example: lrtasks report runs -o report.html
    """
    targets = [path for path in (out, heat_map) if path is not None]
    for path in targets:
        require_writable(path)
    if heat_map is not None and heat_map.suffix.lower() != ".svg":
        raise UsageError(f"--heat-map writes SVG; its name must end in .svg, found {heat_map}")
    if heat_map is not None and heat_map.resolve() == out.resolve():
        raise UsageError(f"--out and --heat-map are both {out}")
    from lrtasks.files import write_output
    from lrtasks.results.report import heat_map_svg, read_report, render_page

    folders = folders or [Path("runs")]
    for path in targets:
        if path.is_symlink() and any(path.parent.resolve().is_relative_to(folder.resolve()) for folder in folders):
            raise UsageError(f"cannot write {path}: it is a link in a results folder")
    made = read_report(folders, unequal_budgets=unequal_budgets)
    for problem in made.left_out:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")
    contents = [render_page(made), *([heat_map_svg(made)] if heat_map is not None else [])]
    for path, content in zip(targets, contents, strict=True):
        try:
            write_output(path, content.encode(errors="replace"))
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        print(f"wrote {path}")


def require_writable(path: Path) -> None:
    """Raise :class:`UsageError` if a file cannot be written."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    # a file is replaced, a pipe or a device is written into
    replaced = path.is_file() or not path.exists()
    places = [*([path.resolve().parent] if replaced else []), *([path] if path.exists() else [])]
    if not all(os.access(place, os.W_OK) for place in places):
        raise UsageError(f"cannot write {path}: it is not writable")
