"""Cores and threads that a process uses."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from quick_runs import TASK

import lrtasks
from lrtasks import machine
from lrtasks.processes import _environment


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate an environment without thread settings, on a machine with eight cores."""
    for name in (*machine.THREADS, machine.CORES, *machine.WAITING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")


@pytest.mark.parametrize(
    ("limit", "count"), [("max 100000", 8), ("250000 100000", 3), ("10 100000", 1), ("9 1", 8), ("", 8)]
)
def test_a_container_limits_cores(limit: str, count: int) -> None:
    machine.QUOTA.write_text(limit)
    assert machine.cores() == count


@pytest.mark.parametrize(("limit", "count"), [("3", 3), ("9", 8), ("0", 1), ("many", 8)])
def test_a_suite_limits_cores(monkeypatch: pytest.MonkeyPatch, limit: str, count: int) -> None:
    monkeypatch.setenv(machine.CORES, limit)
    assert machine.cores() == count


def test_threads_follow_the_work_the_suite_and_before_all_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = machine.ELEMENTS_PER_THREAD // 2, machine.ELEMENTS_PER_THREAD * 100
    assert (machine.threads_for(small), machine.threads_for(large)) == (1, 8)
    with monkeypatch.context() as suite:
        for name, value in _environment(2).items():
            suite.setenv(name, value)
        assert (machine.threads_for(small), machine.threads_for(large)) == (1, 2)
    with monkeypatch.context() as user:
        user.setenv("MKL_NUM_THREADS", "5")
        assert machine.threads_for(large) is None
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert machine.threads_for(large) is None
    assert _environment(2)["OMP_NUM_THREADS"] == "5"
    assert _environment(2)[machine.CORES] == "2", "background processes keep to the run's share of the cores"


def test_waiting_threads_do_not_spin_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, own, sleep in (("OMP_WAIT_POLICY", "ACTIVE", "PASSIVE"), ("OPENBLAS_THREAD_TIMEOUT", "20", "4")):
        monkeypatch.setenv(name, own)
        machine.set_process_defaults()
        assert os.environ[name] == own
        monkeypatch.delenv(name)
        machine.set_process_defaults()
        assert os.environ[name] == sleep


FREED = """
import gc, sys
from lrtasks.machine import set_process_defaults

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

set_process_defaults()
before = resident()
block = bytearray(b"1" * (100 << 20))
del block
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_freed_memory_is_kept_unless_the_user_says_otherwise() -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(machine.ALLOCATOR)}
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", FREED], env=env, capture_output=True, check=True).stdout)
        for env in (bare, {**bare, "MALLOC_TRIM_THRESHOLD_": "131072"})
    )
    assert given_back < 50 < kept  # MiB, of 100 MiB


@pytest.mark.parametrize(("user", "threads"), [(None, 1), ("3", 3)])
def test_a_small_run_takes_one_thread_and_gives_back_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str | None, threads: int
) -> None:
    if user:
        monkeypatch.setenv("OMP_NUM_THREADS", user)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        record = lrtasks.evaluate(
            "attention", TASK, d_model=8, steps=1, out=tmp_path, workers=0, device="cpu", quiet=True
        )
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert record.environment["threads"] == threads
