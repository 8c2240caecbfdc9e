"""Writing files so that nothing is ever half there."""

from __future__ import annotations

import os
import random
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a kill at any moment leaves the old content or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{random.getrandbits(32):08x}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
