"""What a task declares: name, parameters, specs, loss, metric, version."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lrtasks.generators.checks.probe import Probe, Problem
from lrtasks.registry import malformed
from lrtasks.spec import Spec

LOSSES = {"real": ("mse",), "token": ("cross-entropy", "balanced-cross-entropy")}
METRICS = {"real": ("r2",), "token": ("accuracy", "macro_f1")}


def check_declaration(probe: Probe) -> Iterator[Problem]:
    """What the class says of itself, before anything is drawn."""
    task = probe.task
    if not hasattr(task, "name"):
        yield (
            "it has no name; register the class with @lrtasks.generators.registry.register(NAME), or take the task"
            " from lrtasks.make(NAME) where an entry point names it"
        )
        return
    found = [*malformed(type(task)), *_spec_problems(probe)]
    if found:
        yield from found
        return
    if task.target.length > task.input.length and not task.target.pooled:
        yield (
            f"the target is read at the last positions of the input, but is longer"
            f" ({task.target.length} against {task.input.length})"
        )
    for field, allowed in (("loss", LOSSES), ("metric", METRICS)):
        if getattr(task, field) not in allowed[task.target.kind]:
            names = " or ".join(repr(name) for name in allowed[task.target.kind])
            yield (
                f"{field} of a {task.target.kind} target must be {names}, found {getattr(task, field)!r}; write"
                f" {field} = {allowed[task.target.kind][0]!r} in the class"
            )
    if not isinstance(task.version, int) or task.version < 1:
        yield f"version must be a whole number of at least 1, found {task.version!r}"
    causal: object = task.causal
    if not isinstance(causal, bool):
        yield f"causal must be True or False, found {causal!r}"
    if type(task).make(**json.loads(json.dumps(task.parameters()))) != task:
        yield f"parameters() does not rebuild the task: {task.parameters()!r}"


def _spec_problems(probe: Probe) -> Iterator[Problem]:
    for field in ("input", "target"):
        try:
            spec: object = getattr(probe.task, field)
        except NotImplementedError:
            yield f"{field} is missing: write a property that returns a lrtasks.generators.Spec"
        except Exception as error:
            yield probe.raised(field, error)
        else:
            if not isinstance(spec, Spec):
                hint = "; put @property above it" if callable(spec) else ""
                found = "a method" if callable(spec) else repr(spec)
                yield f"{field} must be a Spec, found {found}{hint}"
