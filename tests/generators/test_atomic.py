"""The atomic tasks: targets against plain definitions, reference batches, and the distribution of what is drawn."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.errors import UsageError
from lrtasks.generators import Batch, Task, make
from lrtasks.generators.base import MAX_SEED, SPLITS, Split
from lrtasks.generators.signals import unit_vectors
from lrtasks.generators.tasks.mips import nearest_so_far
from lrtasks.generators.tasks.shift import Shift

Matrix = Sequence[Sequence[float]]
SEEDS = st.integers(0, MAX_SEED)

# ---------------------------------------------------------------- plain definitions, sample by sample, in Python


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


# ---------------------------------------------------------------- distribution of what is drawn


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


# ---------------------------------------------------------------- fixed layouts


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
        ("shift", "copy", 0.20, 0.24),
        ("shift", "constant", -0.01, 0.01),
        ("cummax", "constant", 0.42, 0.49),
        ("sort", "first-value", 0.38, 0.46),
        ("sort", "constant", -0.01, 0.01),
    ],
)
def test_floor_scores(name: str, floor: str, lowest: float, highest: float) -> None:
    task = make(name, length=256)
    predictor = task.floors()[floor]
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
    assert len(np.unique(starts)) == min(8, task.target.length)
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


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("length", [0, -1, 1, 2.5, "8", None, True, math.nan, math.inf, 2**24 + 1, 10**30])
def test_impossible_lengths_are_refused(name: str, length: object) -> None:
    with pytest.raises(UsageError, match=f"{name}: length must be "):
        make(name, length=length)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("shift", {"length": 4, "shifts": 5}, r"shifts must be at most length \(4\), found 5"),
        ("shift", {"shifts": 0}, "shifts must be at least 1, found 0"),
        ("select", {"marks": 0}, "marks must be at least 1 and at most 16_777_216, found 0"),
        ("select", {"layout_seed": 1}, "select has no parameter 'layout_seed'"),
        ("select-fixed", {"layout_seed": -1}, "layout_seed must be at least 0"),
        ("solve-fixed", {"layout_seed": 2**63}, "layout_seed must be at least 0"),
        ("mips", {"dim": 0}, "dim must be at least 1"),
        ("context-shift", {"length": 2}, "length must be at least 3"),
        ("solve", {"length": 2}, "length must be at least 3"),
    ],
)
def test_impossible_parameters_are_refused(name: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(name, **parameters)
