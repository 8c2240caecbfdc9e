"""All cases of a bench, one after the other; what is finished is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lrtasks.bench.apart import Outcome, run_apart
from lrtasks.bench.case import BASELINE, Case
from lrtasks.bench.measure import Phase, cost, sizes
from lrtasks.bench.record import Measurement, finished
from lrtasks.bench.resident import processor
from lrtasks.errors import UsageError
from lrtasks.evaluation.environment import describe_environment
from lrtasks.files import held, make_folder

Ended = Callable[[Case, Measurement, bool], None]
"""Called after each case with its measurement, and whether that was there before."""


def run_bench(
    cases: Sequence[Case], out: Path, *, time_limit: float = 600.0, on_end: Ended = lambda *_: None
) -> list[Measurement]:
    """Measure all cases, one process at a time; a case that fails is recorded with the reason and stops no other.

    A finished measurement of the same settings, code and device, a failed one included, is not repeated.

    Args:
        cases: from :func:`lrtasks.bench.case.make_cases`.
        out: results folder.
        time_limit: seconds after which a measurement is stopped.
        on_end: see :data:`Ended`.

    Raises:
        UsageError: if the folder cannot be used, or another process is measuring into it.
    """
    if not 0 < time_limit < math.inf:
        raise UsageError(f"time_limit must be above 0 seconds and finite, found {time_limit:g}")
    make_folder(out, "the results folder")
    found: list[Measurement] = []
    with held(out / ".lock", f"the measurements in {out}"):
        for case in cases:
            kept = finished(case, out)
            measured = kept or _measure(case, time_limit, _baseline(case, found))
            if not kept:
                measured.write(case.file(out))
            found.append(measured)
            on_end(case, measured, kept is not None)
    return found


def _baseline(case: Case, found: Sequence[Measurement]) -> Measurement | None:
    return next((entry for entry in found if entry.model == BASELINE and entry.length == case.length), None)


def _measure(case: Case, time_limit: float, baseline: Measurement | None) -> Measurement:
    """One measurement. Where the Transformer is known to fail, the model is timed alone."""
    apart = partial(run_apart, time_limit=time_limit, limited=case.bench.device == "cpu")

    def figures(phase: Phase) -> dict[str, Any]:
        paired = baseline is None or "reason" not in baseline.figures(phase)
        outcome = apart(cost, case, phase, paired)
        if paired and outcome.reason:  # what fails beside the Transformer may succeed without it
            outcome = apart(cost, case, phase, False)
        return _found(outcome)

    return Measurement(
        identity=case.identity(),
        environment={**describe_environment(), "threads": case.bench.settings.threads, "processor": processor()},
        sizes=_found(apart(sizes, case)),
        training=figures("training"),
        inference=figures("inference"),
    )


def _found(outcome: Outcome) -> dict[str, Any]:
    return {"reason": outcome.reason} if outcome.reason else outcome.value
