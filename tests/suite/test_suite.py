"""Suites: what is expanded and what is refused; whatever becomes of a run, there is a record and the rest goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lrtasks.errors import UsageError
from lrtasks.evaluation.identity import new_record
from lrtasks.files import held
from lrtasks.results import RunRecord, read_record
from lrtasks.suite.entries import titles
from lrtasks.suite.jobs import LOCK, Ended, Job, Started
from lrtasks.suite.standing import Standing
from lrtasks.suite.suite import Entry, expand, run_suite

TINY = {"steps": 4, "eval_every": 4, "val_batches": 1, "test_batches": 1, "d_model": 8, "length": 16}


def entry(model: str = "attention", task: str = "cumsum", seed: int = 0, **changes: Any) -> Entry:
    return Entry(model, task, seed=seed, settings={**TINY, **changes})


def record_of(one: Entry, **fields: Any) -> RunRecord:
    record = new_record(one.plan(), one.preset, one.seed, "lrtasks eval")
    for name, value in fields.items():
        setattr(record, name, value)
    return record


class Pretend:
    """A backend without processes: ``outcomes`` say what each job does, and the line on how it ended."""

    def __init__(self, *outcomes: Callable[[Job], str]) -> None:
        self.outcomes = outcomes
        self.jobs: Sequence[Job] = ()

    def carry_out(self, jobs: Sequence[Job], started: Started, ended: Ended) -> None:
        self.jobs = jobs
        for number, (job, outcome) in enumerate(zip(jobs, self.outcomes, strict=True)):
            started(number)
            ended(number, outcome(job))


def leaves(record: RunRecord, line: str = "ended with exit code 0") -> Callable[[Job], str]:
    """An outcome: the job leaves this record."""

    def outcome(job: Job) -> str:
        job.folder.mkdir(parents=True, exist_ok=True)
        record.write(job.folder)
        return line

    return outcome


def says(line: str) -> Callable[[Job], str]:
    """An outcome: the job leaves nothing."""
    return lambda _: line


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


def test_a_model_that_refuses_a_task_when_it_is_built_is_skipped() -> None:
    entries, skipped = expand(["hyena", "dlr"], ["pathfinder", "shift"])
    assert [(e.model, e.task) for e in entries] == [("dlr", "pathfinder"), ("hyena", "shift"), ("dlr", "shift")]
    ((one, reason),) = skipped
    assert (one.model, one.task) == ("hyena", "pathfinder")
    assert "causal" in reason


def test_a_setting_that_only_others_have_is_a_reason_in_short() -> None:
    _, skipped = expand(["attention"], ["shift"], settings={"d_state": 4})
    assert [reason for _, reason in skipped] == ["no parameter 'd_state'"]


def test_every_entry_has_a_folder_of_its_own(tmp_path: Path) -> None:
    entries, _ = expand(["attention", "dlr"], ["cumsum"], seeds=(0, 1), grid=[{"length": 16}, {"length": 32}])
    assert len({e.folder(tmp_path) for e in entries}) == len(entries) == 8


def test_titles_tell_entries_apart_and_no_more() -> None:
    entries, _ = expand(["attention"], ["cumsum"], grid=[{"length": 16}, {"length": 32}], settings={"steps": 4})
    other = Entry("dlr", "shift", seed=3, settings={"steps": 4, "model.kernel": "prod"})
    assert titles([*entries, other, Entry("dlr", "shift", settings={"steps": 4})]) == [
        "attention on cumsum (length=16) seed 0",
        "attention on cumsum (length=32) seed 0",
        "dlr (kernel=prod) on shift seed 3",
        "dlr on shift seed 0",
    ]


def test_two_equal_runs_are_refused_by_name(tmp_path: Path) -> None:
    backend = Pretend()
    with pytest.raises(UsageError, match=r"the suite has dlr on shift seed 2 twice \(numbers 2 and 3\)"):
        run_suite([Entry("dlr", "shift"), *[Entry("dlr", "shift", seed=2)] * 2], tmp_path, backend=backend)
    same = [Entry("dlr", "shift"), Entry("dlr", "shift", settings={"length": 256})]
    with pytest.raises(UsageError, match="dlr on shift length=256 seed 0, which is the same run as dlr on shift seed"):
        run_suite(same, tmp_path, backend=backend)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["steps", "batch_size", "train_samples", "test_batches"])
def test_unequal_budgets_are_refused_before_anything_runs(tmp_path: Path, field: str) -> None:
    values = {"steps": 8, "batch_size": 8, "train_samples": 64, "test_batches": 7}
    unequal = [entry(), entry("dlr", **{field: values[field]})]
    backend = Pretend(says("killed by SIGKILL"), says("killed by SIGKILL"))
    with pytest.raises(UsageError) as caught:
        run_suite(unequal, tmp_path, backend=backend)
    for word in ("cumsum", field, "attention", "dlr", str(values[field]), "--unequal-budgets"):
        assert word in str(caught.value)
    assert backend.jobs == ()
    assert len(run_suite(unequal, tmp_path, backend=backend, may_differ=[field])) == 2


def test_what_belongs_to_a_model_or_another_task_may_be_unequal(tmp_path: Path) -> None:
    entries = [entry(), entry("dlr", lr=0.5), entry(task="shift", steps=8), entry(length=32, steps=12)]
    assert len(run_suite(entries, tmp_path, backend=Pretend(*[says("killed by SIGKILL")] * 4))) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry(task="shfit"), "did you mean 'shift'"),
        (entry(model="dlrr"), "did you mean 'dlr'"),
        (entry(lenght=3), "did you mean 'length'"),
        (entry(heads=0), "heads must be at least 1"),
        (entry(seed=-1), "seed"),
    ],
)
def test_an_entry_that_cannot_be_is_refused_before_anything_runs(tmp_path: Path, bad: Entry, message: str) -> None:
    backend = Pretend()
    with pytest.raises(UsageError, match=message):
        run_suite([entry(), bad], tmp_path, backend=backend)
    assert backend.jobs == ()


def test_a_bad_time_limit_or_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="time_limit must be above 0 seconds and finite, found 0"):
        run_suite([entry()], tmp_path, time_limit=0)
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        run_suite([entry()], tmp_path, device="gpu")


def test_a_suite_without_runs_is_done(tmp_path: Path) -> None:
    assert run_suite([], tmp_path) == []


def test_a_job_is_the_command_of_the_run(tmp_path: Path) -> None:
    backend = Pretend(leaves(record_of(entry(), status="done")))
    run_suite([entry()], tmp_path, backend=backend, time_limit=5, device="cpu")
    (job,) = backend.jobs
    assert job.arguments[:5] == ("eval", "--model", "attention", "--task", "cumsum")
    assert job.arguments[-4:] == ("--out", str(tmp_path), "--device", "cpu")
    assert (job.folder, job.time_limit, job.title) == (entry().folder(tmp_path), 5, "attention on cumsum seed 0")


def test_trackers_go_to_every_run_and_misspelt_ones_nowhere(tmp_path: Path) -> None:
    backend = Pretend(leaves(record_of(entry(), status="done")))
    run_suite([entry()], tmp_path, backend=backend, trackers=["jsonl,tensorboard"])
    assert backend.jobs[0].arguments[-4:] == ("--tracker", "jsonl", "--tracker", "tensorboard")
    with pytest.raises(UsageError, match=r"jsnl.*jsonl"):
        run_suite([entry(seed=1)], tmp_path, backend=backend, trackers=["jsnl"])


def test_finished_runs_get_the_trackers_that_they_lack(tmp_path: Path) -> None:
    entries = [entry(seed=seed) for seed in range(2)]
    for one, status in zip(entries, ("done", "diverged"), strict=True):
        leaves(record_of(one, status=status))(Job("", (), one.folder(tmp_path)))
    mine = entries[1].folder(tmp_path) / "metrics.jsonl"
    mine.write_text("mine")
    run_suite(entries, tmp_path, backend=Pretend(), trackers=["jsonl"])
    folder = entries[0].folder(tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (lines[0]["run"], lines[-1]["status"]) == (folder.name, "done")
    assert mine.read_text() == "mine"
    assert not (folder / LOCK).exists()


def test_a_backend_that_cannot_be_reached_leaves_no_folder(tmp_path: Path) -> None:
    class Unreachable:
        def carry_out(self, *_: Any) -> None:
            raise UsageError("nobody answers")

    with pytest.raises(UsageError, match="nobody answers"):
        run_suite([entry()], tmp_path / "runs", backend=Unreachable())
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_not_repeated_and_failed_ones_are(tmp_path: Path) -> None:
    entries = [entry(seed=seed) for seed in range(4)]
    for one, status in zip(entries, ("done", "diverged", "failed", "running"), strict=True):
        leaves(record_of(one, status=status))(Job("", (), one.folder(tmp_path)))
    seen: list[list[str]] = []
    backend = Pretend(*[leaves(record_of(one, status="done")) for one in entries[2:]])
    records = run_suite(
        entries, tmp_path, backend=backend, on_change=lambda standing, _: seen.append(list(standing.statuses))
    )
    assert [job.folder for job in backend.jobs] == [one.folder(tmp_path) for one in entries[2:]]
    assert [record.status for record in records] == ["done", "diverged", "done", "done"]
    assert seen[0] == ["done", "diverged", "waiting", "waiting"]
    assert seen[1] == ["done", "diverged", "running", "waiting"]
    assert seen[-1] == ["done", "diverged", "done", "done"]


def test_a_run_that_leaves_no_record_gets_one(tmp_path: Path) -> None:
    backend = Pretend(says("killed by SIGSEGV"), leaves(record_of(entry(seed=1), status="done")))
    records = run_suite([entry(), entry(seed=1)], tmp_path, backend=backend)
    assert [record.status for record in records] == ["failed", "done"]
    assert read_record(entry().folder(tmp_path)) == records[0]
    assert records[0].notes == ["killed by SIGSEGV"]


def test_a_run_that_is_cut_off_keeps_what_it_recorded(tmp_path: Path) -> None:
    curve = [{"step": 4, "loss": 0.5, "r2": 0.25}]
    line = "stopped at its time limit of 5 s"
    backend = Pretend(leaves(record_of(entry(), curve=curve, notes=["slow path"]), line))
    (record,) = run_suite([entry()], tmp_path, backend=backend)
    assert (record.status, record.curve, record.notes) == ("failed", curve, ["slow path", line])
    assert read_record(entry().folder(tmp_path)) == record
    # the next attempt ends before it could write anything: the same words are not said twice
    (record,) = run_suite([entry()], tmp_path, backend=Pretend(says(line)))
    assert record.notes == ["slow path", line]


def test_a_run_that_refuses_to_start_leaves_no_record(tmp_path: Path) -> None:
    seen: list[str] = []
    (record,) = run_suite(
        [entry()],
        tmp_path,
        backend=Pretend(says("refused: not enough memory")),
        on_change=lambda standing, _: seen.append(standing.statuses[0]),
    )
    assert (record.status, record.notes, seen[-1]) == ("failed", ["not enough memory"], "refused")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_process_is_working_on_is_left_to_it(tmp_path: Path) -> None:
    folder = entry().folder(tmp_path)
    leaves(record_of(entry()))(Job("", (), folder))
    # a process is never kept out by its own lock
    hold = f"""
import pathlib, time
from lrtasks.files import held
with held(pathlib.Path({str(folder / LOCK)!r}), "it"):
    print("held", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        try:
            (record,) = run_suite([entry()], tmp_path, backend=Pretend(says("refused: another process is working")))
        finally:
            other.kill()
    assert record.notes == ["another process is working"]
    assert read_record(folder).status == "running"
    with held(folder / LOCK, "it"):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"schema": 0, "environment": {"lrtasks": "0.0.1"}}), "has schema 0.*written by lrtasks 0.0.1"),
        ("{", "is damaged"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone_and_said(tmp_path: Path, text: str, message: str) -> None:
    file = entry().folder(tmp_path) / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    backend = Pretend(leaves(record_of(entry(seed=1), status="done")))
    records = run_suite([entry(), entry(seed=1)], tmp_path, backend=backend)
    assert [record.status for record in records] == ["failed", "done"]
    assert re.search(message, records[0].notes[0])
    assert "move or remove that file" in records[0].notes[0]
    assert file.read_text() == text


def test_the_time_left_goes_by_the_models_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    entries = [entry(model, seed=seed) for model in ("attention", "dlr", "dss") for seed in range(2)]
    standing = Standing(entries, [one.folder(tmp_path) for one in entries])
    assert standing.seconds_left() is None
    standing.begin(0)
    now[0] += 10
    standing.end(0, "done", record_of(entries[0]))
    # done in an earlier call: its cost is known from its record
    standing.end(2, "done", record_of(entries[2], cost={"seconds_with_evaluation": 40.0}))
    assert standing.counts() == {"done": 2, "waiting": 4}
    assert standing.seconds_left() == 10 + 40 + 25 + 25  # dss as the mean of the others, one at a time
    standing.begin(1)
    standing.begin(3)
    now[0] += 4
    assert standing.elapsed(3) == 4
    assert standing.seconds_left() == (6 + 36 + 25 + 25) / 2
    standing.end(4, "refused", record_of(entries[4]))
    standing.end(5, "refused", record_of(entries[5]))
    assert standing.seconds_left() == 36  # the last one alone, not half of both
