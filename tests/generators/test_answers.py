"""Exact answers, further tests and other lengths of the tasks; inputs that two splits share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.errors import UsageError
from lrtasks.generators import Task, listops, make, registry
from lrtasks.generators.base import GROUPS, MAX_SEED, overlap

LENGTHS = st.integers(4, 40)
EVEN = LENGTHS.map(lambda length: 2 * length)
ANSWERED: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "shift": st.fixed_dictionaries({"length": LENGTHS, "shifts": st.integers(1, 4), "lags_of": st.integers(4, 80)}),
    "context-shift": st.fixed_dictionaries({"length": LENGTHS, "lags_of": st.integers(3, 80)}),
    "cumsum": st.fixed_dictionaries({"length": LENGTHS}),
    "cummax": st.fixed_dictionaries({"length": LENGTHS}),
    "reverse": st.fixed_dictionaries({"length": LENGTHS}),
    "sort": st.fixed_dictionaries({"length": LENGTHS}),
    "select": st.fixed_dictionaries({"length": LENGTHS, "marks": st.integers(1, 50)}),
    "select-fixed": st.fixed_dictionaries({"length": LENGTHS, "marks": st.integers(1, 50)}),
    "mips": st.fixed_dictionaries({"length": LENGTHS, "dim": st.integers(1, 5)}),
    "recall": st.fixed_dictionaries({"length": EVEN, "supervise": st.sampled_from(["all", "answer"])}),
    "mqar": st.fixed_dictionaries({"length": EVEN, "pairs": st.just(2), "fillers": st.sampled_from(["safe", "zero"])}),
    "listops": st.fixed_dictionaries({"min_length": st.integers(3, 20), "max_length": st.integers(60, 100)}),
    "listops-root": st.fixed_dictionaries({"min_length": st.integers(3, 20), "max_length": st.integers(60, 100)}),
}


def small(name: str) -> Task:
    return make(name, **registry.get(name).preset_values("small")[0])


@pytest.mark.parametrize("name", ANSWERED)
@given(choice=st.data(), seed=st.integers(0, MAX_SEED))
def test_the_answer_to_a_sample_is_its_target(name: str, choice: st.DataObject, seed: int) -> None:
    if "listops" in name:
        parameters = {"setting": "small", **choice.draw(ANSWERED[name])}
    else:
        parameters = choice.draw(ANSWERED[name])
    task = make(name, **parameters)
    batch = task.batch([0, 1], seed, "test")
    for x, y in zip(batch.x, batch.y, strict=True):
        found = task.answer(x)
        assert found.dtype == y.dtype
        assert np.array_equal(found, y)
        # a list of plain numbers is an input as well
        assert np.array_equal(task.answer(x.tolist()), y)


@pytest.mark.parametrize("name", ["solve", "solve-fixed", "pathfinder", "pathfinder-classification"])
def test_tasks_without_exact_answer_say_so(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} has no exact answer"):
        small(name).answer(np.zeros(3))


def test_an_input_that_does_not_tell_the_number_of_pairs_has_no_answer() -> None:
    task = small("mqar")
    with pytest.raises(UsageError, match=r"no exact answer with pairs=\[4, 8\]"):
        task.answer(task.batch([0]).x[0])


def changed(x: np.ndarray, position: Any, value: Any) -> np.ndarray:
    other = x.copy()
    other[position] = value
    return other


@pytest.mark.parametrize(
    ("name", "parameters", "change", "message"),
    [
        ("cumsum", {"length": 8}, lambda x: x[:5], r"has numbers of shape \(8, 3\), found shape \(5, 3\)"),
        ("cumsum", {"length": 8}, lambda x: [*x.tolist(), [1]], "one array of numbers, found a ragged list"),
        ("cumsum", {"length": 8}, lambda x: x.astype(str), "has numbers of shape"),
        ("cumsum", {"length": 8}, lambda x: changed(x, (2, 0), np.nan), "numbers must be finite, found nan"),
        ("context-shift", {"length": 8}, lambda x: changed(x, (0, 0), 5), "a whole number s in 0..5"),
        # the codes of one shift and a half, and of the least shift that is too long
        ("context-shift", {"length": 8}, lambda x: changed(x, (slice(2), 0), (0.3827, 0.9239)), "found 0.3827 and 0.9"),
        ("context-shift", {"length": 8}, lambda x: changed(x, (slice(2), 0), (0, -1)), "0..5, found 0 and -1"),
        ("select", {"length": 8, "marks": 3}, lambda x: changed(x, (slice(None), 1), 0), "found it at 0 positions"),
        ("select", {"length": 8, "marks": 3}, lambda x: changed(x, (-1, 1), 1), "found it at 4 positions"),
        # a mark at the first position of the answer in place of an allowed one
        (
            *("select", {"length": 8, "marks": 3}),
            *(lambda x: changed(changed(x, (x[:, 1].argmax(), 1), 0), (11, 1), 1), "1 at 3 of the first 11 positions"),
        ),
        ("recall", {"length": 8}, lambda x: x[None], r"numbers of shape \(10,\)"),
        ("recall", {"length": 8}, lambda x: changed(x, 0, 30), r"tokens must be in 0\.\.29, found 30"),
        ("recall", {"length": 8}, lambda x: changed(x.astype(float), 0, 0.5), "whole numbers.*float64"),
        ("recall", {"length": 8}, lambda x: changed(x, -2, 3), "the mark 29"),
        ("recall", {"length": 8}, lambda x: changed(x, -1, 0), "one of the sample's keys"),
        ("recall", {"length": 8}, lambda x: changed(changed(x, 0, x[2]), 1, 31 - x[3]), "two values"),
        ("mqar", {"length": 8, "pairs": 2}, lambda x: changed(x, slice(4, None), 0), "must come once more"),
        ("noisy-recall", {}, lambda x: x[:0], r"whole numbers of shape \(length,\), found shape \(0,\)"),
        ("listops", {"setting": "small"}, lambda x: changed(x, 0, 3), "brackets"),
        ("listops", {"setting": "small"}, lambda x: changed(x, 5, listops.PAD), "padding on the right"),
        ("listops", {"setting": "small"}, lambda x: changed(changed(x, slice(None), listops.PAD), 0, 3), "an operator"),
    ],
)
def test_what_is_no_input_is_refused(name: str, parameters: dict[str, Any], change: Any, message: str) -> None:
    task = make(name, **parameters)
    with pytest.raises(UsageError, match=message):
        task.answer(change(task.batch([0]).x[0]))


def test_a_key_alone_asks_nothing() -> None:
    assert make("noisy-recall").answer([3]).tolist() == [-100]


def test_zoology_fillers_are_answered_where_no_filler_looks_like_a_query() -> None:
    task = make("mqar", length=32, pairs=4, vocab=64, fillers="zoology")
    batch = task.batch(range(200))
    answered = 0
    for x, y in zip(batch.x, batch.y, strict=True):
        try:
            assert np.array_equal(task.answer(x), y)
            answered += 1
        except UsageError:
            assert any((x[8::2] == key).sum() > 1 for key in x[0:8:2])
    assert 20 < answered < 200


# ---------------------------------------------------------------- groups, further tests, other lengths

LONGER = ["2x", "4x", "8x"]
NO_LENGTH = {"select-fixed", "solve-fixed", "pathfinder", "pathfinder-classification"}


@pytest.mark.parametrize("name", registry.built_in())
def test_each_task_names_its_group(name: str) -> None:
    assert registry.get(name).group in GROUPS[:-1]


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in registry.built_in() for preset in registry.get(name).presets]
)
def test_further_tests_take_the_same_model_and_draw_other_samples(name: str, preset: str) -> None:
    task = make(name, preset=preset)
    for title, test in task.tests().items():
        for mine, its in ((task.input, test.input), (task.target, test.target)):
            assert (mine.kind, mine.width, mine.pooled) == (its.kind, its.width, its.pooled), title
        assert test != task
        assert not np.array_equal(test.key(0, "test"), task.key(0, "test"))
        if test.input.length <= 2048:
            batch = test.batch([0, 1], split="test")
            assert not np.array_equal(batch.x[0], batch.x[1])


@pytest.mark.parametrize("name", ["context-shift", "cummax", "cumsum", "listops", "mips", "mqar", "recall", "reverse",
                                  "select", "shift", "solve", "sort"])  # fmt: skip
def test_tasks_with_a_length_are_tested_at_longer_ones(name: str) -> None:
    task = small(name)
    tests = task.tests()
    assert list(tests) == LONGER
    assert task.nominal_length is not None
    for times, test in zip((2, 4, 8), tests.values(), strict=True):
        assert test.nominal_length == times * task.nominal_length
        assert test == task.at_length(times * task.nominal_length)
    assert task.at_length(task.nominal_length) == task


@pytest.mark.parametrize("name", sorted(NO_LENGTH))
def test_tasks_that_another_length_would_change_have_none(name: str) -> None:
    task = small(name)
    assert not task.tests()
    with pytest.raises(UsageError, match=f"{name} has no tests at other lengths"):
        task.at_length(512)


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        ("shift", 0, "length must be at least 2"),
        ("recall", 63, "length must be even"),
        ("mqar", 16, r"pairs must be at most length / 4 \(4\), found 8"),
        ("listops", 10**6, r"length must be a whole number in 2..32,767, found 1000000"),
        ("listops", 20.5, r"length must be a whole number in 2..32,767, found 20.5"),
        ("mips", 2**20, "length must be at least 2 and at most 131,072"),
        ("solve", 2.5, "length must be a whole number"),
        ("compression", 64, "compression at length 64 needs another model: .* length=63, .* in place of .* length=15"),
    ],
)
def test_impossible_lengths_are_refused_in_one_line(name: str, length: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        small(name).at_length(length)
    assert "\n" not in str(caught.value)


def test_a_task_whose_width_depends_on_its_length_has_no_other_lengths() -> None:
    from dataclasses import dataclass

    from lrtasks.config import parameter
    from lrtasks.spec import Spec

    @dataclass(frozen=True)
    class Positions(Task):
        """Tokens that name positions."""

        name = "positions"
        length: int = parameter(8, "length")

        @property
        def input(self) -> Spec:
            return Spec("token", self.length, self.length)

        target = input

    with pytest.raises(UsageError, match="positions at length 16 needs another model"):
        Positions().at_length(16)
    assert list(Positions(2**22).further({"2x": {"length": 2**23}, "8x": {"length": 2**25}, "1x": {}})) == ["2x"]


def test_shift_keeps_its_lags_at_other_lengths() -> None:
    task = make("shift", length=64, shifts=4)
    for length in (32, 128, 512):
        other = task.at_length(length)
        assert other.lags().tolist() == task.lags().tolist()
        assert other.at_length(64) == task
        batch = other.batch([0])
        for channel, lag in enumerate(task.lags()):
            assert np.array_equal(batch.y[0, lag:, channel], batch.x[0, : max(length - lag, 0), 0])
            assert not batch.y[0, :lag, channel].any()


def test_context_shift_keeps_its_code_at_other_lengths() -> None:
    test = make("context-shift", length=16).at_length(64)
    batch = test.batch(range(200))
    assert batch.meta is not None
    lags = batch.meta["shift"]
    assert set(lags) == set(range(14))
    np.testing.assert_allclose(batch.x[:, 0, 0], np.cos(2 * np.pi * lags / 16), atol=1e-6)


def test_mqar_keeps_its_pairs_and_listops_its_grammar_at_other_lengths() -> None:
    batch = make("mqar", length=64, pairs=4, vocab=64).at_length(256).batch(range(20))
    assert ((batch.y >= 0).sum(axis=1) == 4).all()
    task = make("listops", setting="small")
    longer = task.at_length(512)
    assert longer.limits == (126, 513, task.limits.max_depth, task.limits.max_args)
    assert make("listops", min_length=1, max_length=12, max_depth=4).at_length(5).limits.min_length == 1
    # with two arguments, only 7 tokens are more than 4 and fewer than 8, and they need three levels
    assert listops.deep_enough(listops.Limits(4, 8, 2, 2)).max_depth == 3
    # 10 tokens are the most at depth 3 with two arguments; 22 need one level more
    assert small("listops").at_length(22).limits == (12, 23, 4, 2)


# ---------------------------------------------------------------- parameters that came later


def test_a_later_parameter_changes_samples_only_where_it_is_given() -> None:
    task = make("shift", length=64)
    assert "lags_of" not in task.identity()["parameters"]
    assert task.parameters()["lags_of"] is None
    assert make("shift", length=64, lags_of=64) == task
    other = make("shift", length=64, lags_of=32)
    assert other.identity()["parameters"]["lags_of"] == 32
    assert not np.array_equal(other.batch([0]).x, task.batch([0]).x)


# ---------------------------------------------------------------- inputs that splits share


def test_the_share_is_that_of_the_given_numbers_of_samples() -> None:
    task = make("recall", length=4)
    trained, tested = task.batch(range(600)).x, task.batch(range(700), split="test").x
    assert overlap(task, 600, 700) == np.mean([(trained == x).all(axis=1).any() for x in tested])


def test_small_spaces_share_inputs_and_large_ones_do_not() -> None:
    recall = make("recall", length=4)
    shared = overlap(recall, 8000, 500)
    assert 0.08 < shared < 0.3
    assert overlap(recall, 100, 500) < shared / 4
    assert overlap(make("listops", min_length=3, max_length=6), 3000, 200) > 0.4
    assert overlap(make("mqar", length=64, pairs=4), 1000, 100) == 0
    assert overlap(make("cumsum", length=64), 2000, 200) == 0
