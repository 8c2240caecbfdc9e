"""Scores of the trivial predictors that a task declares, on the same test stream as the models."""

from __future__ import annotations

from collections.abc import Iterable

from lrtasks.evaluation.scoring import make_scorer
from lrtasks.generators.base import Task
from lrtasks.spec import Batch

FIT_BATCHES = 64
"""Training batches on which a floor is fitted."""


def baseline_scores(task: Task, train: Iterable[Batch], test: Iterable[Batch]) -> dict[str, dict[str, float]]:
    """Fit each floor of ``task`` on ``train``, which can be gone through several times, and score it on ``test``.

    Returns:
        Scores by floor name, e.g. ``{"constant": {"r2": 0.45, ...}}``.
    """
    floors = task.baselines()
    for floor in floors.values():
        floor.fit(train)
    scorers = {name: make_scorer(task, slices=False) for name in floors}
    for batch in test:
        for name, floor in floors.items():
            scorers[name].update(floor.predict(batch), batch)
    return {name: scorer.scores() for name, scorer in scorers.items()}
