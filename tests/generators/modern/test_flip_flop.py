"""Flip-flop: every label by reading on from the write, the distribution of instructions, slices and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lrtasks import make
from lrtasks.generators.tasks.flip_flop import FlipFlop


@pytest.mark.parametrize("clean", [False, True])
def test_each_read_gives_the_bit_written_last(clean: bool) -> None:
    task = FlipFlop(instructions=60, ignore=0.6, clean=clean)
    batch = task.batch(range(50))
    slices = task.slices(batch)
    for row, (x, y) in enumerate(zip(batch.x.tolist(), batch.y.tolist(), strict=True)):
        assert x[0] == 0 and x[-2] == 1
        bit, written, other = 0, 0, 0
        for number, (letter, value) in enumerate(zip(x[::2], x[1::2], strict=True)):
            if letter == 0:
                bit, written, other = value, number, 0
            elif letter == 2:
                other += value != bit
            else:
                assert value == (5 if clean else bit)
                distance = number - written
                assert slices["distance"][row, 2 * number] == 2 ** (distance.bit_length() - 1)
                assert slices["disagreeing"][row, 2 * number] == ("0" if not other else "1-3" if other < 4 else "4+")
            assert y[2 * number] == (bit if letter == 1 else -100)
            assert y[2 * number + 1] == -100


@pytest.mark.parametrize("ignore", [0.8, 0.98, 0.1])
def test_instructions_are_independent(ignore: float) -> None:
    task = FlipFlop(instructions=102, ignore=ignore)
    x = task.batch(range(400)).x
    letters, bits = x[:, 2:-2:2], x[:, 3:-2:2]
    share = [(1 - ignore) / 2, (1 - ignore) / 2, ignore]
    assert stats.chisquare(np.bincount(letters.ravel()), np.array(share) * letters.size).pvalue > 1e-3
    pairs = np.bincount((3 * letters[:, :-1] + letters[:, 1:]).ravel(), minlength=9)
    assert stats.chisquare(pairs, np.outer(share, share).ravel() * pairs.sum()).pvalue > 1e-3
    for letter in (0, 2):
        drawn = bits[letters == letter] - 3
        assert stats.binomtest(int(drawn.sum()), len(drawn)).pvalue > 1e-3


def test_distances_to_the_write_are_those_of_the_law() -> None:
    found = {}
    for ignore in (0.8, 0.98):
        task = FlipFlop(ignore=ignore)
        x = task.batch(range(300), split="test").x[:, ::2]
        reads = np.argwhere(x == 1)
        found[ignore] = [place - np.flatnonzero(x[row, :place] == 0)[-1] for row, place in reads]
    assert np.median(found[0.8]) == 7 and np.quantile(found[0.8], 0.99) == pytest.approx(42, abs=5)
    assert np.median(found[0.98]) == pytest.approx(53, abs=7) and np.quantile(found[0.98], 0.99) <= 255


def test_tests_change_density_and_length() -> None:
    tests = FlipFlop(instructions=10, ignore_tests=(0.9, 0.2)).tests()
    assert {name: (test.parameters()["instructions"], test.parameters()["ignore"]) for name, test in tests.items()} == {
        "sparse": (10, 0.9),
        "dense": (10, 0.2),
        "2x": (20, 0.8),
        "4x": (40, 0.8),
    }


def test_no_further_test_is_the_task_itself() -> None:
    assert set(FlipFlop(instructions=10, ignore=0.98).tests()) == {"dense", "2x", "4x"}
    assert make("overwrite", updates=0).tests() == {}
