"""Stack: every label by playing the operations, the distribution of actions and stacks, and bad input."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from lrtasks.generators.tasks.stack import Stack
from lrtasks.spec import Batch


@pytest.mark.parametrize("feed", ["teacher", "blank"])
def test_each_pop_takes_the_value_on_top(feed: str) -> None:
    task = Stack(stacks=3, values=7, operations=60, stay=0.7, feed=feed)
    batch = task.batch(range(40))
    slices = task.slices(batch)
    for row, (x, y) in enumerate(zip(batch.x.tolist(), batch.y.tolist(), strict=True)):
        stacks: dict[int, list[tuple[int, int]]] = {7: [], 8: [], 9: []}
        last: dict[int, int] = {}
        for number in range(60):
            action, name, value = x[3 * number : 3 * number + 3]
            if action == 10:
                stacks[name].append((value, number))
                last[name] = number
                assert y[3 * number : 3 * number + 3] == [-100] * 3
                continue
            taken, pushed = stacks[name].pop()
            assert action == 11 and value == (taken if feed == "teacher" else 12)
            assert y[3 * number : 3 * number + 3] == [-100, taken, -100]
            assert slices["buried"][row, 3 * number + 1] == (pushed != last[name])
            assert slices["distance"][row, 3 * number + 1] == 2 ** ((number - pushed).bit_length() - 1)


def test_the_law_of_actions_and_stacks() -> None:
    stay = 0.7
    task = Stack(stacks=3, values=5, operations=200, stay=stay)
    same, chosen, pushed, values = [], Counter[tuple[str, int]](), [], []
    for x in task.batch(range(150)).x:
        actions, names, drawn = x[::3] == 8, x[1::3] - 5, x[2::3]
        contents = [0, 0, 0]
        order: list[int] = []  # in which stacks were filled
        assert actions[0]
        for number, (push, name, value) in enumerate(zip(actions, names, drawn, strict=True)):
            order = [stack for stack in order if contents[stack]]
            filled = sorted(order)
            if filled and number:
                same.append(push == actions[number - 1])
            else:
                assert push
            if push:
                pushed.append(name)
                values.append(value)
            else:
                assert name in filled
                if len(filled) == 2:
                    chosen["number", filled.index(name)] += 1
                    chosen["age", order.index(name)] += 1
            contents[name] += 1 if push else -1
            if contents[name] == 1 and push:
                order.append(name)
    assert stats.binomtest(int(np.sum(same)), len(same), stay).pvalue > 1e-3
    assert stats.chisquare(np.bincount(pushed)).pvalue > 1e-3
    assert stats.chisquare(np.bincount(values)).pvalue > 1e-3
    for what in ("number", "age"):
        assert stats.chisquare([chosen[what, 0], chosen[what, 1]]).pvalue > 1e-3


@pytest.mark.parametrize(("stacks", "text"), [(26, "+A1 -A:1"), (27, "+s0:1 -s0:1")])
def test_stacks_have_letters_as_far_as_they_suffice(stacks: int, text: str) -> None:
    task = Stack(stacks=stacks, values=4, operations=2)
    push, pop = 4 + stacks, 5 + stacks
    x = np.array([[push, 4, 1, pop, 4, 1]])
    assert task.text(Batch(x, np.array([task.answer(x[0])])), 0) == text
