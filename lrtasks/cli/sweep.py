"""``lrtasks sweep``: models on one task over a grid of settings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.results import RunRecord
    from lrtasks.suite.entries import Entry


def sweep(
    context: typer.Context,
    task: Annotated[str, typer.Option(help="A task's name.")],
    models: Annotated[str, typer.Option(help="Names with commas, or all.")],
    preset: Annotated[str, typer.Option(help="Preset of every run.")] = "small",
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from 0.")] = 1,
    backend: BackendName = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
    slurm: Slurm = None,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    unequal_budgets: Annotated[
        bool, typer.Option("--unequal-budgets", help="Allow models of unequal budgets beside each other.")
    ] = False,
    out: Out = Path("runs"),
    settings: Settings = None,
    trackers: Trackers = None,
    solved: Annotated[float, typer.Option(help="Score from which a point counts as solved.")] = 0.95,
    as_json: AsJson = False,
) -> int:
    """Run models on one task over a grid: --length 1024,4096,16384 varies the length.

    Any option with commas varies; then the largest value of it that each model solves is printed.
    """
    from lrtasks import generators
    from lrtasks import models as registered
    from lrtasks.evaluation.choices import require_known, require_known_preset, select
    from lrtasks.results.settings import SHARED_BUDGET
    from lrtasks.suite.entries import expand

    options = option_names(context)
    given = parse_settings(context.args, settings or [], options=options)
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, found {seeds}")
    place = chosen_backend(backend, jobs=jobs, address=address, cpus=cpus, gpus=gpus, slurm=slurm)
    generators.registry.get(task)
    chosen = select(registered.registry, models)
    require_known(given, chosen, [task], options)
    require_known_preset(preset, chosen, [task])
    varied = {name: _values(name, value) for name, value in given.items() if isinstance(value, str) and "," in value}
    fixed = {name: value for name, value in given.items() if name not in varied}
    grid = [dict(zip(varied, point, strict=True)) for point in itertools.product(*varied.values())]
    entries, skipped = expand(chosen, [task], preset=preset, seeds=range(seeds), grid=grid, settings=fixed)
    records = carry_out(
        entries,
        skipped,
        out,
        backend=place,
        time_limit=time_limit,
        device=device,
        trackers=trackers or (),
        may_differ=SHARED_BUDGET if unequal_budgets else [name.removeprefix("budget.") for name in varied],
    )
    print_records(entries, records, as_json=as_json)
    if not as_json:
        for name in varied:
            print_solved(name, entries, records, solved)
    return exit_code(records)


def print_solved(name: str, entries: Sequence[Entry], records: Sequence[RunRecord], solved: float) -> None:
    """For each model, the largest value of a varied setting at which all its runs reach the score ``solved``.

    Of a setting whose values are no numbers, all such values are listed.
    """
    from lrtasks.results.settings import as_given

    # true and false are numbers to Python alone
    numbers = all(type(entry.settings[name]) in (int, float) for entry in entries)
    print(f"\n{'largest ' if numbers else ''}{name} with a test score of at least {solved:g}:")
    for model in dict.fromkeys(entry.model for entry in entries):
        reached: dict[Any, bool] = {}
        for entry, record in zip(entries, records, strict=True):
            if entry.model == model:
                score = record.headline()
                value = entry.settings[name]
                reached[value] = reached.get(value, True) and score is not None and score >= solved
        values = [value for value, ok in reached.items() if ok]
        best = [max(values)] if values and numbers else values
        print(f"  {model}: {', '.join(map(as_given, best)) or 'none'}")


def _values(name: str, text: str) -> list[Any]:
    return [parse_assignment(f"{name}={part}")[1] for part in text.split(",")]
