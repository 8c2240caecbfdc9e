"""The template package, installed as a user would: its task and model are there in every command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_packages import write_package
from snippets import blocks

from lrtasks.results import read_record

pytestmark = pytest.mark.e2e
PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
TINY = ("--steps", "3", "--batch-size", "2", "--val-batches", "1", "--test-batches", "1", "--device", "cpu")
SMALL = ("--length", "16", "--d-model", "8")

Call = Callable[..., subprocess.CompletedProcess[str]]


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


@pytest.fixture(scope="module")
def call(site: Path, folder: Path) -> Call:
    """``call("list")`` as ``lrtasks list``, with the template installed or not."""

    def run(*words: str, module: str = "lrtasks", installed: bool = True) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(site) if installed else ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{words}\n{ended.stderr}"
        return ended

    return run


def test_its_own_tests_pass(call: Call, source: Path) -> None:
    said = call("--doctest-modules", str(source), module="pytest").stdout
    assert "test_example.py ...." in said and "parity.py ." in said


@pytest.fixture(scope="module")
def shown(call: Call) -> list[tuple[str, str]]:
    """The commands of its README, those that train cut short, and what each printed."""
    lines = [line for block in blocks(PLUGIN / "README.md") for line in block.code.splitlines()]
    commands = [line for line in lines if line.startswith("lrtasks ")]
    said = []
    for command in commands:
        words = command.split()[1:]
        trained = words[0] in ("eval", "suite")
        said.append((command, call(*words, *(TINY if trained else ())).stdout))
    return said


def said_by(shown: list[tuple[str, str]], start: str) -> str:
    return next(said for command, said in shown if command.startswith(start))


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
    assert set(signed.baselines) == {"majority", "last-bit"}
    assert {row["label"] for row in signed.slices["ones"]} <= {0, 1, 2, 4, 8, 16, 32, 64}
    assert '"flips": 0.0' in json.dumps(positive.diagnostics)
    assert '"flips": 0.' in json.dumps(signed.diagnostics) and '"flips": 0.0,' not in json.dumps(signed.diagnostics)
    for command in ("lrtasks suite", "lrtasks table"):
        assert {"parity", "cumsum", "gated-recurrence", "dlr"} <= set(said_by(shown, command).split())
    page = (folder / "page.html").read_text()
    assert "gated-recurrence" in page and "parity" in page


@pytest.mark.usefixtures("shown")
def test_its_records_are_readable_where_it_is_not_installed(call: Call, folder: Path) -> None:
    for model in ("gated-recurrence", "dlr"):  # dlr itself is there, its task is not
        run = next((folder / "runs" / "parity").glob(f"{model}-*"))
        assert "ones" in call("analyze", str(run), installed=False).stdout
    assert "gated-recurrence" in call("table", installed=False).stdout
    call("report", "runs", "-o", "other.html", installed=False)
    assert "gated-recurrence" in (folder / "other.html").read_text()


def test_a_suite_leaves_broken_models_out_and_says_why(site: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "bad", "bad", {"broken.py": "import no_such_module\n"}, models={"lost": "broken:Model"})
    words = ("--models", "lost,attention", "--tasks", "cumsum,parity", *SMALL, *TINY)
    ended = subprocess.run(
        [sys.executable, "-m", "lrtasks", "suite", *words, "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(tmp_path / "bad")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [record["model"]["name"] for record in json.loads(ended.stdout)] == ["attention", "attention"]
    reason = "model 'lost' from broken:Model (package bad) cannot be imported: ModuleNotFoundError: "
    assert f"skipped: lost on cumsum, parity: {reason}" in ended.stderr
