"""Every command of docs/reproduce.md leads to a run beside which the tables set the paper's figure."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import pytest
import typer
from snippets import ROOT

sys.path.insert(0, str(ROOT / "docs" / "scripts"))

import reproduce

import lrtasks.evaluation.run
from lrtasks.cli import make_app
from lrtasks.results.reported import reported_figure
from lrtasks.run_config import RunConfig

PAGE = (ROOT / "docs" / "reproduce.md").read_text()
LRTASKS: Any = typer.main.get_command(make_app())
REPORTED, OTHERS = list(reproduce.cells(reproduce.REPORTED)), list(reproduce.cells(reproduce.OTHERS))


class AskedError(Exception):
    """Raised in place of a run."""


def run_of(command: list[str], monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """What the command line asks the evaluation for."""
    asked: list[RunConfig] = []

    def note(config: RunConfig, **_: Any) -> None:
        asked.append(config)
        raise AskedError

    monkeypatch.setattr(lrtasks.evaluation.run, "run", note)
    with pytest.raises(AskedError):
        LRTASKS(command[1:], standalone_mode=False)
    (config,) = asked
    return config


@pytest.mark.parametrize("cell", REPORTED, ids=lambda cell: f"{cell.source}-{cell.column}-{cell.task}")
def test_the_command_leads_to_the_figure(cell: reproduce.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = reported_figure(run_of(cell.command, monkeypatch).record())
    assert (figure["paper"], figure["paper_source"]) == (cell.value, cell.source)
    assert ("averaged over batches" in figure["paper_where"]) == cell.metric.endswith("_batch_mean")
    assert figure["paper_differs"] == "", "the table sets the figure beside the score"


@pytest.mark.parametrize("cell", OTHERS, ids=lambda cell: f"{cell.source}-{cell.column}-{cell.task}")
def test_other_commands_are_of_this_model_and_task(cell: reproduce.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(cell.command, monkeypatch)
    settings = {**run.task.parameters(), **run.model.parameters}
    name, *said = cell.column.split(", ")
    assert (run.model.name, run.task.name) == (name, cell.task)
    assert all(str(settings[key]) == value for key, value in (part.split("=") for part in said))


def test_the_page_has_every_command() -> None:
    columns: dict[tuple[str, str], list[reproduce.Cell]] = {}
    for cell in (*REPORTED, *OTHERS):
        columns.setdefault((cell.source, cell.column), []).append(cell)
    for found in columns.values():
        common, own = reproduce.common_command(found)
        assert common in PAGE or shlex.join(found[0].command) in PAGE
        for cell, words in zip(found, own, strict=True):
            assert shlex.split(f"{common} {words}".replace("TASK", cell.task)) == cell.command


def test_our_score_stands_beside_the_figure_of_the_same_run() -> None:
    ours = {cell.column: reproduce.ours(cell) for cell in REPORTED if cell.source == "Focus paper, Table 1"}
    record = json.loads((ROOT / "results/recall/recall/transformer-e92a660b-seed0/record.json").read_text())
    assert ours["transformer, layers=2, length=30"] == record["scores"]["test"]["accuracy"]
    assert ours["transformer, layers=2, length=1024"] is None


def test_budgets_are_those_of_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the budgets that are written by hand, against the arithmetic that they come from."""
    commands = {(cell.source, cell.column, cell.task): cell.command for cell in REPORTED}
    short = run_of(commands["DLR paper, Table 1", "dlr, layers=6, length=512", "shift"], monkeypatch).budget
    assert short.steps * short.batch_size == 43_200 * 16, "as many samples as at length 4096"
    wide = run_of(commands["DLR paper, Table 3", "dlr, layers=6, res=256", "pathfinder"], monkeypatch).budget
    assert wide.steps == 40 * (80_000 // wide.batch_size), "40 epochs of 80,000 images"
    wider = run_of(commands["DLR paper, Table 3", "dlr, layers=12, res=512", "pathfinder"], monkeypatch).budget
    assert wider.steps == 21 * (80_000 // wider.batch_size), "21 epochs of 80,000 images"
