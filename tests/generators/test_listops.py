"""ListOps: labels by an independent parser; the law of the expressions by enumeration, rejection and reference."""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators.listops import grammar, lengths, tree
from lrtasks.generators.listops.lengths import Limits
from lrtasks.generators.tasks.listops import SETTINGS

EXAMPLE = "[MAX 2 6 [MED [SM 3 1 6 ] 8 3 ] 4 5 ]"


class Node(NamedTuple):
    close: int
    operator: str
    value: int
    length: int
    height: int
    depth: int
    arguments: int


def parse(text: str) -> list[Node]:
    """Operators in post-order, by reading tokens from left to right: shares nothing with the package."""
    functions = {
        "MIN": min,
        "MAX": max,
        "SM": lambda values: sum(values) % 10,
        "MED": lambda values: int(statistics.median(values)),
    }
    open_nodes: list[tuple[int, str, list[int], list[int]]] = []
    nodes = []
    for position, token in enumerate(text.split()):
        if token.startswith("["):
            open_nodes.append((position, token[1:], [], []))
            continue
        value, height = (int(token), 0) if token != "]" else (0, 0)
        if token == "]":
            start, operator, values, heights = open_nodes.pop()
            value, height = functions[operator](values), 1 + max(heights)
            depth = len(open_nodes) + 1
            nodes.append(Node(position, operator, value, position - start + 1, height, depth, len(values)))
        if open_nodes:
            open_nodes[-1][2].append(value)
            open_nodes[-1][3].append(height)
    assert not open_nodes
    return nodes


def plain_rejection(rng: random.Random, limits: Limits) -> str:
    """The published procedure, word for word: grow a tree from the root, throw it away if its length is wrong."""

    def grow(depth: int) -> list[str]:
        if depth >= limits.max_depth or rng.random() > 0.25:
            return [str(rng.randrange(10))]
        arguments = [token for _ in range(rng.randint(2, limits.max_args)) for token in grow(depth + 1)]
        return ["[" + rng.choice(["MIN", "MAX", "MED", "SM"]), *arguments, "]"]

    while True:
        tokens = grow(1)
        if limits.min_length < len(tokens) < limits.max_length:
            return " ".join(tokens)


def drawn(limits: Limits, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [tree.draw(rng, limits) for _ in range(count)]


@pytest.mark.parametrize(("setting", "count"), [("small", 64), ("lra-like", 16), ("paper", 6)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_meta_and_padding_agree_with_an_independent_parser(setting: str, count: int, split: str) -> None:
    task = lrtasks.make("listops", setting=setting)
    batch = task.batch(range(count), seed=7, split=split)
    assert batch.x.shape == batch.y.shape == batch.mask.shape == (count, task.input.length)
    for row in range(count):
        text = task.text(batch, row)
        nodes = parse(text)
        length = len(text.split())
        assert task.limits.min_length < length < task.limits.max_length
        assert (batch.mask[row] == (np.arange(task.input.length) < length)).all()
        assert (batch.x[row, length:] == grammar.PAD).all()
        labels = np.full(task.input.length, -100)
        labels[[node.close for node in nodes]] = [node.value for node in nodes]
        assert (batch.y[row] == labels).all()
        assert [grammar.OPERATORS[kind] for kind in batch.meta["operator"][row]] == [node.operator for node in nodes]
        assert batch.meta["height"][row].tolist() == [node.height for node in nodes]
        assert batch.meta["subtree_length"][row].tolist() == [node.length for node in nodes]
        assert max(node.depth for node in nodes) < task.limits.max_depth
        assert {node.arguments for node in nodes} <= set(range(2, task.limits.max_args + 1))


def test_the_papers_example_is_labelled_as_printed() -> None:
    found = grammar.operators(grammar.parse(EXAMPLE)[None])
    labels = ["-"] * len(EXAMPLE.split())
    for close, value in zip(found.close, found.value, strict=True):
        labels[close] = str(value)
    assert " ".join(labels) == "- - - - - - - - 0 - - 3 - - 6"


@given(
    limits=st.builds(
        Limits, st.integers(3, 60), st.integers(8, 120), max_depth=st.integers(2, 7), max_args=st.integers(2, 10)
    ),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=60, deadline=None)
def test_any_limits_that_are_accepted_are_kept(limits: Limits, seed: int) -> None:
    try:
        task = lrtasks.make("listops", **limits._asdict())
    except UsageError:
        assume(False)
    batch = task.batch(range(3), seed=seed)
    for row in range(3):
        text = task.text(batch, row)
        nodes = parse(text)
        assert limits.min_length < len(text.split()) < limits.max_length
        assert max(node.depth for node in nodes) < limits.max_depth
        assert max(node.arguments for node in nodes) <= limits.max_args
        assert batch.y[row][batch.y[row] >= 0].tolist() == [node.value for node in nodes]


def test_a_batch_is_its_samples_stacked() -> None:
    task = lrtasks.make("listops", setting="small")
    together = task.batch([5, 0, 3], seed=2)
    for row, index in enumerate([5, 0, 3]):
        alone = task.batch([index], seed=2)
        assert (together.x[row] == alone.x[0]).all() and (together.y[row] == alone.y[0]).all()
        for name, values in together.meta.items():
            assert (values[row] == alone.meta[name][0]).all()


def test_root_task_asks_for_the_value_of_the_whole_expression() -> None:
    task = lrtasks.make("listops-root", setting="small")
    batch = task.batch(range(32))
    roots = [parse(task.text(batch, row))[-1] for row in range(32)]
    assert task.target.pooled and batch.y.shape == (32, 1)
    assert batch.y[:, 0].tolist() == [root.value for root in roots]
    assert batch.meta["subtree_length"].tolist() == [root.length for root in roots]
    assert task.slices(batch)["operator"][:, 0].tolist() == [root.operator for root in roots]
    assert "root" not in task.slices(batch)


def test_slices_name_what_each_closing_bracket_closes() -> None:
    task = lrtasks.make("listops", setting="small")
    batch = task.batch(range(16))
    labels = task.slices(batch)
    for row in range(16):
        nodes = parse(task.text(batch, row))
        at = [node.close for node in nodes]
        assert labels["operator"][row, at].tolist() == [node.operator for node in nodes]
        assert labels["height"][row, at].tolist() == [node.height for node in nodes]
        assert labels["subtree_length"][row, at].tolist() == [2 ** (node.length.bit_length() - 1) for node in nodes]
        assert labels["root"][row, at].tolist() == [0] * (len(nodes) - 1) + [1]


@pytest.mark.parametrize("name", ["listops", "listops-root"])
def test_floor_per_operator_predicts_each_operators_commonest_value(name: str) -> None:
    task = lrtasks.make(name, setting="small")
    train, test = task.batch(range(400)), task.batch(range(100), split="test")
    guesses = {}
    for floor_name, floor in task.floors().items():
        floor.fit([train])
        guesses[floor_name] = floor.predict(test)
        assert guesses[floor_name].shape == test.y.shape
    operator = task.slices(test)["operator"]
    labelled = test.y >= 0
    commonest = {key: set(guesses["majority-per-operator"][labelled & (operator == key)]) for key in ("MIN", "MAX")}
    assert commonest == {"MIN": {0}, "MAX": {9}}
    right = {key: (guess == test.y)[labelled].mean() for key, guess in guesses.items()}
    assert right["majority-per-operator"] > right["majority"] + 0.05


def test_fingerprint_is_the_expression_without_its_digits() -> None:
    task = lrtasks.make("listops", setting="small")
    batch = task.batch(range(8))
    for row in range(8):
        names = [grammar.VOCABULARY[token] for token in task.fingerprint(batch, row)]
        assert "".join(names) == re.sub(r"[0-9 ]", "", task.text(batch, row))


def shapes(depth: int, max_depth: int, max_args: int, limit: int) -> Iterator[tuple[str, int, float]]:
    """All trees below a node at ``depth`` with at most ``limit`` tokens: shape, length, probability."""
    forced = depth == max_depth
    yield "d", 1, 1.0 if forced else 0.75
    if forced:
        return
    forests = [("", 2, 0.25 / (max_args - 1))]
    for arguments in range(1, max_args + 1):
        forests = [
            (text + shape, length + more, chance * probability)
            for text, length, chance in forests
            for shape, more, probability in shapes(depth + 1, max_depth, max_args, limit - length)
            if length + more <= limit
        ]
        if arguments >= 2:
            yield from ((f"[{text}]", length, chance) for text, length, chance in forests)


@pytest.mark.parametrize(
    ("limits", "count"),
    [(Limits(5, 13, 4, 3), 8000), (Limits(13, 18, 3, 3), 3000)],
    ids=["any shape", "almost the longest"],
)
def test_expressions_follow_the_conditional_law_exactly(limits: Limits, count: int) -> None:
    law = {
        shape: chance
        for shape, length, chance in shapes(1, limits.max_depth, limits.max_args, limits.max_length - 1)
        if length > limits.min_length
    }
    expressions = drawn(limits, count)
    found = Counter(
        re.sub("[0-9]", "d", re.sub(r"\[[A-Z]+", "[", grammar.render(tokens))).replace(" ", "")
        for tokens in expressions
    )
    assert set(found) <= set(law)
    expected = np.array([*law.values()]) / sum(law.values()) * count
    assert expected.min() >= 5
    assert stats.chisquare([found[shape] for shape in law], expected).pvalue > 1e-4
    tokens = np.bincount(np.concatenate(expressions), minlength=15)
    assert stats.chisquare(tokens[:10]).pvalue > 1e-4
    assert stats.chisquare(tokens[10:14]).pvalue > 1e-4


def test_length_law_and_reachable_lengths_agree_with_enumeration() -> None:
    exact = np.zeros(21)
    for _, length, chance in shapes(1, 3, 4, 20):
        exact[length] += chance
    np.testing.assert_allclose(lengths.length_law(20, 3, 4), exact, atol=1e-14)
    assert (lengths.reachable(20, 3, 4) == (exact > 0)).all()
    assert (lengths.reachable(30, 3, 3).nonzero()[0].tolist()) == [1, 4, 5, *range(7, 18)]
    assert lengths.longest(3, 3) == 17


@pytest.mark.parametrize("limits", [SETTINGS["small"], Limits(60, 80, 9, 3)], ids=["common", "rare"])
def test_statistics_agree_with_plain_rejection(limits: Limits) -> None:
    rng = random.Random(1)
    plain = [parse(plain_rejection(rng, limits)) for _ in range(200)]
    ours = [parse(grammar.render(tokens)) for tokens in drawn(limits, 1000)]
    measures = {
        "length": lambda nodes: nodes[-1].length,
        "operators": len,
        "height": lambda nodes: nodes[-1].height,
        "innermost": lambda nodes: sum(node.height == 1 for node in nodes),
        "root arguments": lambda nodes: nodes[-1].arguments,
        "root value": lambda nodes: nodes[-1].value,
        "deepest": lambda nodes: sum(node.depth == limits.max_depth - 1 for node in nodes),
        "arguments": lambda nodes: statistics.mean(node.arguments for node in nodes),
    }
    for name, measure in measures.items():
        test = stats.ks_2samp([measure(nodes) for nodes in plain], [measure(nodes) for nodes in ours])
        assert test.pvalue > 1e-4, name


@pytest.mark.parametrize(("setting", "count"), [("lra-like", 500), ("paper", 200)])
def test_statistics_agree_with_the_reference(setting: str, count: int, data: Path) -> None:
    reference = json.loads((data / "listops_stats.json").read_text())[setting]
    expressions = [parse(grammar.render(tokens)) for tokens in drawn(SETTINGS[setting], count, seed=11)]
    nodes = [node for expression in expressions for node in expression]

    def check_mean(name: str, values: list[float], expected: dict[str, float]) -> None:
        error = expected["std"] * (1 / count + 1 / reference["n"]) ** 0.5
        assert abs(np.mean(values) - expected["mean"]) <= max(4 * error, 0.03 * expected["mean"]), name

    def check_shares(name: str, values: list, expected: dict[str, float], nodes_each: float) -> None:
        found = Counter(map(str, values))
        for key, share in expected.items():
            error = (share * (1 - share) * (1 / len(values) + 1 / (reference["n"] * nodes_each))) ** 0.5
            assert abs(found[key] / len(values) - share) <= max(4 * error, 0.03 * share), (name, key)

    each = len(nodes) / count
    check_mean("length", [expression[-1].length for expression in expressions], reference["length"])
    check_mean("operators", [len(expression) for expression in expressions], reference["operators"])
    for height, expected in reference["nodes_per_height"].items():
        per_expression = [sum(node.height == int(height) for node in expression) for expression in expressions]
        check_mean(f"height {height}", per_expression, expected)
    check_shares("operator", [node.operator for node in nodes], reference["operator"], each)
    check_shares("arguments", [node.arguments for node in nodes], reference["num_args"], each)
    roots = [expression[-1] for expression in expressions]
    check_shares("root arguments", [root.arguments for root in roots], reference["root_num_args"], 1)
    check_shares("root value", [root.value for root in roots], reference["root_value"], 1)
    for operator, expected in reference["value_by_operator"].items():
        values = [node.value for node in nodes if node.operator == operator]
        check_shares(operator, values, expected, each / 4)


@pytest.mark.parametrize("setting", ["lra-like", "paper"])
def test_length_law_agrees_with_samples_and_with_the_references_acceptance(setting: str, data: Path) -> None:
    limits = SETTINGS[setting]
    law = lengths.length_law(limits.max_length - 1, limits.max_depth, limits.max_args)
    reference = json.loads((data / "listops_stats.json").read_text())[setting]["acceptance"]
    test = stats.binomtest(reference["accepted"], reference["attempts"], law[limits.min_length + 1 :].sum())
    assert test.pvalue > 1e-3
    found = np.array([len(tokens) for tokens in drawn(limits, 400, seed=5)])
    edges = np.linspace(limits.min_length + 1, limits.max_length, 9).astype(int)
    expected = np.array([law[low:high].sum() for low, high in itertools.pairwise(edges)])
    observed = np.histogram(found, edges)[0]
    assert stats.chisquare(observed, expected / expected.sum() * len(found)).pvalue > 1e-4


def test_settings_fill_in_what_is_not_given() -> None:
    task = lrtasks.make("listops", setting="lra-like", max_depth=9)
    assert task.parameters() == {
        "setting": "lra-like", "min_length": 1500, "max_length": 2000, "max_depth": 9, "max_args": 10,
    }  # fmt: skip
    assert lrtasks.make("listops", **task.parameters()) == task
    assert [lrtasks.make("listops", setting=name).input.length for name in SETTINGS] == [256, 2048, 8192]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(7000, 8180, 4, 9), "no expression has more than 7000 .* lengths reach from 4 to 911, the nearest: 911"),
        (Limits(10, 12, 5, 2), "no expression has .* reach from 4 to 46, the nearest: 10 and 13"),
        (Limits(5, 7, 5, 3), "no expression .* the nearest: 5 and 7"),
        (Limits(20, 21, 5, 3), "both excluded"),
        (Limits(2000, 2100, 15, 4), "fewer than one expression in 100000 .* lengths reach from 4 to 447392426"),
    ],
)
def test_limits_that_no_tree_meets_are_refused_with_the_reachable_range(limits: Limits, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        lrtasks.make("listops", **limits._asdict())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[MAX 1 2 ] ]", "paired brackets"),
        ("[MAX 1 2", "paired brackets"),
        ("1 2", "paired brackets"),
        ("", "paired brackets"),
        ("[MAX 1 [MIN ] ]", "without arguments"),
        ("[MAX 1 12 ]", "unknown ListOps token '12'"),
        ("[MAN 1 2 ]", "unknown ListOps token '\\[MAN'; did you mean '\\[MIN' or '\\[MAX'"),
    ],
)
def test_reading_malformed_text_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grammar.parse(text)


def test_text_is_read_and_written_with_and_without_binary_branching() -> None:
    assert grammar.render(grammar.parse(EXAMPLE)) == EXAMPLE
    assert (grammar.parse("( ( ( [MAX 4 ) [MIN 3 ] ) ] )") == grammar.parse("[MAX 4 [MIN 3 ] ]")).all()
    assert grammar.subtree_columns(grammar.parse(EXAMPLE)) == {
        "Source": EXAMPLE,
        "Target": "6",
        "SubTreeEvals": "0 3 6",
        "SubTreeLengths": "5 9 15",
        "SubTreeHeights": "1 2 3",
        "SubTreeOps": "[SM [MED [MAX",
        "SubTreeInds": "8 11 14",
    }
