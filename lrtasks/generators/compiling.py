"""Compiled generators: numba's machine code, kept on disk, and a line on standard error when it is first made."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile ``function``, which makes no array, when it is first called.

    Machine code is kept on disk where a folder can be written. No fast-math: floating-point results are those of plain
    Python. Arrays are passed on without counting references, which took half the time of Pathfinder's search.
    """
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    try:
        kept: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder for the cache: neither beside the source nor in the user's own
        kept = numba.njit(**options)(function)
    return kept


_SAID: set[str] = set()


class _Announcement(event.Listener):
    def __init__(self, what: str) -> None:
        self._what = what

    def on_start(self, _: Any) -> None:
        if self._what not in _SAID:
            print(f"compiling the {self._what} generator, once", file=sys.stderr)
            _SAID.add(self._what)

    def on_end(self, _: Any) -> None:
        pass


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Say on standard error, once in a process, if something of the generator ``what`` is compiled inside."""
    with event.install_listener("numba:compile", _Announcement(what)):
        yield
