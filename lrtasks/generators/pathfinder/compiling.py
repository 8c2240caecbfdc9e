"""Compilation by numba where it is installed; the same functions run without it, slowly, with the same results."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

numba: Any = None
if not os.environ.get("LRTASKS_NO_NUMBA"):
    with contextlib.suppress(ImportError):
        numba = importlib.import_module("numba")

_announced: set[str] = set()


def compiled(function: F) -> F:
    """Compile ``function``, which makes no array, when it is first called; without numba, return it as it is.

    Machine code is kept on disk where a folder can be written. No fast-math: floating-point results are those of plain
    Python. Arrays are passed on without counting references, which took half the time of the search.
    """
    if numba is None:
        return function
    # numba's own spelling; a version without it counts references
    uncounted = {"_nrt": False} if hasattr(importlib.import_module("numba.core.options").DefaultOptions, "_nrt") else {}
    return _compiled(function, **uncounted)


def compiled_allocating(function: F) -> F:
    """The same for a function that makes arrays or lists."""
    return function if numba is None else _compiled(function)


def _compiled(function: F, **options: Any) -> F:
    try:
        kept: F = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # no folder for the cache: neither beside the source nor in the user's own
        kept = numba.njit(nogil=True, **options)(function)
    return kept


@contextlib.contextmanager
def announced(what: str) -> Iterator[None]:
    """Say once on standard error that ``what`` is being compiled, if something is; or that it runs uncompiled."""
    if what in _announced:
        yield
        return
    _announced.add(what)
    if numba is None:
        print(f"numba is not in use: {what} runs as plain Python, some hundred times slower", file=sys.stderr)
        yield
        return
    from numba.core import event

    class Announcement(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                print(f"compiling {what}, once", file=sys.stderr)
                self.said = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Announcement()):
        yield
