"""``lrtasks profile``: what it runs, what it says, and that it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretend import Pretend, settings_of

from lrtasks.generators.fingerprint import instances
from lrtasks.machine import cores

Command = Callable[..., Any]
SMALL = ("--tasks", "cumsum,shift,word-problem@a5", "--length", 16, "--published", "other")


@pytest.fixture(autouse=True)
def other(command: Command, pretend: Pretend) -> None:
    """Published runs of other models, in the folder ``other``."""
    models = ("--models", "dss,attention", "--tasks", "cumsum,shift,word-problem@a5", "--length", 16)
    assert command("suite", *models, "--out", "other").code == 0
    pretend.jobs.clear()


def test_rates_are_selected_and_groups_printed_beside_the_published(command: Command, pretend: Pretend) -> None:
    said = command("profile", "--model", "dlr", *SMALL)
    assert said.code == 0
    assert len(pretend.jobs) == 3 * (3 + 2)
    assert "9 waiting; time left unknown" in said.err
    lines = {line.split("  ")[0]: line for line in said.out.splitlines()}
    assert "0.97" in lines["copying"] and "3/3" in lines["copying"] and "1 of 10" in lines["copying"]
    assert "0 of 2" in lines["capacity"]
    assert "nearest published model: attention, distance 0.00 over 3 instances" in said.out
    (found,) = json.loads(command("profile", "--model", "dlr", *SMALL, "--json").out)
    assert len(pretend.jobs) == 15, "nothing runs again"
    assert found["groups"]["state"]["cells"][0]["instance"] == "word-problem@a5"
    assert found["groups"]["state"]["cells"][0]["selected"] == {"lr": 0.0003}
    assert (found["nearest"], {other["model"] for other in found["published"]}) == ("attention", {"dss", "attention"})


def test_quick_is_one_seed_at_one_rate_of_two_instances_per_group(command: Command, pretend: Pretend) -> None:
    assert command("profile", "--model", "dlr", "--quick", "--published", "other").code == 0
    asked = [job.arguments[job.arguments.index("--task") + 1] for job in pretend.jobs]
    assert sorted(asked) == sorted(instances(quick=True)) and len(asked) == 14
    assert all(settings_of(list(job.arguments)) == {"budget.stop_solved": True} for job in pretend.jobs)


def test_the_options_of_a_profile_reach_its_runs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("lrtasks.suite.backends.make_backend", lambda _, options: options)
    monkeypatch.setattr("lrtasks.cli.runs.execute", lambda wanted, **how: asked.update(how, wanted=wanted) or 0)
    where = ("--folder", "mine", "--device", "cpu", "--time-limit", 7, "--jobs", 5, "--dry-run")
    command("profile", "--model", "dlr", "--quick", *SMALL, "--preset", "paper", "--seeds", 2, *where)
    assert [(run.task.name, run.preset, run.seed) for run in asked["wanted"].runs][2:4] == [
        ("shift", "paper", 0),
        ("shift", "paper", 1),
    ]
    expected = {"out": Path("mine"), "device": "cpu", "time_limit": 7, "dry_run": True, "backend": {"jobs": 5}}
    assert asked.items() >= expected.items()


def test_the_label_shows_the_hyper_parameters_that_the_user_set(command: Command) -> None:
    chosen = ("--model", "dlr,gru", "--set", "dlr.d_state=16", "--layers", 1, "--json", "--seeds", 1)
    profiles = json.loads(command("profile", *chosen, *SMALL, "--lr", "1e-3").out)
    assert [one["model"] for one in profiles] == ["dlr (d_state=16, layers=1)", "gru (layers=1)"]
    chosen = ("--model", "hybrid", "--set", "layers=gla:2,attention:1", "--set", 'hyper=["attention.heads=2"]')
    profiles = json.loads(command("profile", *chosen, *SMALL, "--seeds", 1, "--json").out)
    assert [one["model"] for one in profiles] == ["hybrid (attention.heads=2, layers=gla:2,attention:1)"]
    selected = json.loads(command("profile", "--model", "dlr", "--d-state", "8,16", *SMALL, "--json").out)
    assert [one["model"] for one in selected] == ["dlr"], "validation selected the value"


def test_help_shows_the_number_of_parallel_runs(command: Command) -> None:
    assert f"slurm: 256 (default: {min(2, cores())})" in " ".join(command("profile", "--help").out.split())


def test_a_run_that_crashes_leaves_the_rest_of_the_profile(command: Command, pretend: Pretend) -> None:
    pretend.failing = {"shift"}
    said = command("profile", "--model", "dlr,s4d", *SMALL, "--lr", 1e-3, "--seeds", 1)
    assert said.code == 1
    assert "lrtasks: s4d on shift length=16 lr=0.001 seed 0: failed: killed by SIGKILL" in said.err
    lines = [line for line in said.out.splitlines() if line.startswith(("copying", "latching"))]
    assert [("0.97" in line, "0 of 10" in line) for line in lines] == 2 * [(False, True), (True, False)]


def test_an_interrupted_profile_goes_on(command: Command, pretend: Pretend) -> None:
    words = ("profile", "--model", "dlr", *SMALL, "--lr", "1e-3,3e-3", "--seeds", 2)
    for stop in (4, 7):  # while the rates are tried, and while the second seed runs
        pretend.stop_after = stop
        said = command(*words)
        assert (said.code, said.out) == (1, "")
        assert said.err.splitlines()[-1] == "lrtasks: interrupted; give the same command again to continue"
    pretend.stop_after = None
    assert command(*words).code == 0
    assert len(pretend.jobs) == len(set(pretend.jobs)) == 3 * (2 + 1)


@pytest.mark.parametrize(("name", "start"), [("p.svg", b"<?xml"), ("p.pdf", b"%PDF"), ("p.html", b"<!doctype html>")])
def test_the_profile_is_drawn(command: Command, name: str, start: bytes) -> None:
    said = command("profile", "--model", "dlr", *SMALL, "--lr", 1e-3, "--seeds", 1, "-o", name)
    assert said.code == 0 and said.err.endswith(f"wrote {name}\n")
    content = Path(name).read_bytes()
    assert content.startswith(start)
    if name == "p.html":
        assert b"<svg" in content and b"nearest published model: attention" in content
        assert content.count(b'<div class="wide">') == 3, "the drawing and two tables scroll in boxes of their own"


def test_a_folder_in_the_place_of_the_drawing_is_refused_before_training(command: Command) -> None:
    Path("drawn.svg").mkdir()
    assert command("profile", "--model", "dlr", *SMALL, "-o", "drawn.svg").code == 2
    assert not Path("runs").exists()


def test_a_drawing_that_cannot_be_written_is_refused_before_training(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != Path() and allowed(path, mode))
    assert command("profile", "--model", "dlr", *SMALL, "-o", "drawn.svg").code == 2
    assert not Path("runs").exists()
