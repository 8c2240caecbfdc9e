"""The evaluation loop for every task and model: train, score, compare with baselines, record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__all__ = ["evaluate", "load_model"]

if TYPE_CHECKING:
    from lrtasks.evaluation.run import evaluate, load_model

# lazy, because backends import parts of this package in processes that do not need torch; only the runs load torch
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "evaluate": "lrtasks.evaluation.run:evaluate",
        "load_model": "lrtasks.evaluation.run:load_model",
    },
)
