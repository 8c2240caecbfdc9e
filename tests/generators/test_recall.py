"""Associative recall: the answer by reading the pairs, the distributions by counting, and how local the samples are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import lrtasks
from lrtasks.generators.tasks.recall import Recall, window_lookup


@st.composite
def tasks(draw: st.DrawFn) -> Recall:
    length = 2 * draw(st.integers(1, 60))
    vocab = 2 * draw(st.integers(3, 20))
    distance = None
    if draw(st.booleans()):
        nearest = draw(st.integers(3, length + 1))
        distance = (nearest, draw(st.integers(nearest + 1 - nearest % 2, length + 1)))
    return lrtasks.make("recall", length=length, vocab=vocab, distance=distance)


@given(task=tasks(), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=80)
def test_the_answer_is_the_value_that_stood_beside_the_key(task: Recall, seed: int) -> None:
    batch = task.batch(range(4), seed=seed)
    assert batch.x.shape == batch.y.shape == (4, task.length + 2)
    for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True):
        keys, values = x[:-2:2], x[1:-2:2]
        table = dict(zip(keys, values, strict=True))
        assert all(table[key] == value for key, value in zip(keys, values, strict=True))
        assert set(keys) <= set(range(1, task.keys + 1))
        assert set(values) <= set(range(task.keys + 1, task.vocab - 1))
        assert x[-2] == task.vocab - 1
        assert y[-1] == table[x[-1]]
        assert y[:-1] == x[1:]
        if task.distance is not None:
            assert keys.count(x[-1]) == 1
            assert task.distance[0] <= len(x) - 1 - 2 * keys.index(x[-1]) <= task.distance[1]


def test_only_training_samples_are_labelled_beyond_the_answer() -> None:
    task, answers = lrtasks.make("recall", length=30), lrtasks.make("recall", length=30, supervise="answer")
    for batch, labels in [
        (task.batch(range(8)), 32),
        (task.batch(range(8), split="val"), 1),
        (task.batch(range(8), split="test"), 1),
        (answers.batch(range(8)), 1),
    ]:
        assert ((batch.y >= 0).sum(axis=1) == labels).all()
        assert (batch.y[:, -1] > task.keys).all()


def test_keys_values_and_queries_are_uniform() -> None:
    task = lrtasks.make("recall", length=64)
    x, y = task.batch(range(4000))[:2]
    for tokens in (x[:, 0], x[:, -1], x[:, 1], y[:, -1]):
        counts = np.bincount(tokens, minlength=30)
        counts = counts[counts > 0]
        assert len(counts) == task.keys and stats.chisquare(counts).pvalue > 1e-4
    # a key that occurs often is asked no more than one that occurs once
    present = [np.unique(keys, return_counts=True) for keys in x[:, :-2:2]]
    shares = [1 / len(keys) * counts for keys, counts in present]
    expected = np.mean([share.sum() for share in shares])
    spread = np.mean(
        [(share * counts).sum() - share.sum() ** 2 for share, (_, counts) in zip(shares, present, strict=True)]
    )
    asked = np.mean((x[:, :-2:2] == x[:, -1:]).sum(axis=1))
    assert abs(asked - expected) < 4 * (spread / len(x)) ** 0.5


@pytest.mark.parametrize("length", [1024, 16_384])
def test_the_default_is_as_local_as_documented_whatever_the_length(length: int) -> None:
    task = lrtasks.make("recall", length=length)
    batch = task.batch(range(1000), split="test")
    hits = batch.x[:, :-2:2] == batch.x[:, -1:]
    distance = 3 + 2 * hits[:, ::-1].argmax(axis=1)
    for window in (16, 64, 128):
        share = task.share_within(window)
        assert abs((distance <= window).mean() - share) < 4 * (share * (1 - share) / 1000) ** 0.5
    found = window_lookup(batch.x)[:, 0] == batch.y[:, -1]
    assert found[distance <= 64].all()
    assert found[distance > 64].mean() < 0.3
    labels = task.slices(batch)
    assert (labels["distance"][:, 0] == 2 ** np.floor(np.log2(distance))).all()
    assert (labels["occurrences"][:, 0] == 2 ** np.floor(np.log2(hits.sum(axis=1)))).all()


def test_a_given_distance_is_log_uniform_and_no_window_solves_it() -> None:
    task = lrtasks.make("recall", length=1024, distance=(3, 1025))
    batch = task.batch(range(4000), split="test")
    hits = batch.x[:, :-2:2] == batch.x[:, -1:]
    assert (hits.sum(axis=1) == 1).all()
    distance = 1025 - 2 * hits.argmax(axis=1)
    edges = np.array([3, 5, 9, 17, 33, 65, 129, 257, 513, 1027])
    expected = np.diff(np.log(edges)) / np.log(1027 / 3) * len(distance)
    assert stats.chisquare(np.histogram(distance, edges)[0], expected).pvalue > 1e-4
    found = window_lookup(batch.x)[:, 0] == batch.y[:, -1]
    assert abs(found.mean() - np.log(65 / 3) / np.log(1027 / 3)) < 0.08


def test_floors_answer_at_the_last_position() -> None:
    task = lrtasks.make("recall", length=256)
    train, test = task.batch(range(2000)), task.batch(range(2000), split="test")
    scores = {}
    for name, floor in task.baselines().items():
        floor.fit([train])
        guess = floor.predict(test)
        assert guess.shape == test.y.shape
        scores[name] = (guess == test.y)[:, -1].mean()
    assert abs(scores["majority"] - 1 / 14) < 0.03
    assert abs(scores["window-64"] - task.share_within(64)) < 0.03
    assert list(lrtasks.make("recall", length=64).baselines()) == ["majority"]


def test_text_shows_pairs_query_and_answer() -> None:
    task = lrtasks.make("recall", length=4)
    batch = task.batch([0])
    first, second, mark, query, colon, answer = task.text(batch, 0).split()
    assert (mark, colon) == ("=>", ":")
    assert f"{query}:{answer}" in (first, second)
