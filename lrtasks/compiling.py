"""Compilation of loops by numba: machine code is cached on disk, and a message announces a compilation."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F, *, regroup: bool = False, inner: bool = False) -> F:
    """Compile ``function``, which must not create arrays, at its first call.

    Machine code is cached on disk if a folder is writable. A division by zero gives infinity, as in NumPy. References
    to arrays are not counted: counting took half the time of Pathfinder's search. Calls between compiled functions are
    inlined: passing the tables of the search in each call took a quarter of the remaining time.

    With ``regroup``, additions may change their order, and a product and a sum may have one rounding: sums in inner
    loops are then several times faster. Without it, floating-point results equal those of plain Python.

    With ``inner``, only compiled functions can call it, because its entry for Python is not compiled. These entries
    took a quarter of the time to compile Pathfinder.
    """
    fast = {"reassoc", "contract"} if regroup else False
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fast}
    options |= {"forceinline": True, "_nrt": False, "no_cfunc_wrapper": True, "no_cpython_wrapper": inner}
    try:
        kept: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no cache: neither the source folder nor the user's cache folder is writable
        kept = numba.njit(**options)(function)
    return kept


compiled_inner = functools.partial(compiled, inner=True)


def untraced(function: F) -> F:
    """Return a compiled function that ``torch.compile`` calls as it is; it would trace numba's compiler otherwise."""
    untraceable: F = sys.modules["torch"].compiler.disable(function) if "torch._dynamo" in sys.modules else function
    return untraceable


class _Announcement(event.Listener):
    """Print a line on standard error when functions of one of this package's folders are first compiled."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def on_start(self, begun: event.Event) -> None:
        package = str(begun.data["dispatcher"].py_func.__module__).rpartition(".")[0]
        if package.startswith("lrtasks.") and package not in self._said:
            self._said.add(package)
            print(f"compiling the loops of {package}, once", file=sys.stderr)

    def on_end(self, _: Any) -> None:
        pass


event.register("numba:compile", _Announcement())  # type: ignore[no-untyped-call]
