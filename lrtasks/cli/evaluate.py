"""``lrtasks eval``: train a model on a task and print its scores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.cli.options import Device, Out, option_names, parse_settings, print_json, worker_number
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.results import RunRecord


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A model's name (lrtasks list models) or package.module:factory.")],
    task: Annotated[str, typer.Option(help="A task's name (lrtasks list tasks).")],
    preset: Annotated[str, typer.Option(help="small (minutes on two CPU cores) or paper.")] = "small",
    length: Annotated[str | None, typer.Option(metavar="<int>", help="Task length L.")] = None,
    steps: Annotated[str | None, typer.Option(metavar="<int>", help="Optimiser steps.")] = None,
    lr: Annotated[str | None, typer.Option(metavar="<float>", help="Learning rate.")] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="<int>", help="Samples per step.")] = None,
    layers: Annotated[str | None, typer.Option(metavar="<int>", help="Number of blocks.")] = None,
    d_model: Annotated[str | None, typer.Option(metavar="<int>", help="Width of the residual stream.")] = None,
    d_state: Annotated[
        str | None, typer.Option(metavar="<int>", help="Number of states, of models that have them.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="32 or bf16.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="NAME=VALUE: any parameter of task, model or budget (lrtasks describe NAME)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="First seed.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed.")] = 1,
    data: Annotated[str | None, typer.Option(help="Train and test on this stored dataset.")] = None,
    device: Device = "auto",
    workers: Annotated[str, typer.Option(help="Background processes that make batches, or auto.")] = "auto",
    out: Out = Path("runs"),
    trackers: Annotated[
        list[str] | None,
        typer.Option("--tracker", help="jsonl, tensorboard or wandb, with commas or again: files in the run's folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of run records, one per seed.")] = False,
) -> int:
    """Train a model on a task, score it, and print the score beside floor and paper.

    Any parameter of the task, the model or the budget is also an option of its own: --shifts 4.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, found {seeds}")
    # read like the options that are not declared, so that the same rules and words hold for all of them
    named = {
        "length": length,
        "steps": steps,
        "lr": lr,
        "batch_size": batch_size,
        "layers": layers,
        "d_model": d_model,
        "d_state": d_state,
        "precision": precision,
    }
    assignments = [f"{name}={value}" for name, value in named.items() if value is not None]
    options = option_names(context)
    given = parse_settings(context.args, [*assignments, *(settings or [])], options=options)
    if ":" in model:
        # where `python script.py` would look, a command that pip installed does not
        sys.path.insert(0, "")

    from lrtasks.evaluation.presets import assign
    from lrtasks.evaluation.run import evaluate as run
    from lrtasks.evaluation.subject import registered_name

    owned = assign(task, registered_name(model), given, options=options)
    records = [
        run(
            model,
            task,
            preset=preset,
            seed=number,
            data=data,
            device=device,
            workers=worker_number(workers),
            out=out,
            trackers=trackers or (),
            parameters=owned["parameters"],
            hyper=owned["hyper"],
            budget=owned["budget"],
        )
        for number in range(seed, seed + seeds)
    ]
    if os.environ.get("RANK", "0") != "0":
        pass  # one of several processes that torchrun started: the first one speaks for all
    elif as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        _print_summary(records)
    diverged = [record for record in records if record.status != "done"]
    for record in diverged:
        sys.stderr.write(f"lrtasks: {record.command}: {record.status}: {'; '.join(record.notes)}\n")
    return 1 if diverged else 0


def _print_summary(records: list[RunRecord]) -> None:
    from lrtasks.results.formats import render
    from lrtasks.results.frame import make_frame
    from lrtasks.results.table import make_table

    made = make_table(make_frame([(None, record) for record in records]))
    print(render("text", [made.scores()], made.notes()))
    for record in records:
        cost: dict[str, Any] = record.cost
        for note in record.notes if record.status == "done" else ():
            print(f"seed {record.seed}: {note}")
        if record.status == "done":
            time = f"{cost['seconds_per_step'] * 1e3:.1f} ms per step, {cost['seconds']:.0f} s training"
            print(f"seed {record.seed}: {time}, {record.model['count']:,} parameters, {cost['device']}")
