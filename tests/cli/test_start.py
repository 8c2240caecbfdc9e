"""What a command imports before it is needed: nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.e2e
HEAVY = {
    *("torch", "numpy", "scipy", "pandas", "matplotlib"),
    *("lightning_fabric", "torchmetrics", "pyarrow", "numba", "PIL"),
}


def imported(code: str) -> set[str]:
    """Modules that are there after ``code`` in a new interpreter."""
    report = "import sys; print('\\n' + ' '.join(sys.modules))"
    guarded = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\n{report}"
    ended = subprocess.run([sys.executable, "-c", guarded], capture_output=True, text=True, check=True)
    return set(ended.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["eval", "--help"], ["table", "--help"], ["data", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    found = imported(f"sys.argv[1:] = {words}; from lrtasks.cli import main; main()")
    assert "lrtasks" in found and "typer" in found
    assert not found & HEAVY


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["eval", "--task", "shift", "--model", "dlrr"],
        ["eval", "--task", "shift", "--model", "nofile.py:Layer"],
        ["bench", "--models", "dlrr"],
    ],
)
def test_a_list_and_a_wrong_model_import_no_torch(words: list[str]) -> None:
    found = imported(f"sys.argv[1:] = {words}; from lrtasks.cli import main; main()")
    assert "lrtasks" in found
    assert not found & (HEAVY - {"numpy"})


def test_a_command_imports_no_other_command() -> None:
    found = imported("sys.argv[1:] = ['eval', '--help']; from lrtasks.cli import main; main()")
    assert "lrtasks.cli.runs" in found
    assert not {"lrtasks.cli.suites", "lrtasks.cli.bench", "lrtasks.cli.data", "lrtasks.suite.backends"} & found


def test_a_run_imports_fabric_without_torchmetrics() -> None:
    found = imported("from lrtasks.evaluation.environment import make_fabric; make_fabric('cpu', '32')")
    assert "lightning_fabric" in found
    assert not found & {"torchmetrics", "matplotlib", "pytorch_lightning"}


def test_tables_import_no_matplotlib() -> None:
    assert "matplotlib" not in imported("import lrtasks.results.profile, lrtasks.results.table")
