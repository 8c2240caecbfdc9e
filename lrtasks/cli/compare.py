"""``lrtasks compare``: two models, two results folders, or a model and the published ones, pair by pair."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrtasks.cli.output import JsonFormat, OutFile, chosen_format, format_option, print_tables
from lrtasks.cli.table import read_frame
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("text", "markdown", "latex", "html", "json")
PUBLISHED = "published"

Published = Annotated[
    Path | None, typer.Option("--published", help="Folder of the published runs (default: this project's own).")
]


def compare(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model's name as tables show it, its address, or a results folder.")
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, or the word published.")],
    folders: Annotated[
        list[Path] | None, typer.Option("--folder", help="Results folder of models given by name (default: runs).")
    ] = None,
    published: Published = None,
    form: Annotated[str, format_option(FORMATS)] = "text",
    out: OutFile = None,
    as_json: JsonFormat = False,
) -> None:
    """Compare the test scores of two models, or of two folders, with paired tests.

    A pair has the same task, parameters, budget and seed; between two folders of several models the same model too.
    Example: lrtasks compare mylayer.py:MyLayer published
    """
    form = chosen_format(form, as_json, FORMATS)
    from lrtasks.results.compare import compare as compared
    from lrtasks.results.compare import compare_with_each, model_runs

    if b == PUBLISHED or published:
        if b != PUBLISHED:
            raise UsageError(f"--published stands beside the word published in place of B, found {b!r}")
        name, own = model_runs(a, read_frame(folders or [Path("runs")]))
        found = compare_with_each(own, read_published(published), (name, PUBLISHED))
        print_tables(form, lambda: ([found.table()], found.notes()), found.content)
        return
    are_folders = [not folders and ":" not in word and ("/" in word or _exists(word)) for word in (a, b)]
    if any(are_folders) and not all(are_folders):
        folder, name = (a, b) if are_folders[0] else (b, a)
        raise UsageError(f"compare takes two models or two folders, found the folder {folder} and the name {name!r}")
    if all(are_folders):
        sides = [(word, read_frame([Path(word)])) for word in (a, b)]
    else:
        runs = read_frame(folders or [Path("runs")])
        sides = [model_runs(word, runs) for word in (a, b)]
    (name_a, runs_a), (name_b, runs_b) = sides
    found = compared(runs_a, runs_b, (name_a, name_b))
    print_tables(form, lambda: ([found.table()], found.notes()), found.content, out)


def read_published(folder: Path | None) -> pd.DataFrame:
    """The frame of the published runs, or of another folder."""
    from lrtasks.results.frame import published

    return read_frame([folder or published()])


def _exists(name: str) -> bool:
    with suppress(OSError):  # a model's name with its settings may be too long for a file
        return Path(name).exists()
    return False
