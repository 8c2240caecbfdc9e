"""Scores of a model or a baseline over a stream of batches, and their slices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lrtasks.errors import UsageError
from lrtasks.generators.base import Slices, Task
from lrtasks.generators.baselines import Baseline
from lrtasks.metrics import METRICS
from lrtasks.spec import Batch

BASELINE_BATCHES = 64
"""Number of training batches on which a baseline is fitted."""
RESAMPLES = 200
"""Number of bootstrap resamples for the standard error of a score."""


class Scorer:
    """Accumulates the metric of a task over batches, and with ``slices`` also its slices, which take more time."""

    def __init__(self, task: Task, *, slices: bool = True) -> None:
        self._task = task
        self._metric = METRICS[task.metric](task.target.width)
        self._total: Any = 0
        self._batches: list[dict[str, float]] = []
        self._samples: dict[str, list[np.ndarray]] = {}
        self._sums: list[np.ndarray] = []
        self._groups: dict[str, dict[Any, np.ndarray]] | None = {} if slices else None

    def update(self, prediction: ArrayLike, batch: Batch) -> None:
        """Add one batch; ``prediction`` has the shape of ``batch.y``: finite real values, or class labels.

        It is an array of NumPy, PyTorch or JAX in the memory of the CPU, or a list.

        Raises:
            UsageError: if the shape is another one, or a value is not finite.
        """
        if np.shape(prediction) != batch.y.shape:
            raise UsageError(
                f"a prediction must have the shape of batch.y, {batch.y.shape}, found {np.shape(prediction)}"
            )
        predicted = np.asarray(prediction)
        if not np.isfinite(predicted).all():
            raise UsageError(f"a prediction must be finite, found {predicted[~np.isfinite(predicted)][0]}")
        sums = self._metric.sums(predicted, batch)
        of_samples = sums.reshape(len(sums), -1, sums.shape[-1]).sum(axis=1, dtype=np.float64)
        of_batch = of_samples.sum(axis=0)
        self._sums.append(of_samples)
        self._total = self._total + of_batch
        if self._metric.batch_mean:
            self._batches.append(self._metric.batch_value(of_batch))
        if hasattr(self._metric, "sample_values"):
            for name, values in self._metric.sample_values(of_samples).items():
                self._samples.setdefault(name, []).append(values)
        if self._groups is not None:
            for name, labels in self._task.slices(batch).items():
                _add_groups(self._groups.setdefault(name, {}), np.asarray(labels), sums)

    def scores(self) -> dict[str, float]:
        """Return all scores of the added batches: pooled scores, means over batches or samples, and derived scores.

        Raises:
            UsageError: if there is no score, because there was no batch, no position is labelled or all targets are
                equal.
        """
        if not self._sums:
            raise UsageError(f"{self._task.name}: no batch was added, so there is no score")
        pooled = self._metric.value(self._total)
        if math.isnan(pooled[self._metric.name]):
            what = "no position is labelled"
            if self._task.target.kind == "real":
                what = f"all targets are equal in {int(self._total[0]):,} elements"
            raise UsageError(f"{self._task.name}: {what}, so there is no score")
        scores = dict(pooled)
        for name in pooled if self._batches else ():
            values = [row[name] for row in self._batches]
            scores[f"{name}_batch_mean"] = float(np.mean(values))
            if name == "r2":
                scores[f"{name}_batch_std"] = float(np.std(values))
        for name, rows in self._samples.items():
            scores[name] = float(np.nanmean(np.concatenate(rows)))
        if self._groups is not None:
            scores |= self._derived(scores)
        return scores

    def _derived(self, scores: Mapping[str, float]) -> dict[str, Any]:
        """Return the derived scores as plain numbers, which a record can hold.

        Raises:
            UsageError: if the result is not a dictionary of numbers by name, or replaces a score.
        """
        derived: object = self._task.derived_scores(scores, self.slices())
        must = f"{self._task.name}: derived_scores() must"
        if not isinstance(derived, Mapping):
            raise UsageError(f"{must} return a dictionary of numbers by name, found {derived!r}")
        for name, value in derived.items():
            if name in scores:
                raise UsageError(f"{must} not replace the score {name!r}; rename it")
            if not isinstance(name, str) or not isinstance(value, Real | None):
                raise UsageError(f"{must} return a dictionary of numbers by name, found {value!r} for {name!r}")
        return {name: value if value is None else float(value) for name, value in derived.items()}

    def error(self) -> float | None:
        """Return the bootstrap standard error of the headline score over samples, or ``None`` if it is not finite.

        Fewer than two samples have no standard error. The same samples always give the same result, because the
        resampling has a fixed seed.
        """
        if sum(map(len, self._sums)) < 2:
            return None
        sums, rng = np.concatenate(self._sums), np.random.default_rng(0)
        drawn = (sums[rng.integers(len(sums), size=len(sums))].sum(axis=0) for _ in range(RESAMPLES))
        spread = float(np.std([self._metric.value(total)[self._metric.name] for total in drawn]))
        return spread if math.isfinite(spread) else None

    def slices(self) -> Slices:
        """Return, for each slice, one row per group of elements: label, score and number of elements."""
        rows = {
            name: [self._row(label, groups[label]) for label in sorted(groups) if groups[label][0] > 0]
            for name, groups in (self._groups or {}).items()
        }
        if self._groups is not None and hasattr(self._metric, "class_rows"):
            rows = {"class": self._metric.class_rows(self._total), **rows}
        return rows

    def _row(self, label: Any, sums: np.ndarray) -> dict[str, Any]:
        name = self._metric.name
        value = self._metric.value(sums)[name]
        return {"label": label, name: value if math.isfinite(value) else None, "elements": int(sums[0])}


def baseline_scores(task: Task, train: Iterable[Batch], test: Iterable[Batch]) -> dict[str, dict[str, float]]:
    """Fit each baseline on ``train``, which is iterated several times; return its scores on ``test`` by its name."""
    return score_baselines(task, fitted_baselines(task, train), test)


def fitted_baselines(task: Task, train: Iterable[Batch]) -> Mapping[str, Baseline]:
    """Fit the baselines of a task on ``train``, which is iterated several times, and return them by name."""
    baselines = task.checked_baselines()
    for baseline in baselines.values():
        baseline.fit(train)
    return baselines


def score_baselines(
    task: Task, baselines: Mapping[str, Baseline], test: Iterable[Batch]
) -> dict[str, dict[str, float]]:
    """Return the scores of fitted baselines on ``test``, by baseline name."""
    scorers = {name: Scorer(task, slices=False) for name in baselines}
    for batch in test:
        for name, baseline in baselines.items():
            scorers[name].update(baseline.predict(batch), batch)
    return {name: scorer.scores() for name, scorer in scorers.items()}


def _add_groups(groups: dict[Any, np.ndarray], labels: np.ndarray, sums: np.ndarray) -> None:
    """Add ``sums`` ``(*shape, k)`` to the sums of each label; ``labels`` is broadcastable to ``shape``."""
    labels = labels.reshape((1,) * (sums.ndim - 1 - labels.ndim) + labels.shape)
    # first sum over the axes along which labels do not change: there are far fewer labels than elements
    axes = tuple(axis for axis, size in enumerate(labels.shape) if size == 1)
    columns = sums.sum(axis=axes, keepdims=True, dtype=np.float64)
    unique, inverse = np.unique(labels, return_inverse=True)
    table = [np.bincount(inverse.ravel(), column.ravel(), len(unique)) for column in np.moveaxis(columns, -1, 0)]
    for label, row in zip(unique.tolist(), np.stack(table, axis=1), strict=True):
        groups[label] = groups.get(label, 0) + row
