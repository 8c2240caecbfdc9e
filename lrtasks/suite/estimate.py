"""The plan of a suite (``--dry-run``): the number of runs, and an estimate of their time."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from lrtasks.errors import UsageError, with_line
from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import make_streams
from lrtasks.evaluation.environment import device_name, make_fabric
from lrtasks.evaluation.further_tests import SHARE, further_tests
from lrtasks.files import require_folder
from lrtasks.progress import clock
from lrtasks.record import RunRecord, read_records
from lrtasks.run_config import RunConfig
from lrtasks.suite.run import REFUSED, look

WARM_UP, TIMED = 2, 4
"""Number of steps before the clock starts, and number of timed steps."""
PATIENCE = 60.0
"""Seconds after which no further model is timed."""


@dataclass(frozen=True)
class Plan:
    """The number of runs of a suite, and an estimate of their time.

    Attributes:
        finished: number of runs that are already finished.
        seconds: estimated time of the other runs, one after another; ``None`` if nothing is known.
        guessed: number of pairs of a task and a model without a time; each counts as the mean of the others.
        error: why the first run without a time could not be timed; ``None`` if all have a time.
        device: device on which the runs are expected to run.
        refused: title and reason of each run that will be refused.
    """

    runs: int
    finished: int
    seconds: float | None
    guessed: int
    error: str | None
    device: str
    refused: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return the plan as lines of text."""
        said = [f"{self.runs} run{'s' * (self.runs != 1)}, {self.finished} finished earlier; nothing was run"]
        said += [f"refused: {reason}" for reason in self.refused]
        why = f" ({self.error})" if self.error else ""
        if self.seconds is None:
            none = f"no estimate of the time: no step could be timed{why}"
            return [*said, none] if self.finished + len(self.refused) < self.runs else said
        said.append(f"about {clock(self.seconds)} one after another on {self.device}")
        said.append("an evaluated batch counts as a training step; the start of a run is not counted")
        guess = f"{self.guessed} pairs of task and model could not be timed and count as the mean of the others"
        return [*said, f"{guess}{why}"] if self.guessed else said


def make_plan(
    runs: Sequence[RunConfig], out: Path, *, device: str = "auto", overwrite: bool = False, patience: float = PATIENCE
) -> Plan:
    """Count the runs that are left (with ``overwrite``: all runs), and estimate their time.

    The time of a step comes from earlier runs below ``out`` with the same task, model, batch size, precision and
    device. If there are none, a few steps are timed here. After ``patience`` seconds, no further model is timed.

    Raises:
        UsageError: if the folder ``out`` cannot be made or is not writable; or if a further test of a run is impossible
            or its dataset cannot be read.
    """
    require_folder(out, "the results folder")
    name = device_name(make_fabric(device, "32").device)
    began = time.monotonic()
    looked = [(run, None if overwrite else look(run, run.folder(out))[1]) for run in runs]
    left = [run for run, record in looked if record is None]
    refused = [f"{run.title()}: {record.notes[0]}" for run, record in looked if record and record.status == REFUSED]
    keys = [_key(run.record()) for run in left]
    earlier: dict[str, list[float]] = {}
    begun: dict[str, RunRecord] = {}
    for folder, record in read_records(out)[0] if out.exists() else ():
        if not overwrite and (folder / loop.CHECKPOINT).exists():
            begun[record.digest] = record
        if (seconds := record.cost.get("seconds_per_step")) is not None and record.cost.get("device") == name:
            earlier.setdefault(_key(record), []).append(seconds)
    counts = [_steps(run, begun.get(run.digest)) for run in left]
    steps: dict[str, float] = {}
    failed = None
    for key, run in dict(zip(keys, left, strict=True)).items():
        if key in earlier:
            steps[key] = mean(earlier[key])
        elif time.monotonic() - began < patience:
            try:
                steps[key] = seconds_per_step(run, device)
            except Exception as error:  # of the user's code, or no memory
                failed = failed or f"{run.title()}: {with_line(error)}"
    usual = mean(steps.values()) if steps else math.nan
    total = sum(count * steps.get(key, usual) for key, count in zip(keys, counts, strict=True))
    guessed = len({*keys} - steps.keys())
    finished = len(runs) - len(left) - len(refused)
    return Plan(len(runs), finished, total if steps else None, guessed, failed, name, refused)


def seconds_per_step(run: RunConfig, device: str) -> float:
    """Return the time of a training step, measured over a few steps. Errors of the training are not caught."""
    fabric = make_fabric(device, run.budget.precision)
    budget = replace(run.budget, steps=WARM_UP + TIMED, eval_every=WARM_UP, warmup_steps=0, val_batches=1)
    short, seconds = replace(run, budget=budget), dict[int, float]()

    def report(state: loop.State) -> None:
        seconds[state.step] = state.seconds

    how: dict[str, Any] = {"digest": "", "floor": None, "quiet": True, "report": report}
    with tempfile.TemporaryDirectory() as folder:
        loop.train(fabric, short.build(), short, make_streams(short, 0, fabric), Path(folder), **how)
    return (seconds[WARM_UP + TIMED] - seconds[WARM_UP]) / TIMED


def _steps(run: RunConfig, begun: RunRecord | None) -> float:
    """Return the number of training steps plus the number of evaluated batches; refuse impossible further tests.

    ``begun`` is the record of an interrupted run, which continues after its last evaluation.
    """
    budget = run.budget
    try:
        further = len(further_tests(run)) * max(1, budget.test_batches // SHARE)
    except UsageError as error:
        raise UsageError(f"{run.title()}: {error}") from None
    evaluations, steps = -(-budget.steps // budget.eval_every), budget.steps
    if begun:
        evaluations, steps = evaluations - len(begun.curve), steps - begun.steps()
    return steps + evaluations * budget.val_batches + budget.test_batches + further


def _key(record: RunRecord) -> str:
    """Return a text that is equal for records with the same task, model, batch size and precision."""
    model = [record.model.get(name) for name in ("name", "parameters", "version", "source")]
    budget = [record.budget.get(name) for name in ("batch_size", "precision")]
    return json.dumps([record.task["name"], record.task["parameters"], model, budget], sort_keys=True)
