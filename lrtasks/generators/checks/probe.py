"""What every check of a task is given, and how it words an exception of the task's own code."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lrtasks.errors import in_one_line
from lrtasks.generators.base import Split, Task
from lrtasks.spec import Batch

Problem = str


class Probe(NamedTuple):
    """What is checked, and on which samples."""

    task: Task
    samples: int
    seed: int

    def batch(self, indices: Sequence[int] | None = None, split: Split = "train") -> Batch:
        """Samples of the task; the first :attr:`samples` of them without ``indices``."""
        return self.task.batch(range(self.samples) if indices is None else indices, self.seed, split)

    def raised(self, what: str, error: Exception) -> Problem:
        """``what raised KeyError: 'x' (line 41 of parity.py)``, with the last line of the task's own module."""
        file = getattr(sys.modules.get(type(self.task).__module__), "__file__", None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        where = f" (line {lines[-1]} of {Path(file).name})" if file and lines else ""
        return f"{what} raised {in_one_line(error)}{where}"


def caught(check: Callable[[Probe], Iterator[Problem]], probe: Probe) -> Iterator[Problem]:
    """Problems that ``check`` finds, an exception that it did not expect being one."""
    try:
        yield from check(probe)
    except Exception as error:
        yield probe.raised(f"the check of {check.__name__.removeprefix('check_')}", error)


def batch_digest(batch: Batch, decimals: int | None = None) -> str:
    """Hash of everything in a batch, 128 bits; real values are first rounded to ``decimals`` if that is given."""
    state = hashlib.blake2b(digest_size=16)
    for array in (batch.x, batch.y, batch.mask):
        if array is not None and array.dtype.kind == "f" and decimals is not None:
            array = np.rint(array.astype(np.float64) * 10.0**decimals).astype(np.int64)
        state.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    state.update(json.dumps(batch.meta, sort_keys=True, default=lambda value: value.tolist()).encode())
    return state.hexdigest()
