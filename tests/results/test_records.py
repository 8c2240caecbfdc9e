"""Records on disk."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_records import made

from lrtasks.errors import UsageError
from lrtasks.results import RunRecord, read_record, read_records
from lrtasks.results.table import make_table


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = made(
        curve=[{"step": 5, "loss": 0.25, "r2": 0.5}],
        slices={"position": [{"label": 0, "r2": None, "elements": 3}]},
        diagnostics={"blocks.0": {"rate": 0.5}},
        notes=["a word"],
    )
    record.write(tmp_path)
    assert read_record(tmp_path) == record
    assert read_record(tmp_path / "record.json") == record
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_the_file_is_strict_json(tmp_path: Path) -> None:
    record = made(scores={"test": {"r2": math.nan, "r2_batch_mean": -math.inf, "r2_batch_std": 0.1}})
    record.write(tmp_path)
    content = json.loads((tmp_path / "record.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert content["scores"]["test"] == {"r2": None, "r2_batch_mean": None, "r2_batch_std": 0.1}
    assert read_record(tmp_path).headline() is None


def test_headline() -> None:
    record = made(scores={"test": {"r2": 0.5}, "val": {"r2": 0.25}})
    assert (record.headline(), record.headline("val"), record.headline("train")) == (0.5, 0.25, None)
    assert (record.score("r2"), record.score("r2", "val"), record.score("accuracy")) == (0.5, 0.25, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_is_none(value: float) -> None:
    record = made(score=value)
    assert (record.headline(), record.outcome()) == (None, "no score")


@pytest.mark.parametrize("status", ["running", "diverged", "failed"])
def test_only_a_run_that_is_done_has_a_test_score(status: str) -> None:
    record = made(status=status, scores={"test": {"r2": 0.5}, "val": {"r2": 0.25}})
    assert (record.headline(), record.headline("val"), record.outcome()) == (None, 0.25, status)
    assert made().outcome() == "done"


def damage(**changes: Any) -> str:
    """A record's JSON with fields replaced, or left out where the new value is ``...``."""
    content = {**dataclasses.asdict(made()), **changes}
    return json.dumps({name: value for name, value in content.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged"),
        (damage()[:-30], "is damaged"),
        ("[1]", "is not a run record"),
        (damage(schema=2), "has schema 2; this version of lrtasks reads schema 1"),
        (damage(schema=2, environment={"lrtasks": "9.0"}), "reads schema 1; it was written by lrtasks 9.0$"),
        (damage(schema=...), "has schema None"),
        (damage(budget=...), "is not a run record: 'budget' is missing"),
        (damage(colour="red"), "'colour' does not belong there"),
        (damage(status="finished"), "'status' must be one of running, done, diverged, failed, found 'finished'"),
        (damage(task="shift"), "'task' must be dict, found 'shift'"),
        (damage(scores=[]), r"'scores' must be dict, found \[\]"),
        (damage(seed="0"), "'seed' must be int, found '0'"),
        (damage(task={"name": "shift"}), "'task' lacks 'version'"),
        (damage(model={"name": "dlr", "parameters": {}}), "'model' lacks 'count'"),
        (damage(task={"name": "shift", "version": 1, "parameters": [], "metric": "r2"}), "has a bad 'parameters'"),
        (damage(cost={"seconds_per_step": 0.1}), "'cost' lacks 'device'"),
        (damage(cost={"seconds_per_step": "0.1", "device": "cpu"}), "'cost' has a bad 'seconds_per_step': '0.1'"),
        (damage(scores={"test": 0.5}), "'scores' must hold numbers by name, found 0.5 for 'test'"),
        (damage(floors={"copy": {"r2": "low"}}), "'floors' must hold numbers by name, found {'r2': 'low'} for 'copy'"),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(UsageError, match=rf"^{tmp_path}/record\.json.*{message}"):
        read_record(tmp_path)


def test_a_run_that_was_never_timed_is_a_record(tmp_path: Path) -> None:
    record = made(status="failed", score=None, cost={})
    record.write(tmp_path)
    assert read_record(tmp_path) == record


def test_a_file_of_bytes_is_no_record(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is damaged"):
        read_record(tmp_path)


def test_no_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run record at"):
        read_record(tmp_path)
    with pytest.raises(UsageError, match="no results folder at"):
        read_records(tmp_path / "nowhere")


def test_one_damaged_record_hides_no_other(tmp_path: Path) -> None:
    seeds = {"a": 2, "c/deep": 1}
    for name, seed in seeds.items():
        (tmp_path / name).mkdir(parents=True)
        made(seed=seed).write(tmp_path / name)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "record.json").write_text("{")
    found, problems = read_records(tmp_path)
    assert [(path, record.seed) for path, record in found] == [(tmp_path / name, seed) for name, seed in seeds.items()]
    assert len(problems) == 1
    assert str(tmp_path / "b" / "record.json") in problems[0]


def test_every_field_is_documented() -> None:
    for field in dataclasses.fields(RunRecord):
        assert f"        {field.name}: " in (RunRecord.__doc__ or "")


def test_numbers_that_are_not_finite_are_read_as_none(tmp_path: Path) -> None:
    content = dataclasses.asdict(made())
    content["floors"]["copy"]["r2"] = math.nan
    content["cost"]["seconds_per_step"] = math.inf
    content["budget"]["lr"] = math.nan
    content["scores"]["test"]["r2_batch_mean"] = 10**400
    content["task"]["parameters"]["length"] = math.inf
    (tmp_path / "record.json").write_text(json.dumps(content))
    record = read_record(tmp_path)
    assert (record.baselines["copy"]["r2"], record.cost["seconds_per_step"], record.budget["lr"]) == (None, None, None)
    assert (record.score("r2"), record.score("r2_batch_mean"), record.task["parameters"]["length"]) == (0.9, None, None)
    (row,) = make_table([record]).rows()
    assert (row["floor"], row["floor_name"], row["seconds_per_step"]) == (0.0, "constant", None)
    json.dumps(row, allow_nan=False)


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    for name in ("there/cumsum/run", "here/shift/run"):
        (tmp_path / name).mkdir(parents=True)
        made(task=name.split("/")[1]).write(tmp_path / name)
    here = tmp_path / "here"
    (here / "cumsum").symlink_to(tmp_path / "there" / "cumsum")
    (here / "shift" / "again").symlink_to(here)
    found, problems = read_records(here)
    assert [path.relative_to(here).as_posix() for path, _ in found] == ["cumsum/run", "shift/run"]
    assert problems == []
