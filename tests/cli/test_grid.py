"""The display of a suite: what fits into which terminal, and the lines where there is none."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from lrtasks.cli.display import change_line, running_lines, screen, summary
from lrtasks.cli.grid import Grid
from lrtasks.evaluation.identity import new_record
from lrtasks.results import RunRecord
from lrtasks.suite.standing import Standing
from lrtasks.suite.suite import Entry

MODELS = ["attention", "dlr", "dss"]


def record_of(one: Entry, score: float | None, **fields: Any) -> RunRecord:
    record = new_record(one.plan(), one.preset, one.seed, "lrtasks eval")
    record.status = "done"
    record.scores = {} if score is None else {"test": {record.task["metric"]: score}}
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def standing_of(entries: list[Entry]) -> Standing:
    return Standing(entries, [Path(str(number)) for number in range(len(entries))])


def lines(grid: Grid, width: int = 80, height: int = 24) -> list[str]:
    drawn = [line.plain for line in grid.draw(width, height)]
    assert all(len(line) <= width for line in drawn)
    assert len(drawn) <= height
    return drawn


def test_a_grid_fills_up() -> None:
    entries = [Entry(model, task) for task in ("shift", "reverse") for model in MODELS]
    standing = standing_of(entries)
    grid = Grid(standing, [Entry("hyena", "reverse")])
    assert lines(grid)[:3] == [
        "         attention    dlr    dss  hyena",
        "shift            ·      ·      ·       ",
        "reverse          ·      ·      ·      –",
    ]
    standing.begin(0)
    standing.end(1, "done", record_of(entries[1], 0.9876))
    standing.end(2, "failed", record_of(entries[2], None, status="failed"))
    standing.end(3, "diverged", record_of(entries[3], None, status="diverged"))
    standing.end(4, "refused", record_of(entries[4], None, status="failed"))
    standing.end(5, "done", record_of(entries[5], None))
    assert lines(grid)[1:3] == [
        "shift            ▸  0.988      ✗       ",
        "reverse          ↯      –      ?      –",
    ]
    assert lines(grid)[-1] == "· waiting  ▸ running  ✗ failed  ↯ diverged  – cannot be"


def test_several_seeds_share_a_cell() -> None:
    entries = [Entry("dlr", "shift", seed=seed) for seed in range(3)]
    standing = standing_of(entries)
    wide, narrow = Grid(standing), Grid(standing, [Entry(f"dlr{n}", "shift") for n in range(17)])
    cells = []
    for number, score in enumerate((0.5, 0.7, 0.9)):
        cells.append((lines(wide)[1].split()[1:], lines(narrow)[1].split()[1]))
        standing.begin(number)
        standing.end(number, "done", record_of(entries[number], score))
    cells.append((lines(wide)[1].split()[1:], lines(narrow)[1].split()[1]))
    assert cells == [(["·"], "·"), (["0.500", "1/3"], "1/3"), (["0.600", "2/3"], "2/3"), (["0.700"], ".70")]
    standing.end(1, "failed", record_of(entries[1], None, status="failed"))
    assert lines(wide)[1].split()[1:] == ["0.700", "2/3"]


def test_settings_make_rows_and_columns() -> None:
    entries = [
        Entry(model, "shift", settings={"length": length, "lr": 0.1, **more})
        for length in (64, 1024)
        for model, more in [("dss", {}), ("dlr", {"kernel": "prod"}), ("dlr", {"kernel": "real"})]
    ]
    header, *rows = lines(Grid(standing_of(entries)))[:3]
    assert header.split()[0] == "dss"
    assert header.endswith("  dlr (kernel=prod)  dlr (kernel=real)")
    assert [row.split("  ")[0] for row in rows] == ["shift (length=64)", "shift (length=1024)"]


TASKS = [
    "context-shift",
    "cummax",
    "cumsum",
    "listops",
    "listops-root",
    "mips",
    "mqar",
    "pathfinder",
    "pathfinder-classification",
    "recall",
    "reverse",
    "select",
    "select-fixed",
    "shift",
    "solve",
]


@pytest.mark.parametrize("seeds", [1, 3])
def test_17_models_and_15_tasks_fit_into_80_columns(seeds: int) -> None:
    names = [f"model-{letter}" for letter in "abcdefghijklmnopq"]
    entries = [Entry(model, task, seed=seed) for task in TASKS for model in names for seed in range(seeds)]
    standing = standing_of(entries)
    grid = Grid(standing)
    for number, one in enumerate(entries):
        standing.end(number, "done", record_of_any(one, 0.25))
    drawn = lines(grid)
    assert drawn[0].split() == [str(number + 1) for number in range(17)]
    assert [line.split()[1:] for line in drawn[1:16]] == [[".25"] * 17] * 15
    assert drawn[9].startswith("pathfi…ation ")
    assert " ".join(drawn[16:-1]).split()[:4] == ["1", "model-a", "2", "model-b"]
    assert " ".join(drawn[16:-1]).split()[-2:] == ["17", "model-q"]
    # wider terminals show more digits, then names
    assert {line.split()[1] for line in lines(grid, width=130)[1:16]} == {"0.250"}
    assert lines(grid, width=250)[0].split() == names


RECORD = record_of(Entry("dlr", "shift"), None)


def record_of_any(one: Entry, score: float) -> RunRecord:
    """A record without the trouble of resolving what the entry means."""
    return RunRecord(**{**vars(RECORD), "scores": {"test": {"r2": score}}, "seed": one.seed})


def test_what_does_not_fit_is_what_is_through_already() -> None:
    names = [f"model-{number:02}" for number in range(30)]
    entries = [Entry(model, task) for task in TASKS for model in names]
    standing = standing_of(entries)
    grid = Grid(standing)
    drawn = lines(grid, width=60, height=14)
    assert drawn[0].split() == [str(number + 1) for number in range(12)]
    assert drawn[-1] == "no room for 7 more tasks and 18 more models"
    assert [line.split()[1:] == ["·"] * 12 for line in drawn].count(True) == 8
    for number, one in enumerate(entries):
        if one.task in TASKS[:5] or one.model in names[:7]:
            standing.end(number, "done", record_of_any(one, 0.5))
    drawn = lines(grid, width=60, height=14)
    assert drawn[0].split() == [str(number + 1) for number in range(7, 19)]
    assert drawn[1].split()[0] == "mips"
    assert drawn[1].split()[1:] == ["·"] * 12


@pytest.mark.parametrize(("width", "height"), list(itertools.product((8, 20, 41, 80, 300), (3, 10, 60))))
def test_every_terminal_gets_something(width: int, height: int) -> None:
    entries = [Entry(model, task) for task in TASKS[:6] for model in MODELS]
    standing = standing_of(entries)
    for number in range(7):
        standing.begin(number)
    drawn = screen(standing, Grid(standing), width, height)
    assert all(len(line.plain) <= width for line in drawn)
    assert drawn


def test_a_terminal_without_symbols_gets_plain_letters() -> None:
    entries = [Entry(model, "pathfinder-classification") for model in [*MODELS, *(f"model-{n}" for n in range(20))]]
    standing = standing_of(entries)
    standing.begin(0)
    drawn = lines(Grid(standing, ascii_only=True))
    assert all(line.isascii() for line in drawn)
    assert drawn[1].split()[1:3] == [">", "."]


def test_runs_that_go_on_are_shown_with_what_they_have_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    entries = [Entry(model, "shift", settings={"steps": 8}) for model in MODELS]
    standing = Standing(entries, [one.folder(tmp_path) for one in entries])
    for number in (0, 1):
        standing.begin(number)
    folder = standing.folders[1]
    folder.mkdir(parents=True)
    curve = [{"step": 4, "loss": 1.0, "r2": 0.25}]
    record_of(entries[1], None, status="running", curve=curve, scores={"val": {"r2": 0.25}}).write(folder)
    assert running_lines(standing) == [
        "attention on shift seed 0  0s",
        "dlr on shift seed 0  0s  step 4/8  val r2 0.250",
    ]
    drawn = [line.plain for line in screen(standing, Grid(standing), 80, 24)]
    assert drawn[-3:] == [*running_lines(standing), "2 running, 1 waiting; time left unknown"]
    entries = [Entry("dlr", "shift", seed=seed) for seed in range(9)]
    standing = standing_of(entries)
    for number in range(9):
        standing.begin(number)
    drawn = [line.plain for line in screen(standing, Grid(standing), 80, 24)]
    assert [line.split()[-2] for line in drawn[-5:-2]] == ["0", "1", "2"]
    assert drawn[-2:] == ["and 6 more runs", "9 running; time left unknown"]


def test_without_a_terminal_there_is_a_line_per_change(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    entries = [Entry(model, "shift") for model in MODELS]
    standing = standing_of(entries)
    assert change_line(standing, None) == summary(standing) == "3 waiting; time left unknown"
    standing.begin(0)
    assert change_line(standing, 0) == "attention on shift seed 0: running (1 running, 2 waiting; time left unknown)"
    now[0] = 75
    standing.end(0, "done", record_of(entries[0], 0.5))
    assert change_line(standing, 0) == (
        "attention on shift seed 0: done, r2 0.500 after 1m15s (1 done, 2 waiting; about 2m30s left)"
    )
    standing.end(1, "failed", record_of(entries[1], None, status="failed", notes=["slow", "killed\nby SIGKILL"]))
    assert change_line(standing, 1).startswith("dlr on shift seed 0: failed: killed by SIGKILL (")
    standing.end(2, "done", record_of(entries[2], None))
    assert change_line(standing, 2) == "dss on shift seed 0: done, r2 none (2 done, 1 failed)"
