"""The distribution of ListOps expressions, by enumeration, rejection and reference."""

from __future__ import annotations

import itertools
import json
import random
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from listops_parser import parse
from scipy import stats

from lrtasks.errors import UsageError
from lrtasks.generators import listops, make
from lrtasks.generators.listops import Limits
from lrtasks.generators.tasks.listops import SETTINGS


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
    return list(listops.draw(itertools.repeat(rng, count), limits))


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
        re.sub("[0-9]", "d", re.sub(r"\[[A-Z]+", "[", listops.render(tokens))).replace(" ", "")
        for tokens in expressions
    )
    assert set(found) <= set(law)
    expected = np.array([*law.values()]) / sum(law.values()) * count
    assert expected.min() >= 5
    assert stats.chisquare([found[shape] for shape in law], expected).pvalue > 1e-4
    tokens = np.bincount(np.concatenate(expressions), minlength=15)
    assert stats.chisquare(tokens[:10]).pvalue > 1e-4
    assert stats.chisquare(tokens[10:14]).pvalue > 1e-4


def test_the_depth_for_longer_expressions_is_the_least_that_is_accepted() -> None:
    limits = Limits(min_length=40, max_length=96, max_depth=3, max_args=2)
    depth = listops.deep_enough(limits).max_depth
    assert listops.acceptance(limits._replace(max_depth=depth)) >= listops.RAREST
    assert listops.acceptance(limits._replace(max_depth=depth - 1)) < listops.RAREST
    assert listops.deep_enough(limits._replace(max_depth=depth + 2)).max_depth == depth + 2
    assert listops.deep_enough(limits._replace(min_length=94)) == limits._replace(min_length=94)


def test_a_length_beyond_the_limit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make("listops", setting="small")
    monkeypatch.setattr(listops, "length_distributions", None)
    with pytest.raises(UsageError, match=r"length must be a whole number in 2..32,767"):
        task.at_length(10**6)


def test_length_law_and_longest_expression_agree_with_enumeration() -> None:
    exact = np.zeros(21)
    for _, length, chance in shapes(1, 3, 4, 20):
        exact[length] += chance
    *_, law = itertools.islice(listops.length_distributions(20, 4), 3)
    np.testing.assert_allclose(law, exact, atol=1e-14)
    assert listops.longest(3, 3) == 17


@pytest.mark.parametrize("limits", [SETTINGS["small"], Limits(60, 80, 9, 3)], ids=["common", "rare"])
def test_statistics_agree_with_plain_rejection(limits: Limits) -> None:
    rng = random.Random(1)
    plain = [parse(plain_rejection(rng, limits)) for _ in range(200)]
    ours = [parse(listops.render(tokens)) for tokens in drawn(limits, 1000)]
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


@pytest.mark.parametrize(("setting", "count"), [("lra-like", 250), ("paper", 100)])
def test_statistics_agree_with_the_reference(setting: str, count: int, data: Path) -> None:
    reference = json.loads((data / "listops_stats.json").read_text())[setting]
    expressions = [parse(listops.render(tokens)) for tokens in drawn(SETTINGS[setting], count, seed=11)]
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
    *_, law = itertools.islice(listops.length_distributions(limits.max_length - 1, limits.max_args), limits.max_depth)
    reference = json.loads((data / "listops_stats.json").read_text())[setting]["acceptance"]
    test = stats.binomtest(reference["accepted"], reference["attempts"], law[limits.min_length + 1 :].sum())
    assert test.pvalue > 1e-3
    found = np.array([len(tokens) for tokens in drawn(limits, 400, seed=5)])
    edges = np.linspace(limits.min_length + 1, limits.max_length, 9).astype(int)
    expected = np.array([law[low:high].sum() for low, high in itertools.pairwise(edges)])
    observed = np.histogram(found, edges)[0]
    assert stats.chisquare(observed, expected / expected.sum() * len(found)).pvalue > 1e-4
