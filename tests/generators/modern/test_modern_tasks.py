"""What all modern tasks with exact answers keep: answers of their own samples, floors, further tests, causality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from published_arrays import accuracy

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import make, registry
from lrtasks.generators.tasks.chomsky import TEST_LENGTHS, chomsky_score
from lrtasks.spec import Batch

TASKS = (
    *("word-problem", "flip-flop", "chomsky", "dyck"),
    *("stack", "copying", "selective-copying", "induction-heads"),
    *("overwrite", "noisy-recall", "fuzzy-recall", "joint-recall", "k-hop", "depo", "variable-tracking"),
    *("memorization", "compression", "adding", "in-context-language"),
)
PRESETS = [(name, preset) for name in TASKS for preset in registry.get(name).presets]


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_answer_gives_the_target_of_every_sample(name: str, preset: str) -> None:
    task = make(name, preset=preset)
    for each in (task, *(test for test in task.tests().values() if test.input.length <= 2048)):
        batch = each.batch(range(8 if each is task else 2), split="test")
        for x, y in zip(batch.x, batch.y, strict=True):
            found = each.answer(x)
            assert found.tolist() == y.tolist() and found.dtype == y.dtype


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("name", "preset"),
    [
        (name, preset)
        for name, preset in PRESETS
        if preset not in ("small", "paper-s3", "paper-s4", "paper-a5", "spread")
    ],
)
def test_presets_keep_the_contract(name: str, preset: str) -> None:
    lrtasks.check_task(make(name, preset=preset), samples=4)


FLOORS: list[tuple[str, dict[str, Any], str, float]] = [
    *[
        ("word-problem", {"group": group, "length": 64}, "window-8", (8 + 56 / order) / 64)
        for group, order in (("Z2", 2), ("S3", 6), ("A4", 12), ("S4", 24), ("A5", 60))
    ],
    ("word-problem", {"group": "A5", "length": 64, "tokens": "generators"}, "window-8", 0.141),
    ("word-problem", {"group": "S3", "length": 64}, "majority", 1 / 6),
    ("flip-flop", {}, "majority", 0.5),
    ("flip-flop", {}, "last-bit", 0.604),
    ("flip-flop", {"clean": True}, "last-bit", 0.557),  # a blank is no bit
    ("flip-flop", {"ignore": 0.1}, "last-bit", 0.95),
    ("flip-flop", {"ignore": 0.98}, "last-bit", 0.51),
    ("dyck", {}, "majority", 1 / 8),
    ("dyck", {}, "last-opening", 0.64),
    ("dyck", {"stay": 0.7, "close": "generic"}, "last-opening", 0.476),
    ("stack", {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8, "feed": "blank"}, "majority", 1 / 16),
    ("stack", {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8, "feed": "blank"}, "last-push", 0.30),
    ("stack", {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8}, "last-push-of-stack", 0.644),
    ("stack", {"stacks": 4, "values": 16, "operations": 42, "stay": 0.5}, "last-push-of-stack", 0.79),
    *[("copying", {"string": (size, size)}, "bigram", floor) for size, floor in ((32, 0.61), (64, 0.40), (128, 0.23))],
    *[("copying", {"string": (size, size)}, "trigram", floor) for size, floor in ((32, 0.97), (64, 0.95), (128, 0.92))],
    ("copying", {"string": (5, 32), "feed": "blank", "mode": "reverse"}, "majority", 1 / 26),
    ("selective-copying", {"noise": 56, "memorise": 4, "alphabet": 8}, "majority", 1 / 6),
    ("selective-copying", {"noise": 56, "memorise": 4, "alphabet": 8}, "window-16", 0.39),
    ("selective-copying", {"noise": 112, "memorise": 8, "alphabet": 16}, "window-16", 0.19),
    ("selective-copying", {"noise": 48, "law": "mad"}, "window-16", 0.334),
    ("selective-copying", {}, "majority", 0.071),
    ("selective-copying", {}, "window-16", 0.075),
    ("induction-heads", {"length": 64}, "majority", 1 / 14),
    ("induction-heads", {"length": 64}, "window-32", 0.52),
    ("induction-heads", {"length": 256}, "window-32", 0.18),
    *[("chomsky", {"lengths": (n, n)}, "majority", floor) for n, floor in ((3, 0.25), (5, 0.23), (40, 0.20))],
    *[
        ("chomsky", {"language": "modular-arithmetic-brackets", "lengths": (n, n)}, "majority", floor)
        for n, floor in ((10, 0.263), (40, 0.292), (100, 0.303))
    ],
    ("chomsky", {"language": "modular-arithmetic-brackets", "lengths": (40, 40), "law": "xlstm"}, "majority", 0.20),
    ("chomsky", {"language": "parity-check"}, "majority", 0.5),
    ("chomsky", {"language": "even-pairs"}, "first-last", 1.0),
    *[
        ("chomsky", {"language": "stack-manipulation", "lengths": (n, n)}, "pushes", floor)
        for n, floor in ((20, 0.575), (40, 0.544), (100, 0.515))
    ],
    *[
        ("chomsky", {"language": "bucket-sort", "lengths": (n, n)}, "quantile", floor)
        for n, floor in ((40, 0.78), (100, 0.86), (500, 0.935))
    ],
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "majority", 1 / 16),
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "first-value", 0.165),
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "last-written", 0.18),
    ("overwrite", {}, "first-value", 0.14),
    ("overwrite", {}, "last-written", 0.09),
    ("overwrite", {"keys": 16, "updates": 8, "vocab": 512, "law": "zoology"}, "first-value", 0.50),
    ("noisy-recall", {"noise": 0.4}, "majority", 1 / 8),
    ("noisy-recall", {"noise": 0.8, "supervise": "all"}, "majority", 1 / 8),
    ("noisy-recall", {"noise": 0.4}, "window-16", 0.55),
    ("noisy-recall", {"noise": 0.4}, "window-32", 0.80),
    ("noisy-recall", {"noise": 0.0}, "window-16", 0.71),
    ("noisy-recall", {"noise": 0.0}, "window-32", 0.92),
    ("fuzzy-recall", {"law": "grid", "length": 125, "value_tokens": 2}, "majority", 1 / 8),
    ("fuzzy-recall", {"law": "grid", "length": 125, "value_tokens": 2}, "last-letter", 0.41),
    ("fuzzy-recall", {"law": "grid", "length": 125, "value_tokens": 2}, "last-two", 0.65),
    ("joint-recall", {"contexts": 4, "keys": 4}, "majority", 1 / 16),
    ("joint-recall", {"contexts": 4, "keys": 4}, "same-key", 0.30),
    ("joint-recall", {"contexts": 4, "keys": 4}, "same-context", 0.30),
    ("joint-recall", {"contexts": (5, 8), "keys": (5, 8)}, "same-key", 0.21),
    ("k-hop", {"law": "clean", "length": 128, "letters": 8, "hops": (1, 4)}, "by-hops", 0.17),
    ("k-hop", {"length": 12}, "by-hops", 0.93),
    ("depo", {"law": "clean", "nodes": 12, "hops": 2, "queries": 8, "words": (32, 1, 1)}, "one-step", 0.5),
    ("depo", {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)}, "one-step", 0.25),
    ("depo", {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)}, "one-node", 0.042),
    ("variable-tracking", {}, "majority", 1 / 16),
    ("variable-tracking", {}, "last-constant", 0.17),
    ("variable-tracking", {"constants": 2}, "last-constant", 0.567),
    ("variable-tracking", {"order": "shuffled"}, "first-constant", 0.25),
    ("variable-tracking", {"order": "shuffled", "noise": 1.0}, "first-constant", 0.25),
    ("memorization", {}, "majority", 1 / 64),
    ("compression", {}, "majority", 1 / 15),
    ("compression", {}, "recent-8", 0.31),
]


@pytest.mark.parametrize(("name", "parameters", "baseline", "floor"), FLOORS)
def test_floors_are_those_of_the_law(name: str, parameters: dict[str, Any], baseline: str, floor: float) -> None:
    samples = 2048 if name == "chomsky" else 1024  # most samples of chomsky have one label
    found = accuracy(make(name, **parameters), baseline, samples=samples, fitted=samples // 2)
    assert found == pytest.approx(floor, abs=0.02)


@pytest.mark.parametrize(
    ("name", "parameters", "baselines"),
    [
        ("fuzzy-recall", {}, {"majority"}),
        ("fuzzy-recall", {"law": "grid", "key_tokens": 2, "length": 40}, {"majority", "last-letter"}),
        ("compression", {"length": 16}, {"majority"}),
        ("compression", {"length": 17}, {"majority", "recent-8"}),
        ("induction-heads", {"length": 33}, {"majority"}),
        ("noisy-recall", {"length": 32}, {"majority", "window-16"}),
        ("selective-copying", {"noise": 27, "memorise": 4}, {"majority"}),
        ("selective-copying", {"noise": 28, "memorise": 4}, {"majority", "window-16"}),
        ("word-problem", {"length": 8}, {"majority"}),
        ("copying", {"feed": "blank"}, {"majority"}),
        ("copying", {"mode": "reverse"}, {"majority"}),
    ],
)
def test_rules_that_would_answer_are_no_floors(name: str, parameters: dict[str, Any], baselines: set[str]) -> None:
    """A rule that reads all of a short input, or copies what is not fed, is left out."""
    assert set(make(name, **parameters).baselines()) == baselines


def test_a_length_that_training_never_showed_has_the_floor_of_all_lengths() -> None:
    """With few samples, the shares of each output over all lengths count as four more samples."""
    task = make("chomsky", language="parity-check", lengths=(3, 5))
    floor = task.baselines()["majority"]
    x = np.full((9, task.input.length), task.empty)
    sizes = [3, 3, 3, 3, 3, 3, 3, 4, 5]
    for row, size in zip(x, sizes, strict=True):
        row[:size] = 0
    labels = [1, 1, 1, 1, 1, 1, 1, 0, 1]
    y = np.full(x.shape, -100)
    y[np.arange(9), sizes] = labels
    floor.fit([Batch(x[:8], y[:8])])
    found = floor.predict(Batch(x, y))[np.arange(9), sizes]
    assert found.tolist() == [1, 1, 1, 1, 1, 1, 1, 1, 1]  # 1 of 4 symbols: one sample of class 0 against 7/8 of 4
    floor = task.baselines()["majority"]
    floor.fit([Batch(np.repeat(x[:8], 5, axis=0), np.repeat(y[:8], 5, axis=0))])
    assert floor.predict(Batch(x, y))[7, 4] == 0  # five samples of it count more


def test_the_score_of_bucket_sort_that_counting_nothing_gives() -> None:
    task = make("chomsky", language="bucket-sort")
    found = {int(length): accuracy(test, "quantile", samples=256, fitted=64) for length, test in task.tests().items()}
    assert tuple(found) == TEST_LENGTHS
    assert chomsky_score(found) == pytest.approx(0.901, abs=0.01)
    assert chomsky_score(dict.fromkeys(range(41, 501), 0.25)) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "parameters", "unit"),
    [
        ("word-problem", {"length": 40}, 1),
        ("flip-flop", {"instructions": 40}, 2),
        ("flip-flop", {"instructions": 40, "clean": True}, 2),
        ("dyck", {"length": 60, "close": "generic"}, 1),
        ("stack", {"stacks": 3, "values": 5, "operations": 30}, 3),
    ],
)
def test_labels_depend_on_what_came_before_alone(name: str, parameters: dict[str, Any], unit: int) -> None:
    task = make(name, **parameters)
    for x, y in zip(*task.batch(range(4))[:2], strict=True):
        for end in range(unit, len(x), unit):
            assert np.array_equal(task.answer(x[:end]), y[:end])


def test_a_typed_closing_is_asked_one_token_early() -> None:
    task = make("dyck", length=60)
    (x,), (y,) = task.batch([0])[:2]
    for end in range(2, 60):
        assert np.array_equal(task.answer(x[:end])[:-1], y[: end - 1])


@pytest.mark.parametrize("name", [name for name in TASKS if name != "adding"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0, 1]], r"shape \(length,\), found shape \(1, 2\)"),
        ([], r"shape \(length,\), found shape \(0,\)"),
        ([0.5, 1.0], "whole numbers.*float64"),
        ([0, -100], r"must be in 0..\d+, found -100 at position 1"),
        ([0, 1_000_000], r"must be in 0..\d+, found 1000000 at position 1"),
        ([[0], [1, 2]], "ragged"),
    ],
)
def test_inputs_of_another_form_are_named(name: str, x: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, preset="small").answer(x)
    assert str(caught.value).startswith(f"{name}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_text_can_be_read(name: str, preset: str) -> None:
    task = make(name, preset=preset)
    if task.input.length > 512:
        pytest.skip("long")
    text = task.text(task.batch(range(16)), 3)
    assert text and text.isascii() and "\n" not in text and len(text) < 4 * 6 * task.input.length
