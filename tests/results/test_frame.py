"""The data frame of runs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_records import COST, framed, made, stored

from lrtasks.errors import UsageError
from lrtasks.results import frame
from lrtasks.results.frame import COLUMNS, make_frame, write_frame


def test_one_row_per_run_with_parameters_scores_and_costs(tmp_path: Path) -> None:
    records = [made(score=0.6, floor=0.2), made(model="dss", seed=1, length=512, score=None, status="failed", cost={})]
    for record in records:
        stored(record, tmp_path / record.model["name"])
    runs = frame(tmp_path, str(tmp_path / "dss")).set_index("model")
    assert set(COLUMNS) <= {"model", *runs.columns}
    assert runs.loc["dlr", ["task", "seed", "status", "score", "floor", "baseline"]].to_list() == [
        *("shift", 0, "done", 0.6, 0.2, "copy")
    ]
    assert runs.loc["dlr", "scaled_score"] == pytest.approx(0.5)
    assert runs["task.length"].to_list() == [256, 512] and runs["task.length"].dtype.kind == "i"
    assert runs["model.glu"].dtype == bool and runs.loc["dlr", "budget.betas"] == (0.9, 0.999)
    assert runs.loc["dlr", ["model.kernel", "seconds_per_step", "parameter_count"]].to_list() == ["real", 0.01, 100]
    assert math.isnan(runs.loc["dss", "score"]) and math.isnan(runs.loc["dss", "seconds_per_step"])
    assert runs.loc["dss", "folder"] == str(tmp_path / "dss")
    assert runs.groupby("task.length")["score"].mean().loc[256] == 0.6


def test_columns_hold_what_their_descriptions_say() -> None:
    record = made(
        budget={"lr": 0.01, "batch_size": 64},
        scores={
            "val": {"r2": 0.7},
            "test": {"r2": 0.95, "r2_batch_mean": 0.75, "r2_batch_std": 0.125},
            "2x": {"r2": 0.4},
            "4x": {},
        },
        errors={"val": 0.5, "test": 0.25},
        baselines={"constant": {"r2": -1.0}, "copy": {"r2": 0.0}},
        scaled={"2x": 0.375},
        generalisation_length=512,
        steps_to_solve=30,
        curve=[{"step": 20}, {"step": 40}],
        selection={"by": "val", "values": {"lr": [0.01, 0.001], "layers": [1], "kernel": ["real", "complex"]}},
        environment={"lrtasks": "0.1"},
    )
    expected = {
        "outcome": "done",
        "score": 0.95,
        "score_error": 0.25,
        "selected": '{"kernel": "real", "layers": 1, "lr": 0.01}',
        "selected_at_end": "lr",
        "candidates": 4,
        "generalisation_length": 512,
        "steps_to_solve": 30,
        "samples_to_solve": 1920,
        "val_score": 0.7,
        "batch_mean": 0.75,
        "batch_std": 0.125,
        "baseline": "copy",
        "floor": 0.0,
        "scaled_score": 0.95,
        "solved": 1,
        "not_possible": "4x",
        "steps": 40,
        "peak_memory_bytes": 1,
        "version": "0.1",
        "test.2x": 0.4,
        "scaled.2x": 0.375,
    }
    row, plain = framed([record, made()]).to_dict("records")
    assert {name: row[name] for name in expected} == expected
    assert (plain["selected"], plain["selected_at_end"], plain["not_possible"]) == ("", "", "")
    (failed,) = framed([replace(record, status="failed")]).to_dict("records")
    results = ["score", "score_error", "generalisation_length", "steps_to_solve", "samples_to_solve"]
    assert all(math.isnan(failed[name]) for name in results), "it failed after its test"
    assert failed["val_score"] == 0.7 and "test.2x" not in failed


def test_what_cannot_be_read_is_left_out_with_a_warning(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        stored(made(), tmp_path / name)
    (tmp_path / "bad" / "record.json").write_text("{")
    with pytest.warns(UserWarning, match=r"left out: .*bad/record\.json is damaged"):
        assert len(frame(tmp_path)) == 1
    with pytest.raises(UsageError, match=r"no run records below .*bad that can be read; 1 cannot"):
        frame(tmp_path / "bad")


@pytest.mark.parametrize("arguments", [[["runs"]], [3], [None], []])
def test_what_is_no_path_is_refused(arguments: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"frame takes .* found .+"):
        frame(*arguments)


def test_copies_are_one_run_and_keep_the_place_of_the_first() -> None:
    runs = framed([made(), made(), made(seed=1), made(score=0.5)])
    assert list(runs.index) == [0, 2, 3]
    point = {"step": 4, "loss": 0.5, "r2": 0.5}
    no_score = made(score=None, status="failed")
    differing = [
        *(no_score, replace(no_score, status="diverged")),
        *(made(), made(length=32), made(model="dss"), made(curve=[point])),
        replace(made(), scores={**made().scores, "val": {"r2": 0.5}}),
        *(replace(made(), cost={**COST, name: 2.0}) for name in ("seconds", "seconds_per_step")),
    ]
    assert len(framed(differing)) == len(differing)


@pytest.mark.filterwarnings("error::pandas.errors.PerformanceWarning")
def test_many_columns_of_several_frames_give_no_warning(tmp_path: Path, command: Callable[..., Any]) -> None:
    for seed in range(2):
        record = made(seed=seed, hyper={f"size{seed}{name}": "x" for name in range(100)})
        stored(record, tmp_path / "runs" / str(seed))
    assert command("table", "runs", "--frame", "runs.parquet").code == 0
    assert command("table", "runs", "runs.parquet").out == command("table", "runs").out


def test_a_frame_can_be_written_and_read_again(tmp_path: Path, command: Callable[..., Any]) -> None:
    records = [
        made(score=0.6, budget={"train_samples": 64}),
        made(model="net", seed=1, hyper={"layers": "two", "kernel": [1, 2]}, score=None, status="failed", cost={}),
    ]
    for record in records:
        stored(record, tmp_path / record.model["name"])
    assert command("table", tmp_path, "--frame", "runs.parquet").out == "wrote runs.parquet\n"
    before, after = frame(tmp_path), frame("runs.parquet")
    assert list(after.columns) == list(before.columns)
    pd.testing.assert_frame_equal(after, before, check_dtype=False)
    pq.write_table(pq.read_table("runs.parquet").drop_columns("selected_at_end"), "earlier.parquet")
    assert pq.read_table("runs.parquet")["baseline"].to_pylist() == ["copy", None]
    pq.write_table(pq.read_table("runs.parquet").slice(1), "second.parquet")
    both = frame("second.parquet", tmp_path)
    assert both["model"].to_list() == ["net", "dlr"] and both.index.is_unique
    shown = [command("table", folder, "--unequal-budgets") for folder in (tmp_path, "runs.parquet", "earlier.parquet")]
    assert [said.code for said in shown] == [0, 0, 0] and len({said.out for said in shown}) == 1
    assert pq.read_schema("runs.parquet").field("floor").metadata[b"description"].decode() == COLUMNS["floor"]
    assert command("table", tmp_path, "--frame", "runs.csv").code == 0
    assert pd.read_csv("runs.csv")["score"].tolist()[0] == 0.6
    said = command("table", tmp_path, "--frame", "runs.txt")
    assert (said.code, said.err) == (2, "lrtasks: a frame is written as .parquet or .csv, found runs.txt\n")
    for name in ("setup", "metric"):
        pq.write_table(pq.read_table("runs.parquet").drop_columns(name), "foreign.parquet")
        said = command("table", "foreign.parquet")
        assert said.code == 2 and f"foreign.parquet is not a frame of runs: it has no column '{name}'" in said.err
    Path("bad.parquet").write_text("no frame")
    assert command("table", "bad.parquet").err.startswith("lrtasks: cannot read the frame bad.parquet: ")
    table = pq.read_table("runs.parquet")
    place, field = next((i, one) for i, one in enumerate(table.schema) if b"json" in (one.metadata or {}))
    pq.write_table(table.set_column(place, field, [["{"] * len(table)]), "damaged.parquet")
    said = command("table", "damaged.parquet")
    assert (said.code, said.err) == (
        2,
        f"lrtasks: cannot read the frame damaged.parquet: the column {field.name!r} is damaged\n",
    )
    for words in (("plot", "heatmap", "runs.parquet"), ("report", "runs.parquet", "-o", "runs.html")):
        said = command(*words)
        assert said.code == 2 and "runs.parquet is a frame, which lacks the records" in said.err


@pytest.mark.parametrize("value", [2**63, 10**25])
def test_a_large_integer_can_be_written_and_read_again(tmp_path: Path, value: int) -> None:
    write_frame(framed([made(hyper={"n": value})]), tmp_path / "runs.parquet")
    assert frame(tmp_path / "runs.parquet")["model.n"].tolist() == [value]


@pytest.mark.parametrize("file", ["runs.parquet", "runs.csv"])
def test_a_frame_can_be_written_for_a_folder_whose_name_is_not_utf8(tmp_path: Path, file: str) -> None:
    write_frame(make_frame([(Path(os.fsdecode(b"\xff")), made())]), tmp_path / file)
    assert b"\\xff" in (tmp_path / file).read_bytes()


def test_a_column_that_one_of_two_frames_lacks_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, hyper in (("one", {}), ("two", {"cell": "x"})):
        (tmp_path / folder / "run").mkdir(parents=True)
        made(model="Net", source=folder, hyper=hyper).write(tmp_path / folder / "run")
    write_frame(frame("one"), Path("one.parquet"))
    joined, together = frame("one.parquet", "two"), frame("one", "two")
    assert joined["model.cell"].tolist() == together["model.cell"].tolist() == [None, "x"]


def test_further_scores_are_numbers_although_some_runs_lack_them() -> None:
    lengths = {"test": {"r2": 0.9}, "2x": {"r2": 0.4}}
    runs = framed([made(scores=lengths, scaled={"test": 0.8, "2x": 0.3}), made(seed=1)])
    assert runs[["test.2x", "scaled.2x"]].dtypes.tolist() == [float, float]
    assert runs["test.2x"].iloc[0] == 0.4 and math.isnan(runs["test.2x"].iloc[1])
