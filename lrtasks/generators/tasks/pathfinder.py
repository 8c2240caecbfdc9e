"""Pathfinder-Segmentation: find the two long paths, and tell whether one of them carries both marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets
from lrtasks.generators.base import registry
from lrtasks.generators.baselines import Baseline, MajorityClass
from lrtasks.generators.pathfinder.task import PathfinderTask
from lrtasks.spec import Batch, Sample, Spec


@registry.register("pathfinder")
@dataclass(frozen=True)
class Pathfinder(PathfinderTask):
    """Label each pixel: 0 off the two long dashed paths, 1 on one, 2 on one that carries both of their marks.

    With both marks on one path (half of the images) that path is 2 and the other 1; else both are 1. Short paths with a
    mark each distract. Source: DLR paper, section 3.2, where the images are read row by row as sequences of pixels.

    >>> task = Pathfinder(res=64)
    >>> task.input, task.target
    (Spec(kind='real', length=4096, width=1, pooled=False), Spec(kind='token', length=4096, width=3, pooled=False))
    """

    presets: ClassVar[Presets] = {
        # Settings of our own at 64 x 64.
        "small": {"res": 64, "budget.batch_size": 4, "budget.test_batches": 100},
        # DLR paper, Table 3.
        "paper": {
            "res": 128,
            "budget.steps": 150000,
            "budget.schedule": "cosine",
            "budget.warmup_steps": 3000,
            "budget.eval_every": 5000,
            "budget.test_batches": 125,
        },
    }

    loss: ClassVar[str] = "balanced-cross-entropy"
    metric: ClassVar[str] = "macro_f1"

    @property
    def target(self) -> Spec:
        return Spec("token", self.res**2, 3)

    def sample(self, rng: np.random.Generator) -> Sample:
        image, target, meta = self.image(rng)
        return Sample(self.pixels(image), target.ravel().astype(np.int64), None, meta)

    def baselines(self) -> Mapping[str, Baseline]:
        # the most frequent class is the background, by far
        return {"all-background": MajorityClass(3)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By whether both marks are on one path, by gap margin and by number of distractors; the score adds classes."""
        meta = batch.meta or {}
        return {"label": np.asarray(meta["label"])[:, None], **super().slices(batch)}
