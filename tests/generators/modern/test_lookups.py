"""Recall, hops, capacity and latching: every target by a plain loop, floors, further tests, causality, bad input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from published_arrays import accuracy

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import Task, make, registry
from lrtasks.spec import IGNORED, Batch

NAMES = (
    *("overwrite", "noisy-recall", "fuzzy-recall", "joint-recall", "k-hop", "depo", "variable-tracking"),
    *("memorization", "compression", "adding", "in-context-language"),
)
Tokens = list[int]


def overwrite(task: Any, x: Tokens) -> Tokens:
    history: dict[int, Tokens] = {}
    y = [IGNORED] * len(x)
    for t in range(0, len(x), 2):
        if t < 2 * (task.keys + task.updates):
            history.setdefault(x[t], []).append(x[t + 1])
        elif len(history.get(x[t], [])) >= task.back:
            y[t] = history[x[t]][-task.back]
    return y


def noisy_recall(task: Any, x: Tokens) -> Tokens:
    table: dict[int, int] = {}
    y = [IGNORED] * len(x)
    for t in range(0, len(x), 2):
        if x[t] in table and (task.distance is None or t == len(x) - 1):
            y[t] = table[x[t]]
        if t + 1 < len(x) and x[t] < (task.vocab - task.noise_vocab) // 2:
            table[x[t]] = x[t + 1]
    return y


def grid_recall(task: Any, x: Tokens) -> Tokens:
    table: dict[tuple[int, ...], Tokens] = {}
    y = [IGNORED] * len(x)
    size = task.key_tokens + task.value_tokens
    for t in range(0, len(x), size):
        key, value = tuple(x[t : t + task.key_tokens]), x[t + task.key_tokens : t + size]
        if key in table:
            y[t + task.key_tokens - 1 : t + size - 1] = table[key]
        table[key] = value
    return y


def joint_recall(task: Any, x: Tokens) -> Tokens:
    table: dict[tuple[int, int], int] = {}
    y = [IGNORED] * len(x)
    context, asked = -1, False
    for t, token in enumerate(x):
        if token == 1:
            asked = True
        elif token >= 3 + task.values + task.room[1]:
            context = token
        elif token >= 3 + task.values:
            if asked:
                y[t] = table[context, token]
            else:
                table[context, token] = x[t + 1]
    return y


def k_hop(task: Any, x: Tokens) -> Tokens:
    low, high = task.hops
    letters = [token - (high - low + 1) for token in x[1:]]
    missing = task.letters if task.law == "sanford" else IGNORED
    y = [task.letters + 1 if task.law == "sanford" else IGNORED]
    for i in range(len(letters)):
        at: int | None = i
        for _ in range(low + x[0]):
            found = [j + 1 for j in range(at or 0) if letters[j] == letters[at]] if at is not None else []
            at = found[-1] if found else None
        y.append(missing if at is None else letters[at])
    return y


def one_token_depo(task: Any, x: Tokens) -> Tokens:
    vocab = task.words[0]
    edges = 1 + 2 * task.nodes
    after = dict(zip(x[1:edges:2], x[2:edges:2], strict=True))
    y = [IGNORED] * len(x)
    for t in range(edges, len(x), 4):
        node = x[t + 1]
        for _ in range(x[t] - 2 * vocab):
            node = after[node]
        y[t + 2] = node
    return y


def forward_variables(task: Any, x: Tokens) -> Tokens:
    value: dict[int, int] = {}
    y = [IGNORED] * len(x)
    for t in range(0, len(x), 2):
        source = x[t + 1]
        if source < task.variables:
            y[t + 1] = value[source]
        value[x[t]] = value[source] if source < task.variables else source - task.variables
    return y


def shuffled_variables(task: Any, x: Tokens) -> Tokens:
    names = max(task.variables, task.chains * (task.hops + 1))
    end = len(x) - task.chains * (task.hops + 1)
    source = dict(zip(x[0:end:2], x[1:end:2], strict=True))
    y = [IGNORED] * len(x)
    for t in range(end, len(x)):
        at = x[t]
        while at < names:
            at = source[at]
        y[t] = at - names
    return y


def compression(_: Any, x: Tokens) -> Tokens:
    return x[:-1]


LOOPS: list[tuple[str, dict[str, Any], Callable[[Any, Tokens], Tokens]]] = [
    ("overwrite", {"keys": 5, "updates": 12, "vocab": 16}, overwrite),
    ("overwrite", {"keys": 5, "updates": 12, "vocab": 16, "back": 3}, overwrite),
    ("overwrite", {"keys": 6, "updates": 4, "vocab": 40, "law": "zoology", "length": 80}, overwrite),
    ("noisy-recall", {"length": 64, "noise": 0.4}, noisy_recall),
    ("noisy-recall", {"length": 64, "vocab": 16, "noise_vocab": 0, "noise": 0.0}, noisy_recall),
    ("noisy-recall", {"length": 64, "noise": 0.3, "distance": (5, 40)}, noisy_recall),
    ("fuzzy-recall", {"law": "grid", "length": 125, "value_tokens": 2}, grid_recall),
    ("fuzzy-recall", {"law": "grid", "length": 42, "key_tokens": 2, "value_tokens": 4, "letters": 3}, grid_recall),
    ("joint-recall", {"contexts": 3, "keys": 4, "room": (3, 6)}, joint_recall),
    ("joint-recall", {"contexts": (1, 4), "keys": (2, 5), "values": 3, "room": (6, 6)}, joint_recall),
    ("k-hop", {"length": 60, "hops": (0, 5)}, k_hop),
    ("k-hop", {"length": 60, "hops": (2, 6), "letters": 3, "law": "clean", "asked": (3, 4)}, k_hop),
    ("depo", {"nodes": 9, "hops": 5, "queries": 4, "words": (12, 1, 1), "law": "clean"}, one_token_depo),
    ("variable-tracking", {"statements": 40, "variables": 7}, forward_variables),
    ("variable-tracking", {"order": "shuffled", "chains": 3, "hops": 5}, shuffled_variables),
    ("variable-tracking", {"order": "shuffled", "variables": 30, "hops": 0, "noise": 1.5}, shuffled_variables),
    ("compression", {"length": 9, "vocab": 5}, compression),
]


@pytest.mark.parametrize(("name", "parameters", "loop"), LOOPS)
def test_targets_are_those_of_a_plain_loop(name: str, parameters: dict[str, Any], loop: Callable[..., Tokens]) -> None:
    task = make(name, **parameters)
    batch = task.batch(range(40), seed=3)
    for x, y in zip(batch.x, batch.y, strict=True):
        assert y.tolist() == loop(task, x.tolist())


PRESETS = [(name, preset) for name in NAMES for preset in registry.get(name).presets]


def preset_task(name: str, preset: str = "small", **changes: Any) -> Task:
    return make(name, **{**registry.get(name).preset_values(preset)[0], **changes})


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_answer_gives_the_target_of_every_test_sample(name: str, preset: str) -> None:
    task = preset_task(name, preset)
    batch = task.batch(range(8), split="test")
    for x, y in zip(batch.x, batch.y, strict=True):
        found = task.answer(x)
        assert found.tolist() == y.tolist() and found.dtype == y.dtype


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("name", "preset"), [pair for pair in PRESETS if pair[1] not in ("small", "paper", "forward")])
def test_named_presets_keep_the_contract(name: str, preset: str) -> None:
    lrtasks.check_task(preset_task(name, preset), samples=4)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("overwrite", {"keys": 6, "updates": 4, "vocab": 40, "law": "zoology", "length": 80}),
        ("noisy-recall", {"supervise": "all"}),
        ("noisy-recall", {"distance": (4, 100)}),
        ("fuzzy-recall", {"length": 64}),
        ("joint-recall", {}),
        ("k-hop", {}),
        ("depo", {"nodes": (3, 12)}),
        ("variable-tracking", {"order": "shuffled", "noise": 0.5}),
        ("memorization", {"law": "mad", "facts": 127}),
        ("adding", {"length": 50, "law": "anywhere"}),
    ],
)
def test_other_laws_keep_the_contract(name: str, parameters: dict[str, Any]) -> None:
    lrtasks.check_task(make(name, **parameters), samples=4)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_further_tests_have_the_same_widths_and_other_samples(name: str, preset: str) -> None:
    task = preset_task(name, preset)
    for title, test in task.tests().items():
        for own, other in ((task.input, test.input), (task.target, test.target)):
            assert (own.kind, own.width, own.pooled) == (other.kind, other.width, other.pooled), title
        assert test != task
        if test.input.length <= 2048:
            batch = test.batch([0, 1], split="test")
            assert not np.array_equal(batch.x[0], batch.x[1])
            assert np.array_equal(test.answer(batch.x[1]), batch.y[1])


def test_tasks_have_the_further_tests_of_their_axes() -> None:
    expected = {
        "overwrite": {"2x", "4x", "8x"},
        "noisy-recall": {"2x", "4x", "8x", "noise-0", "noise-0.6", "noise-0.8"},
        "fuzzy-recall": {"2x", "4x", "8x"},
        "joint-recall": {"4x3", "2x6", "4x6"},
        "k-hop": {"2x", "4x", "hops-1", "hops-2"},
        "depo": {"2x"},
        "variable-tracking": {"2x", "4x"},
        "memorization": set(),
        "compression": set(),
        "adding": {"2x", "4x", "8x"},
        "in-context-language": {"2x", "4x"},
    }
    assert {name: set(preset_task(name).tests()) for name in NAMES} == expected
    assert set(preset_task("variable-tracking", "shuffled").tests()) == {"hops-2"}
    assert set(preset_task("variable-tracking", "shuffled-hard").tests()) == {"hops-2", "hops-8"}
    assert preset_task("joint-recall", "small-hard").tests()["8x8"].input.length == 274
    assert make("noisy-recall", length=2**24).tests().keys() == {"noise-0", "noise-0.4", "noise-0.6", "noise-0.8"}


@pytest.mark.parametrize(
    ("name", "preset", "length", "width"),
    [
        ("overwrite", "small", 64, 32),
        ("overwrite", "small-hard", 128, 64),
        ("noisy-recall", "small", 127, 64),
        ("fuzzy-recall", "small-hard", 125, 16),
        ("joint-recall", "small-hard", 74, 35),
        ("k-hop", "small", 64, 10),
        ("k-hop", "small-hard", 128, 12),
        ("depo", "small-hard", 89, 135),
        ("variable-tracking", "small-hard", 96, 32),
        ("variable-tracking", "shuffled", 24, 25),
        ("variable-tracking", "shuffled-hard", 60, 53),
        ("memorization", "small", 96, 129),
        ("memorization", "paper", 32, 256),
        ("compression", "small", 16, 8),
        ("compression", "small-hard", 32, 16),
        ("adding", "small-hard", 200, 2),
    ],
)
def test_presets_have_the_lengths_of_the_specification(name: str, preset: str, length: int, width: int) -> None:
    spec = preset_task(name, preset).input
    assert (spec.length, spec.width) == (length, width)


FLOORS: list[tuple[str, dict[str, Any], str, float]] = [
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "majority", 1 / 16),
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "first-value", 0.165),
    ("overwrite", {"keys": 8, "updates": 16, "vocab": 32}, "last-written", 0.18),
    ("overwrite", {}, "first-value", 0.14),
    ("overwrite", {}, "last-written", 0.09),
    ("overwrite", {"keys": 16, "updates": 8, "vocab": 512, "law": "zoology"}, "first-value", 0.50),
    ("noisy-recall", {"noise": 0.4}, "majority", 1 / 8),
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
    ("depo", {"law": "clean", "nodes": 12, "hops": 2, "queries": 8, "words": (32, 1, 1)}, "one-step", 0.5),
    ("depo", {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)}, "one-step", 0.25),
    ("depo", {"law": "clean", "nodes": 24, "hops": 4, "queries": 10, "words": (64, 1, 1)}, "one-node", 0.042),
    ("variable-tracking", {}, "majority", 1 / 16),
    ("variable-tracking", {}, "last-constant", 0.17),
    ("variable-tracking", {"order": "shuffled"}, "first-constant", 0.25),
    ("memorization", {}, "majority", 1 / 64),
    ("compression", {}, "majority", 1 / 15),
    ("compression", {}, "recent-8", 0.31),
]


@pytest.mark.parametrize(("name", "parameters", "baseline", "floor"), FLOORS)
def test_floors_are_those_of_the_law(name: str, parameters: dict[str, Any], baseline: str, floor: float) -> None:
    assert accuracy(make(name, **parameters), baseline) == pytest.approx(floor, abs=0.02)


@pytest.mark.parametrize(
    ("letters", "baseline", "hops", "floor"),
    [(8, "not-own", 1, 1 / 7), (4, "not-own", 1, 1 / 3), (4, "own-letter", 2, 0.50), (8, "own-letter", 2, 0.25)],
)
def test_floors_of_k_hop_depend_on_the_hop_count(letters: int, baseline: str, hops: int, floor: float) -> None:
    task = make("k-hop", law="clean", length=128, letters=letters, hops=(1, 4))

    def hop(batch: Any) -> np.ndarray:
        return task.slices(batch)["hops"] == hops

    assert accuracy(task, baseline, hop) == pytest.approx(floor, abs=0.02)
    assert accuracy(task, "by-hops", hop) == pytest.approx(floor, abs=0.02)


@pytest.mark.parametrize(("baseline", "r2"), [("constant", 0.0), ("second", 0.5)])
def test_floors_of_adding(baseline: str, r2: float) -> None:
    task = make("adding", length=60)
    predictor = task.baselines()[baseline]
    predictor.fit([task.batch(range(2000))])
    batch = task.batch(range(4000), split="test")
    error = np.square(predictor.predict(batch) - batch.y).mean()
    assert 1 - error / batch.y.var() == pytest.approx(r2, abs=0.03)
    assert batch.y.var() == pytest.approx(1 / 6, abs=0.01)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("overwrite", {}),
        ("overwrite", {"law": "zoology", "keys": 8, "updates": 8, "length": 80}),
        ("noisy-recall", {}),
        ("fuzzy-recall", {"law": "grid", "length": 125, "value_tokens": 2}),
        ("joint-recall", {"contexts": 4, "keys": 4}),
        ("k-hop", {}),
        ("variable-tracking", {}),
        ("variable-tracking", {"order": "shuffled"}),
        ("memorization", {}),
        ("in-context-language", {"length": 64}),
    ],
)
def test_what_comes_later_changes_no_target(name: str, parameters: dict[str, Any]) -> None:
    task: Any = make(name, **parameters)
    one, two = task.batch(range(32)).x, task.batch(range(32), seed=1).x
    rng = np.random.default_rng(0)
    known = task.label_all(one)
    for cut in rng.integers(1, task.input.length - 1, 20).tolist():
        if name == "variable-tracking" and parameters and cut < 40:
            continue  # a statement of another sample would leave variables without a value
        mixed = np.concatenate([one[:, :cut], two[:, cut:]], axis=1)
        with np.errstate(all="ignore"):
            assert np.array_equal(task.label_all(mixed)[:, :cut], known[:, :cut])


def test_slices_say_what_they_say() -> None:
    task: Any = make("overwrite", keys=3, updates=3, vocab=16)
    x = np.array([1, 8, 2, 9, 3, 10, 1, 11, 1, 12, 2, 13, 3, 0, 2, 0, 1, 0])
    batch = Batch(x[None], task.answer(x)[None])
    slices = task.slices(batch)
    asked = batch.y[0] >= 0
    assert slices["writes"][0][asked].tolist() == [1, 2, 3]
    assert slices["since"][0][asked].tolist() == [2, 0, 1]  # 3, 0 and 1 writes, in octaves


@pytest.mark.parametrize("name", NAMES)
def test_slices_label_every_position_and_text_can_be_read(name: str) -> None:
    task = preset_task(name)
    batch = task.batch(range(16))
    for labels in task.slices(batch).values():
        assert np.broadcast_to(labels, batch.y.shape).shape == batch.y.shape
    text = task.text(batch, 3)
    assert text and "\n" not in text and len(text) < 4 * 6 * task.input.length


BAD_PARAMETERS: list[tuple[str, dict[str, Any], str]] = [
    ("overwrite", {"vocab": 33}, "vocab must be even, found 33"),
    ("overwrite", {"keys": 40, "vocab": 64}, "vocab 64 has 31 keys, too few for keys=40"),
    ("overwrite", {"law": "zoology", "keys": 4, "updates": 5}, r"updates must be at most keys \(4\) and back 1"),
    ("overwrite", {"law": "zoology", "updates": 4, "back": 2}, "back 1, found 4 and 2"),
    ("overwrite", {"law": "zoology", "updates": 4, "length": 60}, "length must be even and at least"),
    ("overwrite", {"length": 60}, "length belongs to law 'zoology'"),
    ("noisy-recall", {"length": 65}, "length must be even, found 65"),
    ("noisy-recall", {"vocab": 17}, "vocab must be at least noise_vocab .16. . 2, found 17"),
    ("noisy-recall", {"noise_vocab": 0}, "noise 0.2 needs noise tokens"),
    ("noisy-recall", {"distance": (100, 200)}, r"distance must be two numbers.*2\.\.126.*found \[100, 200\]"),
    ("noisy-recall", {"distance": (3, 3)}, "distance must be two numbers"),
    ("fuzzy-recall", {"vocab": 6}, "vocab 6 has 2 tokens for keys, too few for 3 distinct ones"),
    ("fuzzy-recall", {"length": 12}, r"length must be above 2\(key_tokens \+ value_tokens\) = 12, found 12"),
    ("fuzzy-recall", {"law": "grid"}, r"length must be divisible by key_tokens \+ value_tokens = 6"),
    ("joint-recall", {"contexts": 17}, r"contexts must be at most their number in room \(16\), found 17"),
    ("joint-recall", {"keys": (6, 5)}, "keys must be a minimum and a maximum in this order"),
    ("k-hop", {"hops": (3, 2)}, r"hops must be a minimum and a maximum in this order, found \[3, 2\]"),
    ("k-hop", {"asked": (0, 17)}, r"asked must lie in hops \[0, 16\], found \[0, 17\]"),
    ("depo", {"nodes": (9, 3)}, "nodes must be a minimum and a maximum in this order"),
    ("depo", {"words": (6, 1, 1)}, r"words \[6, 1, 1\] give 6 names, too few for 75 nodes"),
    ("depo", {"words": (6, 3, 2)}, "words must have a minimum and a maximum of tokens"),
    ("variable-tracking", {"order": "shuffled", "chains": 17}, r"chains must be at most constants \(16\), found 17"),
    ("memorization", {"facts": 4097}, "facts must be a square number with law 'pair', such as 4096 or 4225"),
    ("in-context-language", {"edges": 4}, r"at most symbols \(3\), found 4"),
    ("in-context-language", {"states": (5, 4)}, "states must be a minimum and a maximum in this order"),
]


@pytest.mark.parametrize(("name", "parameters", "message"), BAD_PARAMETERS)
def test_impossible_parameters_are_named(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, **parameters)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(name)


BAD_INPUTS: list[tuple[str, dict[str, Any], list[int], str]] = [
    ("overwrite", {"keys": 2, "updates": 0}, [3, 40, 5], "a multiple of 2"),
    ("overwrite", {"keys": 2, "updates": 1}, [3, 40, 5, 41], "begins with 3 pairs, 6 tokens, found 4 tokens"),
    (
        "overwrite",
        {"keys": 2, "updates": 0},
        [40, 3, 5, 41],
        "keys of pairs must be in 1..31, found 40 at position 0",
    ),
    (
        "overwrite",
        {"keys": 2, "updates": 0},
        [3, 40, 5, 6],
        "values of pairs must be in 32..63, found 6 at position 3",
    ),
    ("overwrite", {"keys": 1, "updates": 0}, [3, 40, 3, 40], "tokens after queries"),
    ("noisy-recall", {}, [2, 10, 3, 10], "an odd length, found 4"),
    ("noisy-recall", {}, [2, 3, 2], r"a slot holds a key \(0\.\.7\) and a value \(8\.\.15\), or two noise tokens"),
    ("noisy-recall", {}, [2, 10, 2, 11, 2], "key 2 has two values, 10 and 11"),
    ("noisy-recall", {}, [2, 10, 20], r"the last token is a key and must be in 0\.\.7, found 20 at position 2"),
    ("fuzzy-recall", {}, [15, 9, 1], "a key must come first, found the value's token 9 at position 1"),
    ("fuzzy-recall", {}, [1, 9, 15], r"tokens after the padding must be in 0\.\.14, found 15 at position 2"),
    ("fuzzy-recall", {}, [1, 2, 3, 4, 9], "a key has at most 3 tokens, found 4 before position 4"),
    ("fuzzy-recall", {}, [1, 9, 1, 10, 2, 9], r"key \[1\] has two values, \[9\] and \[10\]"),
    ("fuzzy-recall", {"law": "grid", "length": 120}, [1, 9, 1, 2, 3, 9], "a key has exactly 3 tokens, found 1"),
    ("joint-recall", {}, [1, 60], "tokens must be in 0..50"),
    ("joint-recall", {}, [40, 20], "an input begins with BEGIN"),
    ("joint-recall", {}, [0, 19, 5], "a context must follow BEGIN, found a key at position 1"),
    ("joint-recall", {}, [0, 35, 19, 5, 2], "SEP or a key or a context must follow a value, found PAD at position 4"),
    ("joint-recall", {}, [0, 35, 19, 5, 1, 35, 19, 6], "key 19 at position 6 has two values in its context, 5 and 6"),
    ("k-hop", {}, [3], "a hop count and at least one letter"),
    ("k-hop", {}, [17, 18], r"the first token is a hop count and must be in 0\.\.16, found 17"),
    ("k-hop", {}, [3, 18, 16], r"letters must be in 17\.\.20, found 16 at position 2"),
    ("k-hop", {}, [3, 21], r"tokens must be in 0\.\.20, found 21 at position 1"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [4, 5], "an input begins with BEGIN"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [16, 4, 5, 5, 6], "must be edges that form cycles"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [16, 4, 5, 4, 6, 5, 4], r"node \[4\] has two successors"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [16, 4, 5, 5, 4, 7, 6, 15], r"asks for \[6\], which no edge has"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [16, 4, 5, 5, 4, 7, 4, 4], "a question is steps"),
    ("depo", {"words": (3, 1, 1), "nodes": 3}, [16, 4, 5, 5, 4, 0, 4], "only padding"),
    ("variable-tracking", {}, [16, 17], r"targets of statements must be in 0\.\.15, found 16 at position 0"),
    ("variable-tracking", {}, [1, 20, 2, 3], "variable 3 at position 3 has no value yet"),
    ("variable-tracking", {"order": "shuffled", "chains": 1, "hops": 1}, [0, 17], "an input has 6 tokens, found 2"),
    ("variable-tracking", {"order": "shuffled", "chains": 1, "hops": 1}, [0, 1, 1, 0, 0, 1], "has no constant"),
    ("variable-tracking", {"order": "shuffled", "chains": 1, "hops": 1}, [0, 17, 0, 18, 0, 1], "gets a value twice"),
    ("variable-tracking", {"order": "shuffled", "chains": 1, "hops": 1}, [0, 32, 1, 18, 0, 1], "filler"),
    ("memorization", {}, [1, 70], "a multiple of 3"),
    ("memorization", {}, [1, 70, 127], r"marks must be in 128\.\.128, found 127 at position 2"),
    ("memorization", {}, [70, 1, 128], r"first tokens must be in 0\.\.63, found 70 at position 0"),
    ("compression", {}, [15], "at least one token and the mark"),
    ("compression", {}, [15, 3, 15], r"tokens before the mark must be in 0\.\.14, found 15 at position 0"),
    ("compression", {}, [1, 3], r"the last token is the mark and must be in 15\.\.15, found 3 at position 1"),
    ("in-context-language", {}, [1, 4, 1], r"only padding \(4\) may follow padding, found 1 at position 2"),
]


@pytest.mark.parametrize(("name", "parameters", "x", "message"), BAD_INPUTS)
def test_inputs_that_are_none_are_named(name: str, parameters: dict[str, Any], x: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, **parameters).answer(np.array(x))
    assert "\n" not in str(caught.value) and str(caught.value).startswith(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adding"])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 4), int), r"found shape \(2, 4\)"),
        (np.zeros(0, int), r"found shape \(0,\)"),
        (np.zeros(12), "whole numbers.*found.*float64"),
        (np.full(12, 10**6), "tokens must be in .* found 1000000 at position 0"),
        (np.full(12, -1), "found -1 at position 0"),
        ([[1, 2], [3]], "ragged"),
    ],
)
def test_inputs_of_another_form_are_named(name: str, x: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        preset_task(name).answer(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[0.5, 1], [0.5, 0]], "two marks must be 1"),
        ([[0.5, 1], [0.5, 0.5]], "two marks must be 1"),
        ([[0.5, 1], [0.5, 1], [0.1, 1]], "two marks must be 1"),
        ([0.5, 1], r"shape \(length, 2\), found shape \(2,\)"),
        ([[np.nan, 1], [0.5, 1]], "finite"),
        ([["a", 1], [0.5, 1]], "has numbers of shape"),
    ],
)
def test_adding_names_inputs_that_are_none(x: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make("adding").answer(x)


def test_unanswerable_questions_have_no_label() -> None:
    """A key that was never written, a value written too seldom, a hop that does not exist."""
    assert make("overwrite", keys=1, updates=0).answer([3, 40, 4, 0]).tolist() == [IGNORED] * 4
    assert make("overwrite", keys=1, updates=0, back=2).answer([3, 40, 3, 0]).tolist() == [IGNORED] * 4
    assert make("noisy-recall").answer([2, 10, 3]).tolist() == [IGNORED] * 3
    assert make("k-hop", law="clean").answer([1, 17, 18]).tolist() == [IGNORED] * 3
    joint = make("joint-recall", room=(16, 16))
    assert joint.answer([0, 35, 19, 5, 1, 36, 19, 6]).tolist() == [IGNORED] * 8


def test_compression_counts_bits() -> None:
    task: Any = make("compression", length=5, vocab=17)
    assert task.bits(1.0) == pytest.approx(16) and task.bits(0.01) == 0
    assert task.bits([1, 1 / 16, 1 / 16, 0]) == pytest.approx(4)


def test_replaced_tasks_keep_their_name_and_law() -> None:
    task = make("depo", words=(50, 1, 2), nodes=20)
    assert dataclasses.replace(task, nodes=10).name == "depo"
