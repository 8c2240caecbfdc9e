from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, MAX_SEED, budget, registry
from lrtasks.generators.signals import SignalTask, noise
from lrtasks.spec import Spec


@registry.register("select")
@dataclass(frozen=True)
class Select(SignalTask):
    """Read L + M values, M of them marked; then, over M zeros, give the marked values in order of position.

    L is ``length`` and M is ``marks``. The second channel holds 1 at the marked positions, which are drawn uniformly
    without repeats, and 0 elsewhere. ``y[n]`` is the value at the n-th marked position. The further tests keep M.
    Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.zeros((6, 4))
    >>> x[:4, 0] = 0.5, -1, 0.25, 0.75
    >>> x[:4, 1] = 0, 1, 0, 1
    >>> Select(length=2, marks=2).answer(x)[:, 0].tolist()
    [-1.0, 0.75]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        # An LSTM solves ``small``; none of our models solves ``small-hard`` in as many steps.
        "small": {"length": 32, "marks": 4, **budget(batch_size=64, lr=3e-3)},
        "small-hard": {"length": 256, "marks": 16},
        "paper": {"length": 4096, "marks": 32},
    }

    length: int = parameter(4096, "unmarked values L; the input has L + 2M positions", at_least=2, at_most=MAX_LENGTH)
    marks: int = parameter(32, "number of marked values M", at_least=1, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length + 2 * self.marks, 4)

    @property
    def target(self) -> Spec:
        return Spec("real", self.marks, 1)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        count = self.length + self.marks
        x[:count, 0] = noise(rng, count)
        x[self.positions(rng), 1] = 1
        self.respond(x, y)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        marked = np.flatnonzero(x[:, 1] == 1)
        if len(marked) != self.marks or marked[-1] >= self.length + self.marks:
            wanted = f"{self.marks} of the first {self.length + self.marks} positions"
            self.refuse(f"the second channel holds 1 at {wanted}, found it at {len(marked)} positions")
        y[:, 0] = x[marked, 0]

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        """Return the marked positions of one sample, ``(marks,)``, ascending, in ``0..L+M-1``."""
        return np.sort(rng.choice(self.length + self.marks, self.marks, replace=False, shuffle=False))


@registry.register("select-fixed")
@dataclass(frozen=True)
class SelectFixed(Select):
    """As ``select``, but all samples of all splits have the same marked positions; ``layout_seed`` determines them.

    ``y[n] = x[p_n]`` with positions p_0 < ... < p_{M-1} drawn once. Source: DLR paper (arXiv:2212.00768), section 3.1.
    There are no further tests, because another length has other positions.

    >>> batch = SelectFixed(length=2, marks=2).batch([0, 1])
    >>> batch.x[:, :4, 1].tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    >>> batch.y[1, :, 0].tolist() == batch.x[1, [1, 3], 0].tolist()
    True
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 128, "marks": 16},
        "small-hard": {"length": 256, "marks": 16},
        "paper": {"length": 4096, "marks": 32},
    }

    nominal_length = None

    layout_seed: int = parameter(0, "seed of the marked positions", at_least=0, at_most=MAX_SEED)

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        return self._positions

    @functools.cached_property
    def _positions(self) -> np.ndarray:
        return super().positions(self.layout_rng(**self.identifying()))
