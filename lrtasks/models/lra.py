"""Training budgets that MEGA, SeqBoat and LongVQ publish for the Long Range Arena, as settings of presets.

Source: the hyper-parameter tables of the three papers. Steps, warm-up and the linear fall of the rate are those of the
public code of MEGA and SeqBoat; LongVQ's are MEGA's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def budget(steps: int, batch_size: int, lr: float, weight_decay: float, warmup_steps: int) -> dict[str, Any]:
    """A budget with the betas, the linear schedule and the clipping that all rows of the tables share."""
    return {
        "budget.steps": steps,
        "budget.batch_size": batch_size,
        "budget.lr": lr,
        "budget.weight_decay": weight_decay,
        "budget.betas": (0.9, 0.98),
        "budget.schedule": "linear",
        "budget.warmup_steps": warmup_steps,
        "budget.clip": 1.0,
    }


LISTOPS = budget(90_000, 64, 1e-3, 0.01, 3_000)
"""MEGA's and LongVQ's; SeqBoat has one of its own."""
TEXT = budget(25_000, 50, 4e-3, 0.01, 10_000)
RETRIEVAL = budget(91_960, 64, 3e-3, 0.04, 10_000)
IMAGE = budget(180_000, 50, 1e-2, 0.02, 9_000)
PATHFINDER = budget(250_000, 128, 1e-2, 0.01, 50_000)
PATH_X = budget(125_000, 128, 1e-2, 0.01, 25_000)
SPEECH = budget(250_000, 20, 1e-2, 0.01, 10_000)
ENWIK8 = budget(400_000, 8, 5e-3, 0.1, 24_000)

LISTOPS_TASKS = ("listops-root", "listops")
PATH_X_TASKS = ("pathfinder-classification", "pathfinder")
"""Path-X stands for images of pixels in a row, whether the task asks once or at every position."""


def paper_presets(tasks: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The same settings of the preset ``paper`` for each of ``tasks``."""
    return {f"paper/{task}": settings for task in tasks}
