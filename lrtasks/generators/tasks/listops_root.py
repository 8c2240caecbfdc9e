"""ListOps with one value for the whole expression, as in the Long Range Arena."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets
from lrtasks.generators import tables
from lrtasks.generators.base import registry
from lrtasks.generators.listops import grammar
from lrtasks.generators.tasks.listops import ListOps
from lrtasks.spec import Batch, Sample, Spec


@registry.register("listops-root")
@dataclass(frozen=True)
class ListOpsRoot(ListOps):
    """Give the value of a long nested expression; tokens and expressions as in ``listops``.

    Source: Tay et al., "Long Range Arena: A Benchmark for Efficient Transformers", section 2.2.1, whose lengths
    are those of ``setting="lra-like"``.

    >>> task = ListOpsRoot(setting="lra-like")
    >>> task.target.shape(batch=32), task.target.width
    ((32, 1), 10)
    """

    presets: ClassVar[Presets] = {
        "small": {"setting": "small"},
        # As listops.
        "paper": {
            "setting": "paper",
            "budget.steps": 300000,
            "budget.batch_size": 32,
            "budget.schedule": "cosine",
            "budget.warmup_steps": 5000,
            "budget.eval_every": 3000,
            "budget.test_batches": 63,
        },
    }

    @property
    def target(self) -> Spec:
        return Spec("token", 1, 10, pooled=True)

    def _samples(self, rngs: Iterable[np.random.Generator]) -> list[Sample]:
        samples = []
        for x, y, mask, meta in super()._samples(rngs):
            root = {name: values[-1] for name, values in (meta or {}).items()}
            samples.append(Sample(x, y[y >= 0][-1:], mask, root))
        return samples

    def _labels(self, row: tables.Row, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tables.numbers(row, "Target"), np.zeros(1, np.int64)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By operator, height and length (bins from each power of two) of the whole expression."""
        labels = super().slices(batch)
        return {name: _at_root(batch, values) for name, values in labels.items() if name != "root"}

    def _operators(self, batch: Batch) -> np.ndarray:
        return _at_root(batch, super()._operators(batch))


def _at_root(batch: Batch, values: np.ndarray) -> np.ndarray:
    """Pick, from an array like ``batch.x``, the column of the last tokens: ``(batch, 1)``."""
    last = (batch.x != grammar.PAD).sum(axis=1, keepdims=True) - 1
    return np.take_along_axis(values, last, axis=1)
