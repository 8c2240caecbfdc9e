"""A conformance check for tasks, ours and other people's: whether the promises of :class:`Task` hold, in words."""

from __future__ import annotations

from lrtasks.errors import UsageError
from lrtasks.generators.base import Task
from lrtasks.generators.checks.arrays import check_batches, check_samples
from lrtasks.generators.checks.declaration import check_declaration
from lrtasks.generators.checks.parts import check_floors, check_slices, check_views
from lrtasks.generators.checks.probe import Probe, batch_digest, caught
from lrtasks.generators.checks.streams import check_independence, check_process, check_streams

__all__ = ["batch_digest", "check_task", "task_problems"]

STAGES = (
    (check_declaration,),
    (check_samples,),
    (check_batches,),
    (check_independence, check_streams, check_floors, check_slices, check_views),
    (check_process,),
)
"""Checks in groups: each group relies on the ones before it having found nothing."""


def check_task(task: Task, *, samples: int = 8, seed: int = 0) -> None:
    """Check that a task keeps its promises; return nothing if it does.

    Checked are: specs, loss, metric and the declaration of parameters; parameters that rebuild the task; shapes,
    dtypes and ranges of samples and batches; labels at padding; that sample i depends on nothing but task, seed, split
    and i (not on order, batch size, repeats, earlier calls, global random numbers or the process: one batch is made in
    a second interpreter with another hash seed, which must not need torch either); that seeds, splits and samples
    differ and that a test sample is seldom a training sample too; that a vectorised ``samples`` equals ``sample``;
    floors, slices and pictures.

    Args:
        task: an instance, with parameters that make small samples.
        samples: number of samples to draw for each check, at least 2.
        seed: seed of the samples drawn.

    Raises:
        UsageError: naming everything that is wrong.
    """
    problems = task_problems(task, samples=samples, seed=seed)
    if problems:
        title = getattr(task, "name", type(task).__name__)
        raise UsageError(f"task {title!r} breaks the contract: {'; '.join(problems)}")


def task_problems(task: Task, *, samples: int = 8, seed: int = 0) -> list[str]:
    """What :func:`check_task` would name, one entry per problem; empty if the task keeps its promises.

    Raises:
        UsageError: for arguments that are none.
    """
    if not isinstance(task, Task):
        raise UsageError(f"check_task takes an instance of a subclass of lrtasks.generators.Task, found {task!r}")
    if samples < 2:
        raise UsageError(f"samples must be at least 2, found {samples}")
    probe = Probe(task, samples, seed)
    for stage in STAGES:
        problems = [problem for check in stage for problem in caught(check, probe)]
        if problems:
            return problems
    return []
