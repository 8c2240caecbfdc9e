"""Intervals and tests against other ways to compute them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lrtasks.results.statistics import bootstrap, half_width, holm, paired_t, sign_test, signed_rank

# Student's sleep data: extra hours of sleep of ten patients after either of two drugs.
ONE = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
OTHER = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
SLEEP = [round(b - a, 10) for a, b in zip(ONE, OTHER, strict=True)]


def test_the_interval_is_students() -> None:
    """The published example: mean 1.58 hours, interval 0.70 to 2.46, p = 0.00283."""
    assert np.mean(SLEEP) == pytest.approx(1.58)
    assert half_width(np.std(SLEEP, ddof=1), 10) == pytest.approx(1.58 - 0.7001, abs=1e-4)
    assert paired_t(SLEEP) == pytest.approx(0.002833, abs=1e-6)


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(3.0, 2.0, size=(4000, 3))
    covered = np.mean(abs(samples.mean(axis=1) - 3.0) < half_width(samples.std(axis=1, ddof=1), 3))
    assert covered == pytest.approx(0.95, abs=0.012)  # four standard errors


def test_the_error_over_test_samples_shifts_all_seeds_together() -> None:
    assert bootstrap([0.5] * 4, [0.1] * 4) == pytest.approx((0.5 - 0.196, 0.5 + 0.196), abs=0.01)
    # a quarter of the resamples has the second seed twice; its 90 % quantile is the 97.5 % quantile of all
    assert bootstrap([0.0, 1.0], [0.0, 0.1], centre=np.mean) == (0, pytest.approx(1 + 0.1 * 1.2816, abs=0.01))


def test_there_is_no_test_where_nothing_varies() -> None:
    assert paired_t([0.1]) is None
    assert paired_t([0.1, 0.1, 0.1]) is None
    assert signed_rank([0.1, 0.0]) is None
    assert sign_test([0.1, 0.0]) is None
    assert sign_test([0.0, 0.0]) is signed_rank([]) is None


def test_tests_over_tasks_are_those_of_all_sign_flips() -> None:
    """Both have exact distributions: every choice of signs is as likely as every other."""
    values = [0.5, -0.1, 0.3, 0.7, -0.2, 0.9]
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    flips = np.array(list(itertools.product([-1, 1], repeat=6)))
    for own, found in ((ranks, signed_rank(values)), (np.ones(6), sign_test(values))):
        statistic = abs((np.sign(values) * own).sum())
        assert found == pytest.approx(np.mean(np.abs((flips * own).sum(1)) >= statistic))


def test_zeros_do_not_count_in_tests_over_tasks() -> None:
    values = [0.5, -0.1, 0.3, 0.7]
    assert signed_rank([*values, 0.0]) == signed_rank(values)
    assert sign_test([*values, 0.0]) == sign_test(values)


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, None, 0.8]) == [1.0, None, 1.0]
    assert holm([]) == []
