"""``lrtasks profile``: what a model can do, group by group, beside the published models."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.budget import Budget
from lrtasks.cli.compare import Published, read_published
from lrtasks.cli.options import AsJson, Device, Settings, config_options, print_json
from lrtasks.cli.output import terminal_width
from lrtasks.cli.report import require_writable
from lrtasks.cli.suite import (
    BackendName,
    TimeLimit,
    backend_options,
    given_settings,
    run_wanted,
    say_unfinished,
    suite_from_options,
)
from lrtasks.errors import UsageError
from lrtasks.suite import backends

if TYPE_CHECKING:
    from lrtasks.results.profile import Profile

RATES = "3e-4,1e-3,3e-3"
"""Learning rates among which validation chooses."""
SEEDS = 3
ENDINGS = (".html", ".svg", ".pdf", ".png")
DRAWN = 3
"""So many published profiles, the nearest ones, are drawn beside the model's."""


@config_options("budget", "Training budget", Budget)
@backend_options
def profile(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Models with commas: names, FILE.py:NAME or package.module:NAME.")],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Two instances per group, one seed, the preset's learning rate, stop when solved."
        ),
    ] = False,
    tasks: Annotated[str, typer.Option(help="Instances with commas, such as word-problem@a5.")] = "fingerprint",
    preset: Annotated[str, typer.Option(help="Preset of every run.")] = "small",
    seeds: Annotated[int | None, typer.Option(help="How many seeds, counted from 0 (default: 3; quick: 1).")] = None,
    folder: Annotated[Path, typer.Option(help="Results folder of the runs.")] = Path("runs"),
    published: Published = None,
    backend: BackendName = "local",
    time_limit: TimeLimit = None,
    device: Device = "auto",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a .html, .svg, .pdf or .png file.")] = None,
    as_json: AsJson = False,
    options: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
) -> int:
    """Say what a model can do: scaled score, solved seeds, generalisation length and cost of each capability group.

    The model runs on every instance of the fingerprint; of three learning rates validation chooses one. Finished runs
    are not repeated. On this machine two runs go on at a time unless --jobs says otherwise. Example: lrtasks profile
    --model mylayer.py:MyLayer --quick
    """
    if out is not None:
        if out.suffix.lower() not in ENDINGS:
            raise UsageError(f"--out writes {', '.join(ENDINGS)}, found {out}")
        require_writable(out)
    from lrtasks.generators.fingerprint import instances
    from lrtasks.machine import cores

    options = dict(options or {})
    if backend == "local" and cores() > 1:
        options.setdefault("jobs", 2)
    budget = dict(budget or {})
    if quick:
        budget.setdefault("stop_solved", True)
    else:
        budget.setdefault("lr", RATES)
    names = ",".join(instances(quick=True)) if quick and tasks == "fingerprint" else tasks
    chosen = {"models": model, "tasks": names, "preset": preset, "seeds": seeds or (1 if quick else SEEDS)}
    wanted = suite_from_options(context, chosen, given_settings(context, budget, settings))
    others = read_published(published)
    place = backends.make_backend(backend, options)
    select = "val" if wanted.varied else None
    runs, records = run_wanted(
        wanted, folder, select=select, backend=place, time_limit=time_limit, device=device, trackers=()
    )
    from lrtasks.results import profile as made
    from lrtasks.results.compare import by_column
    from lrtasks.results.formats import render
    from lrtasks.results.frame import make_frame

    found = by_column(make_frame([(None, record) for record in records]))
    on = {run.task_address or run.task.name: run.task for run in runs}
    contents, pages, drawn = [], [], list[made.Profile]()
    for label, rows in found.items():
        own = made.make_profile(rows, on, label)
        beside = made.published_profiles(own, others, on)
        pages.append((made.tables(own, beside), made.notes(own, beside)))
        near = made.nearest(own, beside)
        contents.append(
            {
                **own.content(),
                "nearest": near.label if near else None,
                "published": [{**other.content(), "distance": own.distance(other)} for other in beside],
            }
        )
        drawn += [own, *[other for other in beside if other.model != own.model][:DRAWN]]
    if as_json:
        print_json(contents)
    else:
        print("\n\n".join(render("text", *page, width=terminal_width()) for page in pages))
    if out is not None:
        _write(out, drawn, "\n".join(render("html", *page) for page in pages))
        sys.stderr.write(f"wrote {out}\n")
    return say_unfinished(runs, records)


def _write(out: Path, drawn: Sequence[Profile], page: str) -> None:
    """Write the drawing, in an HTML page with the tables below it."""
    from lrtasks.files import write_output
    from lrtasks.results.profile import draw_profile
    from lrtasks.results.style import encode, save

    figure = draw_profile(drawn)
    if out.suffix.lower() != ".html":
        save(figure, out)
        return
    picture = encode(figure, ".svg").decode()
    content = page.replace("<table>", picture[picture.index("<svg") :] + "<table>", 1).encode(errors="replace")
    try:
        write_output(out, content)
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None
