from __future__ import annotations

import sys

import pytest

from lrtasks import progress
from lrtasks.progress import Progress


def test_lines_come_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress("dlr on shift", "steps", 400, done=100) as shown:
        for step, seconds in ((110, 1), (150, 25), (160, 26), (400, 150)):
            now[0] = seconds
            shown.update(step, {"loss": 0.25})
    # 50 steps in 25 s: the remaining 250 steps take 125 s; steps before this process do not count for the rate
    assert capsys.readouterr().err.splitlines() == [
        "dlr on shift  150/400  loss 0.25  2 steps/s  2m05s left",
        "dlr on shift  400/400  loss 0.25  2 steps/s  0s left",
    ]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress("shift", "samples", 10) as shown:
        shown.update(10)
    said = capsys.readouterr().err
    assert "━" in said and "10/10" in said and "samples/s" in said


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("shift", "samples", 10, quiet=True) as shown:
        shown.update(10)
    assert capsys.readouterr().err == ""
