"""Selective copying: the samples of S4, TCN and MAD, the distribution of positions, and bad input."""

from __future__ import annotations

import numpy as np
from published_arrays import published, same_law
from scipy import stats

from lrtasks.generators.tasks.selective_copying import SelectiveCopying

ARRAYS = published("selective")
S4 = SelectiveCopying(noise=112, memorise=16, alphabet=16)
MEMORY = SelectiveCopying(noise=100, memorise=10, alphabet=10, spread=False)
MAD = SelectiveCopying(noise=224, memorise=16, alphabet=16, law="mad")


def test_published_samples_of_s4_and_tcn() -> None:
    for name, task in (("selective", S4), ("memory", MEMORY)):
        for x, y in zip(ARRAYS[f"{name}_x"], ARRAYS[f"{name}_y"], strict=True):
            assert np.array_equal(task.answer(x), y)
        drawn, theirs = task.batch(range(1000)), ARRAYS[f"{name}_x"]
        assert drawn.x.shape[1] == theirs.shape[1]
        assert same_law(drawn.y, ARRAYS[f"{name}_y"]) > 1e-3
        places, published_places = (np.nonzero((x > 0) & (x < task.alphabet - 1))[1] for x in (drawn.x, theirs))
        assert same_law(places, published_places) > 1e-3
        assert np.array_equal(drawn.x[:, -task.memorise :], np.full_like(drawn.y, task.alphabet - 1))
    for x, y in zip(ARRAYS["memory_tcn_x"], ARRAYS["memory_tcn_y"], strict=True):  # a mark more, labels everywhere
        assert np.array_equal(MEMORY.answer(x), y[-10:])


def test_published_samples_of_mad() -> None:
    x, y = ARRAYS["mad_x"].astype(np.int64), ARRAYS["mad_y"] + 1  # there data are 0..13, noise 14
    x = np.where(x == 14, 0, np.where(x < 14, x + 1, x))
    for row, labels in zip(x, y, strict=True):
        assert np.array_equal(MAD.answer(row), labels)
    drawn = MAD.batch(range(1000))
    assert drawn.x.shape[1] == x.shape[1]
    assert np.array_equal(drawn.x[0, -17:], [15] + [0] * 16) and np.array_equal(x[0, -17:], [15] + [0] * 16)
    gaps = []
    for tokens in (drawn.x, x):
        places = np.nonzero((tokens > 0) & (tokens < 15))[1].reshape(-1, 16)
        assert (places[:, -1] == 238).all()  # the flaw: the last one stands directly before the mark
        gaps.append(np.diff(places, prepend=-1, axis=1))
    assert same_law(gaps[0][:, 3], gaps[1][:, 3]) > 1e-3  # one gap of each sample: gaps depend on each other
    assert same_law(gaps[0][:, 11], gaps[1][:, 11]) > 1e-3
    assert same_law(drawn.y, y) > 1e-3


def test_positions_are_uniform_and_distinct() -> None:
    task = SelectiveCopying(noise=6, memorise=2, alphabet=5)
    x = task.batch(range(6000)).x[:, :-2]
    assert ((x > 0).sum(axis=1) == 2).all()
    places = np.nonzero(x)[1].reshape(-1, 2)
    pairs = np.bincount(8 * places[:, 0] + places[:, 1], minlength=64).reshape(8, 8)
    assert stats.chisquare(pairs[np.triu_indices(8, 1)]).pvalue > 1e-3
    assert stats.chisquare(np.bincount(x[x > 0] - 1, minlength=3)).pvalue > 1e-3


def test_slices_tell_which_token_and_how_far() -> None:
    task = SelectiveCopying(noise=4, memorise=2, alphabet=9)
    slices = task.slices(task.batch([0])._replace(x=np.array([[0, 3, 0, 0, 7, 0, 8, 8]])))
    assert slices["ordinal"].tolist() == [1, 2] and slices["distance"].tolist() == [[4, 2]]
