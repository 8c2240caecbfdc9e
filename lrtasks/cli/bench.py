"""``lrtasks bench``: measure the cost of models at several sequence lengths, compared with a Transformer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Exit, Option

from lrtasks.bench import BASELINE, PHASES, UNFUSED
from lrtasks.cli import options
from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError
from lrtasks.progress import Progress

MODELS_HELP = "Names or FILE.py:NAME, separated by commas, or all; the Transformer is always measured."
SHOW_HELP = "Measure nothing; print the measurements in the results folder."
SET_HELP = "MODEL.NAME=VALUE: a hyper-parameter of one model; model.NAME=VALUE for your own model."


def bench(
    context: Context,
    models: Annotated[str, Option(help=MODELS_HELP, autocompletion=options.complete_models)] = "all",
    length: Annotated[str, Option(help="Lengths, separated by commas.")] = "1024,4096,16384",
    batch: Annotated[int, Option(help="Sequences in a batch.")] = 1,
    d_model: Annotated[int, Option(help="Width of every model.")] = 64,
    layers: Annotated[int, Option(help="Layers of every model.")] = 2,
    settings: Annotated[list[str] | None, Option("--set", help=SET_HELP)] = None,
    bidirectional: Annotated[bool, Option("--bidirectional", help="Measure bidirectional models.")] = False,
    repeats: Annotated[int, Option(help="Timed repeats.")] = 5,
    patience: Annotated[float, Option(help="Limit in seconds on the timed work; no repeat starts after it.")] = 20.0,
    threads: Annotated[int, Option(help="Number of threads.")] = 1,
    device: options.Device = "auto",
    time_limit: Annotated[
        float, Option(help="Time limit in seconds of each try to measure training or inference.")
    ] = 600.0,
    out: options.Out = Path("runs/bench"),
    show: Annotated[bool, Option("--show", help=SHOW_HELP)] = False,
    form: Annotated[str | None, options.format_option(default="text")] = None,
    as_json: options.JsonFormat = False,
) -> None:
    """Measure training step, inference, peak memory and streaming state, beside a Transformer in the same process.

    Example: lrtasks bench --models mylayer.py:MyLayer,mamba2 --length 1024,4096

    Finished measurements, also failed ones, are kept until you remove their files. Repeat the command to continue after
    an interruption, or to print the tables again. If a model could not be measured at any length, the exit code is 1.
    """
    form = options.chosen_format(form, as_json)
    if show:
        options.require_alone(context, "show", "prints all that the folder holds", ("out", "form", "as_json"))
        from lrtasks.bench.report import Report, read_measurements

        found = read_measurements(out)
    else:
        from lrtasks.models import registry

        lengths = [_length(text) for text in length.split(",")]
        hyper = _by_model(settings or [])
        words = [word.strip() for word in models.split(",")]
        # an unknown name is reported before torch is loaded
        registry.select([name for name in words if name != UNFUSED] or BASELINE)

        from lrtasks.bench.measure import Settings
        from lrtasks.bench.report import Report
        from lrtasks.bench.run import all_models, make_cases, run_bench
        from lrtasks.evaluation.environment import chosen_device

        shared: dict[str, Any] = {"d_model": d_model, "layers": layers, "batch": batch, "bidirectional": bidirectional}
        made = Settings.make(**shared, repeats=repeats, patience=patience, threads=threads)
        with redirect_stdout(sys.stderr):  # output of the model's code must not mix with the result
            wanted = [name for word in words for name in (all_models() if word == "all" else [word])]
            cases = make_cases(wanted, lengths, made, chosen_device(device).type, hyper)
        found = []
        with Progress("bench", "measurements", len(cases)) as progress:
            for measurement in run_bench(cases, out, time_limit=time_limit):
                found.append(measurement)
                progress.update(len(found))
    report = Report(found)
    content = report.rows() if form == "csv" else report.content()
    options.print_tables(form, report.tables(), report.notes(), content)
    measured = {row["model"] for row in report.rows() if {*PHASES} - {*row["reasons"]}}
    if any(row["model"] not in measured for row in report.rows()):
        raise Exit(1)


def _length(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"--length takes whole numbers separated by commas, found {text!r}")
    return int(text)


def _by_model(assignments: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Read ``MODEL.NAME=VALUE`` assignments."""
    found: dict[str, dict[str, Any]] = {}
    for assignment in assignments:
        model, dot, setting = assignment.partition(".")
        if not dot or "=" in model or "=" not in setting:
            raise UsageError(f"--set takes MODEL.NAME=VALUE, found {assignment!r}")
        options.add_once(found.setdefault(model, {}), *parse_assignment(setting), owner=f"{model}.")
    return found
