from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, Rule, octave
from lrtasks.spec import Batch, Sample, Spec


@registry.register("adding")
@dataclass(frozen=True)
class Adding(Task):
    """Add the two marked numbers of a long sequence.

    The input has L = ``length`` positions. Each position holds a number, independent and uniform over [0, 1), and a
    mark. The mark is 1 at two positions and 0 at all others. The target is one number for the whole sequence: the sum
    of the two marked numbers.

    ``law="halves"``: one mark is uniform over the first ⌊L/2⌋ positions, the other mark over the remaining positions.
    Source: Arjovsky et al., "Unitary Evolution Recurrent Neural Networks" (arXiv:1511.06464), after
    Hochreiter and Schmidhuber; code of Gu et al., "Efficiently Modeling Long Sequences with Structured State Spaces"
    (S4, arXiv:2111.00396).
    ``law="anywhere"``: the marks are at two distinct positions, drawn uniformly. Source: Bai et al., "An Empirical
    Evaluation of Generic Convolutional and Recurrent Networks for Sequence Modeling" (TCN, arXiv:1803.01271),
    section 4.

    The papers report the mean squared error. The score here is R²; the mean squared error is then (1 - R²)/6.

    >>> task = Adding(length=4)
    >>> task.answer([[0.5, 1], [0.25, 0], [0.125, 0], [0.75, 1]]).tolist()
    [[1.25]]
    """

    group: ClassVar[str] = "latching"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    any_length: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "small": {"length": 100, **budget(batch_size=32, steps=1500)},
        "small-hard": {"length": 200, **budget(batch_size=64)},
        "paper": {"length": 400},
    }

    length: int = parameter(400, "sequence length L", at_least=2, at_most=MAX_LENGTH)
    law: Literal["halves", "anywhere"] = parameter("halves", "where the two marks are")

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 2)

    @property
    def target(self) -> Spec:
        return Spec("real", 1, 1, pooled=True)

    def sample(self, rng: np.random.Generator) -> Sample:
        x = np.zeros((self.length, 2), dtype=np.float32)
        x[:, 0] = rng.random(self.length, dtype=np.float32)
        if self.law == "halves":
            half = self.length // 2
            one, two = int(rng.integers(half)), half + int(rng.integers(self.length - half))
        else:
            one, two = int(rng.integers(self.length)), int(rng.integers(self.length - 1))
            two += two >= one
        x[[one, two], 1] = 1
        return Sample(x, (x[one, :1] + x[two, :1])[None])

    def answer(self, x: np.ndarray) -> np.ndarray:
        """Return the target ``(1, 1)`` of an input ``x`` ``(length, 2)``: numbers and marks, of any length.

        Raises:
            UsageError: for another shape, values that are not finite, or not exactly two marks of 1 beside zeros.
        """
        given = self.checked_input(x)
        marked = np.flatnonzero(given[:, 1])
        if len(marked) != 2 or not (given[marked, 1] == 1).all():
            self.refuse(f"two marks must be 1 and all others 0, found {given[marked, 1].tolist()[:5]} beside zeros")
        return np.asarray(given[marked[:1], :1] + given[marked[1:], :1])

    def baselines(self) -> dict[str, Baseline]:
        """Return the mean of all sums, and the last marked number plus 1/2, as if the first mark were not seen."""

        def second(x: np.ndarray) -> np.ndarray:
            last = x.shape[1] - 1 - x[:, ::-1, 1].argmax(axis=1)
            return np.asarray(x[np.arange(len(x)), last, 0] + 0.5)[:, None, None]

        return {**super().baselines(), "second": Rule(second)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance from the first mark to the end, in octaves."""
        first = batch.x[:, :, 1].argmax(axis=1)
        return {"distance": octave(batch.x.shape[1] - first)[:, None, None]}

    def text(self, batch: Batch, index: int) -> str:
        """Return the marked numbers with their positions, and the sum."""
        x = batch.x[index]
        marked = np.flatnonzero(x[:, 1]).tolist()
        return " + ".join(f"{x[at, 0]:.3f}@{at}" for at in marked) + f" of {len(x)} = {batch.y[index, 0, 0]:.3f}"
