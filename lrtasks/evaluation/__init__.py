"""One evaluation loop for every task and model: train, score, compare with floors, record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__all__ = ["Budget", "evaluate"]

if TYPE_CHECKING:
    from lrtasks.budget import Budget
    from lrtasks.evaluation.run import evaluate

# backends import their part of this package on nodes that leave torch to the runs' own processes
__getattr__, __dir__ = lazy_names(
    __name__, {"Budget": "lrtasks.budget:Budget", "evaluate": "lrtasks.evaluation.run:evaluate"}
)
