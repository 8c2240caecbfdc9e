"""Select: pick out marked values of a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import noise, padded, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("select")
@dataclass(frozen=True)
class Select(Task):
    """Read L + M values of which M are marked, then, over M zeros, give the marked ones in order of position.

    The second channel holds 1 at the marked positions, drawn uniformly without repeats, and 0 elsewhere; M = ``marks``.
    Source: DLR paper, section 3.1.

    Example: the signal 0.5, -1, 0.2, 0.6 with marks 0, 1, 0, 1 has the targets -1, 0.6.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256, "marks": 16},
        "paper": {"length": 4096, "marks": 32},
    }

    length: int = parameter(
        4096, "number of unmarked values L; the input has L + 2M positions", at_least=2, at_most=MAX_LENGTH
    )
    marks: int = parameter(32, "number of marked values M", at_least=1, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length + 2 * self.marks, 4)

    @property
    def target(self) -> Spec:
        return Spec("real", self.marks, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        values = noise(rng, self.length + self.marks)
        positions = self.positions(rng)
        marked = np.zeros(self.input.length, np.float32)
        marked[positions] = 1
        return Sample(with_positions(padded(values, len(marked)), marked), values[positions, None])

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        """The marked positions of one sample, ``(marks,)``, ascending, in ``0..L+M-1``."""
        return np.sort(rng.choice(self.length + self.marks, self.marks, replace=False, shuffle=False))
