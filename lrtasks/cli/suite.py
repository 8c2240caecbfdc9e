"""``lrtasks suite`` and ``lrtasks sweep``: many runs in one command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.budget import SHARED_BUDGET, Budget
from lrtasks.cli.display import Display
from lrtasks.cli.options import (
    AsJson,
    Device,
    Out,
    Settings,
    Trackers,
    complete_models,
    complete_tasks,
    config_options,
    option_names,
    parse_settings,
    print_json,
    require_names,
)
from lrtasks.cli.output import print_runs
from lrtasks.errors import UsageError
from lrtasks.suite import backends

if TYPE_CHECKING:
    from lrtasks.record import RunRecord
    from lrtasks.run_config import RunConfig
    from lrtasks.suite.expand import Suite

BackendName = Annotated[
    str, typer.Option("--backend", help=f"{', '.join(backends.BACKENDS)}.", rich_help_panel="Where the runs go")
]
TimeLimit = Annotated[float | None, typer.Option(help="Seconds after which a run is stopped and recorded as failed.")]
Select = Annotated[
    str | None,
    typer.Option(help="val: of the values of an option with commas, choose the best on validation with seed 0."),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Run nothing: print the number of runs and an estimate of their time.")
]
Unequal = Annotated[bool, typer.Option("--unequal-budgets", help="Allow runs of unequal budgets on one task.")]


def backend_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return config_options("options", "Where the runs go", *map(backends.backend_class, backends.BACKENDS))(command)


@config_options("budget", "Training budget", Budget)
@backend_options
def suite(
    context: typer.Context,
    file: Annotated[Path | None, typer.Option(help="A suite as TOML, instead of the four options below.")] = None,
    models: Annotated[
        str | None, typer.Option(help="Models with commas, or all (default).", autocompletion=complete_models)
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Tasks with commas, or all (default).", autocompletion=complete_tasks)
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Preset of every run (default: small).")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, counted from 0 (default: 1).")] = None,
    backend: BackendName = "local",
    time_limit: TimeLimit = None,
    device: Device = "auto",
    unequal_budgets: Unequal = False,
    select: Select = None,
    dry_run: DryRun = False,
    out: Out = Path("runs"),
    settings: Settings = None,
    trackers: Trackers = None,
    as_json: AsJson = False,
    options: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
) -> int:
    """Run every task × every model; finished runs are not repeated, and one that fails does not stop the rest.

    Models and tasks of your own are named FILE.py:NAME or package.module:NAME. Any parameter of a task or a model is
    also an option, for every run. An option with commas varies. Example: lrtasks suite --models dlr,attention --tasks
    shift --lr 1e-3,3e-3 --seeds 3
    """
    chosen = {"models": models, "tasks": tasks, "preset": preset, "seeds": seeds}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    given = given_settings(context, budget, settings)
    place = backends.make_backend(backend, options)
    wanted = _from_file(file, chosen, given) if file else suite_from_options(context, chosen, given)
    return carry_out(
        wanted,
        out,
        backend=place,
        time_limit=wanted.time_limit if time_limit is None else time_limit,
        device=device,
        trackers=trackers or (),
        may_differ=_may_differ(wanted, unequal_budgets or wanted.unequal_budgets),
        select=select,
        dry_run=dry_run,
        as_json=as_json,
    )


@config_options("budget", "Training budget", Budget)
@backend_options
def sweep(
    context: typer.Context,
    task: Annotated[str, typer.Option(help="A task.", autocompletion=complete_tasks)],
    models: Annotated[str, typer.Option(help="Models with commas, or all.", autocompletion=complete_models)],
    preset: Annotated[str, typer.Option(help="Preset of every run.")] = "small",
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from 0.")] = 1,
    backend: BackendName = "local",
    time_limit: TimeLimit = None,
    device: Device = "auto",
    unequal_budgets: Unequal = False,
    select: Select = None,
    dry_run: DryRun = False,
    out: Out = Path("runs"),
    settings: Settings = None,
    trackers: Trackers = None,
    solved: Annotated[float, typer.Option(help="Score from which a point counts as solved.")] = 0.95,
    as_json: AsJson = False,
    options: dict[str, Any] | None = None,
    budget: dict[str, Any] | None = None,
) -> int:
    """Run models on one task over a grid, and print the largest value of each varied option that a model solves.

    Of lengths that is the trainable length; scores at the lengths of further tests stand beside the generalisation
    length, that of a model trained once.

    An option with commas varies. Example: lrtasks sweep --task shift --models dlr,attention --length 1024,4096,16384
    """
    place = backends.make_backend(backend, options)
    chosen = {"models": models, "tasks": task, "preset": preset, "seeds": seeds}
    wanted = suite_from_options(context, chosen, given_settings(context, budget, settings))

    def summary(records: Sequence[RunRecord]) -> None:
        for name in () if select else wanted.varied:
            print_solved(name, wanted.runs, records, solved)

    return carry_out(
        wanted,
        out,
        backend=place,
        time_limit=time_limit,
        device=device,
        trackers=trackers or (),
        may_differ=_may_differ(wanted, unequal_budgets),
        select=select,
        dry_run=dry_run,
        as_json=as_json,
        summary=summary,
        by_length=True,
    )


def given_settings(context: typer.Context, budget: dict[str, Any] | None, settings: list[str] | None) -> dict[str, Any]:
    given = {f"budget.{name}": value for name, value in (budget or {}).items()}
    return given | parse_settings(context.args, settings or [], options=option_names(context))


def _from_file(file: Path, chosen: dict[str, Any], given: dict[str, Any]) -> Suite:
    from lrtasks.suite.expand import read_suite

    if chosen:
        named = " and ".join(f"--{name}" for name in chosen)
        raise UsageError(f"{named} cannot stand beside --file, which lists the runs; edit the file")
    return read_suite(file, given)


def suite_from_options(context: typer.Context, chosen: dict[str, Any], given: dict[str, Any]) -> Suite:
    require_names(chosen.get("models", "all"), chosen.get("tasks", "all"))
    from lrtasks.suite.expand import make_suite

    return make_suite(chosen, given, options=option_names(context))


def _may_differ(wanted: Suite, unequal_budgets: bool) -> Sequence[str]:
    return SHARED_BUDGET if unequal_budgets else [name.removeprefix("budget.") for name in wanted.varied]


def carry_out(
    wanted: Suite,
    out: Path,
    *,
    select: str | None,
    as_json: bool,
    dry_run: bool = False,
    summary: Callable[[Sequence[RunRecord]], None] | None = None,
    by_length: bool = False,
    **how: Any,
) -> int:
    """Run a suite with a display, print records, and give the exit code."""
    if dry_run:
        from lrtasks.suite.estimate import planned

        selected = _selected(wanted, select)
        return print_plan(planned(wanted, selected=bool(selected)), out, device=how["device"], as_json=as_json)
    runs, records = run_wanted(wanted, out, select=select, **how)
    if as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        # unequal budgets were refused before anything ran, or asked for
        print_runs(records, unequal_budgets=True, by_length=by_length)
        if summary:
            summary(records)
    return say_unfinished(runs, records)


def run_wanted(
    wanted: Suite, out: Path, *, select: str | None, **how: Any
) -> tuple[Sequence[RunConfig], Sequence[RunRecord]]:
    """Run a suite with a display; the runs and their records, of a selection the chosen ones."""
    from lrtasks.suite.run import run_suite
    from lrtasks.suite.select import run_selected

    selected = _selected(wanted, select)

    def run_all(runs: Sequence[RunConfig]) -> list[RunRecord]:
        with Display() as display:
            return run_suite(runs, out, on_change=display, **how)

    if selected:
        return run_selected(wanted, selected, run_all, out)
    return wanted.runs, run_all(wanted.runs)


def _selected(wanted: Suite, select: str | None) -> Sequence[str]:
    """The settings that are selected, after naming skipped runs on standard error.

    Raises:
        UsageError: if nothing is left to run, or a setting cannot be selected.
    """
    from lrtasks.suite.expand import of_one_model
    from lrtasks.suite.select import require_selectable

    for line in _skipped_lines(wanted):
        sys.stderr.write(line + "\n")
    if not wanted.runs:
        raise UsageError("nothing is left to run: every run was skipped")
    selected = require_selectable(wanted, select) if select else ()
    for name in selected:
        if of_one_model(name, {run.model.address or run.model.name for run in wanted.runs}):
            raise UsageError(f"{name} belongs to one model and cannot be selected beside others; select it in eval")
    return selected


def say_unfinished(runs: Sequence[RunConfig], records: Sequence[RunRecord]) -> int:
    """Name the runs that are not done on standard error; the exit code."""
    for run, record in zip(runs, records, strict=True):
        if record.status != "done":
            sys.stderr.write(f"lrtasks: {run.title()}: {record.status}: {' '.join('; '.join(record.notes).split())}\n")
    return 0 if all(record.status == "done" for record in records) else 1


def print_plan(runs: Sequence[RunConfig], out: Path, *, device: str, as_json: bool) -> int:
    """Print how many runs there are, and about how long they take; nothing is run."""
    import dataclasses

    from lrtasks.suite.estimate import make_plan

    plan = make_plan(runs, out, device=device)
    if as_json:
        print_json(dataclasses.asdict(plan))
    else:
        print("\n".join(plan.lines()))
    return 0


def print_solved(name: str, runs: Sequence[RunConfig], records: Sequence[RunRecord], solved: float) -> None:
    """For each model, print the largest value of a varied setting at which all its runs reach the score ``solved``.

    If the values are not numbers, all such values are listed.
    """
    bare = name.split(".")[-1]
    title = "trainable length: largest length" if bare == "length" else f"largest {bare}"
    print(f"\n{title} with a test score of at least {solved:g}:")
    for model in dict.fromkeys(run.model.name for run in runs):
        reached: dict[Any, bool] = {}
        for run, record in zip(runs, records, strict=True):
            if run.model.name == model:
                score = record.headline()
                values = [value for key, value in run.settings.items() if key.split(".")[-1] == bare]
                if values:  # another model's setting has none here
                    reached[values[0]] = reached.get(values[0], True) and score is not None and score >= solved
        values = [value for value, ok in reached.items() if ok]
        if values and all(type(value) in (int, float) for value in reached):
            values = [max(values)]
        print(f"  {model}: {', '.join(map(str, values)) or 'none'}")


def _skipped_lines(wanted: Suite) -> list[str]:
    """One line for each reason, with the models and tasks that have it."""
    tasks: dict[tuple[str, str], dict[str, None]] = {}
    for model, task, reason in wanted.skipped:
        tasks.setdefault((reason, model), {})[task] = None
    models: dict[tuple[str, str], list[str]] = {}
    for (reason, model), names in tasks.items():
        models.setdefault((reason, ", ".join(names)), []).append(model)
    return [f"skipped: {', '.join(names)} on {where}: {reason}" for (reason, where), names in models.items()]
