"""Dyck: labels by counting brackets, the published strings and their distribution of lengths, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from published_arrays import asked, published, same_law
from scipy import stats

from lrtasks.errors import UsageError
from lrtasks.generators.tasks.dyck import Dyck, _share_within
from lrtasks.spec import Batch


@pytest.mark.parametrize("close", ["typed", "generic"])
def test_each_closing_is_labelled_with_its_kind(close: str) -> None:
    task = Dyck(kinds=3, depth=4, length=80, close=close, stay=0.6)
    batch = task.batch(range(30))
    slices = task.slices(batch)
    for row, (x, y) in enumerate(zip(batch.x.tolist(), batch.y.tolist(), strict=True)):
        stack: list[tuple[int, int]] = []
        for place, token in enumerate(x):
            if token < 3:
                stack.append((token, place))
                assert len(stack) <= 4
                if close == "generic":
                    assert y[place] == -100
                continue
            depth = len(stack)
            kind, opened = stack.pop()
            at = place if close == "generic" else place - 1
            assert y[at] == kind and token == (3 if close == "generic" else 3 + kind)
            assert slices["depth"][row, at] == depth
            assert slices["distance"][row, at] == 2 ** ((place - opened).bit_length() - 1)
    assert (batch.y >= 0).sum() == (batch.x >= 3).sum()


def test_the_law_of_actions() -> None:
    """Open at depth 0, close at the largest depth, else stay with the last action."""
    stay, most = 0.7, 4
    x = Dyck(kinds=2, depth=most, length=200, stay=stay, close="generic").batch(range(100)).x
    opens = x < 2
    depth = np.cumsum(np.where(opens, 1, -1), axis=1)
    before, last, now = depth[:, :-1], opens[:, :-1], opens[:, 1:]
    assert opens[:, 0].all() and now[before == 0].all() and not now[before == most].any()
    assert depth.min() >= 0 and depth.max() == most
    for free in range(1, most):
        same = (now == last)[before == free]
        assert stats.binomtest(int(same.sum()), same.size, stay).pvalue > 1e-3
    kinds = x[opens]
    assert stats.binomtest(int(kinds.sum()), kinds.size).pvalue > 1e-3


PUBLISHED = {"k8_m5_1_180": (8, 5, 2, 180), "k2_m3_1_84": (2, 3, 2, 84), "k8_m5_181_360": (8, 5, 181, 360)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_strings(name: str) -> None:
    kinds, depth, least, most = PUBLISHED[name]
    strings = [row[row >= 0] for row in published("dyck")[name]]
    task = Dyck(kinds=kinds, depth=depth, whole=(least, most))
    for string in strings:
        y = task.answer(string)  # END included
        assert np.array_equal(asked(y), string[(string >= kinds) & (string < 2 * kinds)] - kinds)
    drawn = task.batch(range(2000))
    assert drawn.mask is not None
    ours = drawn.mask.sum(axis=1)
    assert same_law(ours, [len(string) for string in strings]) > 1e-3
    assert ((drawn.x == 2 * kinds).sum(axis=1) == 1).all() and ours.max() <= most + 1 and ours.min() >= least + 1
    theirs = np.full((len(strings), most + 1), 2 * kinds + 1)
    for row, string in enumerate(strings):
        theirs[row, : len(string)] = string
    labels = np.stack([task.answer(x) for x in theirs])
    for what in ("distance", "depth"):  # brackets of one string depend on each other: one mean for each string
        means = [
            np.where(y >= 0, task.slices(Batch(x, y))[what], 0).sum(axis=1) / (y >= 0).sum(axis=1)
            for x, y in ((drawn.x, drawn.y), (theirs, labels))
        ]
        assert stats.ttest_ind(*means, equal_var=False).pvalue > 1e-3


def test_whole_strings_end_by_chance_where_they_are_long_enough() -> None:
    task = Dyck(kinds=2, depth=3, stay=0.3, whole=(6, 120))
    batch = task.batch(range(3000))
    ended = going_on = short = 0
    for x in batch.x:
        depth = np.cumsum(np.where(x[: (x == 4).argmax()] < 2, 1, -1))
        places = np.flatnonzero(depth == 0) + 1
        assert places[-1] == len(depth) and (places[-1] >= 6) and len(depth) <= 120
        ended, going_on = ended + 1, going_on + int((places >= 6).sum()) - 1
        short += len(depth) <= 16
    assert stats.binomtest(ended, ended + going_on).pvalue > 1e-3
    assert 0.5 < _share_within((6, 16), 3, 0.3) == pytest.approx(short / 3000, abs=0.03)


def test_tests_of_whole_strings_are_longer_ones() -> None:
    tests = Dyck(kinds=2, depth=3, whole=(2, 84)).tests()
    assert {name: test.parameters()["whole"] for name, test in tests.items()} == {"2x": [85, 168]}
    assert Dyck(whole=(2, 40_000)).tests() == {}, "strings of twice this length are refused"


def test_whole_strings_of_one_length_have_no_padding() -> None:
    mask = Dyck(kinds=2, depth=3, whole=(4, 4)).batch(range(4)).mask
    assert mask is not None and mask.all()


def test_whole_strings_have_no_one_length() -> None:
    with pytest.raises(UsageError, match="dyck has no tests at other lengths"):
        Dyck(kinds=2, depth=3, whole=(2, 84)).at_length(512)
    assert Dyck(kinds=2, depth=3, length=32).at_length(64).input.length == 64


@pytest.mark.parametrize("whole", [(1, 5), (7, 7), (8, 6), (2, 2**17)])
def test_lengths_that_no_string_has_are_refused(whole: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="dyck: whole must"):
        Dyck(whole=whole)
    with pytest.raises(UsageError, match=r"dyck: at depth 9 and stay 1\.0 too few strings have 4 to 8 tokens: 0.0%"):
        Dyck(whole=(4, 8), depth=9, stay=1.0)
