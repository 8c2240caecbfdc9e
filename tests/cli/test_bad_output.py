"""Full disks, folders that vanish, closed outputs and outputs that are not UTF-8 end in one line at most."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lrtasks.record import RunRecord, read_records

Command = Callable[..., Any]
EVAL = (
    *("eval", "--model", "attention", "--task", "cumsum", "--length", 16, "--d-model", 8, "--workers", 0),
    *("--steps", 4, "--eval-every", 2, "--val-batches", 1, "--test-batches", 1, "--device", "cpu"),
)


def ended(words: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of ``lrtasks`` in a shell."""
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m lrtasks {words}"],
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_a_full_device_is_one_line() -> None:
    code, said = ended("list tasks > /dev/full")
    assert code == 1
    assert len(said.splitlines()) == 1 and "No space left on device" in said


@pytest.mark.e2e
@pytest.mark.parametrize("words", ["list tasks >&-", "list tasks >&- 2>&-"])
def test_a_closed_output_is_no_traceback(words: str) -> None:
    _, said = ended(words)
    assert said == ""


def test_an_output_that_is_not_utf_8_gets_question_marks() -> None:
    code, said = ended("describe sort", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (code, said) == (0, "")


def test_a_disk_that_fails_in_a_run_is_one_line_and_earlier_results_stay(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*EVAL).code == 0
    write = RunRecord.write
    for number in (errno.ENOSPC, errno.ENOENT, errno.EACCES):

        def fail(_: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))  # as a full disk does: it names no file

        def late(record: RunRecord, folder: Path) -> None:
            with monkeypatch.context() as inner:
                if len(record.curve) == 2:
                    inner.setattr(os, "fsync", fail)
                write(record, folder)

        with monkeypatch.context() as patch:
            patch.setattr(RunRecord, "write", late)
            said = command(*EVAL, "--seed", number)
        assert (said.code, said.out) == (1, "")
        assert re.search(rf"{os.strerror(number)}.*record\.json", said.err.splitlines()[-1])
        assert "Traceback" not in said.err
        records, problems = read_records(tmp_path / "runs")
        assert problems == []
        assert [record.status for _, record in records if record.seed == 0] == ["done"]
    assert command(*EVAL, "--seed", number).code == 0
