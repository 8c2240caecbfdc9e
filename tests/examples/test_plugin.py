"""The template package, installed as a user would: its task and model are there in every command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from plugin_packages import importable
from snippets import blocks, call

from lrtasks.results import read_record

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plugin")]
PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
TINY = ("--steps", "3", "--batch-size", "2", "--val-batches", "1", "--test-batches", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the template: building and testing leave files behind."""
    copied = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(PLUGIN, copied, ignore=shutil.ignore_patterns("__pycache__", "dist"))
    return copied


@pytest.fixture(scope="module")
def site(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the template installed."""
    folder = tmp_path_factory.mktemp("site")
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(source)], check=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are given."""
    return tmp_path_factory.mktemp("work")


@contextmanager
def working(folder: Path, *sites: Path) -> Iterator[None]:
    """In this folder, with the packages of ``sites`` installed."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.chdir(folder)
        for site in sites:
            stack.enter_context(importable(site, patch))
            patch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)  # for the runs of a suite
        yield


def said(*words: str, folder: Path) -> str:
    """What ``lrtasks WORDS`` says."""
    code, text = call(shlex.join(["lrtasks", *words]), folder)
    assert code == 0, f"{words}\n{text}"
    return text


def test_its_own_tests_pass(site: Path, source: Path) -> None:
    words = [sys.executable, "-m", "pytest", "--doctest-modules", str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    ended = subprocess.run(words, cwd=source, env=environment, capture_output=True, text=True, check=True)
    assert "test_example.py ...." in ended.stdout and "parity.py ." in ended.stdout


@pytest.fixture(scope="module")
def shown(site: Path, folder: Path) -> list[tuple[str, str]]:
    """The commands of its README, those that train cut short, and what each printed."""
    lines = [line for block in blocks(PLUGIN / "README.md") for line in block.code.splitlines()]
    found = []
    with working(folder, site):
        for words in (line.split() for line in lines if line.startswith("lrtasks ")):
            trained = words[1] in ("eval", "suite")
            found.append((" ".join(words), said(*words[1:], *(TINY if trained else ()), folder=folder)))
    return found


def said_by(shown: list[tuple[str, str]], start: str) -> str:
    return next(text for command, text in shown if command.startswith(start))


def test_what_it_brings_is_listed_described_drawn_and_checked(shown: list[tuple[str, str]], folder: Path) -> None:
    assert {"parity", "gated-recurrence"} <= set(said_by(shown, "lrtasks list").split())
    assert "0 1 1 0 1 have the targets 0 1 0 0 1" in said_by(shown, "lrtasks describe parity")
    bits, parities = said_by(shown, "lrtasks preview parity --length 16").splitlines()[:2]
    assert len(bits) == len(parities) == 31
    assert (folder / "parity.png").stat().st_size > 1000
    assert said_by(shown, "lrtasks check parity") == "task parity: no problems found\n"
    assert said_by(shown, "lrtasks check gated-recurrence").endswith("model gated-recurrence: no problems found\n")


def test_it_is_trained_tabled_and_reported(shown: list[tuple[str, str]], folder: Path) -> None:
    runs = [read_record(path) for path in (folder / "runs" / "parity").iterdir()]
    (signed,) = (run for run in runs if run.model["parameters"].get("gates") == "signed")
    (positive,) = (run for run in runs if run.model["parameters"].get("gates") == "positive")
    assert not [note for run in (signed, positive) for note in run.notes if "state_dict" in note]
    assert set(signed.baselines) == {"majority", "last-bit"}
    assert {row["label"] for row in signed.slices["ones"]} <= {0, 1, 2, 4, 8, 16, 32, 64}
    assert '"flips": 0.0' in json.dumps(positive.diagnostics)
    assert '"flips": 0.' in json.dumps(signed.diagnostics) and '"flips": 0.0,' not in json.dumps(signed.diagnostics)
    for command in ("lrtasks suite", "lrtasks table"):
        assert {"parity", "cumsum", "gated-recurrence", "dlr"} <= set(said_by(shown, command).split())
    page = (folder / "page.html").read_text()
    assert "gated-recurrence" in page and "parity" in page


@pytest.mark.usefixtures("shown")
def test_its_records_are_readable_where_it_is_not_installed(folder: Path) -> None:
    with working(folder):
        for model in ("gated-recurrence", "dlr"):  # dlr itself is there, its task is not
            run = next((folder / "runs" / "parity").glob(f"{model}-*"))
            assert "ones" in said("analyze", str(run), folder=folder)
        assert "gated-recurrence" in said("table", folder=folder)
        said("report", "runs", "-o", "other.html", folder=folder)
    assert "gated-recurrence" in (folder / "other.html").read_text()
