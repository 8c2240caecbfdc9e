"""What ``lrtasks suite`` and ``lrtasks sweep`` share: options, carrying out, and what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrtasks.cli.display import Display
from lrtasks.cli.options import parse_settings, print_json
from lrtasks.cli.output import print_tables
from lrtasks.errors import UsageError

if TYPE_CHECKING:
    from lrtasks.results import RunRecord
    from lrtasks.suite.entries import Entry
    from lrtasks.suite.jobs import Backend

TimeLimit = Annotated[float | None, typer.Option(help="Seconds after which a run is stopped and recorded as failed.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE for every run.")]
Trackers = Annotated[
    list[str] | None,
    typer.Option("--tracker", help="jsonl, tensorboard or wandb, with commas or again: files in each run's folder."),
]
BackendName = Annotated[str, typer.Option("--backend", help="Where runs go: local, ray or slurm.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time (local, where they share the cores; slurm).")]
Address = Annotated[str | None, typer.Option(help="Address of the cluster (ray).")]
Cpus = Annotated[int | None, typer.Option(help="Processor cores of each run (ray, slurm).")]
Gpus = Annotated[float | None, typer.Option(help="GPUs of each run (ray, slurm).")]
Slurm = Annotated[
    list[str] | None, typer.Option(help="NAME=VALUE: a parameter of the jobs, as --slurm partition=long.")
]


def chosen_backend(
    name: str,
    *,
    jobs: int | None,
    address: str | None,
    cpus: int | None,
    gpus: float | None,
    slurm: Sequence[str] | None,
) -> Backend:
    """The backend that the options name.

    Raises:
        UsageError: for one that is unknown, an option that it does not have, or a bad parameter of Slurm jobs.
    """
    from lrtasks.suite.backends import make_backend

    for assignment in slurm or ():
        if not assignment.partition("=")[0].strip() or "=" not in assignment:
            raise UsageError(f"--slurm takes NAME=VALUE, found {assignment!r}")
    parameters = parse_settings([], slurm or ())
    return make_backend(name, jobs=jobs, address=address, cpus=cpus, gpus=gpus, slurm=parameters)


def carry_out(
    entries: Sequence[Entry],
    skipped: Sequence[tuple[Entry, str]],
    out: Path,
    *,
    backend: Backend,
    time_limit: float | None,
    device: str,
    may_differ: Collection[str],
    trackers: Collection[str],
) -> list[RunRecord]:
    """Run entries with a display; say which were skipped.

    Raises:
        UsageError: if there is nothing to run, or as ``run_suite`` does.
    """
    from lrtasks.suite.suite import run_suite

    for line in _skipped_lines(skipped):
        sys.stderr.write(line + "\n")
    if not entries:
        raise UsageError("nothing is left to run: every run was skipped")
    with Display([entry for entry, _ in skipped]) as display:
        return run_suite(
            entries,
            out,
            backend=backend,
            time_limit=time_limit,
            device=device,
            may_differ=may_differ,
            trackers=trackers,
            on_change=display,
        )


def print_records(entries: Sequence[Entry], records: Sequence[RunRecord], *, as_json: bool) -> None:
    """Print records on standard output, and on standard error why runs were not done."""
    if as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        from lrtasks.results.frame import make_frame
        from lrtasks.results.table import make_table

        # unequal budgets were refused before anything ran, or asked for
        runs = make_frame([(None, record) for record in records])
        made = make_table(runs, unequal_budgets=True)
        print_tables("text", lambda: (made.tables(), made.notes()), made.rows)
    for entry, record in zip(entries, records, strict=True):
        if record.status != "done":
            notes = " ".join("; ".join(record.notes).split())
            sys.stderr.write(f"lrtasks: {entry.title()}: {record.status}: {notes}\n")


def exit_code(records: Sequence[RunRecord]) -> int:
    """0 if all runs are done."""
    return 0 if all(record.status == "done" for record in records) else 1


def _skipped_lines(skipped: Sequence[tuple[Entry, str]]) -> list[str]:
    """One line for each reason and the models that have it on the same tasks."""
    tasks: dict[tuple[str, str], dict[str, None]] = {}
    for entry, reason in skipped:
        tasks.setdefault((reason, entry.model), {})[entry.task] = None
    models: dict[tuple[str, str], list[str]] = {}
    for (reason, model), names in tasks.items():
        models.setdefault((reason, ", ".join(names)), []).append(model)
    return [f"skipped: {', '.join(names)} on {where}: {reason}" for (reason, where), names in models.items()]
