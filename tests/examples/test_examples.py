"""Every script and notebook of examples/ runs, and says what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lrtasks.generators import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
PLUGIN = EXAMPLES / "plugin"
ENVIRONMENT = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}


def run(script: str, folder: Path, *words: str) -> str:
    """What ``python SCRIPT WORDS`` prints."""
    environment = {**ENVIRONMENT, "HF_HOME": str(folder / "huggingface")}
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def scores(said: str) -> list[float]:
    """The R² scores of a text, in order."""
    return [float(score) for score in re.findall(r"R² (-?[\d.]+)", said)]


def test_numpy(tmp_path: Path) -> None:
    fitted, constant, copy = scores(run("generators_numpy.py", tmp_path))
    assert fitted > 0.99 > 0.5 > copy > constant
    assert list(tmp_path.iterdir()) == []


@pytest.mark.e2e
def test_jax(tmp_path: Path) -> None:
    learned, constant = scores(run("generators_jax.py", tmp_path))
    assert learned > 0.8 > 0.1 > constant


@pytest.mark.e2e
def test_own_module(tmp_path: Path) -> None:
    learned, constant = scores(run("own_module.py", tmp_path))
    assert learned > 0.8 > 0.1 > constant
    assert (tmp_path / "runs").is_dir()


@pytest.mark.e2e
def test_hugging_face(tmp_path: Path) -> None:
    said = run("hf_datasets.py", tmp_path, str(tmp_path / "sets"))
    assert said.splitlines() == [
        "stream: 3 samples with input_ids, labels",
        "in memory: 100 samples, tokens (100, 66)",
        "stored: train 960, validation 20, test 20",
    ]


def starts_of_lines(notebook: Any) -> list[str]:
    """The first word of each line that the cells print; scores and times may differ between machines."""
    printed = [
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.get("name") == "stdout"
    ]
    return [line.split()[0] for text in printed for line in text.splitlines() if line.strip()]


@pytest.mark.e2e
def test_notebook(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "tour.ipynb", 4)
    shown = [[output.output_type for output in cell.get("outputs", [])] for cell in notebook.cells]
    assert any(shown), "committed with outputs, which the documentation shows"
    # no history file in the user's folder, and nothing that a user's own profile says
    os.environ["IPYTHONDIR"] = str(tmp_path / "ipython")
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    text = "".join(output.get("text", "") for output in outputs)
    assert {"dlr", "RunningMean", "position", "shift"} <= set(text.split())
    made = [
        [output.output_type for output in cell.get("outputs", []) if output.get("name") != "stderr"]
        for cell in notebook.cells
    ]
    assert made == shown, "the committed outputs are of this notebook"
    assert starts_of_lines(notebook) == starts_of_lines(nbformat.read(EXAMPLES / "tour.ipynb", 4))
    assert {path.name for path in (tmp_path / "runs" / "tour").iterdir()} == {"cumsum", "shift"}


def test_everything_is_listed_in_the_readme() -> None:
    listed = set(re.findall(r"^\| \[`?([\w./]+)`?\]", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE))
    there = {path.name + "/" * path.is_dir() for path in EXAMPLES.iterdir()}
    ignored = {"README.md", "runs/", "data/", ".ruff_cache/"}
    assert listed == there - ignored


def test_the_template_tells_the_preset_that_was_run() -> None:
    parity = registry.get(f"{PLUGIN / 'src' / 'lrtasks_example' / 'parity.py'}:Parity")
    parameters, budget = parity.preset_values("small")
    said = f"({parameters['length']} bits, {budget['steps']} steps, one seed, a CPU)"
    assert said in (PLUGIN / "README.md").read_text()


def test_the_page_on_adding_quotes_the_template() -> None:
    page = EXAMPLES.parent / "docs" / "adding.md"
    quoted = tomllib.loads(page.read_text().split("```toml\n")[-1].split("```")[0])
    there = tomllib.loads((PLUGIN / "pyproject.toml").read_text())
    assert quoted["project"]["entry-points"] == there["project"]["entry-points"]
