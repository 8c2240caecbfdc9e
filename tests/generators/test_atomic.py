"""The atomic tasks: targets against plain definitions, reference batches, details, floors, slices, bad parameters."""

from __future__ import annotations

import math
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from atomic_definitions import PLAIN, ROUNDED, plain_targets
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.generators import make
from lrtasks.generators.base import MAX_SEED, SPLITS, Split
from lrtasks.generators.tasks.mips import nearest_so_far
from lrtasks.generators.tasks.shift import Shift

SEEDS = st.integers(0, MAX_SEED)


# ---------------------------------------------------------------- relation of input and target


@pytest.mark.parametrize("name", PLAIN)
def test_reference_batches_follow_the_plain_definitions(name: str, data: Path) -> None:
    with np.load(data / "atomic_batches.npz") as reference:
        x, y = reference[f"{name}_x"], reference[f"{name}_y"]
    task = make(name, length=256)
    assert x.shape == task.input.shape(len(x))
    assert y.shape == task.target.shape(len(y))
    # the reference computes delays through a Fourier transform
    tolerance = 1e-6 if "shift" in name else ROUNDED.get(name, 0)
    np.testing.assert_allclose(y, plain_targets(name, x, y), rtol=0, atol=tolerance)
    np.testing.assert_allclose(task.batch(range(len(x))).x[..., -2:], x[..., -2:], atol=1e-6)


@pytest.mark.parametrize("name", PLAIN)
@given(length=st.integers(3, 40), seed=SEEDS, split=st.sampled_from(SPLITS), index=st.integers(0, MAX_SEED))
def test_targets_follow_the_plain_definitions(name: str, length: int, seed: int, split: Split, index: int) -> None:
    extra = {"shift": {"shifts": 1 + seed % min(length, 9)}, "mips": {"dim": 1 + seed % 6}}.get(name, {})
    if name.startswith("select"):
        extra = {"marks": 1 + seed % 50}
    batch = make(name, length=length, **extra).batch([index], seed, split)
    np.testing.assert_allclose(batch.y, plain_targets(name, batch.x, batch.y), rtol=0, atol=ROUNDED.get(name, 0))


@pytest.mark.parametrize("name", PLAIN)
@given(length=st.integers(8, 60), seed=SEEDS)
def test_inputs_are_normalised(name: str, length: int, seed: int) -> None:
    task = make(name, length=length)
    batch = task.batch([0, 1], seed)
    angle = 2 * np.pi * np.arange(task.input.length) / task.input.length
    np.testing.assert_allclose(batch.x[0, :, -2:], np.stack([np.cos(angle), np.sin(angle)], -1), atol=1e-6)
    if name == "mips":
        vectors = batch.x[..., :12].reshape(2, length, 3, 4)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-6)
    elif name.startswith("solve"):
        N = task.target.length
        matrix = batch.x[:, : N * (N + 1), 0].reshape(2, N, N + 1)[..., :N]
        np.testing.assert_allclose(matrix @ matrix.swapaxes(1, 2), np.broadcast_to(np.eye(N), (2, N, N)), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(batch.y, axis=1), 1, atol=1e-6)
    else:
        first = 2 if name == "context-shift" else 0
        assert (np.abs(batch.x[:, first:, 0]).max(axis=1) == 1).all()


@pytest.mark.parametrize("name", ["reverse", "sort", "select", "select-fixed"])
def test_nothing_but_positions_is_given_while_the_answer_is_read(name: str) -> None:
    task = make(name, length=20)
    batch = task.batch(range(3))
    assert not batch.x[:, -task.target.length :, :-2].any()
    assert batch.x[:, : -task.target.length, 0].all()


# ---------------------------------------------------------------- shift, mips, solve: details


@given(length=st.integers(64, 5000), shifts=st.integers(1, 64))
def test_lags_follow_the_papers_formula(length: int, shifts: int) -> None:
    L, C = Fraction(length), shifts
    lags = Shift(length, shifts).lags().tolist()
    assert lags == ([math.floor(c * (L - L / C) / (C - 1)) for c in range(C)] if C > 1 else [0])
    assert all(first < second for first, second in pairwise(lags))


@given(length=st.integers(1, 50), dim=st.integers(1, 5), block=st.integers(1, 3000), seed=SEEDS)
def test_blocked_search_equals_the_whole_table(length: int, dim: int, block: int, seed: int) -> None:
    queries, keys = np.random.default_rng(seed).standard_normal((2, length, dim)).astype(np.float32)
    table = queries.astype(np.float64) @ keys.T.astype(np.float64)
    table[np.triu_indices(length, 1)] = -np.inf
    assert np.array_equal(nearest_so_far(queries, keys, block), table.argmax(axis=1))


def test_equal_keys_give_the_first() -> None:
    queries = np.ones((5, 1), np.float32)
    keys = np.array([[-1], [1], [1], [-1], [1]], np.float32)
    assert nearest_so_far(queries, keys, block=5).tolist() == [0, 1, 1, 1, 1]


def test_mips_holds_no_table_of_all_pairs() -> None:
    task = make("mips", length=8192)
    tracemalloc.start()
    try:
        task.batch([0])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8192**2 / 4  # bytes, where the table of float32 products takes 16 times as many


@given(length=st.integers(3, 10**6))
def test_unknowns_are_as_many_as_fit(length: int) -> None:
    N = make("solve", length=length).target.length
    assert N**2 + 2 * N <= length < (N + 1) ** 2 + 2 * (N + 1)


# ---------------------------------------------------------------- floors, slices, errors


def r2(prediction: np.ndarray, target: np.ndarray) -> float:
    return 1 - float(((prediction - target) ** 2).mean() / target.var())


@pytest.mark.parametrize(
    ("name", "floor", "lowest", "highest"),
    [
        # eight copies of which the delays lose 0, 1/8, ... 7/8: the undelayed one has 1 / 4.5 of the variance
        ("shift", "copy", 1 / 4.5 - 0.003, 1 / 4.5 + 0.003),
        ("shift", "constant", -0.005, 0.005),
        ("cummax", "constant", 0.43, 0.48),
        ("sort", "first-value", 0.38, 0.46),
        ("sort", "constant", -0.01, 0.01),
    ],
)
def test_baseline_scores(name: str, floor: str, lowest: float, highest: float) -> None:
    task = make(name, length=256)
    predictor = task.baselines()[floor]
    predictor.fit(task.batch(range(start, start + 64)) for start in range(0, 1024, 64))
    test = task.batch(range(512), split="test")
    assert lowest < r2(predictor.predict(test), test.y) < highest


@pytest.mark.parametrize("name", PLAIN)
def test_scores_are_broken_down_by_position(name: str) -> None:
    task = make(name, length=64)
    batch = task.batch(range(2))
    labels = np.broadcast_to(task.slices(batch)["position"], batch.y.shape)
    assert (labels == labels[:1, :, :1]).all()
    starts = labels[0, :, 0]
    sizes = np.unique(starts, return_counts=True)[1]
    assert len(sizes) == min(8, task.target.length) and np.ptp(sizes) <= 1
    assert (starts <= np.arange(task.target.length)).all()


def test_scores_are_broken_down_by_shift() -> None:
    task = make("shift", length=64, shifts=4)
    batch = task.batch(range(2))
    assert np.broadcast_to(task.slices(batch)["shift"], batch.y.shape)[1, 5].tolist() == [0, 16, 32, 48]
    task = make("context-shift", length=34)
    batch = task.batch(range(200))
    assert batch.meta is not None
    labels = np.broadcast_to(task.slices(batch)["shift"], batch.y.shape)
    assert np.array_equal(labels[:, 3, 0], batch.meta["shift"] // 4 * 4)
    assert len(np.unique(labels)) == 8
    longer = task.at_length(136)
    batch = longer.batch(range(200))
    assert batch.meta is not None
    assert np.array_equal(longer.slices(batch)["shift"][:, 0, 0], batch.meta["shift"] // 4 * 4)
