"""Suites: what is expanded, that finished runs are not repeated, and that a failing run stops nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrtasks.errors import UsageError
from lrtasks.evaluation.suite import Entry, expand, run_suite
from lrtasks.results import read_record

TINY = {"steps": 4, "eval_every": 4, "val_batches": 1, "test_batches": 1, "d_model": 8, "length": 16}


def entry(**changes: Any) -> Entry:
    return Entry("attention", "cumsum", settings={**TINY, **changes})


def test_expand_makes_every_combination_and_says_what_cannot_be() -> None:
    entries, skipped = expand(
        ["attention", "dlr"], ["cumsum", "shift"], seeds=(0, 1), grid=[{"length": 16}, {"length": 0}]
    )
    assert len(entries) == 2 * 2 * 2
    assert {(e.model, e.task, e.seed) for e in entries} == {
        (model, task, seed) for model in ("attention", "dlr") for task in ("cumsum", "shift") for seed in (0, 1)
    }
    assert len(skipped) == 8
    assert all("length must be at least" in reason for _, reason in skipped)


def test_every_entry_has_a_folder_of_its_own(tmp_path: Path) -> None:
    entries, _ = expand(["attention", "dlr"], ["cumsum"], seeds=(0, 1), grid=[{"length": 16}, {"length": 32}])
    assert len({e.folder(tmp_path) for e in entries}) == len(entries) == 8


def test_two_equal_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two equal runs"):
        run_suite([entry(), entry()], tmp_path)


@pytest.mark.e2e
def test_a_suite_runs_in_processes_and_repeats_nothing(tmp_path: Path) -> None:
    entries = [entry(), entry(lr=0.1)]
    statuses: list[list[str]] = []
    records = run_suite(entries, tmp_path, jobs=2, on_change=lambda progress: statuses.append(list(progress.statuses)))
    assert [record.status for record in records] == ["done", "done"]
    assert statuses[-1] == ["done", "done"]
    folder = entries[0].folder(tmp_path)
    before = (folder / "record.json").stat().st_mtime_ns
    again = run_suite(entries, tmp_path)
    assert [record.scores for record in again] == [record.scores for record in records]
    assert (folder / "record.json").stat().st_mtime_ns == before


@pytest.mark.e2e
def test_a_run_past_its_time_limit_is_recorded_and_goes_on_later(tmp_path: Path) -> None:
    slow, fast = entry(steps=50_000), entry()
    records = run_suite([slow, fast], tmp_path, time_limit=12)
    assert [record.status for record in records] == ["failed", "done"]
    assert "time limit of 12 s" in records[0].notes[-1]
    assert read_record(slow.folder(tmp_path)).status == "failed"
