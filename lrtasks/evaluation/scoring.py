"""Scores over a whole evaluation stream, and their breakdowns.

The headline is pooled: one figure from all elements of the stream. The average over batches, which the papers print,
stands beside it. A scorer takes predictions (real values, or class labels), so floors are scored like models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.regression import R2Score

from lrtasks.errors import unknown
from lrtasks.generators.base import Task
from lrtasks.spec import Batch

VARIANCE_FLOOR = 1e-5
"""Smallest denominator of a batch's R² (DLR code)."""

Slices = dict[str, list[dict[str, Any]]]


class Scorer(Protocol):
    """Accumulates predictions batch by batch."""

    def update(self, prediction: np.ndarray, batch: Batch) -> None:
        """Add one batch; ``prediction`` has the shape of ``batch.y``."""

    def scores(self) -> dict[str, float]:
        """All scores of what was added, the headline among them."""

    def slices(self) -> Slices:
        """The score within each group of elements, by the breakdowns that the task declares."""


class RealScorer:
    """R² = 1 - mean((prediction - target)²) / mean((target - mean(target))²) over every element."""

    def __init__(self, task: Task, slices: bool) -> None:
        # given float64, it keeps its sums in float64; in float32 they lose the fourth digit over a long stream
        self._r2 = R2Score()
        self._by_batch: list[float] = []
        self._groups = _Groups(task if slices else None)

    def update(self, prediction: np.ndarray, batch: Batch) -> None:
        guess, target = prediction.astype(np.float64), batch.y.astype(np.float64)
        self._r2.update(torch.from_numpy(guess.ravel()), torch.from_numpy(target.ravel()))
        error = np.square(guess - target)
        self._by_batch.append(1 - error.mean() / max(target.var(), VARIANCE_FLOOR))
        self._groups.add(batch, [np.ones_like(target), target, target**2, error])

    def scores(self) -> dict[str, float]:
        return {
            "r2": float(self._r2.compute()),
            "r2_batch_mean": float(np.mean(self._by_batch)),
            "r2_batch_std": float(np.std(self._by_batch)),
        }

    def slices(self) -> Slices:
        def r2(sums: np.ndarray) -> dict[str, Any]:
            count, total, squares, error = sums
            variance = squares / count - (total / count) ** 2
            return {"r2": float(1 - (error / count) / variance) if variance > 0 else None, "elements": int(count)}

        return self._groups.rows(r2)


class ClassScorer:
    """Accuracy over labelled positions, and the share of sequences with every labelled position right."""

    def __init__(self, task: Task, slices: bool) -> None:
        self._accuracy = MulticlassAccuracy(task.target.width, average="micro", ignore_index=-100)
        self._sequences: list[bool] = []
        self._groups = _Groups(task if slices else None)

    def update(self, prediction: np.ndarray, batch: Batch) -> None:
        labelled = batch.y >= 0
        right = (prediction == batch.y) & labelled
        self._accuracy.update(torch.from_numpy(prediction.copy()), torch.from_numpy(batch.y))
        self._sequences += (right.sum(axis=1) == labelled.sum(axis=1)).tolist()
        self._groups.add(batch, [labelled.astype(np.float64), right.astype(np.float64)])

    def scores(self) -> dict[str, float]:
        return {"accuracy": float(self._accuracy.compute()), "sequence_accuracy": float(np.mean(self._sequences))}

    def slices(self) -> Slices:
        return self._groups.rows(lambda sums: {"accuracy": float(sums[1] / sums[0]), "elements": int(sums[0])})


class SegmentationScorer:
    """Macro F1 and macro (balanced) accuracy from all labelled positions.

    Both are means over classes; a class that is neither among targets nor among predictions does not count, which
    matters in small batches alone.
    """

    def __init__(self, task: Task, slices: bool) -> None:
        classes = task.target.width
        self._macro = MetricCollection(
            {
                "macro_f1": MulticlassF1Score(classes, average="macro", ignore_index=-100),
                "macro_accuracy": MulticlassAccuracy(classes, average="macro", ignore_index=-100),
            }
        )
        self._classes = range(classes)
        self._seen = np.zeros(classes, dtype=bool)
        self._by_class = MulticlassF1Score(classes, average="none", ignore_index=-100) if slices else None
        self._groups = _Groups(task if slices else None)
        self._by_batch: list[dict[str, float]] = []

    def update(self, prediction: np.ndarray, batch: Batch) -> None:
        guess, target = torch.from_numpy(prediction.copy()), torch.from_numpy(batch.y)
        # calling a metric returns the batch's own value and adds the batch to the whole
        self._by_batch.append({name: float(value) for name, value in self._macro(guess, target).items()})
        if self._by_class is not None:
            self._by_class.update(guess, target)
            labelled = batch.y >= 0
            self._seen[batch.y[labelled]] = self._seen[prediction[labelled]] = True
            self._groups.add(batch, list(self._counts(prediction, batch.y)))

    def scores(self) -> dict[str, float]:
        pooled = {name: float(value) for name, value in self._macro.compute().items()}
        averaged = {f"{name}_batch_mean": float(np.mean([row[name] for row in self._by_batch])) for name in pooled}
        return {**pooled, **averaged}

    def slices(self) -> Slices:
        if self._by_class is None:
            return {}
        scores = self._by_class.compute().tolist()
        # a class that is neither there nor predicted has no score, nor has it a part in the mean
        by_class = [{"label": label, "f1": scores[label] if self._seen[label] else None} for label in self._classes]
        return {"class": by_class, **self._groups.rows(self._group_score)}

    def _counts(self, guess: np.ndarray, target: np.ndarray) -> Iterator[np.ndarray]:
        """Of each element: whether it is labelled, then for each class whether it is right, predicted and there."""
        labelled = target >= 0
        yield labelled.astype(np.float64)
        for label in self._classes:
            predicted, there = (guess == label) & labelled, target == label
            yield from (column.astype(np.float64) for column in (predicted & there, predicted, there))

    def _group_score(self, sums: np.ndarray) -> dict[str, Any]:
        right, predicted, there = sums[1:].reshape(-1, 3).T
        seen = predicted + there > 0
        f1 = 2 * right[seen] / (predicted + there)[seen]
        return {"macro_f1": float(f1.mean()), "elements": int(sums[0])}


SCORERS: dict[str, type[RealScorer] | type[ClassScorer] | type[SegmentationScorer]] = {
    "r2": RealScorer,
    "accuracy": ClassScorer,
    "macro_f1": SegmentationScorer,
}


def make_scorer(task: Task, *, slices: bool = True) -> Scorer:
    """The scorer for the metric that ``task`` declares, one of :data:`SCORERS`; without slices it costs less.

    Raises:
        UsageError: if there is none.
    """
    if task.metric not in SCORERS:
        raise unknown("metric", task.metric, SCORERS)
    return SCORERS[task.metric](task, slices)


class _Groups:
    """Streaming sums per label of each breakdown that a task declares; none without a task."""

    def __init__(self, task: Task | None) -> None:
        self._task = task
        self._sums: dict[str, dict[Any, np.ndarray]] = {}

    def add(self, batch: Batch, columns: Sequence[np.ndarray]) -> None:
        """Add ``columns``, float64 arrays of the shape of ``batch.y``, to the sums of their labels."""
        for name, given in (self._task.slices(batch) if self._task else {}).items():
            labels = np.asarray(given)
            labels = labels.reshape((1,) * (batch.y.ndim - labels.ndim) + labels.shape)
            # where one label holds for a whole axis, sum over it first: there are far fewer labels than elements
            axes = tuple(axis for axis, size in enumerate(labels.shape) if size == 1)
            unique, inverse = np.unique(labels, return_inverse=True)
            sums = [
                np.bincount(inverse.ravel(), column.sum(axis=axes, keepdims=True).ravel(), len(unique))
                for column in columns
            ]
            table = self._sums.setdefault(name, {})
            for label, row in zip(unique.tolist(), np.stack(sums, axis=1), strict=True):
                table[label] = table.get(label, 0) + row

    def rows(self, score: Callable[[np.ndarray], dict[str, Any]]) -> Slices:
        """One row per label with elements: its label, its score and the number of elements."""
        tables: Mapping[str, Mapping[Any, np.ndarray]] = self._sums
        return {
            name: [{"label": label, **score(table[label])} for label in sorted(table) if table[label][0] > 0]
            for name, table in tables.items()
        }
