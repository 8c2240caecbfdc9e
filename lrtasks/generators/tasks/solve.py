from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, MAX_SEED, Task, registry
from lrtasks.generators.signals import EASY, HARD, SignalTask, unit_vectors
from lrtasks.spec import Spec


@registry.register("solve")
@dataclass(frozen=True)
class Solve(SignalTask):
    """Read a system AX = B row by row, then give its solution X.

    A is an N×N orthogonal matrix and X a unit vector, both uniformly random. The signal is the concatenation of the
    rows (a_i, b_i), then zeros. N is the largest number with N² + 2N <= L = ``length``. So the rightmost N positions,
    where X is read, come after all coefficients. N grows with the length of the further tests. Source: DLR paper
    (arXiv:2212.00768), section 3.1.

    >>> task = Solve(length=8)
    >>> task.unknowns
    2
    >>> batch = task.batch([0])
    >>> rows = batch.x[0, :6, 0].reshape(2, 3)  # (a_0, b_0) and (a_1, b_1)
    >>> np.allclose(np.linalg.solve(rows[:, :2], rows[:, 2]), batch.y[0, :, 0])
    True
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 24, **EASY}, **HARD}

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)

    @property
    def unknowns(self) -> int:
        """The number N of equations and unknowns: N² + 2N <= L is equivalent to (N + 1)² <= L + 1."""
        return math.isqrt(self.length + 1) - 1

    @property
    def target(self) -> Spec:
        return Spec("real", self.unknowns, 1)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        matrix = self.matrix(rng)
        solution = unit_vectors(rng, self.unknowns)
        rows = np.column_stack([matrix, matrix @ solution])
        x[: rows.size, 0] = rows.ravel()
        y[:, 0] = solution

    answer = Task.answer  # no exact answer: the solution is drawn first, and the given system is rounded

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the orthogonal matrix A of one sample, ``(N, N)`` float64, from the Haar distribution.

        The Q of a Gaussian matrix's QR decomposition is uniform once the diagonal of R is made positive (Mezzadri, "How
        to generate random matrices from the classical compact groups", Notices of the AMS 54(5), 2007, section 5).
        """
        q, r = np.linalg.qr(rng.standard_normal((self.unknowns, self.unknowns)))
        return q * np.copysign(1.0, np.diag(r))


@registry.register("solve-fixed")
@dataclass(frozen=True)
class SolveFixed(Solve):
    """As ``solve``, but all samples of all splits have the same matrix A; ``layout_seed`` determines it.

    X = AᵀB with one A. Source: DLR paper (arXiv:2212.00768), section 3.1. There are no further tests, because another
    length has another matrix.

    >>> batch = SolveFixed(length=8).batch([0, 1])
    >>> matrix = batch.x[:, :6, 0].reshape(2, 2, 3)[..., :2]
    >>> bool((matrix[0] == matrix[1]).all()), np.allclose(matrix[0] @ batch.y[1], batch.x[1, [2, 5], :1])
    (True, True)
    """

    presets: ClassVar[Presets] = SignalTask.presets

    nominal_length = None

    layout_seed: int = parameter(0, "seed of the matrix A", at_least=0, at_most=MAX_SEED)

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        return self._matrix

    @functools.cached_property
    def _matrix(self) -> np.ndarray:
        return super().matrix(self.layout_rng(**self.identifying()))
