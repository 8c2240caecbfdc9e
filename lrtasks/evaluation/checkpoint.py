"""Checkpoints that survive a kill: written atomically, verified when read, and read without executing code."""

from __future__ import annotations

import io
import pickle
import textwrap
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lrtasks.errors import UsageError, first_line
from lrtasks.files import write_atomically

_ERRORS = (
    *(RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError, OSError, AttributeError),
    *(zipfile.BadZipFile, zlib.error),
)
"""Exceptions that a damaged file causes."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors, plain values, lists and mappings of them) to ``path`` atomically."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getbuffer())


def require_readable(state: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if :func:`load` could not read the extra state of a model's ``state_dict()`` again."""
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            continue
        try:
            buffer = io.BytesIO()
            torch.save(value, buffer)
            torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        except Exception:  # of the user's objects
            kinds = "get_extra_state may return tensors, numbers, strings, or lists or dictionaries of them"
            raise UsageError(f"a checkpoint cannot hold {name} of the model: {kinds}") from None


def misfit(error: Exception) -> str:
    """Return the reason why a model does not take a stored state; torch writes it below a title."""
    lines = str(error).splitlines()
    return textwrap.shorten(lines[1], 300) if len(lines) > 1 else first_line(error)


def load(path: Path) -> dict[str, Any]:
    """Read a file of :func:`save` into CPU memory; accept only tensors and plain values.

    Raises:
        UsageError: if the file cannot be read, or a part of it does not match its checksum.
    """
    again = f"remove {path.parent} to start this run again"
    try:
        with zipfile.ZipFile(path) as parts:  # torch writes checksums, but does not compare them
            damaged = parts.testzip()
        state = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except _ERRORS as error:
        raise UsageError(f"{path} cannot be read ({first_line(error)}); {again}") from None
    if not isinstance(state, dict):
        raise UsageError(f"{path} is damaged or holds something else; {again}")
    return state
