"""Chomsky: the published strings and answers of fifteen languages, the distributions of strings, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from published_arrays import asked, published, same_law
from scipy import stats

from lrtasks.errors import UsageError
from lrtasks.generators.languages import LANGUAGES
from lrtasks.generators.tasks.chomsky import XLSTM, Chomsky, chomsky_score

LENGTHS = (1, 2, 3, 4, 5, 8, 17, 40, 41, 100)
THEIRS = {
    name: "missing_duplicate_string" if name == "missing-duplicate" else name.replace("-", "_") for name in LANGUAGES
}
ARRAYS = published("chomsky")


@pytest.mark.parametrize("language", LANGUAGES)
def test_published_answers(language: str) -> None:
    task = Chomsky(language=language)
    for n in LENGTHS:
        name = f"{THEIRS[language]}_{n}"
        strings, answers = ARRAYS[f"{name}_x"], ARRAYS[f"{name}_y"]
        answers = answers.reshape(len(strings), -1)
        scored = ARRAYS.get(f"{name}_mask", np.ones(answers.shape, bool))
        for string, answer, mask in zip(strings, answers, scored, strict=True):
            y = task.answer(string)
            assert np.array_equal(asked(y), answer[mask])
            assert len(y) == len(string) + len(answer)
            assert np.array_equal(np.flatnonzero(y >= 0), len(string) + np.flatnonzero(mask))
            x = np.concatenate([string, np.full(len(answer), task.empty), [task.empty + 1] * 3])
            assert np.array_equal(task.answer(x), np.append(y, [-100] * 3))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 17, 40, 100])
def test_strings_have_the_published_law(language: str, n: int) -> None:
    task = Chomsky(language=language, lengths=(n, n))
    theirs = ARRAYS[f"{THEIRS[language]}_{n}_x"]
    batch = task.batch(range(600))
    sizes, _ = task.outputs(batch.x)
    assert (sizes == theirs.shape[1]).all()
    ours = batch.x[:, : theirs.shape[1]]
    if n <= 4:  # whole strings
        weights = 16 ** np.arange(theirs.shape[1])
        assert same_law(ours @ weights, theirs @ weights) > 1e-4
    for token in np.unique(np.concatenate([ours.ravel(), theirs.ravel()])):
        assert _same_mean((ours == token).mean(axis=1), (theirs == token).mean(axis=1)), token
    for what in (0, len(ours[0]) // 2, -1):
        assert same_law(ours[:, what], theirs[:, what]) > 1e-4
    answers = ARRAYS[f"{THEIRS[language]}_{n}_y"].reshape(len(theirs), -1)
    labels = np.array([asked(y)[0] for y in batch.y])
    assert same_law(labels, answers[:, 0]) > 1e-4
    scored = ARRAYS.get(f"{THEIRS[language]}_{n}_mask")
    if scored is not None:
        assert _same_mean((batch.y >= 0).sum(axis=1), scored.sum(axis=1))


def _same_mean(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two means are within 4 standard errors of each other."""
    error = np.sqrt(ours.var() / len(ours) + max(ours.var(), theirs.var()) / len(theirs))
    return bool(abs(ours.mean() - theirs.mean()) <= 4 * error + 1e-12)


def test_brackets_split_uniformly() -> None:
    """The first of two operands has 1 to n - 4 tokens, each number of them as often as the others."""
    task = Chomsky(language="modular-arithmetic-brackets", lengths=(20, 20))
    sizes = []
    for x in task.batch(range(3000)).x[:, :20]:
        depth = np.cumsum(np.where(x == 8, 1, np.where(x == 9, -1, 0)))
        operator = (depth == 1) & (x >= 5) & (x <= 7)
        operator[1:] &= (x[:-1] < 5) | (x[:-1] == 9)  # not a sign
        sizes.append(int(operator.argmax()) - 1)
    assert stats.chisquare(np.bincount(sizes, minlength=17)[1:]).pvalue > 1e-3


def test_the_unknown_stands_where_the_next_digit_is() -> None:
    """In ``(d+d)=v`` the places 4, 0, 1 lead to the first digit and 2, 3 to the second."""
    x = Chomsky(language="solve-equation", lengths=(7, 7)).batch(range(2000)).x
    first = (x[:, 1] == 9) & (x[:, 0] == 7) & (x[:, 3] < 5)
    second = (x[:, 3] == 9) & (x[:, 1] < 5)
    assert stats.binomtest(int(first.sum()), int(first.sum() + second.sum()), 0.6).pvalue > 1e-3


TOKENS = {  # theirs to ours; the sign after the string is EMPTY
    "parity": {1: 0, 2: 1},
    "even_pairs": {1: 0, 2: 1},
    "cycle_navigation": {1: 1, 2: 2, 3: 0},
    "modular_arithmetic": {5: 0, 6: 1, 7: 2, 8: 3, 9: 4, 1: 5, 2: 6, 3: 7},
    "modular_arithmetic_with_brackets": {token: token for token in range(10)},
}
NAMES = dict(zip(TOKENS, ("parity-check", "even-pairs", "cycle-navigation", *XLSTM[3:]), strict=True))
FIRST_ANSWER = {"parity": 1, "even_pairs": 1, "cycle_navigation": 4, "modular_arithmetic": 5}


@pytest.mark.parametrize("lengths", [("short", (3, 40)), ("long", (40, 256))], ids=["short", "long"])
@pytest.mark.parametrize("theirs", TOKENS)
def test_published_strings_of_xlstm(theirs: str, lengths: tuple[str, tuple[int, int]]) -> None:
    arrays = published("xlstm_formal")
    task = Chomsky(language=NAMES[theirs], law="xlstm", lengths=lengths[1])
    signs = theirs.startswith("modular")  # "=" stands before the answer
    sizes, contents = [], []
    for tokens, place in zip(
        arrays[f"{theirs}_{lengths[0]}_tokens"], arrays[f"{theirs}_{lengths[0]}_position"], strict=True
    ):
        string = [TOKENS[theirs][int(token)] for token in tokens[: place - signs]]
        answer = int(tokens[place]) - FIRST_ANSWER.get(theirs, 0)
        assert asked(task.answer(np.array(string))).tolist() == [answer]
        sizes.append(len(string))
        contents.append(np.bincount(string, minlength=task.empty) / len(string))
    batch = task.batch(range(2000))
    ours, _ = task.outputs(batch.x)
    assert same_law(ours, sizes) > 1e-3
    assert set(sizes) <= set(ours.tolist()) and ours.max() + 1 <= task.input.length
    for token in range(task.empty):
        share = (np.where(np.arange(batch.x.shape[1]) < ours[:, None], batch.x, -1) == token).sum(axis=1) / ours
        assert _same_mean(share, np.array([content[token] for content in contents])), token


def test_lengths_are_uniform() -> None:
    sizes, _ = Chomsky(language="reverse-string", lengths=(3, 12)).outputs(
        Chomsky(language="reverse-string", lengths=(3, 12)).batch(range(3000)).x
    )
    assert stats.chisquare(np.bincount(sizes, minlength=13)[3:]).pvalue > 1e-3


def value(text: str) -> int:
    return int(eval(text)) % 5


@pytest.mark.parametrize("language", ["modular-arithmetic", "modular-arithmetic-brackets"])
def test_labels_of_what_stands_so_far(language: str) -> None:
    task = Chomsky(language=language, lengths=(3, 30), labels="every")
    names = task._language.tokens
    train, test = task.batch(range(60)), task.batch(range(60), split="test")
    assert ((test.y >= 0).sum(axis=1) == 1).all() and (test.x[test.y >= 0] == task.empty).all()
    for x, y in zip(train.x, train.y, strict=True):
        size = int((x == task.empty).argmax())
        text = "".join(names[token] for token in x[:size])
        assert y[size] == value(text)
        opened = []
        for place, sign in enumerate(text):
            if sign == "(":
                opened.append(place)
            if language == "modular-arithmetic":
                assert y[place] == (value(text[: place + 1]) if sign.isdigit() else -100)
            else:
                assert y[place] == (value(text[opened.pop() : place + 1]) if sign == ")" else -100)


@pytest.mark.parametrize("language", ["even-pairs", "parity-check", "cycle-navigation"])
def test_labels_of_every_symbol(language: str) -> None:
    task = Chomsky(language=language, lengths=(5, 20), labels="every")
    for x, y in zip(*task.batch(range(10))[:2], strict=True):
        size = int((x == task.empty).argmax())
        assert [asked(task.answer(x[:end])).tolist() for end in range(1, size + 1)] == y[:size, None].tolist()


def test_languages_without_partial_answers_have_the_answer_alone() -> None:
    one, other = (
        Chomsky(language="odds-first", labels=labels, lengths=(9, 9)).batch([0]) for labels in ("last", "every")
    )
    assert (one.y >= 0).sum() == (other.y >= 0).sum() == 9


@pytest.mark.parametrize("modulus", [2, 3, 7, 12])
def test_other_moduli(modulus: int) -> None:
    for language in (
        "modular-arithmetic",
        "modular-arithmetic-brackets",
        "solve-equation",
        "cycle-navigation",
        "bucket-sort",
    ):
        task = Chomsky(language=language, modulus=modulus, lengths=(20, 21))
        batch = task.batch(range(20))
        assert task.target.width == modulus > batch.y.max()
        for x, y in zip(batch.x, batch.y, strict=True):
            assert np.array_equal(task.answer(x), y)
    arithmetic = Chomsky(modulus=modulus)
    assert asked(arithmetic.answer([1, modulus, 1, modulus + 2, 1, modulus + 1, 1])).tolist() == [1]
    with pytest.raises(UsageError, match="parity-check has no modulus"):
        Chomsky(language="parity-check", modulus=modulus)


@pytest.mark.parametrize(
    ("language", "string", "answer"),
    [
        ("even-pairs", "01101", [1]),
        ("cycle-navigation", "21000", [3]),
        ("stack-manipulation", "1 0 4 2 2", [1, 2]),
        ("odds-first", "01100", [1, 0, 0, 1, 0]),
        ("binary-addition", "1 1 2 1 1 1 1", [0, 1, 0, 0, 1, 2]),  # 3 + 15
        ("binary-addition", "0 0 2 0", [0, 2]),
        ("binary-multiplication", "1 1 2 1 0 1", [1, 1, 1, 1, 2]),  # 3 * 5
        ("compute-sqrt", "110001", [1, 1, 1]),  # 49
        ("compute-sqrt", "0000", [0, 0]),
        ("solve-equation", "7 9 6 7 3 5 4 8 8 10 1", [3]),  # (x-(3+4))=1
        ("modular-arithmetic-brackets", "8 8 4 9 7 6 3 9", [3]),  # ((4)*-3)
        ("missing-duplicate", "0 1 2 1 3", [0]),
        ("bucket-sort", "41302", [0, 1, 2, 3, 4]),
    ],
)
def test_answers_by_hand(language: str, string: str, answer: list[int]) -> None:
    tokens = [int(token) for token in (string.split() if " " in string else string)]
    assert asked(Chomsky(language=language).answer(tokens)).tolist() == answer


def test_further_tests() -> None:
    some, every = (Chomsky(tested=tested).tests() for tested in ("some", "every"))  # type: ignore[arg-type]
    assert list(some) == ["41", "64", "96", "128", "192", "256", "384", "500"]
    assert list(every) == [str(length) for length in range(41, 501)]
    assert some["500"].parameters()["lengths"] == [500, 500]
    xlstm = Chomsky(law="xlstm", lengths=(3, 40)).tests()
    assert {name: test.parameters()["lengths"] for name, test in xlstm.items()} == {
        "256": [256, 256],
        "40-256": [40, 256],
    }


def test_slices() -> None:
    task = Chomsky(language="reverse-string", lengths=(8, 8))
    slices = task.slices(task.batch([0]))
    assert slices["length"].tolist() == [[8]] and slices["eighth"][0, 8:].tolist() == list(range(8))
    task = Chomsky(language="reverse-string", lengths=(8, 16))
    batch = task.batch(range(32))
    for size, row in zip(task.outputs(batch.x)[0].tolist(), task.slices(batch)["eighth"], strict=True):
        assert row[size : 2 * size].tolist() == [8 * output // size for output in range(size)]
    assert list(Chomsky().slices(Chomsky().batch([0]))) == ["length"]


def test_score_reads_between_the_lengths() -> None:
    assert chomsky_score({41: 0.5, 270: 1.0, 500: 1.0}) == pytest.approx((0.75 * 229 + 231) / 460, abs=0.002)
