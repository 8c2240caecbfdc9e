"""``lrtasks eval``, and the functions that all training commands share: plan, execute and print runs."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option

from lrtasks.budget import DEFAULTS, MOST_SEEDS, SHARED_BUDGET, Budget
from lrtasks.cli import options
from lrtasks.errors import UsageError, require_whole

if TYPE_CHECKING:
    from lrtasks.record import RunRecord
    from lrtasks.run_config import RunConfig
    from lrtasks.suite.expand import Suite
    from lrtasks.suite.run import SuiteProgress
    from lrtasks.suite.select import OnEnd

Trackers = Annotated[
    list[str] | None,
    Option(
        "--tracker", help="csv, tensorboard or wandb, separated by commas or repeated; written in the run's folder."
    ),
]
Select = Annotated[
    str | None,
    Option(help="val: if an option has several values (1e-3,3e-3), choose one by the validation score of seed 0."),
]
DryRun = Annotated[
    bool, Option("--dry-run", help="Run nothing: print the number of runs and an estimate of their time.")
]

budget_options = options.config_options(
    "budget", "Training budget (task, model and other presets may set other defaults)", Budget, **DEFAULTS["small"]
)


@budget_options
def evaluate(
    context: Context,
    budget: dict[str, Any],
    model: Annotated[
        str,
        Option(
            help="A model (lrtasks list), FILE.py:NAME or package.module:NAME.", autocompletion=options.complete_models
        ),
    ],
    task: Annotated[str, Option(help="A task (lrtasks list) or FILE.py:NAME.", autocompletion=options.complete_tasks)],
    preset: Annotated[str, Option(help="small (minutes on two CPU cores), paper, or another preset.")] = "small",
    settings: options.Settings = None,
    seed: Annotated[int, Option(help="First seed.")] = 0,
    seeds: Annotated[int, Option(help="Number of seeds, counted from --seed.")] = 1,
    data: Annotated[str | None, Option(help="Train and test on this stored dataset.")] = None,
    device: options.Device = "auto",
    workers: Annotated[str, Option(help="Background processes that make batches, or auto.")] = "auto",
    out: options.Out = Path("runs"),
    trackers: Trackers = None,
    select: Select = None,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Run again even if the run is finished.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print a list of run records, one per seed.")] = False,
) -> int:
    """Train a model on a task, score it, and print the score with the floor and the paper's score.

    Every parameter of the task and the model is an option as well, such as --length 512 or --d-state 64; lrtasks
    describe NAME lists them. Example: lrtasks eval --model dlr --task shift --length 512 --steps 1000
    """
    require_whole("--seeds", seeds, 1, MOST_SEEDS)
    if max(map(len, options.require_names(model, task))) > 1:
        several = f"several: lrtasks suite --models {model} --tasks {task}"
        raise UsageError(f"eval takes one model and one task, found {model} and {task}; {several}")
    from lrtasks.evaluation.trackers import tracker_names

    given = options.given_settings(context, settings, budget)
    how: dict[str, Any] = {"device": device, "trackers": tracker_names(trackers or ())}
    if select:
        beside = {"--seed": seed, "--data": data, "--workers": workers != "auto", "--overwrite": overwrite}
        for name in (name for name, value in beside.items() if value):
            raise UsageError(f"{name} cannot be combined with --select")
        wanted = suite_from_options(context, {"models": model, "tasks": task, "preset": preset, "seeds": seeds}, given)
        return execute(wanted, out=out, select=select, as_json=as_json, dry_run=dry_run, **how)

    from lrtasks.evaluation.run import run
    from lrtasks.run_config import RunConfig

    named: dict[str, Any] = {"settings": given, "data": data, "options": options.option_names(context)}
    try:
        numbers = range(seed, seed + seeds)
        configs = [RunConfig.make(task, model, preset=preset, seed=number, **named) for number in numbers]
    except UsageError as error:
        from lrtasks.suite.expand import split_grid

        if any(repr(given[name]) in str(error) for name in split_grid(given)[0]):
            raise UsageError(f"{error}; --select val chooses one of several values; lrtasks suite runs all") from None
        raise
    how |= {"workers": options.worker_number(workers), "out": out, "overwrite": overwrite}
    if dry_run:
        from lrtasks.evaluation.batches import make_streams
        from lrtasks.evaluation.environment import make_fabric
        from lrtasks.suite.expand import require_possible

        require_possible(configs[0])
        streams = make_streams(configs[0], how["workers"], make_fabric(device, configs[0].budget.precision))
        configs = [dataclasses.replace(config, data_digest=streams.digest) for config in configs]
        return print_plan(configs, out, device=device, overwrite=overwrite, as_json=as_json)
    with redirect_stdout(sys.stderr):  # output of the model's code must not mix with the result
        records = [run(config, **how) for config in configs]
    if os.environ.get("RANK", "0") != "0":
        pass  # torchrun starts several processes; only the first one prints
    elif as_json:
        print_records(records)
    else:
        print_runs(_unselected(records), costs=False)
        for record in records:
            if record.status == "done":
                cost, count = record.cost, record.model["count"]
                time = f"{cost['seconds_per_step'] * 1e3:.1f} ms per step, {cost['seconds']:.0f} s training"
                for line in (*record.notes, f"{time}, {count:,} parameters, {cost['device']}"):
                    print(f"seed {record.seed}: {line}")
    return say_unfinished([record.command for record in records], records)


def suite_from_options(context: Context, chosen: dict[str, Any], given: dict[str, Any]) -> Suite:
    """Return the suite of the chosen models and tasks. Their names are checked before torch is loaded."""
    options.require_names(chosen.get("models", "all"), chosen.get("tasks", "all"))
    from lrtasks.suite.expand import make_suite

    return make_suite(chosen, given, options=options.option_names(context))


def execute(
    wanted: Suite,
    *,
    out: Path,
    select: str | None,
    as_json: bool,
    dry_run: bool,
    unequal_budgets: bool = False,
    show: Callable[[Sequence[str], Sequence[RunConfig], Sequence[RunRecord]], None] | None = None,
    **how: Any,
) -> int:
    """Run a suite with a display, print its records, and return the exit code; with ``dry_run``, print its plan.

    ``show`` prints in another way: from the names of the selected settings, the runs and their records.
    """
    from lrtasks.cli.display import display
    from lrtasks.suite.expand import require_comparable
    from lrtasks.suite.run import run_suite
    from lrtasks.suite.select import planned, require_selectable, run_selected

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the runs would join the process group of torchrun, and hang
        raise UsageError("torchrun shares one run among its processes; start a command of several runs without it")
    _say_grouped("skipped", wanted.skipped)
    selected = require_selectable(wanted, select) if select else ()
    varied = [name.removeprefix("budget.") for name in wanted.varied]
    may_differ = SHARED_BUDGET if unequal_budgets or wanted.unequal_budgets else varied
    require_comparable(wanted.runs, may_differ)
    if dry_run:
        return print_plan(planned(wanted, selected, out), out, device=how["device"], as_json=as_json)

    def run_all(runs: Sequence[RunConfig], on_end: OnEnd = lambda *_: None) -> list[RunRecord]:
        def on_change(progress: SuiteProgress, number: int | None) -> None:
            if number is not None and (record := progress.records[number]) is not None:
                on_end(runs[number], record)
            show_change(progress, number)

        with display() as show_change:
            return run_suite(runs, out, may_differ=may_differ, on_change=on_change, **how)

    if selected:
        runs, records, failed = run_selected(wanted, selected, run_all, out)
    else:
        runs, records, failed = wanted.runs, _unselected(run_all(wanted.runs)), {}
    if show is not None:
        show(selected, runs, records)
    elif as_json:
        print_records(records)
    else:
        print_runs(records)
    own = [record for record in records if record.status == "done" and record.model.get("source")]
    _say_grouped("note", [(one.model["name"], one.task["name"], note) for one in own for note in one.notes])
    return say_unfinished([*(run.title() for run in runs), *failed], [*records, *failed.values()])


def _unselected(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records without their ``selection``, since the user asked for these runs directly."""
    return [dataclasses.replace(record, selection={}) for record in records]


def _say_grouped(title: str, found: Sequence[tuple[str, str, str]]) -> None:
    """Write a line on standard error for each model and text of the triples of model, task and text."""
    tasks: dict[tuple[str, str], dict[str, None]] = {}
    for model, task, text in found:
        tasks.setdefault((text, model), {})[task] = None
    for (text, model), names in tasks.items():
        sys.stderr.write(f"{title}: {model} on {', '.join(names)}: {text}\n")


def say_unfinished(titles: Sequence[str], records: Sequence[RunRecord]) -> int:
    """Report the runs that are not done on standard error. Return the exit code: 0 if all runs are done, else 1."""
    unfinished = [(title, record) for title, record in zip(titles, records, strict=True) if record.status != "done"]
    for title, record in unfinished:
        reason = "".join(record.notes[-1:])  # the notes before it are warnings
        sys.stderr.write(f"lrtasks: {title}: {record.status}: {' '.join(reason.split())}\n")
    return 1 if unfinished else 0


def print_records(records: Sequence[RunRecord]) -> None:
    """Print records as a list in JSON."""
    options.print_json([json.loads(record.to_json()) for record in records])


def print_runs(records: Sequence[RunRecord], *, costs: bool = True, by_length: bool = False) -> None:
    """Print the table of runs; their budgets may differ only if the user allowed it before the first run."""
    from lrtasks.results.frame import make_frame
    from lrtasks.results.table import make_table

    made = make_table(make_frame([(None, record) for record in records]), unequal_budgets=True)
    tables = made.tables(by_length=by_length)
    options.print_tables("text", tables if costs else tables[:1], made.notes(), content=None)


def print_plan(runs: Sequence[RunConfig], out: Path, *, device: str, overwrite: bool = False, as_json: bool) -> int:
    """Print the number of runs and an estimate of their time, without running them. Return the exit code 0."""
    from lrtasks.suite.estimate import make_plan

    plan = make_plan(runs, out, device=device, overwrite=overwrite)
    if as_json:
        options.print_json(dataclasses.asdict(plan))
    else:
        print("\n".join(plan.lines()))
    return 0


def print_solved(name: str, runs: Sequence[RunConfig], records: Sequence[RunRecord], solved: float) -> None:
    """Print, for each model, the largest value of a varied setting at which all its runs solve the task.

    ``name`` is a bare name, or has its owner. A run solves the task if its scaled score is at least ``solved``. If the
    values are not numbers, print all values at which the runs solve the task.
    """
    from lrtasks.config import split_setting
    from lrtasks.metrics import scaled_score
    from lrtasks.results.settings import as_given

    owner, bare = split_setting(name)
    named = Counter(name for name, _ in {(run.model.name, run.model.address) for run in runs})
    reached: dict[str, dict[Any, bool]] = {}
    for run, record in zip(runs, records, strict=True):
        label = run.model.name if named[run.model.name] == 1 else str(run.model.address)  # two files may use one name
        score, floor, own = record.headline(), record.floor("test"), reached.setdefault(label, {})
        ok = score is not None and floor is not None and scaled_score(score, floor) >= solved
        for key, value in run.settings.items():
            key_owner, setting = split_setting(key)
            if setting == bare and owner in (None, key_owner):  # a run lacks a setting that belongs to another model
                value = value if type(value) in (int, float) else as_given(value)
                own[value] = own.get(value, True) and ok
    numbers = not any(isinstance(value, str) for values in reached.values() for value in values)
    title = f"largest {bare}" if numbers else f"all values of {bare}"
    title = "trainable length: largest length" if bare == "length" and owner != "model" else title
    print(f"\n{title} with a scaled score of at least {solved:g}:")
    for model, values in reached.items():
        found = [value for value, ok in values.items() if ok]
        shown = [max(found)] if found and numbers else found
        print(f"  {model}: {', '.join(map(str, shown)) or 'none'}")
