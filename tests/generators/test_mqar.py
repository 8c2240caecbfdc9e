"""Multi-query associative recall: every label by reading the pairs; distributions of slots and fillers by counting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import lrtasks
from lrtasks.generators.tasks.mqar import Mqar


@st.composite
def tasks(draw: st.DrawFn) -> Mqar:
    fewest = draw(st.integers(1, 12))
    most = draw(st.integers(fewest, 16))
    return lrtasks.make(
        "mqar",
        length=4 * most + 2 * draw(st.integers(0, 40)),
        pairs=draw(st.sampled_from([most, (fewest, most)])),
        vocab=2 * draw(st.integers(most + 1, 200)),
        power_a=draw(st.sampled_from([0.01, 0.5, 1.0])),
        fillers=draw(st.sampled_from(["safe", "zoology", "zero"])),
    )


@given(task=tasks(), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=80)
def test_each_key_is_asked_once_and_answered_with_its_value(task: Mqar, seed: int) -> None:
    batch = task.batch(range(4), seed=seed)
    labels = task.slices(batch)
    for row, (x, y) in enumerate(zip(batch.x.tolist(), batch.y.tolist(), strict=True)):
        queries = [position for position, label in enumerate(y) if label >= 0]
        pairs = len(queries)
        assert task.span("pairs")[0] <= pairs <= task.span("pairs")[1]
        keys, values = x[0 : 2 * pairs : 2], x[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert min(keys) >= 1 and max(keys) < task.vocab // 2 <= min(values) and max(values) < task.vocab
        assert min(queries) >= 2 * pairs and all(query % 2 == 0 for query in queries)
        assert sorted(x[query] for query in queries) == sorted(keys)
        table = dict(zip(keys, values, strict=True))
        assert all(y[query] == table[x[query]] for query in queries)
        fillers = [token for position, token in enumerate(x) if position >= 2 * pairs and position not in queries]
        assert all(0 <= token < task.vocab for token in fillers)
        if task.fillers == "safe":
            assert not set(fillers) & {*keys, *values}
        if task.fillers == "zero":
            assert set(fillers) <= {0}
        for query in queries:
            distance = query - 2 * keys.index(x[query])
            assert labels["distance"][row, query] == 2 ** (distance.bit_length() - 1)
        assert labels["pairs"][row, 0] == pairs


def test_slots_follow_the_power_law_drawn_one_after_another() -> None:
    pairs, slots, samples = 6, 12, 8000
    task = lrtasks.make("mqar", length=2 * (pairs + slots), pairs=pairs, vocab=64)
    batch = task.batch(range(samples))
    weights = np.arange(1, slots + 1) ** (0.01 - 1)
    x, asked = batch.x[:, 2 * pairs :], batch.y[:, 2 * pairs :] >= 0
    first, second = (((x == batch.x[:, 2 * pair, None]) & asked).argmax(axis=1) // 2 for pair in (0, 1))
    expected = weights / weights.sum() * samples
    assert stats.chisquare(np.bincount(first, minlength=slots), expected).pvalue > 1e-4
    # the second key's slot: the law that is left once the first has taken its own
    left = weights[None, :] * (1 - np.eye(slots))
    joint = expected[:, None] * left / left.sum(axis=1, keepdims=True)
    counts = np.bincount(first * slots + second, minlength=slots**2)
    possible = joint.ravel() > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], joint.ravel()[possible]).pvalue > 1e-4


def test_the_first_key_has_the_first_slot_drawn_among_many() -> None:
    task = lrtasks.make("mqar", length=2048, pairs=256)
    batch = task.batch(range(2000))
    weights = np.arange(1, 769) ** (0.01 - 1)
    asked = (batch.x[:, 512:] == batch.x[:, :1]) & (batch.y[:, 512:] >= 0)
    bins = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 768])
    expected = np.add.reduceat(weights, bins[:-1]) / weights.sum() * 2000
    assert stats.chisquare(np.histogram(asked.argmax(axis=1) // 2, bins)[0], expected).pvalue > 1e-4


def test_keys_values_pairs_and_fillers_are_uniform() -> None:
    task = lrtasks.make("mqar", length=32, pairs=(2, 5), vocab=32)
    batch = task.batch(range(4000))
    pairs = (batch.y >= 0).sum(axis=1)
    assert stats.chisquare(np.bincount(pairs, minlength=6)[2:]).pvalue > 1e-4
    assert stats.chisquare(np.bincount(batch.x[:, 2], minlength=16)[1:16]).pvalue > 1e-4
    assert stats.chisquare(np.bincount(batch.x[:, 3], minlength=32)[16:]).pvalue > 1e-4
    original = lrtasks.make("mqar", length=32, pairs=2, vocab=32, fillers="zoology").batch(range(4000))
    assert stats.chisquare(np.bincount(original.x[:, 31], minlength=32)).pvalue > 1e-4
    safe = task.batch(range(4000), split="test").x[:, 31]
    assert set(safe.tolist()) == set(range(32))


@pytest.mark.parametrize(("vocab", "length", "pairs", "share"), [(256, 64, 4, 0.56), (8192, 512, 64, 0.92)])
def test_original_fillers_repeat_a_key_as_often_as_they_must(vocab: int, length: int, pairs: int, share: float) -> None:
    task = lrtasks.make("mqar", vocab=vocab, length=length, pairs=pairs, fillers="zoology")
    batch = task.batch(range(1000))
    keys = batch.x[:, : 2 * pairs : 2]
    filler = (np.arange(length) >= 2 * pairs) & (batch.y < 0)
    repeated = [np.isin(x[where], own).any() for x, where, own in zip(batch.x, filler, keys, strict=True)]
    exact = 1 - (1 - pairs / vocab) ** (length - 3 * pairs)
    assert exact == pytest.approx(share, abs=0.005)
    assert abs(np.mean(repeated) - exact) < 4 * (exact * (1 - exact) / 1000) ** 0.5


def test_naming_a_value_of_the_sample_scores_one_in_pairs() -> None:
    task = lrtasks.make("mqar", length=64, pairs=4)
    batch = task.batch(range(200))
    floor = task.baselines()["own-value"]
    floor.fit([batch])
    assert (floor.predict(batch) == batch.y)[batch.y >= 0].mean() == pytest.approx(1 / 4)


def test_text_shows_pairs_and_queries() -> None:
    task = lrtasks.make("mqar", length=16, pairs=2)
    batch = task.batch([0])
    given, asked = task.text(batch, 0).split(" | ")
    assert sorted(given.split()) == sorted(asked.split()[1::2])
    assert asked.split()[::2] == [f"@{position}" for position in np.flatnonzero(batch.y[0] >= 0)]
