"""Peak memory of this process from some moment on."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import torch

from lrtasks.evaluation.environment import peak_memory_bytes, reset_peak_memory

STATUS = Path("/proc/self/status")
FORGET_PEAK = "5"
"""What makes Linux start the peak resident size anew, written to ``clear_refs``."""
FIRST_TO_GO = "1000"
"""The highest rank among the processes that Linux ends when memory runs out."""
SHARE = 0.9


class PeakMemory:
    """Memory taken since this object was made: allocated by torch on a GPU, resident on a CPU.

    Where the system does not say how much is resident (other than Linux), the start is the peak so far, and the result
    a lower bound.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._start = torch.cuda.memory_allocated(device)
            reset_peak_memory(device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(FORGET_PEAK)
        self._start = _bytes_of(STATUS, "VmRSS") or peak_memory_bytes(device)

    def above_start(self) -> int:
        """Bytes at the peak above those at the start."""
        peak = None if self._device.type == "cuda" else _bytes_of(STATUS, "VmHWM")
        return (peak or peak_memory_bytes(self._device)) - self._start


def limit_memory() -> None:
    """Let this process allocate 90 % of what is free now, so that it fails alone and at once (on Linux)."""
    with suppress(OSError):  # should memory run out all the same, this process is to go and no other
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    free, held = _bytes_of(Path("/proc/meminfo"), "MemAvailable"), _bytes_of(STATUS, "VmData")
    if free is not None and held is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (held + int(SHARE * free), hard))


def processor() -> str:
    """The processor's name where the system tells it, else its architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine


def _bytes_of(file: Path, entry: str) -> int | None:
    with suppress(OSError):
        for line in file.read_text().splitlines():
            if line.startswith(f"{entry}:"):
                return 1024 * int(line.split()[1])
    return None
