"""``lrtasks suite``, ``sweep`` and ``profile``: the commands that execute many runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from lrtasks.cli import options, runs
from lrtasks.cli.results import Published, read_published
from lrtasks.errors import UsageError
from lrtasks.machine import cores
from lrtasks.suite import backends

if TYPE_CHECKING:
    from lrtasks.record import RunRecord
    from lrtasks.run_config import RunConfig

BackendName = Annotated[
    str, Option("--backend", help=f"{', '.join(backends.BACKENDS)}.", rich_help_panel="Where the runs execute")
]
TimeLimit = Annotated[float | None, Option(help="Time limit of a run in seconds; a stopped run is recorded as failed.")]

RATES = "3e-4,1e-3,3e-3"
"""Learning rates that a profile tries. Validation chooses one of them."""
ENDINGS = (".html", ".svg", ".pdf", ".png")
"""File formats of a profile."""

BACKEND_CLASSES = [backends.backend_class(name) for name in backends.BACKENDS]
PROFILE_JOBS = min(2, cores())
"""Default of ``--jobs`` in ``profile`` on this machine."""


@runs.budget_options
@options.config_options("where", "Where the runs execute", *BACKEND_CLASSES)
def how_options(
    context: Context,
    where: dict[str, Any],
    budget: dict[str, Any],
    backend: BackendName = "local",
    time_limit: TimeLimit = None,
    device: options.Device = "auto",
    unequal_budgets: options.Unequal = False,
    select: runs.Select = None,
    dry_run: runs.DryRun = False,
    out: options.Out = Path("runs"),
    settings: options.Settings = None,
    trackers: runs.Trackers = None,
    as_json: options.AsJson = False,
) -> dict[str, Any]:
    """Read the options of ``suite`` and ``sweep``: return the settings ``given`` and arguments of :func:`execute`."""
    how = dict(locals())
    from lrtasks.evaluation.trackers import tracker_names

    given = options.given_settings(how.pop("context"), how.pop("settings"), how.pop("budget"))
    place = backends.make_backend(how.pop("backend"), how.pop("where"))
    return {**how, "given": given, "backend": place, "trackers": tracker_names(trackers or ())}


with_how = options.shared_options("how", how_options)


@with_how
def suite(
    context: Context,
    how: dict[str, Any],
    file: Annotated[
        Path | None, Option(help="A suite file (TOML); replaces --models, --tasks, --preset, --seeds.")
    ] = None,
    models: Annotated[
        str | None, Option(help="Models, separated by commas (default: all).", autocompletion=options.complete_models)
    ] = None,
    tasks: Annotated[
        str | None, Option(help="Tasks, separated by commas (default: all).", autocompletion=options.complete_tasks)
    ] = None,
    preset: Annotated[str | None, Option(help="Preset of every run (default: small).")] = None,
    seeds: Annotated[int | None, Option(help="Number of seeds, counted from 0 (default: 1).")] = None,
) -> int:
    """Run every task × every model; finished runs are not repeated, and a failed run does not stop the others.

    Give your own models and tasks as FILE.py:NAME or package.module:NAME. Any parameter of a task or a model is also an
    option, for every run. An option may have several values, separated by commas; each value makes its own runs.
    Example: lrtasks suite --models dlr,attention --tasks shift --lr 1e-3,3e-3 --seeds 3
    """
    chosen = {"models": models, "tasks": tasks, "preset": preset, "seeds": seeds}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    given = how.pop("given")
    if file:
        from lrtasks.suite.expand import read_suite

        if chosen:
            named = " and ".join(f"--{name}" for name in chosen)
            raise UsageError(f"{named} cannot be combined with --file, which lists the runs; edit the file")
        wanted = read_suite(file, given)
    else:
        wanted = runs.suite_from_options(context, chosen, given)
    if how["time_limit"] is None:
        how["time_limit"] = wanted.time_limit
    return runs.execute(wanted, **how)


@with_how
def sweep(
    context: Context,
    how: dict[str, Any],
    task: Annotated[str, Option(help="A task.", autocompletion=options.complete_tasks)],
    models: Annotated[str, Option(help="Models, separated by commas, or all.", autocompletion=options.complete_models)],
    preset: Annotated[str, Option(help="Preset of every run.")] = "small",
    seeds: Annotated[int, Option(help="Number of seeds, counted from 0.")] = 1,
    solved: Annotated[float | None, Option(help="Minimum scaled score of a solved run (default: 0.95).")] = None,
) -> int:
    """Run models on one task over a grid. For each varied option, print the largest value at which a model solves it.

    For the option length, this value is the trainable length. A second table shows the scores on further tests and the
    generalisation length: the largest length to which a model that was trained once generalises.

    An option may have several values, separated by commas; each makes its own runs. Example: lrtasks sweep --task shift
    --models dlr,attention --length 1024,4096,16384
    """
    if len(options.require_names(models, task)[1]) > 1:
        raise UsageError(f"sweep takes one task, found {task}; several: lrtasks suite --models {models} --tasks {task}")
    chosen = {"models": models, "tasks": task, "preset": preset, "seeds": seeds}
    if solved is not None and how["as_json"]:
        raise UsageError("--solved has no meaning with --json, which prints the records only")
    from lrtasks.metrics import TEST_SOLVED

    solved = TEST_SOLVED if solved is None else solved
    if not 0 < solved <= 1:
        raise UsageError(f"--solved must be above 0 and at most 1, found {solved:g}")
    wanted = runs.suite_from_options(context, chosen, how.pop("given"))

    def show(selected: Sequence[str], configs: Sequence[RunConfig], records: Sequence[RunRecord]) -> None:
        from lrtasks.suite.expand import labelled

        runs.print_runs(records, by_length=True)
        # dlr.d_state and s4d.d_state are one setting of two models; gla.heads belongs to a mixer of one model
        varied = [name for name in wanted.varied if name not in selected]
        names = [f"model.{name.partition('.')[2]}" if labelled(name, wanted.models) else name for name in varied]
        for name in dict.fromkeys(names):
            runs.print_solved(name, configs, records, solved)

    return runs.execute(wanted, show=None if how["as_json"] else show, **how)


@runs.budget_options
@options.config_options("where", "Where the runs execute", *BACKEND_CLASSES, jobs=PROFILE_JOBS)
def profile(
    context: Context,
    where: dict[str, Any],
    budget: dict[str, Any],
    model: Annotated[str, Option(help="Models, separated by commas: names, FILE.py:NAME or package.module:NAME.")],
    quick: Annotated[
        bool, Option("--quick", help="Two instances per group, one seed, the preset's learning rate, stop when solved.")
    ] = False,
    tasks: Annotated[str, Option(help="Instances (word-problem@a5), separated by commas.")] = "fingerprint",
    preset: Annotated[str, Option(help="Preset of every run.")] = "small",
    seeds: Annotated[int | None, Option(help="Number of seeds, counted from 0 (default: 3; quick: 1).")] = None,
    folder: Annotated[Path, Option(help="Results folder of the runs.")] = Path("runs"),
    published: Published = None,
    backend: BackendName = "local",
    time_limit: TimeLimit = None,
    device: options.Device = "auto",
    dry_run: runs.DryRun = False,
    settings: options.Settings = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write a .html, .svg, .pdf or .png file.")] = None,
    as_json: options.AsJson = False,
) -> int:
    """Profile a model: scaled score, solved seeds, generalisation length and cost of each capability group.

    The model runs on every instance (a task at one preset) of a fixed list, the fingerprint. Validation chooses one of
    three learning rates. Finished runs are not repeated.
    Example: lrtasks profile --model mylayer.py:MyLayer --quick
    """
    if out is not None:
        if out.suffix.lower() not in ENDINGS:
            raise UsageError(f"--out writes {', '.join(ENDINGS)}, found {out}")
        if not out.parent.is_dir():
            raise UsageError(f"cannot write {out}: there is no folder {out.parent}")
        if out.is_dir():
            raise UsageError(f"cannot write {out}: it is a folder")
        if not os.access(out if out.exists() else out.parent, os.W_OK):
            raise UsageError(f"cannot write {out}: permission denied")
    from lrtasks.generators.fingerprint import instances

    where = {**({"jobs": PROFILE_JOBS} if backend == "local" else {}), **where}
    budget = {**({"stop_solved": True} if quick else {"lr": RATES}), **budget}
    names = ",".join(instances(quick=True)) if quick and tasks == "fingerprint" else tasks
    seeds = (1 if quick else 3) if seeds is None else seeds
    chosen = {"models": model, "tasks": names, "preset": preset, "seeds": seeds}
    wanted = runs.suite_from_options(context, chosen, options.given_settings(context, settings, budget))
    others = read_published(published)
    place = backends.make_backend(backend, where)
    from lrtasks.suite.select import of_task

    for name in (name for name in wanted.varied if of_task(name, wanted)):
        raise UsageError(f"a profile takes one value of {name}, found several")
    from lrtasks.results import profile as made
    from lrtasks.results.formats import render
    from lrtasks.results.frame import make_frame
    from lrtasks.results.settings import owned

    def show(_: Sequence[str], configs: Sequence[RunConfig], records: Sequence[RunRecord]) -> None:
        on = {run.task_address or run.task.name: run.task for run in configs}
        given = {run.model.name: owned("model.", run.settings) for run in configs}
        labelled = made.runs_by_label(make_frame([(None, record) for record in records]), given)
        profiles = [made.make_profile(rows, on, label) for label, rows in labelled.items()]
        found = [(own, made.published_profiles(own, others, on)) for own in profiles]
        if as_json:
            options.print_json([made.content(*pair) for pair in found])
        else:
            width = options.terminal_width()
            print("\n\n".join(render("text", made.tables(*pair), made.notes(*pair), width=width) for pair in found))
        if out is not None:
            made.save_profiles(found, out)
            sys.stderr.write(f"wrote {out}\n")

    how: dict[str, Any] = {"out": folder, "as_json": as_json, "dry_run": dry_run, "device": device}
    select = "val" if wanted.varied else None
    return runs.execute(wanted, select=select, backend=place, time_limit=time_limit, show=show, **how)
