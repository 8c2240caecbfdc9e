"""What this machine offers, and how much of it one process takes."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number of threads."""
CORES = "LRTASKS_CORES"
"""Environment variable by which a suite tells a run its part of the cores."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Linux: microseconds of CPU time per period in this container, or ``max``, and the period."""
ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES")
"""Prefixes of the environment variables that set glibc's allocator."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of options in glibc's ``malloc.h``."""
MAX_WORKERS = 1024
"""Background processes of one command."""
ELEMENTS_PER_THREAD = 1 << 18
"""With fewer numbers in an array, a second thread takes 20 to 45 % more CPU time and gains nothing."""


def cores() -> int:
    """Processor cores that this process may use: those it may run on, within the limit of its container or suite."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        count = min(count, -(-int(quota) // int(period)))
    with suppress(KeyError, ValueError):
        count = min(count, int(os.environ[CORES]))
    return max(1, count)


def threads_for(elements: int) -> int | None:
    """Number of threads that pays off for arrays of this many numbers; ``None`` if the user has set a number."""
    if CORES not in os.environ and any(name in os.environ for name in THREADS):
        return None
    return max(1, min(cores(), elements // ELEMENTS_PER_THREAD))


def set_process_defaults() -> None:
    """Before torch is loaded: waiting threads do not spin, and freed memory is kept, unless the user's environment says
    otherwise.

    Beside another busy process, a run whose threads spin takes many times as long. By default, glibc gives freed memory
    back to the system, and each step of training faults it in again.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.platform == "linux" and not any(name.startswith(ALLOCATOR) for name in os.environ):
        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 1 << 30)
