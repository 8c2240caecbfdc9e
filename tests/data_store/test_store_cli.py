"""``lrtasks generate`` and ``lrtasks data``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_tasks import Few

from lrtasks.cli.data import default_folder
from lrtasks.data import open_dataset
from lrtasks.errors import UsageError
from lrtasks.generators import make, registry

Command = Callable[..., Any]


def test_generate_info_verify(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "set")
    options = "--length 16 --set shifts=4 --samples 20 --split 0.5,0.25,0.25 --seed 7 --workers 1"
    code, stdout, stderr = command("generate", "shift", *options.split(), "--out", out, "--json")
    summary = json.loads(stdout)
    assert code == 0 and summary["counts"] == {"train": 10, "val": 5, "test": 5} and summary["seed"] == 7
    assert summary["parameters"] == {"length": 16, "shifts": 4} and "samples/s" in stderr
    code, stdout, _ = command("data", "info", out, "--json")
    assert code == 0 and json.loads(stdout) == summary
    code, stdout, _ = command("data", "info", out)
    assert "length 16, shifts 4" in stdout and "train 10, val 5, test 5" in stdout
    assert command("data", "verify", out)[:2] == (0, f"{out}: whole and unchanged\n")
    (tmp_path / "set" / "test-00000-of-00001.parquet").unlink()
    code, stdout, _ = command("data", "verify", out)
    assert code == 1 and stdout == "test-00000-of-00001.parquet is missing\n"
    code, stdout, _ = command("data", "verify", out, "--json")
    assert code == 1 and not json.loads(stdout)["whole"]


OWN = """
from dataclasses import dataclass

import numpy as np

from lrtasks.generators import Sample, Spec, Task


@dataclass(frozen=True)
class Own(Task):
    input = target = Spec("token", 4, 5)
    loss, metric = "cross-entropy", "accuracy"

    def sample(self, rng):
        x = rng.integers(5, size=4)
        return Sample(x, (x + 1) % 5)
"""


def test_data_of_an_edited_task_are_refused(command: Command, tmp_path: Path) -> None:
    file, out = tmp_path / "own.py", tmp_path / "set"
    file.write_text(OWN)
    words = ("generate", f"{file}:Own", "--samples", "20", "--workers", "1", "--out", str(out))
    assert command(*words).code == 0
    before = registry.get(f"{file}:Own")
    assert open_dataset(out).task_as(before).identity() == before().identity()
    file.write_text(OWN.replace("x + 1", "x + 2"))
    said = command(*words)
    assert said.code == 2 and "holds old data: Own or a file that it imports was edited" in said.err
    with pytest.raises(UsageError, match="holds old data: Own or a file that it imports was edited"):
        open_dataset(out).task_as(registry.get(f"{file}:Own"))


def test_default_folder_is_named(command: Command, tmp_path: Path) -> None:
    _, stdout, _ = command(*["generate", "shift", "--length", "16", "--samples", "10", "--workers", "1"])
    assert stdout.startswith("data/shift-length16-10-seed0: 8 train, 1 val, 1 test samples")
    assert (tmp_path / "data" / "shift-length16-10-seed0" / "manifest.json").exists()
    words = ("--length", "32", "--samples", "10", "--workers", "1", "--format", "npy", "--out", "set", "--json")
    summary = json.loads(command("generate", "mqar@small", *words)[1])
    expected = {**make("mqar", preset="small").parameters(), "length": 32}
    assert (summary["parameters"], summary["format"]) == (expected, "npy")


def test_a_default_folder_is_below_data() -> None:
    class Slashed(Few):
        name = "a/../b"

    assert default_folder(Slashed(), 10, 3) == "data/a-..-b-10-seed3"
