"""Cores and threads that a process takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from quick_runs import TASK

import lrtasks
from lrtasks import machine
from lrtasks.processes import _environment


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without settings of threads, and a machine of eight cores."""
    for name in (*machine.THREADS, machine.CORES, "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")


@pytest.mark.parametrize(("limit", "count"), [("max 100000", 8), ("250000 100000", 3), ("10 100000", 1), ("", 8)])
def test_a_container_limits_cores(limit: str, count: int) -> None:
    machine.QUOTA.write_text(limit)
    assert machine.cores() == count


def test_threads_follow_the_work_the_suite_and_before_all_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = machine.ELEMENTS_PER_THREAD // 2, machine.ELEMENTS_PER_THREAD * 100
    assert (machine.threads_for(small), machine.threads_for(large)) == (1, 8)
    with monkeypatch.context() as suite:
        for name, value in _environment(2).items():
            suite.setenv(name, value)
        assert (machine.threads_for(small), machine.threads_for(large)) == (1, 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert machine.threads_for(large) is None
    assert _environment(2)["OMP_NUM_THREADS"] == "5"


def test_waiting_threads_do_not_spin_unless_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    machine.set_thread_defaults()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    machine.set_thread_defaults()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


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
