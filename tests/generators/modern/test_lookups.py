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
from lrtasks.generators import make
from lrtasks.spec import IGNORED, Batch

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
    assert {name: set(make(name, preset="small").tests()) for name in expected} == expected
    assert set(make("variable-tracking", preset="shuffled").tests()) == {"hops-2"}
    assert set(make("variable-tracking", preset="shuffled-hard").tests()) == {"hops-2", "hops-8"}
    assert make("joint-recall", preset="small-hard").tests()["8x8"].input.length == 274
    language = make("in-context-language", length=64, strings=(3, 6)).tests()["4x"].parameters()
    assert (language["length"], language["strings"]) == (256, [12, 24])
    assert set(make("k-hop", preset="paper").tests()) == {"2x", "4x", *(f"hops-{hops}" for hops in range(9))}
    depo: Any = make("depo", preset="paper").tests()["2x"]
    assert depo.nodes == (3, 450)
    given: Any = make("overwrite", keys=4, updates=2, length=20).tests()
    assert [test.updates for test in given.values()] == [4, 8, 16]
    slots = make("overwrite", law="zoology", keys=4, updates=2).tests()
    assert [test.input.length for test in slots.values()] == [40, 80, 160]
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
    spec = make(name, preset=preset).input
    assert (spec.length, spec.width) == (length, width)


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


# by hand: an input, and each slice at its questions; distances and numbers since are in octaves
SLICES: list[tuple[str, dict[str, Any], str, dict[str, list[int]]]] = [
    (
        *("overwrite", {"keys": 3, "updates": 3, "vocab": 16}, "1 8 2 9 3 10 1 11 1 12 2 13 3 0 2 0 1 0"),
        {"writes": [1, 2, 3], "since": [2, 0, 1]},  # 3, 0 and 1 writes
    ),
    ("noisy-recall", {}, "1 9 2 10 20 20 1 9 1 9 1", {"distance": [4, 2, 2], "occurrences": [1, 2, 2]}),
    (
        *("fuzzy-recall", {"law": "grid", "key_tokens": 2, "value_tokens": 2}, "0 1 8 9 2 3 8 8 0 1 8 9 0 1 8 9"),
        {"occurrences": [1, 1, 2, 2], "place": [0, 1, 0, 1]},
    ),
    (
        *("joint-recall", {"contexts": 2, "keys": 2, "room": (4, 4)}, "0 23 19 5 24 19 6 1 24 19 6 23 19 5"),
        {"distance": [4, 8], "cells": [2, 2]},
    ),
    ("k-hop", {"law": "clean", "hops": (1, 4)}, "0 4 5 4 6 5", {"hops": [1, 1], "distance": [1, 2]}),
    (
        *("depo", {"nodes": 3, "hops": 4, "words": (12, 1, 1)}, "30 13 14 14 15 15 13 25 13 29 14 27 13 29 13"),
        {"steps": [1, 3]},
    ),
    ("variable-tracking", {"variables": 4}, "0 9 1 0 2 9 3 1 2 1", {"hops": [1, 2, 2], "distance": [2, 4, 4]}),
    (
        *("variable-tracking", {"order": "shuffled", "chains": 2, "hops": 1, "variables": 4}),
        *("1 0 0 9 3 2 2 10 0 1 2 3", {"hops": [0, 1, 0, 1]}),
    ),
    (
        *("variable-tracking", {"order": "shuffled", "chains": 1, "variables": 5}),
        *("1 0 0 5 3 2 2 1 4 3 0 1 2 3 4", {"hops": [0, 1, 2, 3, 4]}),
    ),
    ("compression", {"length": 11}, "0 1 2 3 4 5 6 7 8 9 15", {"position": [0, 0, 2, 3, 4, 5, 5, 7, 8, 9]}),
    ("adding", {"length": 5}, "0 .1 .2 .3 .9", {"distance": [4]}),
]


@pytest.mark.parametrize(("name", "parameters", "text", "expected"), SLICES)
def test_slices_say_what_they_say(
    name: str, parameters: dict[str, Any], text: str, expected: dict[str, list[int]]
) -> None:
    task: Any = make(name, **parameters)
    x = np.array([float(word) if "." in text else int(word) for word in text.split()])
    if name == "adding":
        x = np.stack([x, [0, 1, 0, 1, 0]], axis=1)
    y = task.answer(x)[None]
    found = {label: np.broadcast_to(values, y.shape) for label, values in task.slices(Batch(x[None], y)).items()}
    assert {label: values[y >= 0].tolist() for label, values in found.items()} == expected


def test_unanswerable_questions_have_no_label() -> None:
    """A key that was never written, a value written too seldom, a hop that does not exist."""
    assert make("overwrite", keys=1, updates=0).answer([3, 40, 4, 0]).tolist() == [IGNORED] * 4
    twice = make("overwrite", keys=2, updates=1, back=2)
    assert twice.answer([3, 40, 5, 41, 3, 44, 5, 0, 3, 0]).tolist() == [IGNORED] * 8 + [40, IGNORED]
    assert make("noisy-recall").answer([2, 10, 3]).tolist() == [IGNORED] * 3
    assert make("k-hop", law="clean").answer([1, 17, 18]).tolist() == [IGNORED] * 3
    joint = make("joint-recall", room=(16, 16))
    assert joint.answer([0, 35, 19, 5, 1, 36, 19, 6]).tolist() == [IGNORED] * 8


def test_answers_of_inputs_that_end_within_a_pair() -> None:
    grid = make("fuzzy-recall", law="grid", length=120)
    pair = [1, 2, 3, 9, 10, 11]
    assert grid.answer([*pair, *pair[:4]]).tolist() == [IGNORED] * 8 + [9, 10]
    assert grid.answer([*pair, *pair[:2]]).tolist() == [IGNORED] * 8
    assert make("joint-recall").answer([0, 35, 19, 5, 1, 35, 19]).tolist() == [IGNORED] * 6 + [5]


@pytest.mark.parametrize("parameters", [{"contexts": 3, "keys": (2, 4)}, {"contexts": (2, 4), "keys": 3}])
def test_a_table_of_any_size_has_padding(parameters: dict[str, Any]) -> None:
    batch = make("joint-recall", **parameters).batch(range(32))
    assert batch.mask is not None and np.array_equal(batch.mask, batch.x != 2)


def test_names_of_any_size_have_padding() -> None:
    batch = make("depo", nodes=4, words=(50, 1, 2)).batch(range(8))
    assert batch.mask is not None and np.array_equal(batch.mask, batch.x != 0)


def test_values_of_one_token_keys_are_all_tokens_but_one() -> None:
    last = set()  # whether the last of the tokens is a value
    for facts in range(2, 20):
        task: Any = make("memorization", law="mad", facts=facts)
        values = task.table().tolist()
        assert len(set(values)) == facts and min(values) >= facts
        last.add(2 * facts in values)
    assert last == {False, True}


def test_memorization_counts_facts_above_chance() -> None:
    task = make("memorization", law="mad", facts=127)
    for score, facts in ((1.0, 127), (0.5, 127 * 62.5 / 126), (1 / 127, 0), (0.0, 0)):
        assert task.derived_scores({"accuracy": score}, {})["facts_stored"] == pytest.approx(facts, abs=1e-9)


def test_compression_counts_bits() -> None:
    task: Any = make("compression", length=5, vocab=17)
    assert task.bits(1.0) == pytest.approx(16) and task.bits(0.01) == 0
    assert task.bits([1, 1 / 16, 1 / 16, 0]) == pytest.approx(4)
    with pytest.raises(UsageError, match="bits needs 4 accuracies or one, found 2"):
        task.bits([1, 1])


def test_replaced_tasks_keep_their_name_and_law() -> None:
    task = make("depo", words=(50, 1, 2), nodes=20)
    assert dataclasses.replace(task, nodes=10).name == "depo"
