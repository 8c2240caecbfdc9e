"""Checkpoints that survive a kill: written atomically, verified when read, and read without executing code."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from lrtasks.errors import UsageError, first_line
from lrtasks.files import write_atomically

DIGEST = "digest"
"""Key of the content's digest in the file."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors, plain values, lists and mappings of them) with its digest to ``path`` atomically."""
    buffer = io.BytesIO()
    torch.save({**state, DIGEST: _digest(state)}, buffer)
    write_atomically(path, buffer.getbuffer())


def load(path: Path) -> dict[str, Any]:
    """Read a file of :func:`save` into CPU memory; accept only tensors and plain values.

    Raises:
        UsageError: if the file cannot be read, or its content does not match its digest.
    """
    again = f"remove {path.parent} to start this run again"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError, OSError, AttributeError) as error:
        raise UsageError(f"{path} cannot be read ({first_line(error)}); {again}") from None
    if not isinstance(state, dict) or state.pop(DIGEST, None) != _digest(state):
        raise UsageError(f"{path} is damaged or was changed: its content does not match its digest; {again}")
    return state


def _digest(state: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, state)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value to a digest: its type, then its content."""
    if isinstance(value, torch.Tensor):
        digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
        flat = value.detach().cpu().resolve_conj().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
    elif isinstance(value, dict):
        digest.update(f"mapping {len(value)};".encode())
        for key, entry in value.items():
            digest.update(f"{key!r}:".encode())
            _add(digest, entry)
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__} {len(value)};".encode())
        for entry in value:
            _add(digest, entry)
    else:
        digest.update(f"{type(value).__name__} {value!r};".encode())
