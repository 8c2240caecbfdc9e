"""Tables: what is merged, what is kept apart, and what stands beside it."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
import pytest
from made_records import made

from lrtasks.errors import UsageError
from lrtasks.results import RunRecord
from lrtasks.results.table import make_table


def grid(*records: RunRecord) -> dict[str, dict[str, str]]:
    """Cells of the printed table by row label and header."""
    header, lines = make_table(records).grid()
    assert len({line[0] for line in lines}) == len(lines)
    return {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}


def test_seeds_are_merged_to_mean_and_spread() -> None:
    table = make_table([made(seed=seed, score=score) for seed, score in ((2, 0.8), (0, 0.5), (1, 0.6))])
    (row,) = table.rows()
    assert row["seeds"] == [0, 1, 2]
    assert row["score"] == pytest.approx(1.9 / 3)
    assert row["score_std"] == pytest.approx(np.std([0.5, 0.6, 0.8], ddof=1))
    assert table.grid()[1][0][3] == "0.633 ±0.153"


def test_one_seed_has_no_spread() -> None:
    (row,) = make_table([made(score=0.5)]).rows()
    assert (row["score"], row["score_std"], row["batch_mean"]) == (0.5, None, 0.5)


MUST_AGREE = {"steps", "batch_size", "train_samples", "val_batches", "test_batches", "stop_at", "precision"}
"""What two models must share to stand in one row; the rest is each model's own tuning."""

OTHERS: dict[str, Any] = {
    "steps": 5,
    "batch_size": 5,
    "train_samples": 64,
    "val_batches": 5,
    "test_batches": 5,
    "stop_at": 0.5,
    "precision": "bf16",
    "lr": 0.5,
    "weight_decay": 0.5,
    "betas": (0.5, 0.5),
    "schedule": "cosine",
    "warmup_steps": 5,
    "clip": 0.5,
    "eval_every": 5,
}


def test_the_list_of_other_budgets_is_complete() -> None:
    assert set(OTHERS) == set(made().budget)


@pytest.mark.parametrize("name", OTHERS)
def test_different_budgets_are_never_merged(name: str) -> None:
    records = [made(seed=0, score=0.25), made(seed=1, score=0.75, budget={name: OTHERS[name]})]
    cells = grid(*records)
    shown = [text for row in cells.values() for header, text in row.items() if header.startswith("dlr") and text]
    assert sorted(shown) == ["0.250", "0.750"]
    labels = [*cells, *(header for row in cells.values() for header in row)]
    assert any(f"{name}=" in label for label in labels)
    assert len(cells) == (2 if name in MUST_AGREE else 1)


@pytest.mark.parametrize(
    "other",
    [
        made(score=0.75, seed=1, hyper={"layers": 2}),
        made(score=0.75, seed=1, length=512),
        made(score=0.75, seed=1, structure="ab"),
        made(score=0.75, seed=1, hyper={"lr": 3.0}),
        dataclasses.replace(made(score=0.75, seed=1), task={**made().task, "version": 2}),
        dataclasses.replace(made(score=0.75, seed=1), task={**made().task, "data": "ab"}),
    ],
)
def test_different_settings_are_never_merged(other: RunRecord) -> None:
    shown = [text for row in grid(made(score=0.25), other).values() for text in row.values()]
    assert {"0.250", "0.750"} <= set(shown)


def test_settings_that_never_meet_share_a_column() -> None:
    cells = grid(made(score=0.25), made(task="mips", score=0.75, budget={"lr": 0.5}))
    assert cells["shift"]["dlr"] == "0.250"
    assert cells["mips"]["dlr"] == "0.750"


def test_a_setting_that_an_older_record_does_not_know_is_none() -> None:
    older = made(seed=1)
    del older.budget["stop_at"]
    assert len(make_table([made(), older]).rows()) == 1


def test_a_copy_counts_once_and_a_repeated_seed_is_named() -> None:
    assert grid(made(), made())["shift"]["dlr"] == "0.900"
    assert grid(made(score=0.5), made(score=0.7))["shift"]["dlr"] == "0.600 ±0.141 (seed 0 2 times)"


def test_rows_are_ordered_by_number() -> None:
    table = make_table([made(length=length) for length in (1024, 256, 4096)])
    assert table.row_labels == ("shift (length=256)", "shift (length=1024)", "shift (length=4096)")


def test_the_best_floor_stands_beside() -> None:
    assert grid(made(floor=0.22))["shift"]["floor"] == "0.220 copy"
    assert grid(made(floor=-0.1))["shift"]["floor"] == "0.000 constant"


def test_diverged_runs_are_shown_and_do_not_count() -> None:
    lost = made(seed=1, score=None, status="diverged", cost={})
    assert grid(lost)["shift"]["dlr"] == "diverged"
    both = make_table([lost, made(seed=2, score=0.5)])
    assert both.grid()[1][0][2:4] == ["0.200 copy", "0.500 (1 diverged)"]
    (row,) = both.rows()
    assert (row["score"], row["floor"], row["statuses"]) == (0.5, 0.2, ["diverged", "done"])
    assert row["seconds_per_step"] == 0.01


def test_a_score_that_is_no_number_does_not_count() -> None:
    (row,) = make_table([made(score=math.nan), made(seed=1, score=0.5)]).rows()
    assert row["score"] == 0.5


ATTENTION = {"layers": 1, "feedforward": 0, "glu": False}


@pytest.mark.parametrize(
    ("record", "value", "where"),
    [
        (made(), 1.0, "length 4096"),
        (made(task="reverse"), 0.01, "length 4096"),
        (made(task="reverse", hyper={"layers": 6}, length=4096), 0.99, "length 4096"),
        (made(task="reverse", hyper={"layers": 6}, length=512), 0.95, "length 512"),
        (made(task="reverse", hyper={"layers": 6}, length=256), 0.95, "length 512"),
        (made(model="attention", hyper=ATTENTION), 0.72, "length 4096"),
        (made(model="attention", hyper={**ATTENTION, "feedforward": 2}), 0.69, "length 4096"),
        (made(hyper={"layers": 3}), None, None),
        (made(hyper={"layers": 1, "kernel": "prod"}), 1.0, "length 16384"),
        (made(hyper={"layers": 1, "kernel": "prod"}, length=2**20), 0.78, "length 1048576"),
        (made(task="reverse", hyper={"layers": 1, "kernel": "prod"}), None, None),
        (made(model="other"), None, None),
        (made(task="unheard"), None, None),
    ],
)
def test_the_papers_figure_is_that_of_the_settings(record: RunRecord, value: float | None, where: str | None) -> None:
    table = make_table([record])
    (row,) = table.rows()
    assert (row["paper"], row["paper_where"]) == (value, where)
    header, (line,) = table.grid()
    assert ("paper" in header) == (value is not None)
    if value is not None:
        assert line[-1] == f"{value:g}"
        assert f"({where}, averaged over batches)" in table.caption()
    else:
        assert table.caption() == ""


MANY = [
    made(seed=0),
    made(seed=1, score=0.7),
    made(task="mips", score=0.1),
    made(model="attention", hyper=ATTENTION, score=0.5),
    made(task="sort", model="a|b", score=None, status="diverged", cost={}),
]


def test_text_is_aligned() -> None:
    table = make_table(MANY)
    header, cells = table.grid()
    first, *lines = table.text().splitlines()
    for column, word in enumerate(header):
        if word != "paper":  # which is there twice
            start = first.index(word)
            assert all(line[start:].startswith(row[column]) for line, row in zip(lines, cells, strict=False))
    assert lines[-1].startswith("paper: DLR paper, Table 1")


def test_markdown_has_as_many_cells_in_each_row() -> None:
    lines = [line for line in make_table(MANY).markdown().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 3
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "a\\|b" in lines[0]


def test_csv_and_json_hold_the_same() -> None:
    table = make_table(MANY)
    found = list(csv.DictReader(io.StringIO(table.csv())))
    rows = json.loads(json.dumps(table.rows(), allow_nan=False))
    assert len(found) == len(rows) == 4
    for line, row in zip(found, rows, strict=True):
        for name, value in row.items():
            text = json.dumps(value) if isinstance(value, (dict, list)) else "" if value is None else str(value)
            assert line[name] == text


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one run record"):
        make_table([])
