"""A run that pauses in the middle of training; other processes import its model as ``paused:net``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from quick_runs import TASK
from torch import Tensor, nn
from toys import Net

import lrtasks
from lrtasks.record import RunRecord, read_record, read_records
from lrtasks.spec import Spec
from lrtasks.suite.backends import Job

MODEL = "paused:net"
BUDGET = {"steps": 60, "batch_size": 4, "eval_every": 10, "val_batches": 1, "test_batches": 1, "lr": 0.02}
GATE = "LRTASKS_TEST_GATE"
"""Environment variable with the path of a file. Until the file exists, every process pauses after 25 training steps."""
HOLD = """
import sys, time
from pathlib import Path
from lrtasks.files import held

with held(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


class Paused(Net):
    """A net whose training draws random numbers and pauses at the gate."""

    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += self.training
        gate = Path(os.environ.get(GATE, os.devnull))
        if self.steps > 25 and not gate.exists():
            gate.with_name(f"waiting-{os.getpid()}").touch()
            while not gate.exists():
                time.sleep(0.02)
        return super().forward(x)


def net(input: Spec, target: Spec, *, causal: bool) -> nn.Module:
    """Build a paused net."""
    return Paused(input, target, dropout=0.5, causal=causal)


def undisturbed(out: Path, seed: int = 0) -> RunRecord:
    """Run the same training in this process without a pause; :data:`GATE` must not be set."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return lrtasks.evaluate(MODEL, TASK, seed=seed, budget=BUDGET, out=out, workers=0, device="cpu", quiet=True)
    finally:
        torch.set_num_threads(threads)


def job(out: Path, folder: Path, *more: str, seed: int = 0, steps: int = 60, time_limit: float | None = 300) -> Job:
    """Return the run as the job that a suite passes to a backend."""
    task = {"task.length": 16, "task.shifts": 2}
    settings = {**task, **BUDGET, "steps": steps}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    tail = ("--seed", str(seed), "--workers", "0", "--device", "cpu", "--out", str(out))
    command = ("eval", "--model", MODEL, "--task", "shift", *words, *tail, *more)
    return Job(command, folder, time_limit)


def only_record(out: Path) -> RunRecord:
    """Return the only record below ``out``."""
    ((_, record),), problems = read_records(out)
    assert problems == []
    return record


def points(folder: Path) -> int:
    """Return the length of the learning curve that a run has recorded so far."""
    return len(read_record(folder).curve) if (folder / "record.json").exists() else 0


def processes(words: str) -> list[tuple[int, int]]:
    """Return the process id and parent id of each process whose command line contains ``words``."""
    lines = subprocess.run(["ps", "-eo", "pid,ppid,args", "-ww"], capture_output=True, text=True, check=True).stdout
    found = [line.split(None, 2) for line in lines.splitlines() if words in line]
    return [(int(pid), int(parent)) for pid, parent, _ in found]


def wait_at(gate: Path, out: Path) -> tuple[int, int]:
    """Wait until the run that writes below ``out`` pauses at the gate; return its process id and parent id."""
    found: list[tuple[int, int]] = wait_for(
        lambda: [run for run in processes(f"--out {out}") if gate.with_name(f"waiting-{run[0]}").exists()]
    )
    return found[0]


@contextmanager
def holding(lock: Path, seconds: float = 600) -> Iterator[None]:
    """Let another process hold a lock within the context, for so many seconds at most."""
    words = [sys.executable, "-c", HOLD, str(lock), str(seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.kill()


def wait_for(condition: Any, seconds: float = 120) -> Any:
    """Wait until ``condition()`` is true; return its value."""
    last = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < last, "waited too long"
        time.sleep(0.02)
    return found
