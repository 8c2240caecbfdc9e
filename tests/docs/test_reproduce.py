"""Every command of docs/reproduce.md leads to a run beside which the tables set the paper's figure."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import typer
from snippets import ROOT

sys.path.insert(0, str(ROOT / "docs" / "scripts"))

import reproduce

import lrtasks.evaluation.run
from lrtasks import models
from lrtasks.cli import app
from lrtasks.evaluation.presets import Plan, resolve
from lrtasks.results import RunRecord
from lrtasks.results.reported import reported_figure

PAGE = (ROOT / "docs" / "reproduce.md").read_text()
LRTASKS: Any = typer.main.get_command(app)
REPORTED, OTHERS = list(reproduce.cells(reproduce.REPORTED)), list(reproduce.cells(reproduce.OTHERS))


class AskedError(Exception):
    """Raised in place of a run."""


def plan_of(command: list[str], monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What the command line asks the evaluation for."""
    asked: dict[str, Any] = {}

    def note(model: str, task: str, **given: Any) -> None:
        asked.update(model=model, task=task, **given)
        raise AskedError

    monkeypatch.setattr(lrtasks.evaluation.run, "evaluate", note)
    with pytest.raises(AskedError):
        LRTASKS(command[1:], standalone_mode=False)
    names = ("preset", "parameters", "hyper", "budget")
    return resolve(asked["task"], asked["model"], **{name: asked[name] for name in names})


def hyper_of(plan: Plan) -> Mapping[str, Any]:
    assert plan.model is not None
    return models.registry.get(plan.model).make(**plan.hyper).parameters()


@pytest.mark.parametrize("cell", REPORTED, ids=lambda cell: f"{cell.source}-{cell.column}-{cell.task}")
def test_the_command_leads_to_the_figure(cell: reproduce.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(cell.command, monkeypatch)
    record = RunRecord(
        command=shlex.join(cell.command),
        task={"name": plan.task.name, "version": 1, "parameters": plan.task.parameters(), "metric": plan.task.metric},
        model={"name": plan.model, "parameters": hyper_of(plan), "count": None, "state_bytes": None},
        preset="paper",
        budget=plan.budget.parameters(),
        seed=0,
        environment={},
    )
    figure = reported_figure(record)
    assert figure is not None
    assert (figure.value, figure.metric, figure.source) == (cell.value, cell.metric, cell.source)
    assert figure.differs == "", "the table sets the figure beside the score"


@pytest.mark.parametrize("cell", OTHERS, ids=lambda cell: f"{cell.source}-{cell.column}-{cell.task}")
def test_other_commands_are_of_this_model_and_task(cell: reproduce.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(cell.command, monkeypatch)
    settings = {**plan.task.parameters(), **hyper_of(plan)}
    name, *said = cell.column.split(", ")
    assert (plan.model, plan.task.name) == (name, cell.task)
    assert all(str(settings[key]) == value for key, value in (part.split("=") for part in said))


@pytest.mark.parametrize("cell", [*REPORTED, *OTHERS], ids=lambda cell: f"{cell.source}-{cell.column}-{cell.task}")
def test_the_page_has_every_command(cell: reproduce.Cell) -> None:
    assert f"| {cell.task} | {cell.value:g} | `{shlex.join(cell.command)}` |" in PAGE


def test_budgets_are_those_of_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of the budgets that are written by hand, against the arithmetic that they come from."""
    commands = {(cell.source, cell.column, cell.task): cell.command for cell in REPORTED}
    short = plan_of(commands["DLR paper, Table 1", "dlr, layers=6, length=512", "shift"], monkeypatch).budget
    assert short.steps * short.batch_size == 43_200 * 16, "as many samples as at length 4096"
    wide = plan_of(commands["DLR paper, Table 3", "dlr, layers=6, res=256", "pathfinder"], monkeypatch).budget
    assert wide.steps == 40 * (80_000 // wide.batch_size), "40 epochs of 80,000 images"
    wider = plan_of(commands["DLR paper, Table 3", "dlr, layers=12, res=512", "pathfinder"], monkeypatch).budget
    assert wider.steps == 21 * (80_000 // wider.batch_size), "21 epochs of 80,000 images"
