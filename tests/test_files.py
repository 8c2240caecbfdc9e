"""Atomic writes and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lrtasks import evaluate, make
from lrtasks.data import generate
from lrtasks.errors import UsageError
from lrtasks.files import held, is_held, remove_partials, write_atomically

HOLD = """
import os, sys, time
from pathlib import Path
from lrtasks.files import held
with held(Path(sys.argv[1]), "it"):
    if not os.fork():  # the worker outlives the kill of its parent
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_a_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"two"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")  # as the system says it: without a file

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"disk full: '{path}'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_partials_of_killed_writes_are_removed(tmp_path: Path) -> None:
    for name in ("file", ".file.123-0badcafe", ".other.123-0badcafe"):
        (tmp_path / name).touch()
    remove_partials(tmp_path / "file")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.123-0badcafe", "file"]


def test_a_lock_keeps_other_processes_out_until_its_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        try:
            message = "another process is working on the run; wait for it"
            with pytest.raises(UsageError, match=message), held(lock, "the run"):
                pass
            holder.send_signal(signal.SIGKILL)
            holder.wait()
            os.kill(worker, 0)  # the worker still runs, but does not keep the lock
            with held(lock, "the run"):
                assert lock.exists()
        finally:
            os.kill(worker, signal.SIGKILL)
    assert not lock.exists()


def test_a_process_that_only_looks_at_a_lock_keeps_no_other_out(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    descriptor = os.open(lock, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as is_held does, for a moment
    threading.Timer(0.05, os.close, [descriptor]).start()
    with held(lock, "the run"):
        assert lock.exists()


def test_a_lock_is_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(tmp_path / "lock", "the run"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_file_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / "lock").unlink()  # as the previous holder does when it is done
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UsageError, match="another process is working on the run"), held(tmp_path / "lock", "the run"):
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", without)
    with pytest.raises(
        UsageError, match=r"^the file system of .* cannot lock files \(.*\); choose a folder on another"
    ):
        evaluate("dlr", "shift", length=16, steps=1, test_batches=1, out=tmp_path / "runs", quiet=True)
    with pytest.raises(UsageError, match="cannot lock files"):
        generate(make("shift", length=16), tmp_path / "data" / "shift", samples=20, workers=1)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lock").touch()
    assert not is_held(tmp_path / "lock")
