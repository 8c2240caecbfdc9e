"""Functions that the tests of processes run; ``python bench_functions.py FILE`` starts one and waits for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from lrtasks.bench.measure import run_in_process
from lrtasks.errors import UsageError


def process_and_sum(a: int, b: int) -> tuple[int, int]:
    return os.getpid(), a + b


def refuse() -> None:
    raise UsageError("this cannot\nbe")


def fail() -> None:
    _ = 1 / 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def end() -> None:
    os._exit(3)


def take_too_much() -> None:
    torch.ones(1 << 42, dtype=torch.uint8)


def take_too_much_with_numpy() -> None:
    np.ones(1 << 42, dtype=np.uint8)


def note_and_sleep(file: Path) -> None:
    file.write_text(str(os.getpid()))
    time.sleep(60)


if __name__ == "__main__":
    run_in_process(note_and_sleep, Path(sys.argv[1]), time_limit=60)
