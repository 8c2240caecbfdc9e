"""Many runs in one call: expand a suite into runs, carry them out on a backend, report the progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__all__ = ["expand", "run_suite"]

if TYPE_CHECKING:
    from lrtasks.suite.expand import expand
    from lrtasks.suite.run import run_suite

# the command line reads the options of backends without loading torch
__getattr__, __dir__ = lazy_names(
    __name__, {"expand": "lrtasks.suite.expand:expand", "run_suite": "lrtasks.suite.run:run_suite"}
)
