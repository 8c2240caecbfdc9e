"""What the atomic tasks draw: its distribution, and the layouts that stay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.generators import Batch, Task, make
from lrtasks.generators.base import MAX_SEED, SPLITS, Split
from lrtasks.generators.signals import unit_vectors


def z_scores(counts: Sequence[int] | np.ndarray, expected: float, probability: float) -> np.ndarray:
    deviation = math.sqrt(expected * (1 - probability))
    return np.abs((np.asarray(counts) - expected) / deviation)


def test_selected_positions_are_uniform() -> None:
    draws, L, M = 4000, 9, 3
    marked = make("select", length=L, marks=M).batch(range(draws)).x[..., 1]
    assert (marked.sum(axis=1) == M).all()
    assert not marked[:, L + M :].any()
    probability = M / (L + M)
    assert z_scores(marked[:, : L + M].sum(axis=0), draws * probability, probability).max() < 4.5
    # every one of the subsets occurs about equally often
    subsets = Counter(tuple(np.flatnonzero(row)) for row in marked)
    total = math.comb(L + M, M)
    assert len(subsets) == total
    chi_squared = sum((count - draws / total) ** 2 for count in subsets.values()) / (draws / total)
    assert abs(chi_squared - (total - 1)) < 4 * math.sqrt(2 * (total - 1))


def test_positions_are_drawn_uniformly_from_long_sequences() -> None:
    # NumPy draws few of many by another algorithm than many of few
    task = make("select", length=20_000, marks=8)
    positions = np.nonzero(task.batch(range(400)).x[..., 1])[1]
    counts = np.histogram(positions, bins=10, range=(0, 20_008))[0]
    assert z_scores(counts, 320, 0.1).max() < 4.5


def test_context_shifts_are_uniform() -> None:
    draws, L = 4000, 10
    batch = make("context-shift", length=L).batch(range(draws))
    assert batch.meta is not None
    shifts = batch.meta["shift"]
    np.testing.assert_allclose(batch.x[:, 0, 0], np.cos(2 * np.pi * shifts / L), atol=1e-6)
    np.testing.assert_allclose(batch.x[:, 1, 0], np.sin(2 * np.pi * shifts / L), atol=1e-6)
    counts = np.bincount(shifts)
    assert len(counts) == L - 2
    assert z_scores(counts, draws / (L - 2), 1 / (L - 2)).max() < 4.5


def test_noise_is_white_and_gaussian() -> None:
    signals = make("cumsum", length=4096).batch(range(64)).x[..., 0].astype(np.float64)
    signals /= signals.std(axis=1, keepdims=True)
    assert abs(signals.mean()) < 4 / math.sqrt(signals.size)
    assert abs((signals**4).mean() - 3) < 4 * math.sqrt(96 / signals.size)
    assert abs((signals[:, 1:] * signals[:, :-1]).mean()) < 4 / math.sqrt(signals.size)


def test_solve_draws_from_the_haar_distribution() -> None:
    draws, N = 3000, 4
    x = make("solve", length=N * (N + 2)).batch(range(draws)).x
    A = x[:, : N * (N + 1), 0].reshape(draws, N, N + 1)[..., :N]
    trace = np.trace(A, axis1=1, axis2=2)
    # of a Haar-distributed matrix: E tr A = 0 and E (tr A)² = 1, which the Q of a plain QR misses; E a² = 1/N
    assert abs(trace.mean()) < 4 / math.sqrt(draws)
    assert abs((trace**2).mean() - 1) < 4 * math.sqrt(2 / draws)
    np.testing.assert_allclose((A**2).mean(axis=0), 1 / N, atol=4 * math.sqrt(1 / 8 / draws))
    np.testing.assert_allclose(A.mean(axis=0), 0, atol=4.5 * math.sqrt(1 / N / draws))
    assert z_scores([(np.linalg.det(A) > 0).sum()], draws / 2, 0.5).max() < 4


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_unit_vectors_are_uniform_on_the_sphere(dim: int) -> None:
    draws = 40_000
    vectors = unit_vectors(np.random.default_rng(0), draws, dim)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    atol = 4.5 / math.sqrt(draws * dim)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=atol)
    np.testing.assert_allclose(vectors.T @ vectors / draws, np.eye(dim) / dim, atol=atol)
    # no direction is preferred: normalised points of a cube, say, miss the fourth moment
    np.testing.assert_allclose((vectors**4).mean(axis=0), 3 / (dim * (dim + 2)), atol=atol / 2)


SEEDS = st.integers(0, MAX_SEED)


def layout(task: Task, batch: Batch) -> np.ndarray:
    """What a ``-fixed`` task keeps: the marks, or the matrix with the known term's place left out."""
    if task.name.startswith("select"):
        return batch.x[..., 1]
    N = task.target.length
    return batch.x[:, : N * (N + 1), 0].reshape(-1, N, N + 1)[..., :N]


@pytest.mark.parametrize("name", ["select-fixed", "solve-fixed"])
@given(seed=SEEDS, layout_seed=SEEDS, split=st.sampled_from(SPLITS))
def test_layout_is_the_same_in_every_sample(name: str, seed: int, layout_seed: int, split: Split) -> None:
    task = make(name, length=48, layout_seed=layout_seed)
    expected = layout(task, task.batch([0]))[0]
    batch = task.batch([1, 99], seed, split)
    assert (layout(task, batch) == expected).all()
    assert not np.array_equal(batch.y[0], batch.y[1])
    other = make(name, length=48, layout_seed=(layout_seed + 1) % 2**63)
    assert not np.array_equal(layout(other, other.batch([0]))[0], expected)


@pytest.mark.parametrize("name", ["select", "solve"])
def test_layout_varies_where_it_is_not_fixed(name: str) -> None:
    task = make(name, length=48)
    layouts = layout(task, task.batch(range(20)))
    assert len(np.unique(layouts, axis=0)) == 20


@pytest.mark.parametrize("name", ["select-fixed", "solve-fixed"])
def test_layout_is_made_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = Task.layout_rng

    def counted(self: Task, **parts: object) -> np.random.Generator:
        made.append(parts)
        return original(self, **parts)

    monkeypatch.setattr(Task, "layout_rng", counted)
    task = make(name, length=30)
    task.batch(range(5))
    task.batch(range(5), split="test")
    assert len(made) == 1
