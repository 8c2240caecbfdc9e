"""Many runs in one call, each in a process of its own.

A process of its own keeps a crash, a hang or a leak of one run away from the others, and lets a run be cut off at its
time limit. Finished runs are recognised by their folder and never repeated; a run that failed is tried again by the
next call, from its last checkpoint.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lrtasks.errors import UsageError, unknown
from lrtasks.evaluation.environment import DEVICES
from lrtasks.evaluation.identity import run_folder
from lrtasks.evaluation.trackers import track_finished, tracker_names
from lrtasks.files import held, make_folder
from lrtasks.record import FILE, FINISHED, RunRecord, read_record
from lrtasks.suite import jobs
from lrtasks.suite.backends.local import Local
from lrtasks.suite.entries import Entry, expand, require_distinct, require_equal_budgets
from lrtasks.suite.standing import REFUSED, WAITING, Standing

__all__ = ["Entry", "Standing", "expand", "run_suite"]

OnChange = Callable[[Standing, int | None], None]
"""Called with where a suite stands and the number of the run whose status has changed; first of all with ``None``."""


def run_suite(
    entries: Sequence[Entry],
    out: str | Path,
    *,
    backend: jobs.Backend | None = None,
    time_limit: float | None = None,
    device: str = "auto",
    may_differ: Collection[str] = (),
    trackers: Collection[str] = (),
    on_change: OnChange = lambda *_: None,
) -> list[RunRecord]:
    """Carry out all entries; return their records in order.

    Args:
        entries: runs; two equal ones are a :class:`UsageError`.
        out: results folder.
        backend: where they run; by default on this machine, one at a time.
        time_limit: seconds after which a run is stopped and recorded as failed; its checkpoint stays.
        device: device of every run.
        may_differ: fields of :data:`lrtasks.results.settings.SHARED_BUDGET` that runs on one task need not share.
        trackers: names of trackers that every run writes to; those that finished runs lack are written from records.
        on_change: called after every change of status.

    Returns:
        One record per entry. A run that cannot be, or whose folder another process is working in or holds a record
        that this version cannot read, has a record with status ``failed`` and the reason, which is not written.

    Raises:
        UsageError: for entries that cannot be by their names and values, equal runs, unequal budgets, and a results
            folder that cannot be made or written to; nothing has been run then.
    """
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise UsageError(f"time_limit must be above 0 seconds and finite, found {time_limit:g}")
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    tracked = tracker_names(trackers)
    out = Path(out).absolute()
    plans = [entry.plan() for entry in entries]
    folders = [run_folder(out, plan, entry.seed) for entry, plan in zip(entries, plans, strict=True)]
    require_distinct(entries, folders)
    require_equal_budgets(entries, plans, may_differ)
    standing = Standing(entries, folders)
    for number, (entry, folder) in enumerate(zip(entries, folders, strict=True)):
        status, record = _look(entry, folder)
        if record is not None:
            standing.end(number, status, record)
            if status in FINISHED:
                try:
                    track_finished(tracked, folder, record)
                except UsageError as error:
                    warnings.warn(f"{standing.titles[number]}: not tracked: {error}", stacklevel=2)
    on_change(standing, None)
    left = [number for number, status in enumerate(standing.statuses) if status == WAITING]
    lock = threading.Lock()

    def started(job: int) -> None:
        with lock:
            standing.begin(left[job])
            on_change(standing, left[job])

    def ended(job: int, line: str) -> None:
        number = left[job]
        status, record = _settle(entries[number], folders[number], line)
        with lock:
            standing.end(number, status, record)
            on_change(standing, number)

    if left:
        tail = ("--out", str(out), "--device", device, *(word for name in tracked for word in ("--tracker", name)))
        todo = [
            jobs.Job(standing.titles[number], (*entries[number].command()[1:], *tail), folders[number], time_limit)
            for number in left
        ]
        with _results_folder(out):
            (backend or Local()).carry_out(todo, started, ended)
    return [record for record in standing.records if record is not None]


@contextmanager
def _results_folder(out: Path) -> Iterator[None]:
    """See to it that runs can write there; leave no folder that was not there and holds nothing."""
    new = not out.exists()
    make_folder(out, "the results folder")
    try:
        yield
    finally:
        if new:
            with suppress(OSError):  # not empty
                out.rmdir()


def _look(entry: Entry, folder: Path) -> tuple[str, RunRecord | None]:
    """Status and record of a run that needs no more work, or on which none can be done; ``None`` if it is to run."""
    try:
        record = read_record(folder) if (folder / FILE).exists() else None
    except UsageError as error:
        return REFUSED, entry.failed_record(f"{error}; move or remove that file to run this again")
    return (record.status, record) if record and record.status in FINISHED else (WAITING, None)


def _settle(entry: Entry, folder: Path, line: str) -> tuple[str, RunRecord]:
    """Status and record of a run whose process has ended; whatever happened to the process, there is a record."""
    reason = line.removeprefix(jobs.REFUSED)
    if line.startswith(jobs.REFUSED) and not (folder / FILE).exists():
        return REFUSED, entry.failed_record(reason)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / jobs.LOCK, f"the run in {folder}"):
            status, record = _look(entry, folder)
            return (status, record) if record else ("failed", _record_failure(entry, folder, reason))
    except UsageError:  # some other process works there
        return REFUSED, entry.failed_record(reason)
    except OSError as error:
        return "failed", entry.failed_record(f"{reason}; and no record can be written: {error.strerror}")


def _record_failure(entry: Entry, folder: Path, reason: str) -> RunRecord:
    """Write that a run failed, beside what it recorded while it went on."""
    if (folder / FILE).exists():
        record = read_record(folder)
        record.status = "failed"
        record.notes += [] if reason in record.notes else [reason]
    else:
        record = entry.failed_record(reason)
    record.write(folder)
    return record
