"""``lrtasks suite`` and ``lrtasks sweep``: many runs in one command."""

from __future__ import annotations

import itertools
import json
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrtasks.cli.options import parse_settings, print_json
from lrtasks.errors import UsageError, unknown
from lrtasks.parameters import parse_assignment

if TYPE_CHECKING:
    from lrtasks.evaluation.suite import Entry, Progress
    from lrtasks.results import RunRecord

Preset = Annotated[str, typer.Option(help="Preset of every run.")]
Seeds = Annotated[int, typer.Option(help="How many seeds, counted from 0.")]
Jobs = Annotated[int, typer.Option(help="Runs at a time; the cores are shared between them.")]
TimeLimit = Annotated[float | None, typer.Option(help="Seconds after which a run is stopped and recorded as failed.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Out = Annotated[Path, typer.Option(help="Results folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE for every run.")]

FILE_KEYS = ("models", "tasks", "preset", "seeds", "settings")


def suite(
    context: typer.Context,
    file: Annotated[Path | None, typer.Option(help="A suite as TOML: models, tasks, preset, seeds, settings.")] = None,
    models: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    tasks: Annotated[str, typer.Option(help="Names with commas, or all.")] = "all",
    preset: Preset = "small",
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    out: Out = Path("runs"),
    settings: Settings = None,
    as_json: AsJson = False,
) -> int:
    """Run every task × every model; finished runs are not repeated, and one that fails does not stop the rest."""
    from lrtasks import generators
    from lrtasks import models as registered
    from lrtasks.evaluation.suite import expand

    given = parse_settings(context.args, settings or [])
    if file is not None:
        content = _read_suite(file)
        chosen_models = content.get("models", "all")
        chosen_tasks = content.get("tasks", "all")
        preset, seeds = content.get("preset", preset), content.get("seeds", seeds)
        given = {**content.get("settings", {}), **given}
    else:
        chosen_models, chosen_tasks = models, tasks
    entries, skipped = expand(
        _names("model", chosen_models, registered.names()),
        _names("task", chosen_tasks, generators.names()),
        preset=preset,
        seeds=_seeds(seeds),
        settings=given,
    )
    records = _carry_out(entries, skipped, out, jobs, time_limit, device)
    if as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        _print_table(records)
    return _exit_code(records)


def sweep(
    context: typer.Context,
    task: Annotated[str, typer.Option(help="A task's name.")],
    models: Annotated[str, typer.Option(help="Names with commas.")],
    preset: Preset = "small",
    seeds: Seeds = 1,
    jobs: Jobs = 1,
    time_limit: TimeLimit = None,
    device: Device = "auto",
    out: Out = Path("runs"),
    settings: Settings = None,
    solved: Annotated[float, typer.Option(help="Score from which a point counts as solved.")] = 0.95,
    as_json: AsJson = False,
) -> int:
    """Run models on one task over a grid: --length 1024,4096,16384 varies the length.

    Any option with commas varies; then the largest value of it that each model solves is printed.
    """
    from lrtasks.evaluation.suite import expand

    given = parse_settings(context.args, settings or [])
    varied = {name: _values(name, value) for name, value in given.items() if isinstance(value, str) and "," in value}
    fixed = {name: value for name, value in given.items() if name not in varied}
    grid = [dict(zip(varied, point, strict=True)) for point in itertools.product(*varied.values())]
    entries, skipped = expand(models.split(","), [task], preset=preset, seeds=_seeds(seeds), grid=grid, settings=fixed)
    records = _carry_out(entries, skipped, out, jobs, time_limit, device)
    if as_json:
        print_json([json.loads(record.to_json()) for record in records])
    else:
        _print_table(records)
        for name in varied:
            _print_solved(name, entries, records, solved)
    return _exit_code(records)


def _print_solved(name: str, entries: Sequence[Entry], records: Sequence[RunRecord], solved: float) -> None:
    """For each model, the largest value of a varied setting at which all its runs reach the score ``solved``."""
    print(f"\nlargest {name} with a test score of at least {solved:g}:")
    for model in dict.fromkeys(entry.model for entry in entries):
        reached: dict[Any, bool] = {}
        for entry, record in zip(entries, records, strict=True):
            if entry.model == model:
                score = record.headline()
                value = entry.settings[name]
                reached[value] = reached.get(value, True) and score is not None and score >= solved
        values = [value for value, ok in reached.items() if ok]
        print(f"  {model}: {max(values) if values else 'none'}")


def _carry_out(
    entries: Sequence[Entry],
    skipped: Sequence[tuple[Entry, str]],
    out: Path,
    jobs: int,
    time_limit: float | None,
    device: str,
) -> list[RunRecord]:
    from lrtasks.evaluation.suite import run_suite

    for entry, reason in skipped:
        sys.stderr.write(f"skipped: {entry.model} on {entry.task}: {reason}\n")
    if not entries:
        raise UsageError("nothing is left to run")
    return run_suite(entries, out, jobs=jobs, time_limit=time_limit, device=device, on_change=_show)


def _print_table(records: Sequence[RunRecord]) -> None:
    from lrtasks.results.table import make_table

    print(make_table(records).text())


def _exit_code(records: Sequence[RunRecord]) -> int:
    return 0 if all(record.status == "done" for record in records) else 1


def _show(progress: Progress) -> None:
    counts = {status: progress.statuses.count(status) for status in dict.fromkeys(progress.statuses)}
    running = [
        f"{e.model}/{e.task}" for e, s in zip(progress.entries, progress.statuses, strict=True) if s == "running"
    ]
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    sys.stderr.write(f"{summary}; now: {' '.join(running) or '-'}\n")


def _names(kind: str, chosen: str | list[str], known: Iterable[str]) -> list[str]:
    known = list(known)
    if chosen == "all":
        return known
    names = chosen.split(",") if isinstance(chosen, str) else chosen
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
    return names


def _seeds(count: int) -> range:
    if count < 1:
        raise UsageError(f"seeds must be at least 1, found {count}")
    return range(count)


def _values(name: str, text: str) -> list[Any]:
    return [parse_assignment(f"{name}={part}")[1] for part in text.split(",")]


def _read_suite(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the suite {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the suite {file} is not valid TOML: {error}") from None
    for key in content:
        if key not in FILE_KEYS:
            raise unknown(f"key of suite {file}", key, FILE_KEYS)
    return content
