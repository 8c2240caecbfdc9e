"""Induction heads: the published sequences, the distribution of positions, labels in training, and bad input."""

from __future__ import annotations

import numpy as np
from published_arrays import published, same_law
from scipy import stats

from lrtasks.generators.tasks.induction_heads import InductionHeads


def test_published_sequences() -> None:
    arrays = published("induction")
    ids = arrays["ids"].astype(np.int64)
    assert arrays["vocab"][15] == "=>"
    task = InductionHeads(length=64)
    for row in ids:
        assert task.answer(row[:65]).tolist() == [-100] * 64 + [int(row[65])]
    drawn = task.batch(range(1500))
    ours, theirs = ((x == 15).argmax(axis=1) for x in (drawn.x, ids))
    assert same_law(ours, theirs) > 1e-3 and ours.max() == theirs.max() == 61
    # the published content is 14 of the tokens 0..14
    assert len(np.unique(ids)) == 15 and same_law(np.bincount(drawn.y[:, -1]), np.bincount(ids[:, 65])) > 1e-3


def test_positions_and_symbols_are_uniform() -> None:
    drawn = InductionHeads(length=12, vocab=7).batch(range(5000))
    assert ((drawn.x == 6).sum(axis=1) == 2).all() and (drawn.x[:, -1] == 6).all()
    assert stats.chisquare(np.bincount((drawn.x == 6).argmax(axis=1), minlength=10)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(drawn.x[drawn.x != 6], minlength=5)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(drawn.y[:, -1], minlength=5)).pvalue > 1e-3


def test_all_positions_are_labelled_in_training_alone() -> None:
    task = InductionHeads(length=12, supervise="all")
    train, test = task.batch(range(4)), task.batch(range(4), split="test")
    assert np.array_equal(train.y[:, :-1], train.x[:, 1:]) and (test.y[:, :-1] == -100).all()
    assert [task.answer(x)[-1] for x in train.x] == train.y[:, -1].tolist()


def test_lengths_of_the_tests() -> None:
    near, far = (InductionHeads(length=256, tested=tested).tests() for tested in ("near", "far"))  # type: ignore[arg-type]
    assert [test.input.length - 1 for test in near.values()] == [512, 1024, 2048, 4096]
    assert [int(name) for name in far] == [64, 128] + [2**power for power in range(9, 21)]
    assert all(test.input.length == int(name) + 1 for name, test in far.items())


def test_distance_counts_back_to_the_mark() -> None:
    task = InductionHeads(length=5)
    batch = task.batch([0])._replace(x=np.array([[4, 9, 15, 3, 8, 15]]))
    assert task.slices(batch)["distance"].tolist() == [[2]]


def test_the_mark_that_came_first_counts() -> None:
    assert InductionHeads().answer([1, 15, 2, 15, 3, 15])[-1] == 2
