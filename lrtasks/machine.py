"""Processor cores of this machine, and the threads and memory settings of one process."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables by which a user sets the number of threads."""
CORES = "LRTASKS_CORES"
"""Environment variable by which a suite tells a run how many cores it may use."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Linux file with the container's CPU limit: microseconds of CPU time per period (or ``max``), then the period."""
WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
"""Environment variables that let waiting threads sleep, those of OpenMP (torch) and those of OpenBLAS (NumPy, SciPy);
OpenBLAS spins for 2 to this power processor cycles, by default for 2^26."""
ALLOCATOR = ("MALLOC_", "GLIBC_TUNABLES")
"""Prefixes of the environment variables that set glibc's allocator."""
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Numbers of options in glibc's ``malloc.h``."""
MAX_WORKERS = 1024
"""Largest number of background processes of one command."""
ELEMENTS_PER_THREAD = 1 << 18
"""Array elements per thread; for smaller arrays, a second thread takes 20 to 45 % more CPU time and saves no time."""


def cores() -> int:
    """Return the number of cores that this process may use, limited by its CPU affinity, container and suite."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        count = min(count, -(-int(quota) // int(period)))
    with suppress(KeyError, ValueError):
        count = min(count, int(os.environ[CORES]))
    return max(1, count)


def threads_for(elements: int) -> int | None:
    """Return a useful number of threads for ``elements`` array elements, or ``None`` if the user has set a number."""
    share = os.environ.get(CORES)  # a suite gives its runs this number of threads, too
    if any(os.environ.get(name, share) != share for name in THREADS):
        return None
    return max(1, min(cores(), elements // ELEMENTS_PER_THREAD))


def give_memory_back() -> None:
    """Let glibc return freed memory to the system, so that it does not count as memory of this process."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def set_process_defaults() -> None:
    """Let waiting threads sleep and keep freed memory, unless the user's environment says otherwise.

    Call this before NumPy and torch are loaded. If another process keeps the cores busy, spinning threads make a run
    take many times as long. By default, glibc returns freed memory to the system, and each training step faults it in
    again.
    """
    for name, value in WAITING.items():
        os.environ.setdefault(name, value)
    if sys.platform == "linux" and not any(name.startswith(ALLOCATOR) for name in os.environ):
        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(M_MMAP_MAX, 0)
            mallopt(M_TRIM_THRESHOLD, 1 << 30)
