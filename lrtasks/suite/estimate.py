"""What a suite would do, before it does it: how many runs, and about how long they take (``--dry-run``)."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import make_streams
from lrtasks.evaluation.environment import device_name, make_fabric
from lrtasks.evaluation.further_tests import SHARE, further_tests
from lrtasks.progress import clock
from lrtasks.record import read_records
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import Suite
from lrtasks.suite.run import look

WARM_UP, TIMED = 2, 4
"""Steps before the clock starts, and steps that are timed."""
PATIENCE = 60.0
"""Seconds of timing after which no other model is timed."""


@dataclass(frozen=True)
class Plan:
    """What a suite would do.

    Attributes:
        runs: number of runs.
        finished: how many of them are finished already.
        seconds: about how long the others take one after another; ``None`` if nothing is known.
        recorded: pairs of a task and a model whose step was timed by an earlier run in the results folder.
        timed: pairs that were timed now.
        guessed: pairs that are expected to take the mean of the others.
        start: seconds of processor time that this process took to start, as each run does.
        device: where the runs are expected to go on.
    """

    runs: int
    finished: int
    seconds: float | None
    recorded: int
    timed: int
    guessed: int
    start: float
    device: str

    def lines(self) -> list[str]:
        """The plan for a reader."""
        said = [f"{self.runs} run{'s' * (self.runs != 1)}, {self.finished} finished earlier; nothing was run"]
        if self.seconds is None:
            return [*said, "no estimate of the time: no step could be timed"] if self.finished < self.runs else said
        sources = {
            f"timed over {TIMED} steps": self.timed,
            "from earlier runs here": self.recorded,
            "guessed as the mean of the others": self.guessed,
        }
        known = ", ".join(f"{count} {how}" for how, count in sources.items() if count)
        return [
            *said,
            f"about {clock(self.seconds)} one after another on {self.device}; pairs of task and model: {known}",
            f"an evaluated batch counts as a training step, the start of a run as {self.start:.0f} s",
        ]


def planned(suite: Suite, *, selected: bool) -> list[RunConfig]:
    """The runs that a suite carries out: with a selection, one value alone for all seeds but the first."""
    if not selected:
        return suite.runs
    first, seen = min(run.seed for run in suite.runs), set()
    found = []
    for run in suite.runs:
        group = json.dumps([run.task.identity(), run.model.address, run.seed], sort_keys=True)
        if run.seed == first or group not in seen:
            seen.add(group)
            found.append(run)
    return found


def make_plan(runs: Sequence[RunConfig], out: Path, *, device: str = "auto", patience: float = PATIENCE) -> Plan:
    """Count the runs that are left, and estimate their time.

    A step takes what it took in an earlier run of the same task, model, batch size and device below ``out``. Otherwise
    a few steps are timed here, until ``patience`` seconds are over.
    """
    start = time.process_time()
    name = device_name(make_fabric(device, "32").device)
    left = [run for run in runs if look(run, run.folder(out))[1] is None]
    known = _recorded(out, name)
    timed: dict[str, float | None] = {}
    began = time.monotonic()
    for run in left:
        key = _key(run)
        if key not in known and key not in timed:
            timed[key] = seconds_per_step(run, device) if time.monotonic() - began < patience else None
    measured = {key: value for key, value in timed.items() if value is not None}
    needed = {_key(run) for run in left}
    steps = {key: value for key, value in (known | measured).items() if key in needed}
    seconds = None
    if steps:
        usual = mean(steps.values())
        seconds = sum(start + _steps(run) * steps.get(_key(run), usual) for run in left)
    return Plan(
        runs=len(runs),
        finished=len(runs) - len(left),
        seconds=seconds,
        recorded=len(needed & known.keys()),
        timed=len(measured),
        guessed=len(needed - steps.keys()),
        start=start,
        device=name,
    )


def seconds_per_step(run: RunConfig, device: str) -> float | None:
    """Time of a training step, measured over a few; ``None`` if the model cannot be trained here."""
    fabric = make_fabric(device, run.budget.precision)
    budget = replace(run.budget, steps=WARM_UP + TIMED, eval_every=WARM_UP, warmup_steps=0, val_batches=1)
    short = replace(run, budget=budget)
    states: list[tuple[int, float]] = []
    with suppress(Exception), tempfile.TemporaryDirectory() as folder:
        streams = make_streams(short, 0, fabric)
        loop.train(
            fabric,
            short.build(),
            short,
            streams,
            Path(folder),
            digest="",
            floor=None,
            quiet=True,
            report=lambda state: states.append((state.step, state.seconds)),
        )
    found = [second for second in states if second[0] >= WARM_UP]
    if len(found) < 2:
        return None
    return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])


def _steps(run: RunConfig) -> float:
    """Training steps, and as many again as batches are evaluated."""
    budget = run.budget
    tests: Iterable[Any] = ()
    with suppress(UsageError):
        tests = further_tests(run)
    evaluations = -(-budget.steps // budget.eval_every)
    further = len(list(tests)) * max(1, budget.test_batches // SHARE)
    return budget.steps + evaluations * budget.val_batches + budget.test_batches + further


def _recorded(out: Path, device: str) -> dict[str, float]:
    """Mean seconds per step of earlier runs by :func:`_key`."""
    found: dict[str, list[float]] = {}
    if out.exists():
        for _, record in read_records(out)[0]:
            seconds = record.cost.get("seconds_per_step")
            if seconds is not None and record.cost.get("device") == device:
                model = {name: record.model.get(name) for name in ("name", "parameters", "version", "source")}
                parts = [record.task["name"], record.task["parameters"], model, record.budget.get("batch_size")]
                found.setdefault(json.dumps([*parts, record.budget.get("precision")], sort_keys=True), []).append(
                    seconds
                )
    return {key: mean(values) for key, values in found.items()}


def _key(run: RunConfig) -> str:
    """What decides the time of a step."""
    parts = [run.task.name, run.task.parameters(), run.model.identity, run.budget.batch_size, run.budget.precision]
    return json.dumps(parts, sort_keys=True)
