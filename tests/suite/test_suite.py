"""Suites: what is expanded and what is refused; however a run ends, there is a record and the other runs continue."""

from __future__ import annotations

import csv
import errno
import json
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import paused
import pytest
from torch import nn

from lrtasks import generators
from lrtasks.budget import SHARED_BUDGET
from lrtasks.data import generate
from lrtasks.errors import UsageError
from lrtasks.evaluation.run import run
from lrtasks.files import held
from lrtasks.generators import make
from lrtasks.record import LOCK, RunRecord, read_record
from lrtasks.run_config import RunConfig
from lrtasks.suite.backends import Began, Event, Failure, Job
from lrtasks.suite.expand import expand, make_suite
from lrtasks.suite.run import SuiteProgress, _settle, run_suite

TINY = {"steps": 4, "eval_every": 4, "val_batches": 1, "test_batches": 1, "d_model": 8, "length": 16}


def config(model: str = "attention", task: str = "cumsum", seed: int = 0, **changes: Any) -> RunConfig:
    return RunConfig.make(task, model, seed=seed, settings={**TINY, **changes})


def record_of(one: RunConfig, **fields: Any) -> RunRecord:
    record = one.record()
    for name, value in fields.items():
        setattr(record, name, value)
    return record


class Pretend:
    """A backend without processes: ``outcomes`` say what each job does, and how it ends."""

    def __init__(self, *outcomes: Callable[[Job], Failure | None]) -> None:
        self.outcomes = outcomes
        self.jobs: Sequence[Job] = ()

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        self.jobs = jobs
        for number, (job, outcome) in enumerate(zip(jobs, self.outcomes, strict=True)):
            yield number, Began()
            yield number, outcome(job)


def leaves(record: RunRecord, failure: Failure | None = None) -> Callable[[Job], Failure | None]:
    """An outcome: the job leaves this record."""

    def outcome(job: Job) -> Failure | None:
        job.folder.mkdir(parents=True, exist_ok=True)
        record.write(job.folder)
        return failure

    return outcome


def fails(reason: str, refused: bool = False) -> Callable[[Job], Failure]:
    """An outcome: the job leaves nothing."""
    return lambda _: Failure(reason, refused)


def at(folder: Path) -> Job:
    return Job((), folder)


def test_expand_makes_every_combination_and_says_what_cannot_be() -> None:
    suite = expand(["attention", "dlr"], ["cumsum", "shift"], seeds=(0, 1), grid=[{"length": 16}, {"d_state": 4}])
    assert [(run.model.name, run.task.name, run.seed) for run in suite.runs] == [
        (model, task, seed) for task in ("cumsum", "shift") for model in ("attention", "dlr", "dlr") for seed in (0, 1)
    ]
    assert [(model, task) for model, task, _ in suite.skipped] == [("attention", "cumsum"), ("attention", "shift")]
    assert all("is called 'd_state'" in reason for *_, reason in suite.skipped)
    with pytest.raises(UsageError, match=r"no run is possible with \{'length': 0\}: .* length must be at least 2"):
        expand(["attention", "dlr"], ["cumsum", "shift"], grid=[{"length": 16}, {"length": 0}])


def test_a_model_is_checked_in_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators.registry.get("cummax"), "causal", False)
    assert [skipped[:2] for skipped in expand(["hyena"], ["cumsum", "cummax"]).skipped] == [("hyena", "cummax")]


def test_a_setting_of_one_model_leaves_the_others_alone_whichever_dashes_its_label_has() -> None:
    for name in ("gated-deltanet.heads", "gated_deltanet.heads"):
        suite = expand(["gated-deltanet", "gru"], ["cumsum"], settings={name: 4})
        assert [(run.model.name, dict(run.settings)) for run in suite.runs] == [
            ("gated-deltanet", {"model.heads": 4}),
            ("gru", {}),
        ]
    # a mistake in it is not a combination to skip: the model would be missing
    with pytest.raises(UsageError, match=r"no run is possible .* gated-deltanet has no parameter 'head'"):
        expand(["gated-deltanet", "gru"], ["cumsum"], settings={"gated-deltanet.head": 4})


@pytest.mark.e2e
def test_all_models_run_on_all_instances() -> None:
    assert not make_suite({"models": "all", "tasks": "fingerprint,solve,sort"}, {}).skipped


def test_a_model_without_an_address_is_refused(tmp_path: Path) -> None:
    class Mixer(nn.Linear):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model, d_model)

    with pytest.raises(UsageError, match="Mixer has no address"):
        run_suite([RunConfig.make("cumsum", Mixer)], tmp_path)


def test_two_equal_runs_are_refused_by_name(tmp_path: Path) -> None:
    backend = Pretend()
    with pytest.raises(UsageError, match=r"the suite has dlr on shift seed 2 twice \(numbers 2 and 3\)"):
        run_suite(
            [RunConfig.make("shift", "dlr"), *[RunConfig.make("shift", "dlr", seed=2)] * 2], tmp_path, backend=backend
        )
    same = [RunConfig.make("shift", "dlr"), RunConfig.make("shift", "dlr", settings={"length": 256})]
    with pytest.raises(UsageError, match="dlr on shift length=256 seed 0, which is the same run as dlr on shift seed"):
        run_suite(same, tmp_path, backend=backend)
    with pytest.raises(UsageError, match="twice"):
        run_suite(expand(["dlr"], ["shift"], grid=[{"lr": 0.1}] * 2).runs, tmp_path, backend=backend)
    assert list(tmp_path.iterdir()) == []


def test_unequal_budgets_are_refused_before_anything_runs(tmp_path: Path) -> None:
    unequal, backend = [config(), config("dlr", steps=8)], Pretend(*[fails("killed by SIGKILL")] * 2)
    with pytest.raises(UsageError, match="unequal budgets on cumsum: steps is 4 for attention and 8 for dlr"):
        run_suite(unequal, tmp_path, backend=backend)
    assert backend.jobs == ()
    assert len(run_suite(unequal, tmp_path, backend=backend, may_differ=["steps"])) == 2


def test_what_belongs_to_a_model_or_another_task_may_be_unequal(tmp_path: Path) -> None:
    runs = [config(), config("dlr", lr=0.5), config(task="shift", steps=8), config(length=32, steps=12)]
    assert len(run_suite(runs, tmp_path, backend=Pretend(*[fails("killed by SIGKILL")] * 4))) == 4


def test_a_bad_time_limit_or_device_is_refused(tmp_path: Path) -> None:
    for limit in (0, -1, math.inf, math.nan):
        with pytest.raises(UsageError, match=f"time_limit must be above 0 seconds and finite, found {limit:g}"):
            run_suite([config()], tmp_path, time_limit=limit)
    with pytest.raises(UsageError, match="unknown device 'gpu'"):
        run_suite([config()], tmp_path, device="gpu")


def test_a_suite_without_runs_is_done(tmp_path: Path) -> None:
    assert run_suite([], tmp_path) == []


def test_a_job_is_the_command_of_the_run(tmp_path: Path) -> None:
    backend = Pretend(leaves(record_of(config(), status="done")))
    run_suite([config()], tmp_path, backend=backend, time_limit=5, device="cpu")
    (job,) = backend.jobs
    assert job.arguments[:5] == ("eval", "--model", "attention", "--task", "cumsum")
    assert job.arguments[-4:] == ("--out", str(tmp_path), "--device", "cpu")
    assert (job.folder, job.time_limit) == (config().folder(tmp_path), 5)


def test_trackers_go_to_every_run_and_misspelt_ones_nowhere(tmp_path: Path) -> None:
    backend = Pretend(leaves(record_of(config(), status="done")))
    run_suite([config()], tmp_path, backend=backend, trackers=["csv,tensorboard"])
    assert backend.jobs[0].arguments[-4:] == ("--tracker", "csv", "--tracker", "tensorboard")
    with pytest.raises(UsageError, match=r"cvs.*csv"):
        run_suite([config(seed=1)], tmp_path, backend=backend, trackers=["cvs"])


def test_finished_runs_get_the_trackers_that_they_lack(tmp_path: Path) -> None:
    runs = [config(seed=seed) for seed in range(2)]
    for one, status in zip(runs, ("done", "diverged"), strict=True):
        leaves(record_of(one, status=status, scores={"test": {"r2": 0.5}}))(at(one.folder(tmp_path)))
    mine = runs[1].folder(tmp_path) / "csv" / "metrics.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    run_suite(runs, tmp_path, backend=Pretend(), trackers=["csv"])
    with (runs[0].folder(tmp_path) / "csv" / "metrics.csv").open() as file:
        assert [row["test/r2"] for row in csv.DictReader(file)] == ["0.5"]
    assert mine.read_text() == "mine"


def test_a_tracker_that_cannot_be_written_for_a_finished_run_stops_no_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    leaves(record_of(config(), status="done"))(at(config().folder(tmp_path)))
    monkeypatch.setattr("lrtasks.suite.run.track_finished", full)
    with pytest.warns(UserWarning, match=r"attention on cumsum .*: not tracked: no space left"):
        (record,) = run_suite([config()], tmp_path, backend=Pretend(), trackers=["csv"])
    assert record.status == "done"


def test_a_backend_that_cannot_be_reached_leaves_no_folder(tmp_path: Path) -> None:
    class Unreachable:
        def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
            raise UsageError("nobody answers")
            yield 0, None

    with pytest.raises(UsageError, match="nobody answers"):
        run_suite([config()], tmp_path / "runs", backend=Unreachable())
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_are_not_repeated_and_failed_ones_are(tmp_path: Path) -> None:
    runs = [config(seed=seed) for seed in range(4)]
    for one, status in zip(runs, ("done", "diverged", "failed", "running"), strict=True):
        leaves(record_of(one, status=status))(at(one.folder(tmp_path)))
    seen: list[list[str]] = []
    backend = Pretend(*[leaves(record_of(one, status="done")) for one in runs[2:]])
    records = run_suite(
        runs, tmp_path, backend=backend, on_change=lambda progress, _: seen.append(list(progress.statuses))
    )
    assert [job.folder for job in backend.jobs] == [one.folder(tmp_path) for one in runs[2:]]
    assert [record.status for record in records] == ["done", "diverged", "done", "done"]
    assert seen[0] == ["done", "diverged", "waiting", "waiting"]
    assert seen[1] == ["done", "diverged", "running", "waiting"]
    assert seen[-1] == ["done", "diverged", "done", "done"]


def test_a_run_that_leaves_no_record_gets_one(tmp_path: Path) -> None:
    paper = RunConfig.make("cumsum", "dlr", preset="paper", settings={"length": 16})
    killed = fails("killed by SIGSEGV")
    backend = Pretend(killed, leaves(record_of(config(seed=1), status="done")), killed)
    records = run_suite([config(), config(seed=1), paper], tmp_path, backend=backend, may_differ=SHARED_BUDGET)
    assert [record.status for record in records] == ["failed", "done", "failed"]
    assert read_record(config().folder(tmp_path)) == records[0]
    assert records[0].notes == ["killed by SIGSEGV"]


def test_runs_on_a_stored_dataset_have_the_folders_of_their_processes(tmp_path: Path) -> None:
    generate(config().task, tmp_path / "data", samples=30, split=(0.6, 0.2, 0.2), workers=1)
    first, second = (
        RunConfig.make("cumsum", "attention", seed=n, settings=TINY, data=tmp_path / "data") for n in (0, 1)
    )

    def executes(_: Job) -> None:
        run(first, out=tmp_path / "out", workers=0, quiet=True)

    killed = "killed by SIGSEGV"
    records = run_suite([first, second], tmp_path / "out", backend=Pretend(executes, fails(killed)))
    assert [(record.status, record.notes) for record in records] == [("done", []), ("failed", [killed])]


def test_a_run_that_is_cut_off_keeps_what_it_recorded(tmp_path: Path) -> None:
    curve = [{"step": 4, "loss": 0.5, "r2": 0.25}]
    line = "stopped at its time limit of 5 s"
    backend = Pretend(leaves(record_of(config(), curve=curve, notes=["slow path"]), Failure(line)))
    (record,) = run_suite([config()], tmp_path, backend=backend)
    assert (record.status, record.curve, record.notes) == ("failed", curve, ["slow path", line])
    assert read_record(config().folder(tmp_path)) == record
    # the next attempt ends before it could write anything: the same words are not said twice
    (record,) = run_suite([config()], tmp_path, backend=Pretend(fails(line)))
    assert record.notes == ["slow path", line]
    (record,) = run_suite([config()], tmp_path, backend=Pretend(fails("not enough memory", refused=True)))
    assert (record.status, record.curve, record.notes[-1]) == ("failed", curve, "not enough memory")


def test_a_run_that_refuses_to_start_leaves_no_record(tmp_path: Path) -> None:
    seen: list[str] = []
    (record,) = run_suite(
        [config()],
        tmp_path,
        backend=Pretend(fails("not enough memory", refused=True)),
        on_change=lambda progress, _: seen.append(progress.statuses[0]),
    )
    assert (record.status, record.notes, seen[-1]) == ("refused", ["not enough memory"], "refused")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["", "raise ValueError"])
def test_a_file_that_is_edited_while_the_suite_runs_is_named(tmp_path: Path, end: str) -> None:
    file = tmp_path / "net.py"
    file.write_text("import torch\nclass Net(torch.nn.Linear):\n    def __init__(self, d_model): ...\n")

    def edited(_: Job) -> None:
        file.write_text(f"{file.read_text()}{end}\n")

    statuses: list[str] = []
    (record,) = run_suite(
        [RunConfig.make("cumsum", f"{file}:Net")],
        tmp_path / "runs",
        backend=Pretend(edited),
        on_change=lambda progress, _: statuses.append(progress.statuses[0]),
    )
    assert "was edited after the suite began" in record.notes[-1]
    assert (record.status, statuses[-1]) == ("refused", "refused")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("use", ["data", "test_data"])
def test_a_dataset_that_is_replaced_while_the_suite_runs_is_named(tmp_path: Path, use: str) -> None:
    folder = tmp_path / "data"

    def store(seed: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        generate(make("cumsum", length=16), folder, samples=20, workers=1, seed=seed)

    store(0)
    own: dict[str, Any] = {"settings": TINY, "data": folder}
    if use == "test_data":
        own = {"settings": {**TINY, "test_data": (str(folder),)}}
    one = RunConfig.make("cumsum", "attention", **own)
    (record,) = run_suite([one], tmp_path / "runs", backend=Pretend(lambda _: store(1)))
    assert record.status == "refused" and "task or data was edited after the suite began" in record.notes[-1]
    assert not (tmp_path / "runs").exists()


def test_a_run_that_another_process_is_working_on_is_left_to_it(tmp_path: Path) -> None:
    folder, statuses = config().folder(tmp_path), list[str]()
    curve = [{"step": 7, "loss": 0.5}]
    leaves(replace(record_of(config()), curve=curve))(at(folder))
    with paused.holding(folder / LOCK):  # a process is never kept out by its own lock
        (record,) = run_suite(
            [config()],
            tmp_path,
            backend=Pretend(fails("another process is working", refused=True)),
            on_change=lambda progress, _: statuses.append(progress.statuses[0]),
        )
    assert (record.status, record.curve, statuses[-1]) == ("running", curve, "elsewhere")
    assert record.notes == [f"another process works on this run, in {folder}"]
    assert read_record(folder).status == "running"
    with held(folder / LOCK, "it"):
        pass


def test_a_run_that_another_process_begins_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    folder = config().folder(tmp_path)
    leaves(record_of(config()))(at(folder))
    with paused.holding(folder / LOCK):
        (record,) = run_suite([config()], tmp_path, backend=Pretend(fails("killed by SIGKILL")))
    assert (record.status, record.notes) == ("refused", ["killed by SIGKILL"])
    assert read_record(folder).status == "running"


def test_a_failed_run_whose_record_cannot_be_written_stops_no_suite(tmp_path: Path) -> None:
    def blocks(job: Job) -> Failure:
        job.folder.parent.parent.mkdir(exist_ok=True)
        job.folder.parent.write_text("a file in place of the task's folder")
        return Failure("killed by SIGSEGV")

    second = config(task="shift", seed=1)
    backend = Pretend(blocks, leaves(record_of(second, status="done")))
    records = run_suite([config(), second], tmp_path / "runs", backend=backend)
    assert [record.status for record in records] == ["failed", "done"]
    assert records[0].notes[0].startswith("killed by SIGSEGV; and no record can be written: ")


def test_a_failed_run_on_a_full_disk_leaves_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunRecord, "write", refuses)
    (record,) = run_suite([config()], tmp_path / "runs", backend=Pretend(lambda _: Failure("killed by SIGSEGV")))
    assert record.notes == ["killed by SIGSEGV; and no record can be written: No space left on device"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"schema": 0, "environment": {"lrtasks": "0.0.1"}}), "has schema 0.*written by lrtasks 0.0.1"),
        ("{", "is damaged"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone_and_said(tmp_path: Path, text: str, message: str) -> None:
    file = config().folder(tmp_path) / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    backend = Pretend(leaves(record_of(config(seed=1), status="done")))
    records = run_suite([config(), config(seed=1)], tmp_path, backend=backend, trackers=["csv"])
    assert [record.status for record in records] == ["refused", "done"]
    assert [path.name for path in file.parent.iterdir()] == ["record.json"], "nor is it tracked"
    assert re.search(message, records[0].notes[0])
    assert "move or remove that file" in records[0].notes[0]
    assert file.read_text() == text


def test_the_time_left_goes_by_the_models_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    runs = [config(model, seed=seed) for model in ("attention", "dlr", "dss") for seed in range(2)]
    progress = SuiteProgress(runs, tmp_path)
    assert progress.seconds_left() is None
    progress.begin(0)
    now[0] += 10
    progress.end(0, "done", record_of(runs[0]))
    # done in an earlier call: its cost is known from its record
    progress.end(2, "done", record_of(runs[2], cost={"seconds_with_evaluation": 40.0}))
    assert progress.counts() == {"done": 2, "waiting": 4}
    assert progress.seconds_left() == 10 + 40 + 25 + 25  # dss as the mean of the others, one at a time
    progress.begin(1)
    progress.begin(3)
    now[0] += 4
    assert progress.elapsed(3) == 4
    assert progress.seconds_left() == (6 + 36 + 25 + 25) / 2
    progress.end(4, "refused", record_of(runs[4]))
    progress.end(5, "refused", record_of(runs[5]))
    assert progress.seconds_left() == 36  # the last one alone, not half of both
    now[0] += 35.5
    assert progress.seconds_left() is None  # one should have ended, and the other should end now
    progress.end(1, "done", record_of(runs[1]))
    progress.end(3, "done", record_of(runs[3]))
    assert progress.seconds_left() == 0


def test_the_time_left_counts_a_resumed_run_with_its_earlier_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    runs = [config(seed=seed) for seed in range(3)]
    progress = SuiteProgress(runs, tmp_path)
    progress.begin(0)
    now[0] += 5
    progress.end(0, "done", record_of(runs[0], cost={"seconds_with_evaluation": 90.0}))
    assert progress.seconds_left() == 90 + 90
    progress.begin(1)
    progress.end(1, "refused", record_of(runs[1]))
    assert progress.seconds_left() == 90  # a refused run says nothing about the others


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_run_of_a_file_that_was_edited_meanwhile_leaves_an_earlier_record_alone(tmp_path: Path, status: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from torch import nn\nclass Layer(nn.Linear):\n    def __init__(self, d_model):\n        pass\n")
    run = RunConfig.make("cumsum", f"{file}:Layer", settings={"length": 16})
    folder = run.folder(tmp_path / "runs")
    folder.mkdir(parents=True)
    run.record(status).write(folder)
    file.write_text(f"{file.read_text()}# edited\n")
    found, record = _settle(run, folder, None)  # the process has worked in another folder
    assert found == "refused" and "was edited after the suite began" in record.notes[0]
    assert read_record(folder).status == status and read_record(folder).notes == []


def test_a_run_that_was_killed_may_hold_its_lock_a_moment_longer(tmp_path: Path) -> None:
    run = RunConfig.make("cumsum", "attention", settings=TINY)
    folder = run.folder(tmp_path)
    folder.mkdir(parents=True)
    began = threading.Event()

    def die() -> None:
        with held(folder / LOCK, "the run"):
            began.set()
            time.sleep(0.3)

    dying = threading.Thread(target=die)
    dying.start()
    began.wait()
    status, record = _settle(run, folder, Failure("stopped at its time limit of 900 s"))
    dying.join()
    assert (status, record.notes) == ("failed", ["stopped at its time limit of 900 s"])
