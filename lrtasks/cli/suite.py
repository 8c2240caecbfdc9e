"""``lrtasks suite``: every task × every model in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.cli.options import AsJson, Device, Out, option_names, parse_settings
from lrtasks.cli.runs import (
    Address,
    BackendName,
    Cpus,
    Gpus,
    Jobs,
    Settings,
    Slurm,
    TimeLimit,
    Trackers,
    carry_out,
    chosen_backend,
    exit_code,
    print_records,
)
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.suite.suite_file import Suite


def suite(
    context: typer.Context,
    file: Annotated[Path | None, typer.Option(help="A suite as TOML, in place of the four options below.")] = None,
    models: Annotated[str | None, typer.Option(help="Names with commas, or all (default).")] = None,
    tasks: Annotated[str | None, typer.Option(help="Names with commas, or all (default).")] = None,
    preset: Annotated[str | None, typer.Option(help="Preset of every run (default: small).")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, counted from 0 (default: 1).")] = None,
    backend: BackendName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    slurm: Slurm = None,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    unequal_budgets: Annotated[
        bool, typer.Option("--unequal-budgets", help="Allow runs of unequal budgets on one task.")
    ] = False,
    out: Out = Path("runs"),
    settings: Settings = None,
    trackers: Trackers = None,
    as_json: AsJson = False,
) -> int:
    """Run every task × every model; finished runs are not repeated, and one that fails does not stop the rest.

    Any parameter of a task, a model or the budget is also an option, for every run: --steps 500.
    """
    from lrtasks.results.settings import SHARED_BUDGET

    options = option_names(context)
    given = parse_settings(context.args, settings or [], options=options)
    place = chosen_backend(backend, jobs=jobs, address=address, cpus=cpus, gpus=gpus, slurm=slurm)
    chosen = {"models": models, "tasks": tasks, "preset": preset, "seeds": seeds}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    wanted = _from_options(chosen, given, options) if file is None else _from_file(file, chosen, given)
    records = carry_out(
        wanted.entries,
        wanted.skipped,
        out,
        backend=place,
        time_limit=wanted.time_limit if time_limit is None else time_limit,
        device=device,
        trackers=trackers or (),
        may_differ=SHARED_BUDGET if unequal_budgets or wanted.unequal_budgets else (),
    )
    print_records(wanted.entries, records, as_json=as_json)
    return exit_code(records)


def _from_file(file: Path, chosen: dict[str, Any], given: dict[str, Any]) -> Suite:
    from lrtasks.suite.suite_file import read_suite

    if chosen:
        named = " and ".join(f"--{name}" for name in chosen)
        raise UsageError(f"{named} beside --file: which runs there are is what the file says; edit it, or leave it out")
    return read_suite(file, given)


def _from_options(chosen: dict[str, Any], given: dict[str, Any], options: list[str]) -> Suite:
    from lrtasks.suite.suite_file import make_suite

    return make_suite(chosen, given, options=options)
