"""``lrtasks eval``: train a model on a task and print its scores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.budget import Budget
from lrtasks.cli.options import (
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
    worker_number,
)
from lrtasks.cli.output import print_runs
from lrtasks.cli.suite import DryRun, Select, carry_out, print_plan, suite_from_options
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.record import RunRecord


@config_options("budget", "Training budget", Budget)
def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="A model (lrtasks list), FILE.py:NAME or package.module:NAME.", autocompletion=complete_models
        ),
    ],
    task: Annotated[str, typer.Option(help="A task (lrtasks list) or FILE.py:NAME.", autocompletion=complete_tasks)],
    preset: Annotated[str, typer.Option(help="small (minutes on two CPU cores), paper, or another preset.")] = "small",
    settings: Settings = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed.")] = 1,
    data: Annotated[str | None, typer.Option(help="Train and test on this stored dataset.")] = None,
    device: Device = "auto",
    workers: Annotated[str, typer.Option(help="Background processes that make batches, or auto.")] = "auto",
    out: Out = Path("runs"),
    trackers: Trackers = None,
    select: Select = None,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Run again even if the run is finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of run records, one per seed.")] = False,
    budget: dict[str, Any] | None = None,
) -> int:
    """Train a model on a task, score it, and print the score beside baselines and the paper's figure.

    Every parameter of the task and the model is an option as well, such as --length 512 or --d-state 64; lrtasks
    describe NAME lists them. Example: lrtasks eval --model dlr --task shift --length 512 --steps 1000
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, found {seeds}")
    require_names(model, task)
    options = option_names(context)
    given = {f"budget.{name}": value for name, value in (budget or {}).items()}
    given |= parse_settings(context.args, settings or [], options=options)

    if select:
        chosen = {"models": model, "tasks": task, "preset": preset, "seeds": seeds}
        wanted = suite_from_options(context, chosen, given)
        how: dict[str, Any] = {"device": device, "trackers": trackers or (), "dry_run": dry_run}
        return carry_out(wanted, out, select=select, as_json=as_json, **how)

    from lrtasks.evaluation.run import run
    from lrtasks.run_config import RunConfig

    configs = [
        RunConfig.make(task, model, preset=preset, seed=number, settings=given, data=data, options=options)
        for number in range(seed, seed + seeds)
    ]
    if dry_run:
        return print_plan(configs, out, device=device, as_json=as_json)
    records = [
        run(
            config,
            device=device,
            workers=worker_number(workers),
            out=out,
            trackers=trackers or (),
            overwrite=overwrite,
        )
        for config in configs
    ]
    if os.environ.get("RANK", "0") != "0":
        pass  # of several processes that torchrun started, the first one prints
    elif as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        _print_summary(records)
    diverged = [record for record in records if record.status != "done"]
    for record in diverged:
        sys.stderr.write(f"lrtasks: {record.command}: {record.status}: {'; '.join(record.notes)}\n")
    return 1 if diverged else 0


def _print_summary(records: list[RunRecord]) -> None:
    print_runs(records, costs=False)
    for record in records:
        cost: dict[str, Any] = record.cost
        for note in record.notes if record.status == "done" else ():
            print(f"seed {record.seed}: {note}")
        if record.status == "done":
            time = f"{cost['seconds_per_step'] * 1e3:.1f} ms per step, {cost['seconds']:.0f} s training"
            print(f"seed {record.seed}: {time}, {record.model['count']:,} parameters, {cost['device']}")
