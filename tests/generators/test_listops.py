"""ListOps: labels by an independent parser, slices, floors, limits, text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from listops_parser import parse

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import listops
from lrtasks.generators.listops import Limits
from lrtasks.generators.tasks.listops import SETTINGS

EXAMPLE = "[MAX 2 6 [MED [SM 3 1 6 ] 8 3 ] 4 5 ]"


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
        assert (batch.x[row, length:] == listops.PAD).all()
        labels = np.full(task.input.length, -100)
        labels[[node.close for node in nodes]] = [node.value for node in nodes]
        assert (batch.y[row] == labels).all()
        assert [listops.OPERATORS[kind] for kind in batch.meta["operator"][row]] == [node.operator for node in nodes]
        assert batch.meta["height"][row].tolist() == [node.height for node in nodes]
        assert batch.meta["subtree_length"][row].tolist() == [node.length for node in nodes]
        assert max(node.depth for node in nodes) < task.limits.max_depth
        assert {node.arguments for node in nodes} <= set(range(2, task.limits.max_args + 1))


def test_the_papers_example_is_labelled_as_printed() -> None:
    found = listops.operators(listops.parse(EXAMPLE)[None])
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
@settings(max_examples=60)
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
    for floor_name, floor in task.baselines().items():
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
        names = [listops.VOCABULARY[token] for token in task.duplicate_key(batch, row)]
        assert "".join(names) == re.sub(r"[0-9 ]", "", task.text(batch, row))


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
        (Limits(7000, 8180, 4, 9), "fewer than one expression in 100000 .* lengths reach from 4 to 911"),
        (Limits(10, 12, 5, 2), "more than 10 and fewer than 12 tokens"),
        (Limits(20, 21, 5, 3), "more than 20 and fewer than 21 tokens"),
        (Limits(2000, 2100, 15, 4), "lengths reach from 4 to 447392426"),
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
        listops.parse(text)


def test_text_is_read_and_written_with_and_without_binary_branching() -> None:
    assert listops.render(listops.parse(EXAMPLE)) == EXAMPLE
    assert (listops.parse("( ( ( [MAX 4 ) [MIN 3 ] ) ] )") == listops.parse("[MAX 4 [MIN 3 ] ]")).all()
    assert listops.subtree_columns(listops.parse(EXAMPLE)) == {
        "Source": EXAMPLE,
        "Target": "6",
        "SubTreeEvals": "0 3 6",
        "SubTreeLengths": "5 9 15",
        "SubTreeHeights": "1 2 3",
        "SubTreeOps": "[SM [MED [MAX",
        "SubTreeInds": "8 11 14",
    }


@pytest.mark.e2e
def test_compilation_is_announced_and_kept(tmp_path: Path) -> None:
    code = "from lrtasks.generators import make; print(make('listops', setting='small').batch(range(2)).x.tolist())"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, again = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    )
    assert first.stdout == again.stdout
    assert first.stderr.count("compiling the loops of lrtasks.generators.listops, once") == 1
    assert not again.stderr
