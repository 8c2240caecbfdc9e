"""``lrtasks report``: what it writes, and what it says when it cannot."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_records import made
from report_pages import parse, trained, write_runs

Command = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("samples_drawn_once")


def test_a_page_is_written(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", trained(), made(task="sort"))
    said = command("report", "-o", "page.html")
    assert (said.code, said.out, said.err) == (0, "wrote page.html\n", "")
    assert "shift" in parse((tmp_path / "page.html").read_text()).one("main").text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "runs"]


def test_several_folders_make_one_page(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "a", made())
    write_runs(tmp_path / "b", made(task="sort"))
    assert command("report", "a", "b").code == 0
    assert "1 model on 2 tasks: 2 runs done." in parse((tmp_path / "report.html").read_text()).one("main").text()


def test_what_is_left_out_is_said_and_listed(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made())
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "record.json").write_text("{")
    said = command("report")
    assert said.code == 0
    assert said.err.startswith("lrtasks: left out: runs/bad/record.json is damaged") and said.err.count("\n") == 1
    page = parse((tmp_path / "report.html").read_text())
    assert "runs/bad/record.json is damaged" in page.one(id="left-out").text()
    assert page.one("a", href="#left-out").text() == "1 file left out."
    assert page.one("p", class_="lede").text().split()[-5:] == ["done.", "1", "file", "left", "out."]


def test_an_old_page_is_replaced(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made())
    (tmp_path / "report.HTM").write_text("old")
    assert command("report", "-o", "report.HTM").code == 0
    assert (tmp_path / "report.HTM").read_text().startswith("<!doctype html>")


MISTAKES = {
    ("report",): "no results folder at runs",
    ("report", "empty"): "no run records below empty",
    ("report", "full", "nowhere"): "no results folder at nowhere",
    ("report", "nowhere", "-o", "away/page.html"): "cannot write away/page.html: there is no folder away",
    ("report", "full", "-o", "file/page.html"): "cannot write file/page.html: there is no folder file",
    ("report", "full", "-o", "empty"): "cannot write empty: Is a directory",
    ("report", "full", "-o", "/proc/page.html"): "cannot write /proc/page.html: ",
    ("report", "unequal"): "unequal budgets on shift: steps is",
    ("report", "bad"): "no run records below bad that can be read; 1 cannot: bad/record.json is damaged",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_said_in_one_line(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "record.json").write_text("{")
    write_runs(tmp_path / "full", made())
    write_runs(tmp_path / "unequal", made(), made(model="dss", budget={"steps": 5}))
    before = sorted(tmp_path.rglob("*"))
    said = command(*words)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"lrtasks: {MISTAKES[words]}")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_unequal_budgets_can_be_asked_for(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made(), made(model="dss", budget={"steps": 5}))
    assert command("report", "--unequal-budgets").code == 0
    assert "steps=5" in (tmp_path / "report.html").read_text()


def test_a_link_is_written_through(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "page.html").write_text("old")
    (tmp_path / "report.html").symlink_to("there/page.html")
    assert command("report").code == 0
    assert (tmp_path / "report.html").is_symlink()
    assert (tmp_path / "there" / "page.html").read_text().startswith("<!doctype html>")


def test_a_link_in_a_results_folder_is_not_written_through(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made())
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "runs" / "report.html").symlink_to(tmp_path / "precious")
    said = command("report", "-o", "runs/report.html")
    assert (said.code, (tmp_path / "precious").read_text()) == (2, "mine")
    assert "is a link in a results folder" in said.err


def test_a_pipe_is_written_into(command: Command, tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", made())
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    assert command("report", "-o", "pipe").code == 0
    reader.join(120)
    assert read[0].startswith("<!doctype html>") and read[0].rstrip().endswith("</html>")
    assert (tmp_path / "pipe").is_fifo()
