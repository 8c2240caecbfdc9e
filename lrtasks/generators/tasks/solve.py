"""Solve: recover the solution of a linear system from its coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import padded, unit_vectors, with_positions
from lrtasks.spec import Sample, Spec


@registry.register("solve")
@dataclass(frozen=True)
class Solve(Task):
    """Read a system AX = B row by row, then give its solution X.

    A is an N×N orthogonal matrix, X a unit vector, both uniformly random; the signal is the concatenation of the rows
    (a_i, b_i), then zeros. N is the largest number with N² + 2N <= L, so that the rightmost N positions, where X is
    read, come after all coefficients. Source: DLR paper, section 3.1.

    >>> Solve(length=4096).unknowns
    63
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
    }

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)

    @property
    def unknowns(self) -> int:
        """The number N of equations and unknowns: N² + 2N <= L is (N + 1)² <= L + 1."""
        return math.isqrt(self.length + 1) - 1

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.unknowns, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        matrix = self.matrix(rng)
        solution = unit_vectors(rng, self.unknowns)
        rows = np.column_stack([matrix, matrix @ solution])
        return Sample(with_positions(padded(rows.ravel(), self.length)), solution[:, None].astype(np.float32))

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        """The orthogonal matrix A of one sample, ``(N, N)`` float64, from the Haar distribution.

        The Q of a Gaussian matrix's QR decomposition is uniform once the diagonal of R is made positive (Mezzadri, "How
        to generate random matrices from the classical compact groups", Notices of the AMS 54(5), 2007, section 5).
        """
        q, r = np.linalg.qr(rng.standard_normal((self.unknowns, self.unknowns)))
        return q * np.copysign(1.0, np.diag(r))
