"""The display of a suite: a table that fits the terminal, and lines where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lrtasks import models
from lrtasks.cli.display import change_line, grid, running_lines, screen, summary
from lrtasks.record import RunRecord
from lrtasks.registry import file_digest
from lrtasks.run_config import RunConfig
from lrtasks.suite.run import SuiteProgress

MODELS = ["attention", "dlr", "dss"]


def configs(tasks: list[str], models: list[str], seeds: int = 1, **settings: Any) -> list[RunConfig]:
    return [
        RunConfig.make(task, model, seed=seed, settings=settings)
        for task in tasks
        for model in models
        for seed in range(seeds)
    ]


def record_of(one: RunConfig, score: float | None, **fields: Any) -> RunRecord:
    record = one.record("done")
    record.scores = {} if score is None else {"test": {record.task["metric"]: score}}
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def drawn(progress: SuiteProgress, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=None)
    with console.capture() as said:
        console.print(grid(progress))
    return said.get().splitlines()


def test_a_table_fills_up(tmp_path: Path) -> None:
    runs = configs(["shift", "reverse"], MODELS)
    progress = SuiteProgress(runs, tmp_path)
    assert [line.split() for line in drawn(progress)[1:4]] == [[model, *".."] for model in MODELS]
    progress.begin(0)
    progress.end(1, "done", record_of(runs[1], 0.9876))
    progress.end(2, "failed", record_of(runs[2], None, status="failed"))
    progress.end(3, "diverged", record_of(runs[3], None, status="diverged"))
    progress.end(4, "refused", record_of(runs[4], None, status="failed"))
    progress.end(5, "done", record_of(runs[5], None))
    rows = {line.split()[0]: line.split()[1:] for line in drawn(progress)[1:4]}
    assert rows == {"attention": [">", "!"], "dlr": ["0.988", "-"], "dss": ["x", "?"]}


def test_several_seeds_share_a_cell(tmp_path: Path) -> None:
    runs = configs(["shift"], ["dlr"], seeds=2)
    progress = SuiteProgress(runs, tmp_path)
    progress.end(0, "done", record_of(runs[0], 0.5))
    assert drawn(progress)[1].split() == ["shift", "0.50", "."]
    progress.end(1, "done", record_of(runs[1], 0.7))
    assert drawn(progress)[1].split() == ["shift", "0.600"]
    progress.end(1, "failed", record_of(runs[1], 0.7, status="failed"))
    assert drawn(progress)[1].split() == ["shift", "0.50", "x"]
    assert summary(progress) == "1 done, 1 failed"


def test_presets_values_and_files_of_one_name_have_cells_of_their_own(tmp_path: Path) -> None:
    """Presets of one task, values of a model's setting, and models of two files whose name is the same."""
    layer = "import torch\n\ndef Mine(d_model): return torch.nn.Linear(d_model, d_model)\n"
    for name in ("a", "b[red]"):
        (tmp_path / f"{name}.py").write_text(f"# {name}\n{layer}")
    files = [f"{tmp_path / name}.py:Mine" for name in ("a", "b[red]")]
    stacks = [f"{files[1]}:{layers}" for layers in (1, 2)]
    for runs, names in (
        (configs(["word-problem", "word-problem@a5"], ["dlr"]), ["word-problem@s3", "word-problem@a5"]),
        (
            [*configs(["shift"], ["dlr"], d_state=8), *configs(["shift"], ["dlr"], d_state=16)],
            ["(d_state=8)", "(d_state=16)"],
        ),
        (
            [one for stack in stacks for one in configs(["shift"], ["hybrid"], layers=stack)],
            [f"(layers={stack})" for stack in stacks],
        ),
        (configs(["shift"], files), [f"(source={file_digest(Path(file[:-5]))[:8]})" for file in files]),
    ):
        progress = SuiteProgress(runs, tmp_path)
        for number, score in enumerate((1.0, 0.2)):
            progress.end(number, "done", record_of(runs[number], score))
        lines = drawn(progress, 400)[1:3]
        assert [line.split()[-2:] for line in lines] == [[names[0], "1.000"], [names[1], "0.200"]]


@pytest.mark.parametrize("width", [80, 40, 20])
def test_every_terminal_gets_a_table_that_fits(tmp_path: Path, width: int) -> None:
    runs = configs(["shift", "reverse", "cumsum", "cummax"], [*MODELS, "s4d", "sgconv", "hyena", "mega"])
    lines = drawn(SuiteProgress(runs, tmp_path), width)
    assert all(len(line) <= width for line in lines)


def test_rows_with_unfinished_runs_come_first(tmp_path: Path) -> None:
    runs = configs(["shift", "reverse"], MODELS)
    progress = SuiteProgress(runs, tmp_path)
    for number in (0, 3):
        progress.end(number, "done", record_of(runs[number], 0.5))
    assert [line.split()[0] for line in drawn(progress)[1:4]] == ["dlr", "dss", "attention"]


def test_runs_that_go_on_are_shown_with_what_they_have_reached(tmp_path: Path) -> None:
    runs = configs(["shift"], ["dlr"], steps=500)
    progress = SuiteProgress(runs, tmp_path)
    assert running_lines(progress) == []
    progress.begin(0)
    assert running_lines(progress) == ["dlr on shift steps=500 seed 0  0s"]
    progress.folders[0].mkdir(parents=True)
    curve = [{"step": 250, "loss": 1.0, "r2": 0.5}]
    record_of(runs[0], None, status="running", curve=curve, scores={"val": {"r2": 0.5}}).write(progress.folders[0])
    assert running_lines(progress) == ["dlr on shift steps=500 seed 0  0s  step 250/500  val r2 0.500"]
    for status, points, reached in (("running", curve, "  step 250/500"), ("running", [], ""), ("failed", curve, "")):
        record_of(runs[0], None, status=status, curve=points, scores={}).write(progress.folders[0])
        assert running_lines(progress) == [f"dlr on shift steps=500 seed 0  0s{reached}"]


@pytest.mark.parametrize(("running", "shown"), [(4, 4), (6, 4)])
def test_a_screen_shows_a_few_running_runs(tmp_path: Path, running: int, shown: int) -> None:
    progress = SuiteProgress(configs(["shift"], MODELS, seeds=2), tmp_path)
    for number in range(running):
        progress.begin(number)
    console = Console(width=80)
    with console.capture() as said:
        console.print(screen(progress))
    lines = said.get().splitlines()
    assert lines[0].startswith(f"{running} running")
    assert [" seed " in line for line in lines[1:7]].count(True) == shown
    assert [line for line in lines if line.startswith("and")] == (["and 2 more runs"] if running > shown else [])


def test_without_a_terminal_there_is_a_line_per_change(tmp_path: Path) -> None:
    runs = configs(["shift"], MODELS)
    progress = SuiteProgress(runs, tmp_path)
    assert summary(progress) == "3 waiting; time left unknown"
    progress.begin(0)
    assert change_line(progress, 0) == "attention on shift seed 0: running (1 running, 2 waiting; time left unknown)"
    progress.end(0, "done", record_of(runs[0], 0.25))
    assert change_line(progress, 0).startswith("attention on shift seed 0: done, r2 0.250 after 0s (1 done, 2 waiting")
    progress.end(1, "failed", record_of(runs[1], None, status="failed", notes=["slow", "killed by\nSIGKILL"]))
    assert ": failed: killed by SIGKILL (" in change_line(progress, 1)
    progress.end(1, "failed", record_of(runs[1], None, status="failed"))
    progress.end(2, "done", record_of(runs[2], None))
    assert "seed 0: failed" in change_line(progress, 1) and "seed 0: done, r2 none" in change_line(progress, 2)


def test_many_models_become_rows(tmp_path: Path) -> None:
    """Nineteen models at three lengths on a terminal of eighty columns; settings of all runs are left out."""
    names = sorted(models.registry.built_in())[:19]
    runs = [run for length in (32, 64, 128) for run in configs(["shift"], names, length=length, steps=500)]
    lines = drawn(SuiteProgress(runs, tmp_path))
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["shift", "(length=32)", "shift", "(length=64)", "shift", "(length=128)"]
    assert [line.split() for line in lines[1:20]] == [[name, ".", ".", "."] for name in names]
