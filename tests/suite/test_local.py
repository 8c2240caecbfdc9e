"""Suites on this machine: models that crash, hang or die, and suites that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import paused
import pytest
from diary import Diary
from plugin_packages import importable, write_package
from rogues import RogueModel

from lrtasks import processes
from lrtasks.errors import UsageError
from lrtasks.files import held
from lrtasks.results import read_record
from lrtasks.run_config import RunConfig
from lrtasks.suite.backends import Failure, Job, local, run_job
from lrtasks.suite.backends.local import Local
from lrtasks.suite.run import run_suite

TINY = {"steps": 8, "eval_every": 4, "val_batches": 1, "test_batches": 1, "batch_size": 4, "length": 16, "d_model": 8}


def config(model: str, **changes: object) -> RunConfig:
    return RunConfig.make("cumsum", model, settings={**TINY, **changes})


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the models of :mod:`rogues` known by their names in lower case, here and in processes started from here.

    The file that it gives is where one of them leaves a process's id.
    """
    points = {cls.__name__.lower(): f"rogues:{cls.__name__}" for cls in RogueModel.__subclasses__()}
    write_package(tmp_path, "rogues", {}, models=points)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])]))
    with importable(tmp_path, monkeypatch):
        yield tmp_path / "child"


def has_ended(process: int) -> bool:
    """Whether a process is gone; a dead one that nobody has asked after counts as gone."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return not state.stdout.strip() or state.stdout.startswith("Z")


def is_free(lock: Path) -> bool:
    """Whether nobody works there any more."""
    try:
        with held(lock, "the run"):
            return True
    except UsageError:
        return False


@pytest.mark.e2e
def test_each_job_ends_once_with_its_reason(tmp_path: Path) -> None:
    words = [("list",), ("eval",), ("eval", "--model", "dlr", "--task", "shift")]
    limits = [None, None, 0.05]
    jobs = [Job(word, tmp_path / str(n), limit) for n, (word, limit) in enumerate(zip(words, limits, strict=True))]
    diary = Diary()
    diary.execute(Local(jobs=2), jobs)
    assert sorted(diary.begun) == [0, 1, 2]
    assert diary.lines == {0: "fine", 1: "refused: Missing option '--model'.", 2: "stopped at its time limit of 0.05 s"}
    assert [job.folder.joinpath("log.txt").exists() for job in jobs] == [False, False, True]


@pytest.mark.parametrize(
    ("code", "said", "failure"),
    [
        (3, "", Failure("ended with exit code 3")),
        (3, "first\nlast\n", Failure("ended with exit code 3; the last line it wrote: last")),
        (2, "lrtasks: no such task\n", Failure("no such task", refused=True)),
        (None, "", Failure("stopped at its time limit of 7.5 s")),
        (-9, "", Failure("killed by SIGKILL, often for lack of memory")),
        (-11, "", Failure("killed by SIGSEGV")),
    ],
)
def test_the_reason_of_a_failure_has_the_last_line_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, said: str, failure: Failure
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(
        "lrtasks.suite.backends.run_command", lambda _, *, time_limit: limits.append(time_limit) or (code, said)
    )
    assert run_job(Job(("list",), tmp_path, 7.5)) == failure
    assert (limits, (tmp_path / "log.txt").exists()) == ([7.5], not failure.refused)


def test_a_command_gets_its_environment_and_any_end_of_its_errors_is_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "command"
    script.write_text(f"#!/bin/sh\nyes | head -c {processes.LAST_BYTES} >&2\nprintf '\\377%s' $WORD >&2\nexit 3\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    code, text = processes.run_command(("list",), environment={"WORD": "given"})
    assert (code, text[-6:], len(text)) == (3, "\ufffdgiven", processes.LAST_BYTES)


def test_parallel_runs_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    template = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(local, "Template", lambda threads: given.append(threads) or template)
    monkeypatch.setattr(local, "cores", lambda: 7)
    monkeypatch.setattr(
        "lrtasks.suite.backends.run_command", lambda *_, threads, **__: given.append(threads) or (0, "")
    )
    Diary().execute(Local(jobs=3), [Job(("list",), tmp_path)])
    assert set(given) == {2}


def test_what_goes_wrong_here_stops_all_jobs(tmp_path: Path) -> None:
    def started(number: int) -> None:
        if number == 1:
            raise OSError("no space left")

    diary = Diary(started)
    with pytest.raises(OSError, match="no space left"):
        diary.execute(Local(jobs=2), [Job(("list",), tmp_path / str(number)) for number in range(40)])
    assert len(diary.begun) < 10


@pytest.mark.e2e
@pytest.mark.usefixtures("child")
def test_models_that_fail_stop_nothing_else(tmp_path: Path) -> None:
    names = ["raising", "exiting", "dying", "refusing"]
    configs = [*[config(name, healthy=5) for name in names], config("attention")]
    records = run_suite(configs, tmp_path / "runs", backend=Local(jobs=2), device="cpu")
    assert [record.status for record in records] == [*["failed"] * 4, "done"]
    reasons = [record.notes[-1] for record in records[:4]]
    assert re.fullmatch(r"RuntimeError: no more of this \(line \d+ of rogues\.py\)", reasons[0])
    assert reasons[1].startswith("ended with exit code 3")
    assert reasons[2] == "killed by SIGKILL, often for lack of memory"
    assert reasons[3] == "these settings cannot be"
    for one, record in zip(configs, records, strict=True):
        folder = one.folder(tmp_path / "runs")
        assert read_record(folder) == record
        # they had passed an evaluation, which is kept, and can go on from there
        assert (folder / "checkpoint.pt").exists() == (record.status == "failed")
        assert record.curve[0]["step"] == 4
        assert (folder / "log.txt").exists() == (one.model.name in ("raising", "exiting", "dying"))
    assert "Traceback" in (configs[0].folder(tmp_path / "runs") / "log.txt").read_text()


@pytest.mark.e2e
def test_a_hanging_run_is_cut_off_with_its_children(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROGUE_CHILD", str(child))

    # the time limit passes as soon as the run hangs, however slow this machine is
    def clock() -> float:
        hangs = child.exists() and child.read_text() != ""
        return time.monotonic() + 1000 * hangs

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=clock))
    hanging = config("hanging", healthy=5)
    records = run_suite([hanging, config("attention")], tmp_path, time_limit=900, device="cpu")
    assert [record.status for record in records] == ["failed", "done"], records[0].notes
    assert records[0].notes[-1] == "stopped at its time limit of 900 s"
    paused.wait_for(lambda: has_ended(int(child.read_text())))
    assert (hanging.folder(tmp_path) / "checkpoint.pt").exists()


@pytest.mark.e2e
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_suite_that_is_stopped_takes_its_runs_along_and_goes_on_later(
    tmp_path: Path, child: Path, end: signal.Signals
) -> None:
    # a shell starts what it puts into the background with Ctrl-C switched off
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import lrtasks.__main__"
    settings = [word for name, value in {**TINY, "healthy": 5}.items() for word in ("--set", f"{name}={value}")]
    words = ["suite", "--models", "hanging", "--tasks", "cumsum", "--device", "cpu", "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-c", code, *words, *settings]
    with subprocess.Popen(
        command, env={**os.environ, "ROGUE_CHILD": str(child)}, stderr=subprocess.PIPE, text=True
    ) as suite:
        while not child.exists() or not child.read_text():
            assert suite.poll() is None
            time.sleep(0.05)
        suite.send_signal(end)
        _, err = suite.communicate(timeout=120)
    paused.wait_for(lambda: has_ended(int(child.read_text())))
    folder = config("hanging", healthy=5).folder(tmp_path / "runs")
    assert read_record(folder).status == "running"
    assert (folder / "checkpoint.pt").exists()
    paused.wait_for(lambda: is_free(folder / "lock"))
    if end == signal.SIGINT:
        assert suite.returncode == 1
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("lrtasks: interrupted; give the same command again")
        return  # what is left is the same as after a kill
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    record = read_record(folder)
    assert (record.status, [point["step"] for point in record.curve]) == ("done", [4, 8])
