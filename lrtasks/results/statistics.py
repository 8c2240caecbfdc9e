"""Intervals and tests over seeds, test samples and tasks.

The tests import scipy.stats when first used, since the import takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

CONFIDENCE = 0.95
RESAMPLES = 2000
"""Number of bootstrap resamples."""


def half_width(deviation: Any, count: Any) -> Any:
    """Return half the width of the 95 % interval of a mean by Student's t; NaN for a single value.

    ``deviation`` is the standard deviation of ``count`` values; both may be arrays.

    >>> float(round(half_width(0.1, 3), 3))
    0.248
    """
    return special.stdtrit(count - 1, (1 + CONFIDENCE) / 2) * deviation / count**0.5


def bootstrap(
    values: Sequence[float], errors: Sequence[float] = (), *, centre: Callable[..., np.ndarray] = np.median
) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a statistic over seeds and test samples; ``None`` if nothing can vary.

    Seeds are drawn with replacement. Test samples enter by the standard error of each seed's score. All seeds have the
    same test stream, so one normal random number shifts all scores of a resample together; this can only make the
    interval wider. Few seeds make it too narrow: with three seeds, it extends only from the lowest value to the
    highest. The same values always give the same interval.

    Args:
        values: one value per seed.
        errors: standard errors of the values over test samples; they count only if every value has one.
        centre: the statistic, a NumPy function that takes ``axis``.

    >>> bootstrap([0.2, 0.5, 0.9]), bootstrap([0.5])
    ((0.2, 0.9), None)
    """
    known = len(errors) == len(values)
    if not values or (len(values) == 1 and not known):
        return None
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(values), size=(RESAMPLES, len(values)))
    moved = np.asarray(values)[drawn]
    if known:
        moved = moved + rng.standard_normal((RESAMPLES, 1)) * np.asarray(errors)[drawn]
    low, high = np.quantile(centre(moved, axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def paired_t(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Student's paired test; ``None`` for fewer than two different values."""
    from scipy import stats

    return float(stats.ttest_1samp(differences, 0.0).pvalue) if len(set(differences)) > 1 else None


def signed_rank(differences: Sequence[float]) -> float | None:
    """Return Wilcoxon's two-sided signed-rank p-value of the nonzero differences; ``None`` for fewer than two."""
    from scipy import stats

    moved = [value for value in differences if value]
    return float(stats.wilcoxon(moved).pvalue) if len(moved) > 1 else None


def sign_test(differences: Sequence[float]) -> float | None:
    """Return the two-sided sign-test p-value of the nonzero differences; ``None`` for fewer than two."""
    from scipy import stats

    moved = [value for value in differences if value]
    return float(stats.binomtest(sum(value > 0 for value in moved), len(moved)).pvalue) if len(moved) > 1 else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's correction for several tests; a ``None`` stays ``None`` and does not count as a test.

    >>> holm([0.01, None, 0.5, 0.03])
    [0.03, None, 0.5, 0.06]
    """
    tested = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (value, place) in enumerate(tested):
        largest = max(largest, min(1.0, (len(tested) - rank) * value))
        adjusted[place] = largest
    return adjusted
