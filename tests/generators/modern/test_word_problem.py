"""Word problem: the published products, the groups by their definition, and bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from published_arrays import published, same_law

from lrtasks.errors import UsageError
from lrtasks.generators import make
from lrtasks.generators.tasks.word_problem import WordProblem
from lrtasks.spec import Batch

GROUPS = {"Z2": "Z2", "S3": "S3", "S4": "S4", "A5": "A5", "Z60": "Z60", "A4_x_Z5": "A4xZ5"}


@pytest.mark.parametrize(("theirs", "ours"), GROUPS.items())
def test_products_are_the_published_ones(theirs: str, ours: str) -> None:
    arrays = published("word_problem")
    task = WordProblem(group=ours)
    for x, y in zip(arrays[f"{theirs}_x"], arrays[f"{theirs}_y"], strict=True):
        assert np.array_equal(task.answer(x), y)
    drawn = WordProblem(group=ours, length=64).batch(range(400))
    assert same_law(drawn.x, arrays[f"{theirs}_x"]) > 1e-3
    assert same_law(drawn.y, arrays[f"{theirs}_y"]) > 1e-3


@pytest.mark.parametrize("group", ["S3", "S4", "S5", "A3", "A4", "A5"])
def test_permutations_are_composed_from_the_right(group: str) -> None:
    task = WordProblem(group=group, length=2)
    names = task.named(range(task.order))
    assert names == sorted(names) and names[0] == "12345"[: int(group[1])]
    for (left, a), (right, b) in itertools.product(list(enumerate(names))[::7], list(enumerate(names))[::5]):
        product = "".join(a[int(place) - 1] for place in b)
        assert task.answer([left, right]).tolist() == [left, names.index(product)]


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("Z7", ["6", "0", "1"]),
        ("S3", ["123", "132", "213", "321"]),
        ("A4", ["1234", "1342", "1423", "2314", "2431", "3124", "3241", "4132", "4213"]),
        ("A3xZ2", ["123,1", "123,0", "123,1", "231,1", "231,0", "231,1", "312,1", "312,0", "312,1"]),
    ],
)
def test_generators(group: str, names: list[str]) -> None:
    task = WordProblem(group=group, tokens="generators", length=3)
    assert task.input.width == len(names)
    firsts = [int(task.answer([token])[0]) for token in range(len(names))]
    assert task.named(firsts) == names
    every = WordProblem(group=group)
    assert task.answer([1, 2, 2]).tolist() == every.answer([firsts[1], firsts[2], firsts[2]]).tolist()


def test_cycle_navigation_is_z5_with_generators() -> None:
    task = WordProblem(group="Z5", tokens="generators", length=30)
    (x,), (y,) = task.batch([0])[:2]
    assert np.array_equal(y, np.cumsum(x - 1) % 5)


def test_the_last_product_alone_can_be_asked() -> None:
    every, last = (WordProblem(length=10, labels=labels).answer([1, 2] * 5) for labels in ("every", "last"))
    assert last.tolist() == [-100] * 9 + [int(every[-1])]


def test_text_names_the_elements_that_generators_stand_for() -> None:
    task = WordProblem(group="Z5", tokens="generators", length=3)
    x = np.array([[0, 1, 2]])
    assert task.text(Batch(x, task.answer(x[0])[None]), 0) == "4 0 1 | 4 4 0"


def test_slices_tell_octaves_and_the_last_position() -> None:
    task = WordProblem(length=6)
    slices = task.slices(task.batch([0]))
    assert slices["position"].tolist() == [1, 2, 2, 4, 4, 4]
    assert slices["last"].tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "group", ["Z1", "Z121", "S2", "S6", "A2", "A6", "D4", "A4xD4", "A4_x_Z5", "", "Z05", "Z1２", "S5xS5xS5"]
)
def test_groups_that_do_not_exist_are_refused(group: str) -> None:
    with pytest.raises(UsageError, match="word-problem: group "):
        make("word-problem", group=group)
