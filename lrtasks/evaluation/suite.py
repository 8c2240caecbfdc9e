"""Many runs as plain data: every task × every model × every seed, each in a process of its own.

A process of its own keeps a crash, a hang or a leak of one run away from the others, and lets a run be cut off at its
time limit. Finished runs are recognised by their folder and never repeated; a run that failed is tried again by the
next call, from its last checkpoint.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.evaluation.environment import cores
from lrtasks.evaluation.identity import new_record, repeat_command, run_folder
from lrtasks.evaluation.presets import assign, resolve
from lrtasks.results.records import FILE, FINISHED, RunRecord, read_record


@dataclass(frozen=True)
class Entry:
    """One run of a suite.

    Attributes:
        model: a registered model's name.
        task: a task's name.
        preset: the preset that fills in what is left open.
        seed: the run's seed.
        settings: parameters of task, model and budget by bare name.
    """

    model: str
    task: str
    preset: str = "small"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    def command(self) -> list[str]:
        """Arguments of ``lrtasks`` that carry out the run."""
        return repeat_command(self.model, self.task, self.preset, self.seed, **self._owned(), data=None)

    def folder(self, out: Path) -> Path:
        """The run's folder below ``out``."""
        plan = resolve(self.task, self.model, preset=self.preset, **self._owned())
        return run_folder(out, plan, self.seed)

    def failed_record(self, reason: str) -> RunRecord:
        """The record of a run whose process could not write one."""
        plan = resolve(self.task, self.model, preset=self.preset, **self._owned())
        record = new_record(plan, self.preset, self.seed, shlex.join(self.command()))
        record.status = "failed"
        record.notes.append(reason)
        return record

    def _owned(self) -> dict[str, dict[str, Any]]:
        return assign(self.task, self.model, self.settings)


@dataclass
class Progress:
    """Where a suite stands: a status for each entry, updated as runs start and end."""

    entries: Sequence[Entry]
    statuses: list[str]
    records: list[RunRecord | None]


def expand(
    models: Iterable[str],
    tasks: Iterable[str],
    *,
    preset: str = "small",
    seeds: Iterable[int] = (0,),
    grid: Iterable[Mapping[str, Any]] = ({},),
    settings: Mapping[str, Any] | None = None,
) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """All combinations of models, tasks, grid points and seeds.

    Args:
        models: names of registered models.
        tasks: names of tasks.
        preset: preset of every run.
        seeds: seeds of every combination.
        grid: settings that vary, one mapping per point (a sweep over lengths: ``{"length": 1024}``, ...).
        settings: settings of every run.

    Returns:
        The entries, and those that cannot be, each with the reason.
    """
    entries, skipped = [], []
    for task in tasks:
        for point in grid:
            for model in models:
                for seed in seeds:
                    entry = Entry(model, task, preset, seed, {**(settings or {}), **point})
                    try:
                        entry.folder(Path())
                    except UsageError as error:
                        skipped.append((entry, str(error)))
                    else:
                        entries.append(entry)
    return entries, skipped


def run_suite(
    entries: Sequence[Entry],
    out: Path,
    *,
    jobs: int = 1,
    time_limit: float | None = None,
    device: str = "auto",
    on_change: Callable[[Progress], None] = lambda _: None,
) -> list[RunRecord]:
    """Carry out all entries, ``jobs`` at a time; return their records in order.

    Args:
        entries: runs; two equal ones are a :class:`UsageError`.
        out: results folder.
        jobs: runs at a time; the cores are shared between them.
        time_limit: seconds after which a run is stopped and recorded as failed; its checkpoint stays.
        device: device of every run.
        on_change: called after every change of status.
    """
    folders = [entry.folder(out) for entry in entries]
    if len(set(folders)) < len(folders):
        twice = next(folder for folder in folders if folders.count(folder) > 1)
        raise UsageError(f"the suite has two equal runs: {twice.relative_to(out)}")
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, found {jobs}")
    progress = Progress(entries, ["waiting"] * len(entries), [None] * len(entries))
    lock = threading.Lock()

    def change(number: int, status: str, record: RunRecord | None = None) -> None:
        with lock:
            progress.statuses[number] = status
            progress.records[number] = record
            on_change(progress)

    def carry_out(number: int) -> None:
        record = _finished(folders[number])
        if record is None:
            change(number, "running")
            record = _run(entries[number], folders[number], out, jobs, time_limit, device)
        change(number, record.status, record)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(carry_out, range(len(entries))))
    return [record for record in progress.records if record is not None]


def _finished(folder: Path) -> RunRecord | None:
    if not (folder / FILE).exists():
        return None
    record = read_record(folder)
    return record if record.status in FINISHED else None


def _run(entry: Entry, folder: Path, out: Path, jobs: int, time_limit: float | None, device: str) -> RunRecord:
    """Run one entry in a process; whatever happens to the process, there is a record."""
    threads = str(max(1, cores() // jobs))
    command = [sys.executable, "-m", "lrtasks", *entry.command()[1:], "--out", str(out), "--device", device]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    try:
        finished = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=time_limit, check=False
        )
        reason = (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"stopped at its time limit of {time_limit:g} s"
    record = _finished(folder)
    if record is None:
        record = entry.failed_record(reason)
        folder.mkdir(parents=True, exist_ok=True)
        record.write(folder)
    return record
