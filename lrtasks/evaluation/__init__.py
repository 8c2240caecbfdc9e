"""One evaluation loop for every task and model: train, score, compare with floors, record."""

from lrtasks.evaluation.budget import Budget
from lrtasks.evaluation.run import evaluate

__all__ = ["Budget", "evaluate"]
