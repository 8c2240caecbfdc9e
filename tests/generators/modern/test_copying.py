"""Copying: the published strings, the distribution of keys, labels by reading the string, and bad input."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from published_arrays import asked, published, same_law
from scipy import stats

from lrtasks.errors import UsageError
from lrtasks.generators import make
from lrtasks.generators.tasks.copying import Copying

MODES = {
    "copy_n0_v26": {"mode": "copy", "string": (5, 20)},
    "prefix_ngram_n2_v26": {"mode": "prefix-lookup", "string": (10, 30), "ngram": 2},
    "suffix_ngram_n2_v26": {"mode": "suffix-lookup", "string": (10, 30), "ngram": 2},
    "suffix_ngram_n3_v8": {"mode": "suffix-lookup", "string": (10, 60), "ngram": 3, "letters": 8, "answer_length": 3},
}


def numbered(text: str, letters: int) -> np.ndarray:
    signs = {"$": letters, "|": letters + 1, ".": letters + 2}
    return np.array([signs.get(sign, ord(sign) - ord("a")) for sign in text])


def parts(name: str, text: str, ngram: int) -> tuple[str, str, str]:
    """String, key and answer of a published text."""
    words = text.strip("$.").split("|")
    if name.startswith("prefix"):
        return words[1], words[0], words[2]
    return words[0], words[1][:ngram], words[1][ngram:]


@pytest.mark.parametrize("name", MODES)
def test_published_strings(name: str) -> None:
    task = Copying(**MODES[name], end=True)  # type: ignore[arg-type]
    ngram = 0 if task.mode == "copy" else task.ngram
    texts = [str(text) for text in published("jelassi")[name]]
    for text in texts:
        answer = [*numbered(parts(name, text, ngram)[2], task.letters), task.letters + 2]
        y = task.answer(numbered(text, task.letters)[:-1])
        assert asked(y).tolist() == answer
        assert np.flatnonzero(y >= 0)[0] == len(y) - len(answer)
    batch = task.batch(range(1500))
    ours = [task._question(x) for x in batch.x]
    theirs = [parts(name, text, ngram) for text in texts]
    assert same_law([len(string) for string, _, _ in ours], [len(string) for string, _, _ in theirs]) > 1e-3
    letters = numbered("".join(string for string, _, _ in theirs), task.letters)
    assert same_law(np.concatenate([string for string, _, _ in ours]), letters) > 1e-3
    if ngram:
        starts = [string.index(key) for string, key, _ in theirs]
        own = ["".join(chr(97 + letter) for letter in string) for string, _, _ in ours]
        keys = ["".join(chr(97 + letter) for letter in key) for _, key, _ in ours]
        found = [string.index(key) for string, key in zip(own, keys, strict=True)]
        assert same_law(found, starts) > 1e-3
        # how near the key may come to the end: the last three starts with room are never drawn
        room = [
            len(string) - ngram - task.answer_length - start
            for (string, _, _), start in zip(theirs, starts, strict=True)
        ]
        assert (
            min(room)
            == 3
            == min(len(string) - ngram - task.answer_length - start for string, start in zip(own, found, strict=True))
        )


def test_packed_training_contexts_are_masked_where_labels_stand() -> None:
    arrays = published("jelassi")
    task = Copying(string=(5, 20), end=True)
    for ids, mask in zip(arrays["packed_copy_ids"], arrays["packed_copy_mask"], strict=True):
        begins = np.flatnonzero(ids == 26)
        for begin, end in itertools.pairwise(begins):
            y = task.answer(ids[begin : end - 1])  # without the END, which is a label alone
            assert np.array_equal(np.flatnonzero(y >= 0) + 1, np.flatnonzero(mask[begin:end]))
            assert np.array_equal(asked(y), ids[begin:end][mask[begin:end] == 1])


@pytest.mark.parametrize("mode", ["copy", "reverse", "prefix-lookup", "suffix-lookup"])
@pytest.mark.parametrize("feed", ["teacher", "blank"])
@pytest.mark.parametrize("end", [False, True])
def test_every_part_of_a_sample(mode: str, feed: str, end: bool) -> None:
    task = make("copying", mode=mode, feed=feed, end=end, string=(12, 20), letters=5, ngram=2, answer_length=3)
    batch = task.batch(range(60))
    slices = task.slices(batch)
    assert batch.mask is not None
    for row, (x, y, mask) in enumerate(zip(batch.x.tolist(), batch.y.tolist(), batch.mask, strict=True)):
        x = x[: mask.sum()]
        bars = [place for place, token in enumerate(x) if token == 6]
        assert x[0] == 5
        if mode == "prefix-lookup":
            key, string, head = x[1 : bars[0]], x[bars[0] + 1 : bars[1]], bars[1] + 1
        else:
            string = x[1 : bars[0]]
            head = bars[0] + 1 + (2 if mode == "suffix-lookup" else 0)
            key = x[bars[0] + 1 : head]
        answer = string if mode == "copy" else string[::-1]
        if "lookup" in mode:
            first = next(place for place in range(len(string)) if string[place : place + 2] == key)
            answer = string[first + 2 : first + 5]
        fed = answer if end else answer[:-1]
        assert x[head:] == (fed if feed == "teacher" else [8] * len(fed))
        labels = answer + [7] * end
        assert y == [-100] * (head - 1) + labels + [-100] * (len(y) - head + 1 - len(labels))
        assert slices["string"][row, 0] == 2 ** (len(string).bit_length() - 1)
        assert slices["position"][row, head - 1 : head + 2].tolist() == [1, 2, 2]
        assert (batch.x[row, len(x) :] == 8).all()
    assert batch.x.shape[1] == task.input.length >= batch.mask.sum(axis=1).max()


def test_clean_keys_come_once_and_anywhere() -> None:
    task = Copying(mode="suffix-lookup", law="clean", letters=4, ngram=2, answer_length=2, string=(10, 10))
    starts: Counter[int] = Counter()
    for x in task.batch(range(4000)).x:
        string, key, _ = task._question(x)
        found = [place for place in range(9) if np.array_equal(string[place : place + 2], key)]
        assert len(found) == 1
        starts[found[0]] += 1
    assert set(starts) == set(range(7))
    assert stats.chisquare([starts[start] for start in range(7)]).pvalue > 1e-4


@pytest.mark.parametrize(("letters", "ngram", "longest"), [(26, 1, 50), (8, 2, 256), (2, 3, 9)])
def test_clean_takes_strings_longer_than_the_number_of_keys(letters: int, ngram: int, longest: int) -> None:
    task = Copying(
        mode="suffix-lookup", law="clean", letters=letters, ngram=ngram, answer_length=2, string=(7, longest)
    )
    for x in task.batch(range(100)).x:
        string, key, _ = task._question(x)
        places = range(len(string) - ngram + 1)
        assert sum(np.array_equal(string[place : place + ngram], key) for place in places) == 1


def test_clean_lookups_of_few_letters_are_tested_on_longer_strings() -> None:
    task = make("copying", mode="suffix-lookup", law="clean", letters=8, ngram=2, string=(16, 64))
    assert list(task.tests()) == ["2x", "4x", "8x"]
    with pytest.raises(UsageError, match="too few for one that occurs once in 2048 letters"):
        make("copying", mode="suffix-lookup", law="clean", letters=8, ngram=2, string=(16, 2048))


def test_a_lookup_has_room_for_key_and_answer() -> None:
    for law, least in (("jelassi", 10), ("clean", 7)):
        task = make("copying", mode="suffix-lookup", law=law, string=(5, 12))
        lengths = [len(task._question(x)[0]) for x in task.batch(range(1000)).x]
        assert stats.chisquare(np.bincount(lengths)[least:]).pvalue > 1e-3 and min(lengths) == least


def test_tests_have_strings_of_exactly_that_length() -> None:
    tests = Copying(string=(5, 20)).tests()
    assert [test.parameters()["string"] for test in tests.values()] == [[40, 40], [80, 80], [160, 160]]


@pytest.mark.parametrize("mode", ["copy", "reverse", "prefix-lookup", "suffix-lookup"])
@pytest.mark.parametrize("end", [False, True])
def test_strings_of_one_length_need_no_padding(mode: str, end: bool) -> None:
    task = make("copying", mode=mode, end=end, string=(12, 12), ngram=2, answer_length=3)
    mask = task.batch(range(4)).mask
    assert mask is not None and mask.all()


def test_the_answer_does_not_depend_on_what_is_fed() -> None:
    task = Copying(letters=3)
    assert task.answer([3, 2, 0, 1, 4]).tolist() == [-100] * 4 + [2]
    assert task.answer([3, 2, 0, 1, 4, 1, 1, 6, 6]).tolist() == [-100] * 4 + [2, 0, 1, -100, -100]
