"""The atomic tasks' targets by plain definitions, sample by sample, in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

Matrix = Sequence[Sequence[float]]


def plain_shift(x: Matrix, shifts: int) -> list[list[float]]:
    L, C = Fraction(len(x)), shifts
    lags = [math.floor(c * (L - L / C) / (C - 1)) if C > 1 else 0 for c in range(C)]
    return [[x[t - lag][0] if t >= lag else 0.0 for lag in lags] for t in range(len(x))]


def plain_cumsum(x: Matrix) -> list[list[float]]:
    return [[math.fsum(row[0] for row in x[: t + 1]) / math.sqrt(t + 1)] for t in range(len(x))]


def plain_cummax(x: Matrix) -> list[list[float]]:
    return [[max(row[0] for row in x[: t + 1])] for t in range(len(x))]


def plain_reverse(x: Matrix) -> list[list[float]]:
    L = len(x) // 2
    return [[x[L - 1 - t][0]] for t in range(L)]


def plain_sort(x: Matrix) -> list[list[float]]:
    values = [Fraction(row[0]) for row in x[: len(x) // 2]]
    return [[float(value)] for value in sorted(values, key=lambda value: abs(value - values[0]))]


def plain_select(x: Matrix) -> list[list[float]]:
    return [[row[0]] for row in x if row[1] == 1]


def plain_context_shift(x: Matrix) -> list[list[float]]:
    lag = round(math.atan2(x[1][0], x[0][0]) / (2 * math.pi) * len(x)) % len(x)
    return [[x[t - lag][0] if t >= lag else 0.0] for t in range(len(x))]


def plain_solve(x: Matrix) -> list[list[float]]:
    N = max(n for n in range(1, 50) if n**2 + 2 * n <= len(x))
    signal = np.array(x)[:, 0]
    system = signal[: N * (N + 1)].reshape(N, N + 1)
    assert not signal[N * (N + 1) :].any()
    return [list(row) for row in np.linalg.solve(system[:, :N], system[:, N:])]


def plain_mips(x: Matrix) -> list[list[float]]:
    D = (len(x[0]) - 2) // 3

    def score(t: int, j: int) -> float:
        return math.fsum(x[t][d] * x[j][D + d] for d in range(D))

    best = [max(range(t + 1), key=lambda j: score(t, j)) for t in range(len(x))]
    return [list(x[j][2 * D : 3 * D]) for j in best]


PLAIN: dict[str, Callable[..., list[list[float]]]] = {
    "shift": plain_shift,
    "cumsum": plain_cumsum,
    "cummax": plain_cummax,
    "reverse": plain_reverse,
    "sort": plain_sort,
    "select": plain_select,
    "select-fixed": plain_select,
    "context-shift": plain_context_shift,
    "solve": plain_solve,
    "solve-fixed": plain_solve,
    "mips": plain_mips,
}

ROUNDED = {"cumsum": 1e-6, "solve": 2e-6, "solve-fixed": 2e-6}

"""Tolerances where the target is not a copy of input values."""


def plain_targets(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    shifts = [y.shape[2]] if name == "shift" else []
    return np.array([PLAIN[name](sample.tolist(), *shifts) for sample in x])
