"""Checkpoints that survive a kill: written whole or not at all, read without running code from them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from lrtasks.errors import UsageError, first_line
from lrtasks.files import write_atomically


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors and plain values) to ``path`` atomically."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getbuffer())


def load(path: Path) -> dict[str, Any]:
    """Read what :func:`save` wrote, onto the CPU; only tensors and plain values are accepted.

    Raises:
        UsageError: if the file is damaged.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError, OSError) as error:
        reason = first_line(error)
        raise UsageError(f"{path} cannot be read ({reason}); remove {path.parent} to start this run again") from None
    if not isinstance(state, dict):
        raise UsageError(f"{path} is not a checkpoint of lrtasks; remove {path.parent} to start this run again")
    return state
