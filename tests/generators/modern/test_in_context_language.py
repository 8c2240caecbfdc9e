"""In-context language: labels by inference, legal in the hidden automaton; the distribution of automata and texts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lrtasks.generators import make
from lrtasks.generators.tokens import Uniforms
from lrtasks.spec import IGNORED

SETTINGS: list[dict[str, Any]] = [
    {"length": 60},
    {"length": 60, "symbols": 2, "states": (3, 6)},
    {"length": 80, "symbols": 5, "edges": 4, "states": (2, 9)},
]


def inferred(tokens: list[int], end: int) -> int:
    """The label after ``tokens``: join the states of the tree of beginnings until it is reversible, then look."""
    beginnings = [()]
    edges: set[tuple[tuple[int, ...], int, tuple[int, ...]]] = set()
    at: tuple[int, ...] = ()
    ends = set()
    for token in tokens:
        if token == end:
            ends.add(at)
            edges.add((at, end, ()))
            at = ()
        else:
            edges.add((at, token, (*at, token)))
            at = (*at, token)
            beginnings.append(at)
    block = {state: state for state in beginnings}

    def join(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        old, new = block[two], block[one]
        if old == new:
            return False
        for state, mine in block.items():
            if mine == old:
                block[state] = new
        return True

    changed = True
    while changed:
        changed = sum(join(one, two) for one, two in itertools.combinations(sorted(ends), 2)) > 0
        for (a, by, b), (c, same, d) in itertools.combinations(sorted(edges), 2):
            if by == same and block[a] == block[c]:
                changed |= join(b, d)
            if by == same and block[b] == block[d]:
                changed |= join(a, c)
    known = {by for a, by, _ in edges if block[a] == block[at]}
    return known.pop() if len(known) == 1 else IGNORED


@pytest.mark.parametrize("parameters", SETTINGS)
def test_labels_are_what_plain_inference_gives(parameters: dict[str, Any]) -> None:
    task = make("in-context-language", **parameters)
    batch = task.batch(range(6))
    rng = np.random.default_rng(0)
    for x, y in zip(batch.x.tolist(), batch.y.tolist(), strict=True):
        size = sum(token <= task.symbols for token in x)
        for at in rng.integers(size, size=12).tolist():
            assert y[at] == inferred(x[: at + 1], task.symbols)


def test_labels_of_any_text_are_what_plain_inference_gives() -> None:
    """Texts that no automaton of the law makes join more states."""
    task = make("in-context-language", length=24)
    for x in np.random.default_rng(1).integers(4, size=(40, 24)):
        y = task.answer(x)
        assert all(y[at] == inferred(x[: at + 1].tolist(), 3) for at in (5, 13, 23))


@pytest.mark.parametrize("parameters", SETTINGS)
def test_texts_are_walks_and_every_label_is_legal_in_the_hidden_automaton(parameters: dict[str, Any]) -> None:
    task: Any = make("in-context-language", **parameters)
    numbers = np.random.default_rng(3).random((200, task.draws))
    batch = task.made(Uniforms(numbers))
    u = Uniforms(numbers)
    u.take(1)
    ways, symbol, to = task.automata(u)
    asked = 0
    for row in range(200):
        state = 0
        for token, label in zip(batch.x[row].tolist(), batch.y[row].tolist(), strict=True):
            if token > task.symbols:
                assert label == IGNORED
                continue
            legal = symbol[row, state, : ways[row, state]].tolist()
            state = int(to[row, state, legal.index(token)])
            if label >= 0:
                asked += 1
                assert label in symbol[row, state, : ways[row, state]]
    assert asked > 500


def test_automata_are_reversible_connected_and_of_the_sizes_asked_for() -> None:
    task: Any = make("in-context-language", states=(3, 7), symbols=4, edges=3)
    ways, symbol, to = task.automata(Uniforms(np.random.default_rng(0).random((2000, task.draws))))
    sizes = (ways > 0).sum(axis=1)
    assert stats.chisquare(np.bincount(sizes, minlength=8)[3:]).pvalue > 1e-4
    finals = []
    for row in range(2000):
        edges = [
            (state, int(symbol[row, state, way]), int(to[row, state, way]))
            for state in range(sizes[row])
            for way in range(ways[row, state])
        ]
        assert len({edge[:2] for edge in edges}) == len({edge[1:] for edge in edges}) == len(edges)
        assert all((state + 1) % sizes[row] in {t for s, by, t in edges if s == state and by < 4} for state in range(3))
        (final,) = [edge for edge in edges if edge[1] == 4]
        assert final[2] == 0 < final[0]
        finals.append(final[0] / (sizes[row] - 1))
        assert max(ways[row]) <= 4
    assert np.mean(finals) == pytest.approx((1 + np.mean(1 / (sizes - 1))) / 2, abs=0.02)
    assert stats.chisquare(np.bincount(symbol[:, 0, 0], minlength=4)).pvalue > 1e-4
    # of 2n tries some fail: the symbol is used at the state, or at the end, or the state is full
    assert 1.8 < (ways.sum(axis=1) - 1).sum() / sizes.sum() < 2.2


def test_strings_are_as_many_as_drawn_unless_the_text_is_cut() -> None:
    task = make("in-context-language", length=800, strings=(3, 6))
    batch = task.batch(range(1500))
    assert batch.mask is not None
    ended = (batch.x == 3).sum(axis=1)
    whole = ~batch.mask.all(axis=1)
    assert whole.mean() > 0.99
    assert stats.chisquare(np.bincount(ended[whole], minlength=7)[3:]).pvalue > 1e-4
    assert np.array_equal(batch.mask, batch.x != 4)


def test_ways_are_taken_alike() -> None:
    task: Any = make("in-context-language", length=8, states=(2, 2), symbols=3, edges=2)
    numbers = np.random.default_rng(0).random((4000, task.draws))
    u = Uniforms(numbers)
    u.take(1)
    ways, symbol, _ = task.automata(u)
    x = task.made(Uniforms(numbers)).x
    two = ways[:, 0] == 2
    assert (x[two, 0] == symbol[two, 0, 0]).mean() == pytest.approx(0.5, abs=0.03)


def test_floors_and_slices() -> None:
    task = make("in-context-language", length=128, states=(4, 8))
    batch = task.batch(range(1024), split="test")
    slices, asked = task.slices(batch), batch.y >= 0
    measured = {}
    for name, floor in task.baselines().items():
        floor.fit([task.batch(range(256))])
        measured[name] = float(((floor.predict(batch) == batch.y) & asked).sum() / asked.sum())
    expected = {"majority": 0.33, "bigram": 0.51, "trigram": 0.74, "4-gram": 0.86, "same-beginning": 0.86}
    assert measured == pytest.approx(expected, abs=0.02)
    assert (slices["seen"][asked] == 0).mean() == pytest.approx(0.21, abs=0.02)
    for row in range(8):
        continued, string, ended = set(), (), 0
        for at, token in enumerate(batch.x[row, : int(batch.mask[row].sum())].tolist()):
            continued.add(string)
            string, ended = ((), ended + 1) if token == 3 else ((*string, token), ended)
            assert slices["strings"][row, at] == (2 ** (ended.bit_length() - 1) if ended else 0)
            assert slices["seen"][row, at] == (string in continued)
