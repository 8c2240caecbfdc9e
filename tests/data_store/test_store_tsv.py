"""Tables of tokens: their columns, what is read back, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_tasks import Few

import lrtasks
from lrtasks.data import generate, read_tsv
from lrtasks.generators.base import Task, stack
from lrtasks.spec import Spec

LISTOPS = {"setting": "small", "min_length": 10, "max_length": 40}


def test_input_and_target_of_a_table_are_tokens(tmp_path: Path) -> None:
    class Measured(Few):
        target = Spec("real", 4, 1)

    with pytest.raises(lrtasks.UsageError, match="format tsv is for tasks of tokens, and few is not one"):
        generate(Measured(), tmp_path / "set", samples=10, format="tsv", workers=1)


@pytest.mark.parametrize(
    "task", [lrtasks.make("listops", **LISTOPS), lrtasks.make("listops-root", **LISTOPS), Few(4096)]
)
def test_what_is_written_is_read(tmp_path: Path, task: Task) -> None:
    manifest = generate(task, str(tmp_path), samples=30, split=(0.8, 0.1, 0.1), format="tsv", workers=1, shard_size=10)
    attempts = {entry["index"]: entry["attempt"] for entry in manifest.replaced if entry["split"] == "train"}
    samples = list(read_tsv(str(tmp_path / "basic_train.tsv"), task))
    assert len(samples) == 24
    for index, sample in enumerate(samples):
        expected = task.batch([index], attempt=attempts.get(index, 0))
        visible = expected.mask[0]
        assert np.array_equal(sample.x[visible], expected.x[0][visible])
        assert np.array_equal(sample.mask if sample.mask is not None else np.ones_like(visible), visible)
        assert np.array_equal(sample.y, expected.y[0])


@pytest.mark.parametrize(
    "task",
    [
        lrtasks.make("joint-recall", contexts=(2, 4), keys=(2, 4)),
        lrtasks.make("chomsky", preset="reverse-string"),
        lrtasks.make("copying", preset="small"),
        lrtasks.make("dyck", kinds=4, whole=(2, 40)),
        lrtasks.make("in-context-language", preset="small"),
        lrtasks.make("depo", words=(50, 1, 2), nodes=(5, 20)),
        lrtasks.make("mqar", preset="small"),
    ],
    ids=lambda task: task.name,
)
def test_rows_of_tokens_give_the_batch_again_with_its_padding(task: Task) -> None:
    batch = task.batch(range(40), split="test")
    again = stack([task.from_row(task.to_row(batch, index)) for index in range(40)])
    assert np.array_equal(again.x, batch.x) and np.array_equal(again.y, batch.y)
    assert (again.mask is None) == (batch.mask is None)
    if batch.mask is not None:
        assert np.array_equal(again.mask, batch.mask) and not batch.mask.all()
    short = task.from_row({"Source": "1 1", "Target": "0", "TargetInds": "0"})
    assert short.mask is not None and short.mask.sum() == 2, "padding in a row of another program, too"


def test_listops_columns(tmp_path: Path) -> None:
    task = lrtasks.make("listops", **LISTOPS)
    generate(task, str(tmp_path), samples=10, split=(1, 0, 0), format="tsv", workers=1, shard_size=4)
    table = pd.read_csv(tmp_path / "basic_train.tsv", sep="\t", dtype=str)
    columns = "Source Target SubTreeEvals SubTreeLengths SubTreeHeights SubTreeOps SubTreeInds Id"
    assert table.columns.tolist() == columns.split()
    assert table["Id"].tolist() == [str(number) for number in range(10)]
    for row in table.to_dict("records"):
        lists = [row[name].split() for name in table.columns if name.startswith("SubTree")]
        source = row["Source"].split()
        assert {len(entries) for entries in lists} == {source.count("]")}
        assert row["Target"] == lists[0][-1] and int(lists[1][-1]) == len(source)
        assert all(source[int(place)] == "]" for place in lists[4])
    assert (tmp_path / "basic_test.tsv").read_text() == "\t".join(columns.split()) + "\n"


HEADER = "Source\tTarget\tSubTreeEvals\tSubTreeInds\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "[MAX 1 2 ]\t2\t2\t3\n[MAX 1 x ]\t2\t2\t3\n", "line 3: unknown ListOps token 'x'"),
        (HEADER + "[MAX 1 2 ]\t2\t17\t3\n", r"line 2: label 17 is out of range; allowed: 0..9"),
        (HEADER + "[MAX 1 2 ]\t2\t-1\t3\n", "line 2: label -1 is out of range"),
        (HEADER + "[MAX 1 2 ]\t2\t2\t1\n", "SubTreeInds must be the positions of the closing brackets"),
        (HEADER + "[MAX 1 2 ]\t2\t2 2\t3\n", "line 2: 2 labels for 1 positions"),
        (HEADER + "[MAX 1 2 ]\t2\ttwo\t3\n", "SubTreeEvals must be whole numbers"),
        (HEADER + "[MAX 1 2 ] ]\t2\t2\t3\n", "paired brackets"),
        (HEADER + "[MAX " + "1 " * 70 + "]\t1\t1\t71\n", "line 2: the sequence has 72 tokens.* at most 64"),
        ("Source\tTarget\n[MAX 1 2 ]\t2\n", "there is no column 'SubTreeEvals'; found Source, Target"),
    ],
)
def test_bad_listops_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.tsv").write_text(text)
    with pytest.raises(lrtasks.UsageError, match=message):
        list(read_tsv(str(tmp_path / "bad.tsv"), lrtasks.make("listops", **LISTOPS)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1 2 100\t3\t0", "token 100 is out of range; allowed: 0..99"),
        ("1 2 3\t100\t0", "label 100 is out of range"),
        ("1 2 3\t3\t3", "position 3 is out of range; allowed: 0..2"),
    ],
)
def test_bad_token_tables(tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "bad.tsv").write_text(f"Source\tTarget\tTargetInds\n{row}\n")
    with pytest.raises(lrtasks.UsageError, match=message):
        list(read_tsv(str(tmp_path / "bad.tsv"), Few()))


def test_a_published_table_of_roots_is_read(tmp_path: Path) -> None:
    # the Long Range Arena writes round brackets and no sub-trees
    (tmp_path / "basic_val.tsv").write_text("Source\tTarget\n( ( ( [MAX 1 ) 7 ) ] )\t7\n")
    (sample,) = read_tsv(str(tmp_path / "basic_val.tsv"), lrtasks.make("listops-root", **LISTOPS))
    assert sample.x[:4].tolist() == [11, 1, 7, 14] and sample.y.tolist() == [7] and sample.mask.sum() == 4


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match=r"there is no file .*none\.tsv"):
        list(read_tsv(str(tmp_path / "none.tsv"), Few()))
