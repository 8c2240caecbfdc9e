"""``lrtasks generate`` and ``lrtasks data``: write, check and describe stored datasets."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option, Typer

from lrtasks.cli.options import AsJson, TaskName, TaskSettings, print_json, task_parameters, worker_number
from lrtasks.errors import UsageError
from lrtasks.registry import split_preset

if TYPE_CHECKING:
    from lrtasks.generators import Task

app = Typer(help="Check and describe stored datasets.", no_args_is_help=True)

Address = Annotated[str, Argument(metavar="DIR", help="Folder or fsspec address of a dataset.")]


def generate(
    context: Context,
    task: TaskName,
    samples: Annotated[int, Option(help="Number of samples over all splits.")] = 100_000,
    split: Annotated[str, Option(help="Fractions of train, validation and test samples.")] = "0.96,0.02,0.02",
    seed: Annotated[int, Option(help="Seed of the task's streams.")] = 0,
    workers: Annotated[str, Option(help="Number of processes, or auto (number of cores less one).")] = "auto",
    out: Annotated[
        str | None, Option("--out", "-o", help="Folder or fsspec address (s3://bucket/name); by default under ./data.")
    ] = None,
    file_format: Annotated[str, Option("--format", help="parquet, png, npy or tsv.")] = "parquet",
    backend: Annotated[str, Option(help="Backend that makes the shards: local or ray.")] = "local",
    address: Annotated[str | None, Option(help="Address of the Ray cluster.")] = None,
    settings: TaskSettings = None,
    as_json: Annotated[bool, Option("--json", help="Print a summary as JSON.")] = False,
) -> int:
    """Write a dataset; run the same command again to finish an interrupted one.

    Any parameter of the task is also an option; TASK@PRESET takes the parameters of a preset. Example: lrtasks generate
    pathfinder --res 64 --samples 1000
    """
    from lrtasks.data import generate as write
    from lrtasks.data import info
    from lrtasks.data.store import GenerationError
    from lrtasks.generators import make
    from lrtasks.results.formats import number

    name, preset = split_preset(task)
    chosen = make(name, preset=preset or None, **task_parameters(context, name, settings))
    target = out if out is not None else default_folder(chosen, samples, seed)
    size: dict[str, Any] = {"samples": samples, "split": _fractions(split), "seed": seed, "format": file_format}
    where: dict[str, Any] = {"workers": worker_number(workers), "backend": backend, "address": address}
    try:
        write(chosen, target, **size, **where, progress=True)
    except (KeyboardInterrupt, GenerationError) as error:
        interrupted = f"interrupted; finished shards are kept in {target}, the same command continues"
        sys.stderr.write(f"lrtasks: {error if isinstance(error, GenerationError) else interrupted}\n")
        return 1
    summary = info(target)
    if as_json:
        print_json(summary)
        return 0
    counts = ", ".join(f"{count:,} {name}" for name, count in summary["counts"].items())
    stored = number(summary["bytes"], unit="B")
    print(f"{target}: {counts} samples, {stored}, {summary['replaced']} duplicates replaced")
    return 0


def default_folder(task: Task, samples: int, seed: int) -> str:
    """Return ``data/TASK-PARAMETERS-SAMPLES-seedSEED``, with the parameters that differ from their defaults.

    >>> from lrtasks.generators import make
    >>> default_folder(make("shift", length=256), 1000, 0)
    'data/shift-length256-1000-seed0'
    """
    defaults = type(task)().parameters()
    chosen = [f"{name}{value}" for name, value in task.parameters().items() if value != defaults[name]]
    name = "-".join([task.name, *chosen, str(samples), f"seed{seed}"])
    return "data/" + re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _fractions(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--split takes three fractions like 0.96,0.02,0.02, found {text!r}") from None


@app.command()
def verify(path: Address, as_json: AsJson = False) -> int:
    """Compare every file with the manifest and print all problems; the exit code is 1 if there are any.

    Example: lrtasks data verify data/pathfinder64
    """
    from lrtasks.data import verify as find

    problems = find(path)
    if as_json:
        print_json({"path": path, "whole": not problems, "problems": problems})
    else:
        print("\n".join(problems) or f"{path}: whole and unchanged")
    return 1 if problems else 0


@app.command()
def info(path: Address, as_json: AsJson = False) -> None:
    """Print a dataset's task, parameters, seed, counts, format, size and versions.

    Example: lrtasks data info data/pathfinder64
    """
    from lrtasks.data import info as describe

    summary = describe(path)
    if as_json:
        print_json(summary)
        return
    for name, value in summary.items():
        shown = ", ".join(f"{key} {entry}" for key, entry in value.items()) if isinstance(value, dict) else value
        print(f"{name:12}{', '.join(shown) if isinstance(shown, list) else shown}")
