"""Execute many runs, each in a separate process.

A crash, a hang or a memory leak of one run therefore does not affect the others, and a run can be stopped at its time
limit. Finished runs are never repeated. The next call tries a failed run again, from its last checkpoint.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from lrtasks.errors import UsageError, require_known
from lrtasks.evaluation.environment import DEVICES
from lrtasks.evaluation.trackers import track_finished, tracker_names
from lrtasks.files import held, is_held, make_folder, remove_empty
from lrtasks.record import FILE, FINISHED, LOCK, RunRecord, finished_record, read_record
from lrtasks.results.settings import cell_of
from lrtasks.run_config import RunConfig
from lrtasks.suite.backends import Backend, Began, Failure, Job
from lrtasks.suite.backends.local import Local
from lrtasks.suite.expand import require_comparable

WAITING, RUNNING, ELSEWHERE, REFUSED = "waiting", "running", "elsewhere", "refused"
"""Statuses of a run in a suite, in addition to the statuses of its record: ``done``, ``diverged`` and ``failed``.

A run is ``elsewhere`` if another process, for example of a second suite, works on it. A run is refused if it is
impossible here, if its record is unreadable, or if a file of its model, task or data was edited after the suite began.
Such runs get no record file.
"""


SECONDS_TO_END = 2.0
"""Seconds that the system may need to end the processes of a run that was killed; until then, they hold its lock."""


class SuiteProgress:
    """The state of a running suite, for a display.

    Attributes:
        statuses: ``waiting``, ``running``, ``done``, ``diverged``, ``failed``, ``elsewhere`` or ``refused``.
        records: records of the runs that have ended.
        began: start time of each running run, on the clock of :func:`time.monotonic`; ``None`` for the other runs.
        seconds: duration of each run that has ended, now or in an earlier call; ``None`` if unknown.
    """

    def __init__(self, runs: Sequence[RunConfig], out: Path) -> None:
        self.runs = runs
        self.folders = [run.folder(out) for run in runs]
        self.statuses = [WAITING] * len(runs)
        self.records: list[RunRecord | None] = [None] * len(runs)
        self.began: list[float | None] = [None] * len(runs)
        self.seconds: list[float | None] = [None] * len(runs)

    @cached_property
    def labels(self) -> list[tuple[str, str]]:
        """Labels of task and model of each run, as in a table (:func:`lrtasks.results.table.arrange`)."""
        import pandas as pd

        from lrtasks.results.table import by_label

        setups, variants = map(pd.Series, zip(*(cell_of(run.record()) for run in self.runs), strict=True))
        return list(zip(by_label(setups), by_label(variants, setups), strict=True))

    def begin(self, number: int) -> None:
        """Note that a run begins, or begins again."""
        self.statuses[number] = RUNNING
        self.began[number] = time.monotonic()

    def end(self, number: int, status: str, record: RunRecord) -> None:
        """Note how a run ended. The record also has the seconds of earlier calls."""
        taken = record.cost.get("seconds_with_evaluation")
        if self.began[number] is not None:
            taken = max(taken or 0.0, self.elapsed(number))
        self.statuses[number], self.records[number] = status, record
        self.began[number], self.seconds[number] = None, taken

    def counts(self) -> dict[str, int]:
        """Return the number of runs by status, without zeros."""
        order = ("done", "diverged", "failed", REFUSED, ELSEWHERE, RUNNING, WAITING)
        return {status: self.statuses.count(status) for status in order if status in self.statuses}

    def elapsed(self, number: int) -> float:
        """Return the seconds since a run began; 0 if it is not running."""
        began = self.began[number]
        return 0.0 if began is None else time.monotonic() - began

    def seconds_left(self) -> float | None:
        """Return the estimated seconds until the last run ends; ``None`` if nothing is known.

        A run is expected to take as long as the mean of its model's ended runs, or of all ended runs if its model has
        none. If this estimate leaves less than a second, the unfinished runs are longer than expected, and nothing is
        known. The number of runs at a time is expected to stay the same.
        """
        taken: dict[str, list[float]] = {}
        for run, status, seconds in zip(self.runs, self.statuses, self.seconds, strict=True):
            if seconds is not None and status not in (REFUSED, ELSEWHERE):
                taken.setdefault(run.model.name, []).append(seconds)
        if not taken:
            return None
        any_model, left = [value for values in taken.values() for value in values], list[float]()
        for number, run in enumerate(self.runs):
            if self.statuses[number] in (WAITING, RUNNING):
                left.append(max(mean(taken.get(run.model.name, any_model)) - self.elapsed(number), 0.0))
        seconds = max([sum(left) / max(1, self.statuses.count(RUNNING)), *left])
        return seconds if seconds >= 1 or not left else None


OnChange = Callable[[SuiteProgress, int | None], None]
"""Called with the progress and the number of the run whose status has changed; the first call has ``None``."""


def run_suite(
    runs: Sequence[RunConfig],
    out: str | Path,
    *,
    backend: Backend | None = None,
    time_limit: float | None = None,
    device: str = "auto",
    may_differ: Collection[str] = (),
    trackers: Collection[str] = (),
    on_change: OnChange = lambda *_: None,
) -> list[RunRecord]:
    """Execute runs; return their records in order.

    A run that is refused (impossible here, or with an unreadable record) gets a record with status ``refused`` and the
    reason. A run that another process executes gets a record with status ``running``. These records are returned, but
    not written.

    Args:
        runs: each model needs a name or an address, since each run is a command.
        backend: where the runs execute; by default on this machine, one at a time.
        time_limit: seconds after which a run is stopped and recorded as failed; its checkpoint stays.
        may_differ: fields of :data:`lrtasks.budget.SHARED_BUDGET` that runs on one task need not share.
        trackers: trackers that every run writes; for finished runs without them, they are written from the records.
        on_change: called after every change of status.

    Raises:
        UsageError: for equal runs, unequal budgets, models without an address, a dataset that cannot be opened, and a
            results folder that cannot be made or written to. In these cases, nothing has been run.
    """
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise UsageError(f"time_limit must be above 0 seconds and finite, found {time_limit:g}")
    require_known("device", device, DEVICES)
    tracked = tracker_names(trackers)
    for run in runs:
        if run.model.address is None:
            hint = "give it to a suite as FILE.py:NAME or package.module:NAME"
            raise UsageError(f"{run.model.name} has no address; {hint}")
        if run.is_renamed:
            raise UsageError(f"{run.model.name} has an own name, which a suite cannot pass on; leave out name=")
    runs = [run if run.data is None else _with_data_digest(run, run.data) for run in runs]
    require_comparable(runs, may_differ)
    out = Path(out).absolute()
    progress = SuiteProgress(runs, out)
    for number, (run, folder) in enumerate(zip(runs, progress.folders, strict=True)):
        status, record = look(run, folder)
        if record is not None:
            progress.end(number, status, record)
            if status in FINISHED:
                try:
                    track_finished(tracked, folder, record)
                except (UsageError, OSError) as error:
                    warnings.warn(f"{run.title()}: not tracked: {error}", stacklevel=2)
    on_change(progress, None)
    left = [number for number, status in enumerate(progress.statuses) if status == WAITING]
    tail = ("--out", str(out), "--device", device, *(word for name in tracked for word in ("--tracker", name)))
    jobs = [Job((*runs[number].command()[1:], *tail), progress.folders[number], time_limit) for number in left]
    new = not out.exists()
    if jobs:
        make_folder(out, "the results folder")
        try:
            with closing((backend or Local()).run(jobs)) as events:
                for job, event in events:
                    number = left[job]
                    if isinstance(event, Began):
                        progress.begin(number)
                    else:
                        progress.end(number, *_settle(runs[number], progress.folders[number], event))
                    on_change(progress, number)
        finally:
            if new:
                remove_empty(out)
    return [record for record in progress.records if record is not None]


def _with_data_digest(run: RunConfig, data: str) -> RunConfig:
    """Return a run with the digest of its stored dataset, which is part of the name of its folder."""
    from lrtasks.data import open_dataset

    return replace(run, data_digest=open_dataset(data).manifest.digest)


def look(run: RunConfig, folder: Path) -> tuple[str, RunRecord | None]:
    """Return status and record of a run that is finished or refused; the record is ``None`` if the run is to start."""
    try:
        record = finished_record(folder, run.digest)
    except UsageError as error:
        return REFUSED, run.record(REFUSED, [str(error)])
    return (record.status, record) if record else (WAITING, None)


def _settle(run: RunConfig, folder: Path, failure: Failure | None) -> tuple[str, RunRecord]:
    """Return status and record of a run whose process has ended, whether or not the process wrote a record."""
    if failure and failure.refused and is_held(folder / LOCK):
        try:
            theirs = read_record(folder)
        except UsageError:  # the other process has not written it yet
            theirs = run.record("running")
        return ELSEWHERE, replace(theirs, notes=[*theirs.notes, f"another process works on this run, in {folder}"])
    reason = failure.reason if failure else "ended without a record"
    if failure and failure.refused and not (folder / FILE).exists():
        return REFUSED, run.record(REFUSED, [reason])
    # a process that ended well has written its record, perhaps to the folder of the edited file
    elsewhere = failure is None and look(run, folder)[0] == WAITING
    if (elsewhere or not (folder / FILE).exists()) and _is_edited(run, folder):
        edited = "a file of the model, task or data was edited after the suite began; give the same command again"
        return REFUSED, run.record(REFUSED, [f"{reason}; {edited}"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / LOCK, f"the run in {folder}", patience=SECONDS_TO_END):
            status, record = look(run, folder)
            if record is None:
                status, record = "failed", read_record(folder) if (folder / FILE).exists() else run.record()
                record.status = "failed"
                record.notes += [] if reason in record.notes else [reason]
                record.write(folder)
            return status, record
    except UsageError:  # another process has begun to work there
        return REFUSED, run.record(REFUSED, [reason])
    except OSError as error:
        remove_empty(folder, folder.parent)
        return "failed", run.record("failed", [f"{reason}; and no record can be written: {error.strerror}"])


def _is_edited(run: RunConfig, folder: Path) -> bool:
    """Return whether the run's command now makes another folder: a file of the user's or a dataset was changed."""
    how: dict[str, Any] = {"preset": run.preset, "seed": run.seed, "settings": run.settings}
    try:
        now = RunConfig.make(run.task_address or run.task, run.model.address or run.model.name, **how)
        now = now if run.data is None else _with_data_digest(now, run.data)
    except UsageError:
        return True
    return now.folder(folder.parents[1]) != folder
