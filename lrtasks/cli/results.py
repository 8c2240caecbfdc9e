"""``lrtasks table``, ``compare``, ``plot``, ``analyze`` and ``report``: show run records as tables and figures."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from lrtasks.cli import options
from lrtasks.errors import UsageError, require_known, unknown
from lrtasks.registry import split_preset

if TYPE_CHECKING:
    import pandas as pd

RUNS = [Path("runs")]
WITHOUT_CSV = ("text", "markdown", "latex", "html", "json")
Published = Annotated[
    Path | None, Option("--published", help="Folder of the published runs (default: the runs of this project).")
]


def table(
    context: Context,
    folders: options.Folders = None,
    form: Annotated[str | None, options.format_option()] = None,
    models: options.Chosen = "all",
    tasks: options.Chosen = "all",
    transpose: Annotated[bool, Option("--transpose", help="Show models as rows and tasks as columns.")] = False,
    unequal_budgets: options.Unequal = False,
    by_length: Annotated[
        bool, Option("--by-length", help="Also show the scores on further tests, such as other lengths.")
    ] = False,
    mean: Annotated[
        bool,
        Option(
            "--mean", help="Show the mean over seeds and its 95 % interval, instead of the median and the solved seeds."
        ),
    ] = False,
    frame: Annotated[
        Path | None, Option(help="Print no table; write a frame, one row per run, to this .parquet or .csv file.")
    ] = None,
    out: options.OutFile = None,
    as_json: options.JsonFormat = False,
) -> None:
    """Print scores, floors, the papers' scores and costs of all runs; for several seeds, medians and solved seeds.

    Example: lrtasks table runs -o table.tex
    """
    if frame is not None:
        options.require_alone(context, "frame", "writes all columns of the runs", ("folders", "models", "tasks"))
    form = options.chosen_format(form, as_json, out=out)
    if transpose and form in ("csv", "json"):
        raise UsageError(f"--transpose has no meaning with {form}, which lists single cells")
    from lrtasks.results.frame import write_frame
    from lrtasks.results.table import make_table

    runs = _chosen(read_frame(folders or RUNS), models, tasks)
    if frame is not None:
        write_frame(runs, frame)
        print(f"wrote {frame}")
        return
    made = make_table(runs, unequal_budgets=unequal_budgets, mean=mean)
    tables = made.tables(transpose=transpose, by_length=by_length)
    options.print_tables(form, tables, made.notes(), made.rows(), out)


def compare(
    a: Annotated[str, Argument(metavar="A", help="A model (name in the tables, or address) or a results folder.")],
    b: Annotated[str, Argument(metavar="B", help="A second model or results folder, or the word published.")],
    folders: Annotated[
        list[Path] | None,
        Option("--folder", help="Results folder with the runs of models given by name (default: runs)."),
    ] = None,
    published: Published = None,
    form: Annotated[str | None, options.format_option(WITHOUT_CSV)] = None,
    out: options.OutFile = None,
    as_json: options.JsonFormat = False,
) -> None:
    """Compare the test scores of two models, or of two folders, with paired tests.

    The two runs of a pair have the same task, parameters, budget and seed; if you compare two folders of several
    models, they also have the same model.
    Example: lrtasks compare mylayer.py:MyLayer published
    """
    form = options.chosen_format(form, as_json, WITHOUT_CSV, out)
    from lrtasks.models import names
    from lrtasks.results import compare as comparing

    # A known model's name never means a folder of that name; an address and a name with settings, which end in ")", may
    # contain a slash. Path.exists would raise for a name that is too long for a file.
    are_folders = [
        not folders
        and word not in names()
        and (os.path.exists(word) or ("/" in word and ":" not in word and not word.endswith(")")))  # noqa: PTH110
        for word in (a, b)
    ]
    if b == "published":
        if are_folders[0]:
            raise UsageError(f"with published, compare takes a model, found the folder {a}; write MODEL --folder {a}")
        name, own = comparing.model_runs(a, read_frame(folders or RUNS))
        found = comparing.compare_with_each(own, read_published(published), (name, b))
    elif published:
        raise UsageError(f"--published needs the word published as B, found {b!r}")
    else:
        if all(are_folders):
            read = {word: read_frame([Path(word)]) for word in dict.fromkeys((a, b))}
            sides = [(word, read[word]) for word in (a, b)]
        elif any(are_folders):
            folder, name = (a, b) if are_folders[0] else (b, a)
            takes = "compare takes two models or two folders"
            raise UsageError(f"{takes}, found the folder {folder} and {name!r}, which is no folder")
        else:
            runs = read_frame(folders or RUNS)
            sides = [comparing.model_runs(word, runs) for word in (a, b)]
        (name_a, runs_a), (name_b, runs_b) = sides
        found = comparing.compare(runs_a, runs_b, (name_a, name_b))
    options.print_tables(form, [found.table()], found.notes(), found.content(), out)


def plot(
    kind: Annotated[str, Argument(metavar="KIND", help="curves, length, scatter, heatmap or profile.")],
    folders: options.Folders = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Figure to write, .pdf, .png or .svg (default: KIND.pdf).")
    ] = None,
    models: options.Chosen = "all",
    tasks: options.Chosen = "all",
    cost: Annotated[
        str | None, Option(help="scatter: seconds-per-step (default), parameter-count, state-bytes, peak-memory-bytes.")
    ] = None,
    unequal_budgets: options.Unequal = False,
) -> None:
    """Draw a figure of all runs, with one line or point per model and bands over seeds.

    curves: validation score against step. length: test score against length. scatter: test score against cost.
    heatmap: scaled score of each task and model. profile: scaled score of each capability group, one panel per model.

    Example: lrtasks plot curves runs --tasks shift -o curves.pdf
    """
    from lrtasks.record import NOT_COMPARABLE
    from lrtasks.results import plots
    from lrtasks.results.frame import make_frame, read_runs
    from lrtasks.results.style import save
    from lrtasks.results.table import arrange

    require_known("figure", kind, plots.KINDS)
    against = (cost or "seconds-per-step").replace("-", "_")
    if cost is not None and kind != "scatter":
        raise UsageError(f"--cost belongs to scatter, found {kind}")
    if against not in plots.COSTS:
        raise unknown("cost", cost or "", [name.replace("_", "-") for name in plots.COSTS])
    path = out or Path(f"{kind}.pdf")
    runs, problems = read_runs(folders or RUNS)
    _left_out(problems)
    made = arrange(_chosen(make_frame(runs), models, tasks), unequal_budgets=unequal_budgets)
    more = {"cost": against} if kind == "scatter" else {}
    figure = plots.KINDS[kind](made, [record for _, record in runs], **more)
    unfair = made.loc[made["not_causal"].eq(True), ["column", "row"]].drop_duplicates()
    for column, row in unfair.itertuples(index=False):
        sys.stderr.write(f"lrtasks: {NOT_COMPARABLE}: {column} on {row}\n")
    print(f"wrote {save(figure, path)}")


def analyze(
    run: Annotated[Path, Argument(help="A run's folder (the one with record.json).")],
    out: Annotated[Path | None, Option("--out", "-o", help="Folder for the figures (default: RUN/analysis).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print a run's slices and diagnostics, and draw them, the learning curve, and figures of the model.

    Example: lrtasks analyze runs/shift/dlr-1a2b3c4d-seed0
    """
    from lrtasks.record import ANALYSIS, FILE
    from lrtasks.results import analysis
    from lrtasks.results.formats import render

    folder = run.parent if run.name == FILE else run
    record, written = analysis.analyze(folder, out or folder / ANALYSIS)
    if as_json:
        content = json.loads(record.to_json())
        shown = {key: content[key] for key in ("slices", "further_slices", "diagnostics")}
        options.print_json({**shown, "plots": list(map(str, written))})
        return
    tables = [*analysis.slice_tables(record), analysis.diagnostics_table(record)]
    print(render("text", [table for table in tables if table.lines], [record.command]))
    for path in written:
        print(f"wrote {path}")


def report(
    folders: options.Folders = None,
    out: Annotated[Path, Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    unequal_budgets: options.Unequal = False,
) -> None:
    """Write one HTML page: scores of tasks × models, learning curves, slices, costs, and each run's settings.

    Example: lrtasks report runs -o report.html
    """
    if out.suffix.lower() not in (".html", ".htm") and (out.is_file() or not out.exists()):
        raise UsageError(f"--out writes HTML; its name must end in .html, found {out}")
    if not out.parent.is_dir():  # found out before the page is made
        raise UsageError(f"cannot write {out}: there is no folder {out.parent}")
    from lrtasks.results.frame import read_runs
    from lrtasks.results.report import make_report, render_page

    inside = any(out.parent.resolve().is_relative_to(folder.resolve()) for folder in folders or RUNS)
    if out.is_symlink() and inside:
        raise UsageError(f"cannot write {out}: it is a link in a results folder")
    runs, problems = read_runs(folders or RUNS)
    _left_out(problems)
    made = make_report(runs, problems, unequal_budgets=unequal_budgets)
    options.write_file(out, render_page(made).encode(errors="replace"))


def read_frame(folders: Sequence[Path]) -> pd.DataFrame:
    """Return the frame of all runs below ``folders``; report unreadable runs on standard error.

    Raises:
        UsageError: if there is no run.
    """
    from lrtasks.results.frame import read_frame as read

    runs, problems = read(folders)
    _left_out(problems)
    return runs


def read_published(folder: Path | None) -> pd.DataFrame:
    """Return the frame of the runs in ``folder``, by default of the published runs."""
    from lrtasks.results.frame import published

    return read_frame([folder or published()])


def _left_out(problems: Sequence[str]) -> None:
    for problem in problems:
        sys.stderr.write(f"lrtasks: left out: {problem}\n")


def _chosen(runs: pd.DataFrame, models: str, tasks: str) -> pd.DataFrame:
    """Return the runs of the chosen models and tasks: names or addresses, separated by commas, or ``all``.

    A model's label in the table (``dlr (kernel=prod)``) stands for the runs in its column. A task with a preset
    (``word-problem@a5``) stands for the runs with the parameters of this preset.
    """
    if models != "all":
        wanted = re.split(r",(?![^(]*\))", models)  # no comma within the brackets of a label
        kept, known = runs["model"].isin(wanted) | runs["address"].isin(wanted), {*runs["address"], *runs["model"]}
        labels = [name for name in wanted if name not in known]
        if labels:
            from lrtasks.results.compare import by_column

            tables = [runs] if tasks == "all" else [runs, _of_tasks(runs, tasks)]
            found = {label: own for each in tables for label, own in by_column(each).items()}
            for name in labels:
                if name not in found:
                    raise unknown("model", name, {*runs["model"], *found})
                kept |= runs.index.isin(found[name].index)
        runs = runs[kept]
    return runs if tasks == "all" else _of_tasks(runs, tasks)


def _of_tasks(runs: pd.DataFrame, tasks: str) -> pd.DataFrame:
    """Return the runs of the chosen tasks.

    After an edit, ``FILE.py:NAME`` means the runs of the file's present content, if there are any.
    """
    from lrtasks.generators.base import make, registry
    from lrtasks.results.profile import budgets_on, has_source

    kept = runs["task"].isin(())
    for word in tasks.split(","):
        address, preset = split_preset(word)
        kind = registry.get(address) if ":" in address else None
        name = kind.name if kind else address
        require_known("task", name, set(runs["task"]))
        found = runs["task"] == name
        if kind and (present := found & has_source(runs, kind)).any():
            found = present
        if preset and ":" not in address and address not in registry.names():
            raise UsageError(f"for a preset of your own task, write FILE.py:{word}, found {word!r}")
        if preset:
            found &= runs.index.isin(budgets_on(runs, make(address, preset=preset)).index)
        if not found.any():
            raise UsageError(f"no run on {name} has the parameters of preset {preset}")
        kept |= found
    return runs[kept]
