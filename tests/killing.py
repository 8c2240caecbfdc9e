"""Start a run repeatedly and kill it at various moments; then let it finish, and print a summary as JSON.

This is a separate script because it forks. ``python killing.py OUT`` tests two cases: fresh samples drawn in the run's
process, and a training set drawn by a worker. It leaves the killed run in ``OUT/CASE/killed`` and an undisturbed run in
``OUT/CASE/unbroken``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from quick_runs import TASK
from toys import droppy

import lrtasks
from lrtasks.evaluation import loop
from lrtasks.evaluation.environment import fabric_class

fabric_class()  # imported once, before the processes are forked
BUDGET = {
    "steps": 40,
    "batch_size": 4,
    "eval_every": 10,
    "val_batches": 2,
    "test_batches": 2,
    "lr": 0.02,
    "schedule": "cosine",
    "warmup_steps": 15,
}


CASES: dict[str, tuple[int, int | None]] = {"fresh": (0, None), "worker": (1, 64)}
"""Number of workers that draw batches, and size of the training set."""


def run(case: str, out: Path) -> None:
    """Run the training that must survive the kills."""
    workers, samples = CASES[case]
    torch.set_num_threads(1)  # a fork does not copy other threads
    lrtasks.evaluate(
        droppy,
        TASK,
        budget={**BUDGET, "train_samples": samples},
        out=out,
        workers=workers,
        device="cpu",
        quiet=True,
    )


def die() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_write(number: int, *, before: bool) -> None:
    """Let this process die in its ``number``-th write of a file, just before or just after the file is replaced."""
    real, count = Path.replace, [0]

    def replace(self: Path, target: Any) -> Path:
        count[0] += 1
        if count[0] == number and before:
            die()
        found = real(self, target)
        if count[0] == number:
            die()
        return found

    Path.replace = replace  # type: ignore[method-assign,assignment]


def fork(work: Callable[[], None]) -> int:
    """Run ``work`` in a new process; return the process id."""
    process = os.fork()
    if process == 0:
        work()
        os._exit(0)
    return process


def ended(process: int) -> bool:
    """Wait for a process; return whether a signal killed it."""
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


def disturb(case: str, out: Path) -> dict[str, Any]:
    """Run, kill and resume; return how often the run was killed, and at which step each attempt started."""
    starts, killed = [], 0
    assert not ended(fork(lambda: run(case, out / "unbroken")))
    seconds, loop.SECONDS_BETWEEN_CHECKPOINTS = loop.SECONDS_BETWEEN_CHECKPOINTS, 0.0
    resume = loop._resume

    def noted(path: Path, *arguments: Any) -> loop.State:
        state = resume(path, *arguments)
        (out / f"start-{os.getpid()}").write_text(str(state.step))
        return state

    loop._resume = noted
    for number in (2, 9, 17):
        for before in (True, False):

            def work(number: int = number, before: bool = before) -> None:
                die_in_write(number, before=before)
                run(case, out / "killed")

            process = fork(work)
            killed += ended(process)
            starts.append(int((out / f"start-{process}").read_text()))
    for _ in range(3):
        process = fork(lambda: run(case, out / "killed"))
        time.sleep(random.uniform(0.02, 0.1))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        killed += ended(process)
    assert not ended(fork(lambda: run(case, out / "killed")))
    loop.SECONDS_BETWEEN_CHECKPOINTS, loop._resume = seconds, resume
    return {"killed": killed, "starts": starts}


if __name__ == "__main__":
    print(json.dumps({case: disturb(case, Path(sys.argv[1], case)) for case in CASES}))
