"""A separate process: there is an outcome, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import bench_functions as functions
import pytest

from lrtasks.bench.measure import run_in_process


def test_the_value_comes_back_from_another_process() -> None:
    process, total = run_in_process(functions.process_and_sum, 2, 3, time_limit=60)
    assert total == 5 and process != os.getpid()


def test_a_limit_of_years_is_no_limit() -> None:
    assert run_in_process(functions.process_and_sum, 2, 3, time_limit=1e12)[1] == 5


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (functions.refuse, "this cannot be"),
        (functions.fail, "ZeroDivisionError: division by zero (line 27 of bench_functions.py)"),
        (functions.die, "killed, most likely for lack of memory"),
        (functions.end, "ended with exit code 3"),
        (functions.crash, "ended by SIGSEGV"),
    ],
)
def test_what_goes_wrong_is_one_line(function: object, reason: str) -> None:
    assert run_in_process(function, time_limit=60) == {"reason": reason}  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux refuses what it cannot give")
@pytest.mark.parametrize("function", [functions.take_too_much, functions.take_too_much_with_numpy])
def test_a_process_that_wants_more_than_is_free_fails_alone(function: object) -> None:
    assert run_in_process(function, time_limit=60) == {"reason": "out of memory"}  # type: ignore[arg-type]


@pytest.mark.e2e
def test_a_process_past_its_time_is_stopped(tmp_path: Path) -> None:
    start = time.monotonic()
    outcome = run_in_process(functions.note_and_sleep, tmp_path / "pid", time_limit=4)
    assert outcome == {"reason": "stopped at its time limit of 4 s"}
    assert time.monotonic() - start < 30
    assert_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.e2e
def test_a_process_ends_when_the_one_that_asked_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, functions.__file__, str(tmp_path / "pid")])
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert_gone(int((tmp_path / "pid").read_text()))


def assert_gone(process: int) -> None:
    """The process ends within a minute; it may wait for its own parent to notice."""
    status = Path(f"/proc/{process}/status")
    for _ in range(1200):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        if status.exists() and "State:\tZ" in status.read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")
