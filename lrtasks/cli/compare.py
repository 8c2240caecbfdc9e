"""``lrtasks compare``: two models, or two results folders, pair by pair."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrtasks.cli.options import print_json
from lrtasks.cli.sheets import JsonFormat, chosen_format, format_option, print_sheets
from lrtasks.cli.table import read_results
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.results.pairing import Side

FORMATS = ("text", "markdown", "latex", "html", "json")


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A model's name as tables show it, or a results folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    folders: Annotated[
        list[Path] | None, typer.Option("--folder", help="Results folder of models given by name (default: runs).")
    ] = None,
    form: Annotated[str, format_option(FORMATS)] = "text",
    as_json: JsonFormat = False,
) -> None:
    """Compare the test scores of two models, or of two folders, with paired tests.

    A pair has the same task, parameters, budget and seed; between two folders of several models the same model too.
    """
    form = chosen_format(form, as_json, FORMATS)
    from lrtasks.results.compare import compare as compared

    found = compared(*_sides(a, b, folders))
    if form == "json":
        print_json(found.content())
    else:
        print_sheets(form, [found.sheet()], found.notes())


def _sides(a: str, b: str, folders: list[Path] | None) -> tuple[Side, Side]:
    from lrtasks.results.pairing import Side, model_side

    are_folders = [not folders and ("/" in word or _exists(word)) for word in (a, b)]
    if all(are_folders):
        return Side(a, read_results([Path(a)])), Side(b, read_results([Path(b)]))
    if any(are_folders):
        folder, name = (a, b) if are_folders[0] else (b, a)
        raise UsageError(f"compare takes two models or two folders, found the folder {folder} and the name {name!r}")
    records = read_results(folders or [Path("runs")])
    return model_side(a, records), model_side(b, records)


def _exists(name: str) -> bool:
    with suppress(OSError):  # a model's name with its settings may be too long for a file
        return Path(name).exists()
    return False
