"""Pathfinder as a question of yes or no: do the two marks lie on one path?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets
from lrtasks.generators.base import registry
from lrtasks.generators.pathfinder.task import PathfinderTask
from lrtasks.spec import Sample, Spec


@registry.register("pathfinder-classification")
@dataclass(frozen=True)
class PathfinderClassification(PathfinderTask):
    """One label for the image: 1 if both marks of the long paths are on one of them, else 0.

    The question of Pathfinder and Path-X in the Long Range Arena (Tay et al., ICLR 2021), on the images and settings of
    ``pathfinder``: distractors carry marks too, so the two that count are those at the ends of long paths.

    >>> PathfinderClassification(res=64).target
    Spec(kind='token', length=1, width=2, pooled=True)
    """

    presets: ClassVar[Presets] = {
        "small": {"res": 64, "budget.batch_size": 4, "budget.test_batches": 100},
        # The budget of pathfinder.
        "paper": {
            "res": 128,
            "budget.steps": 150000,
            "budget.schedule": "cosine",
            "budget.warmup_steps": 3000,
            "budget.eval_every": 5000,
            "budget.test_batches": 125,
        },
    }

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"

    @property
    def target(self) -> Spec:
        return Spec("token", 1, 2, pooled=True)

    def sample(self, rng: np.random.Generator) -> Sample:
        image, _, meta = self.image(rng)
        return Sample(self.pixels(image), np.array([meta["label"]]), None, meta)
