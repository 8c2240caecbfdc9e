"""Records on disk."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_records import made, stored, tabled

from lrtasks.errors import UsageError
from lrtasks.files import held
from lrtasks.results import RunRecord, read_record, read_records


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


def test_the_file_has_one_line_per_field() -> None:
    lines = made(scores={"val": {"r2": 0.1}, "test": {"r2": 0.5}}).to_json().splitlines()
    names = [line.split('"')[1] for line in lines[1:-1]]
    assert names == [field.name for field in dataclasses.fields(RunRecord)]


def test_headline() -> None:
    record = made(scores={"test": {"r2": 0.5}, "val": {"r2": 0.25}})
    assert (record.headline(), record.headline("val"), record.headline("train")) == (0.5, 0.25, None)
    assert (record.score("r2"), record.score("r2", "val"), record.score("accuracy")) == (0.5, 0.25, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_finite_number_is_none(value: float) -> None:
    record = made(score=value)
    assert (record.headline(), record.outcome()) == (None, "no score")


@pytest.mark.parametrize("status", ["running", "interrupted", "diverged", "failed"])
def test_only_a_run_that_is_done_has_a_test_score(status: str) -> None:
    record = made(status=status, scores={"test": {"r2": 0.5}, "val": {"r2": 0.25}})
    assert (record.headline(), record.headline("val"), record.outcome()) == (
        None,
        0.25,
        f"{status}, 0 of 2000 steps" if status in ("running", "interrupted") else status,
    )
    assert made().outcome() == "done"


def damage(**changes: Any) -> str:
    """A record's JSON with fields replaced, or left out where the new value is ``...``."""
    content = {**dataclasses.asdict(made()), **changes}
    return json.dumps({name: value for name, value in content.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (damage()[:-30], "is damaged"),
        ("[1]", "is not a run record"),
        (damage(schema=9), "has schema 9; this version of lrtasks reads schemas 1 to 3"),
        (damage(schema=9, environment={"lrtasks": "9.0"}), "reads schemas 1 to 3; it was written by lrtasks 9.0$"),
        (damage(schema=...), "has schema None"),
        (damage(budget=...), "is not a run record: it lacks 'budget'"),
        (damage(colour="red"), "'colour' does not belong there"),
        (damage(status="finished"), "'status' must be one of running, interrupted, .*, found 'finished'"),
        (damage(task="shift"), "task must be dict, found 'shift'"),
        (damage(scores=[]), r"scores must be dict, found \[\]"),
        (damage(seed="0"), "seed must be int, found '0'"),
        (damage(task={"name": "shift"}), "task lacks 'version'"),
        (damage(model={"name": "dlr", "parameters": {}}), "model lacks 'count'"),
        (
            damage(task={"name": "shift", "version": 1, "parameters": [], "metric": "r2"}),
            r"task.parameters must be dict, found \[\]",
        ),
        (damage(cost={"seconds_per_step": 0.1}), "cost lacks 'device'"),
        (
            damage(cost={"seconds_per_step": "0.1", "device": "cpu"}),
            r"cost.seconds_per_step must be int \| float \| None, found '0.1'",
        ),
        (damage(curve=[{"loss": 1.0}]), "curve.0 lacks 'step'"),
        (damage(curve={"step": [1, 2], "loss": [1.0]}), "curve must be columns of equal length, found {'step'"),
        (damage(curve=1), "curve must be columns of equal length, found 1"),
        (damage(slices={"position": {"label": [0]}}), "slices has a row without a score"),
        (damage(slices={"position": [{"label": 0}]}), "slices has a row without a score"),
        (damage(further_slices={"2x": {"position": [{"label": 0}]}}), "slices has a row without a score"),
        (damage(budget={"steps": "many"}), r"budget.steps must be int \| float \| None, found 'many'"),
        (damage(notes=[1]), "notes.0 must be str, found 1"),
        (damage(environment={"lrtasks": 1}), "environment.lrtasks must be str, found 1"),
        (damage(selection={"by": "val", "chosen": True}), "selection lacks 'values'"),
        (damage(selection={"by": "val", "values": None, "chosen": True}), "selection.values must be dict, found None"),
        (damage(diagnostics={"blocks.0": 1.5}), "diagnostics.blocks.0 must be dict, found 1.5"),
        ("[" * 200_000, "is damaged"),
        (damage(preset="half a pair: \ud800"), "is damaged"),
        ('{"schema": ' + "9" * 5_000 + "}", "is damaged"),
        (damage(scores={"test": 0.5}), "scores.test must be dict, found 0.5"),
        (damage(baselines={"copy": {"r2": "low"}}), r"baselines.copy.r2 must be int \| float \| None, found 'low'"),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "record.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=rf"^{tmp_path}/record\.json.*{message}"):
        read_record(tmp_path)


def test_only_a_run_that_is_done_keeps_its_last_validation_score() -> None:
    record = made(curve=[{"step": 20, "loss": 1.0, "r2": 0.5}, {"step": 40, "loss": 1.0, "r2": 1.0}])
    assert [record.score_at(step) for step in (10, 20, 30, 40, 80)] == [None, 0.5, 0.5, 1.0, 1.0]
    diverged = dataclasses.replace(record, status="diverged")
    assert [diverged.score_at(step) for step in (10, 20, 30, 40, 80)] == [None, 0.5, 0.5, 1.0, None]
    assert made().score_at(20) is None


def test_no_record(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run record at"):
        read_record(tmp_path)
    with pytest.raises(UsageError, match="no results folder at"):
        read_records(tmp_path / "nowhere")


def test_a_record_file_stands_for_its_folder(tmp_path: Path) -> None:
    made().write(tmp_path)
    assert read_records(tmp_path / "record.json") == ([(tmp_path, made())], [])


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shut", "open"):
        stored(made(), tmp_path / name)
    scan = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "shut":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found, problems = read_records(str(tmp_path))
    assert [path for path, _ in found] == [tmp_path / "open"]
    assert problems == [f"the folder {tmp_path / 'shut'} cannot be read (Permission denied)"]


def test_one_damaged_record_hides_no_other(tmp_path: Path) -> None:
    seeds = {"a": 2, "c/deep": 1}
    for name, seed in seeds.items():
        stored(made(seed=seed), tmp_path / name)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "record.json").write_text("{")
    found, problems = read_records(tmp_path)
    assert [(path, record.seed) for path, record in found] == [(tmp_path / name, seed) for name, seed in seeds.items()]
    assert len(problems) == 1
    assert str(tmp_path / "b" / "record.json") in problems[0]


def test_every_field_is_documented() -> None:
    for field in dataclasses.fields(RunRecord):
        assert f"\n    {field.name}: " in (inspect.getdoc(RunRecord) or "")


def test_numbers_that_are_not_finite_are_read_as_none(tmp_path: Path) -> None:
    content = dataclasses.asdict(made())
    content["baselines"]["copy"]["r2"] = math.nan
    content["cost"]["seconds_per_step"] = math.inf
    content["budget"]["lr"] = math.nan
    content["scores"]["test"]["r2_batch_mean"] = 10**400
    content["scores"]["val"] = {"r2": -1e101}
    content["task"]["parameters"]["length"] = math.inf
    (tmp_path / "record.json").write_text(json.dumps(content))
    record = read_record(tmp_path)
    assert (record.baselines["copy"]["r2"], record.cost["seconds_per_step"], record.budget["lr"]) == (None, None, None)
    assert (record.score("r2"), record.score("r2_batch_mean"), record.task["parameters"]["length"]) == (0.9, None, None)
    assert record.scores["val"] == {"r2": None}
    (row,) = tabled([record]).rows()
    assert (row["floor"], row["floor_name"], row["seconds_per_step"]) == (0.0, "constant", None)
    json.dumps(row, allow_nan=False)


def test_links_to_folders_are_followed_once(tmp_path: Path) -> None:
    for name in ("there/cumsum/run", "here/shift/run"):
        stored(made(task=name.split("/")[1]), tmp_path / name)
    here = tmp_path / "here"
    (here / "cumsum").symlink_to(tmp_path / "there" / "cumsum")
    (here / "shift" / "again").symlink_to(here)
    found, problems = read_records(here)
    assert [path.relative_to(here).as_posix() for path, _ in found] == ["cumsum/run", "shift/run"]
    assert problems == []


def test_what_is_no_regular_file_is_named_and_skipped(tmp_path: Path) -> None:
    for name in ("pipe", "device", "huge", "good"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "record.json")
    (tmp_path / "device" / "record.json").symlink_to("/dev/zero")
    with (tmp_path / "huge" / "record.json").open("wb") as file:
        file.truncate(200_000_000)
    made().write(tmp_path / "good")
    found, problems = read_records(tmp_path)
    assert [path.name for path, _ in found] == ["good"]
    assert [problem.removeprefix(f"{tmp_path}/") for problem in problems] == [
        "device/record.json is not a regular file",
        "huge/record.json is too large for a run record: 200,000,000 bytes, at most 33,554,432",
        "pipe/record.json is not a regular file",
    ]


def test_a_killed_run_is_interrupted_and_a_working_one_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = [{"step": 500, "loss": 1.0}, {"step": 1480, "loss": 0.5}]
    record = made(status="running", score=None, curve=curve)
    record.write(tmp_path)
    (tmp_path / "lock").touch()  # a kill leaves the file, but nobody holds it
    ((_, found),), _ = read_records(tmp_path)
    assert (found.status, found.outcome()) == ("interrupted", "interrupted, 1480 of 2000 steps")
    assert tabled([found]).scores().lines[0][3] == "interrupted, 1480 of 2000 steps"
    monkeypatch.chdir(tmp_path)
    with held(Path("lock"), "this run"):  # named otherwise than its reader does: looking must not drop it
        ((_, found),), _ = read_records(tmp_path)
        assert found.outcome() == "running, 1480 of 2000 steps"
        reader = (
            "import sys, pathlib, lrtasks.record as r; print(r.read_records(pathlib.Path(sys.argv[1]))[0][0][1].status)"
        )
        words = [sys.executable, "-c", reader, str(tmp_path)]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "running\n"
    assert read_record(tmp_path).status == "running"


def test_a_record_of_schema_1_is_read(tmp_path: Path) -> None:
    content = dataclasses.asdict(made())
    content.update(schema=1, floors=content.pop("baselines"))
    content["model"]["structure"] = content["model"].pop("source")
    del content["model"]["version"]
    for added_later in ("digest", "further_baselines", "scaled", "generalisation_length", "steps_to_solve"):
        del content[added_later]
    (tmp_path / "record.json").write_text(json.dumps(content))
    assert read_record(tmp_path) == dataclasses.replace(made(), digest="")
    content["model"]["structure"] = "of an own model"
    (tmp_path / "record.json").write_text(json.dumps(content))
    own = read_record(tmp_path).model
    assert (own["version"], own["source"]) == (None, "of an own model")


def test_tables_are_stored_by_column(tmp_path: Path) -> None:
    curve = [{"step": 1, "loss": 2.0, "r2": 0.5}, {"step": 2, "loss": 1.0}]
    slices = {"position": [{"label": "first", "r2": 0.5, "elements": 3}], "distance": []}
    record = dataclasses.replace(made(), curve=curve, slices=slices, further_slices={"2x": slices})
    record.write(tmp_path)
    content = json.loads((tmp_path / "record.json").read_text())
    assert content["curve"] == {"step": [1, 2], "loss": [2.0, 1.0], "r2": [0.5, None]}
    columns = {"position": {"label": ["first"], "r2": [0.5], "elements": [3]}, "distance": {}}
    assert (content["slices"], content["further_slices"]) == (columns, {"2x": columns})
    whole = [curve[0], {**curve[1], "r2": None}]
    assert read_record(tmp_path) == dataclasses.replace(record, curve=whole)


def test_a_record_of_schema_2_is_read(tmp_path: Path) -> None:
    """Schema 2 stores tables by row."""
    curve, slices = [{"step": 1, "loss": 2.0, "r2": 0.5}], {"position": [{"label": 0, "r2": 0.5, "elements": 3}]}
    record = dataclasses.replace(made(), curve=curve, slices=slices, further_slices={"2x": slices})
    (tmp_path / "record.json").write_text(json.dumps({**dataclasses.asdict(record), "schema": 2}))
    assert read_record(tmp_path) == record


def test_published_records_are_read() -> None:
    found, problems = read_records(Path(__file__).parents[2] / "results")
    assert found and problems == []
