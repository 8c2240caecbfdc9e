"""What every registered task must satisfy: a new task inherits these tests by being registered."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import lrtasks
from lrtasks.check.task import batch_digest
from lrtasks.generators import make, registry


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("name", registry.built_in())
def test_task_keeps_its_contract(name: str) -> None:
    lrtasks.check_task(make(name, preset="small"))


def digests() -> dict[str, str]:
    """Return the digest of a batch of every task."""
    return {name: batch_digest(make(name, preset="small").batch(range(4))) for name in registry.built_in()}


@pytest.mark.e2e
def test_another_process_makes_the_same_samples_without_torch() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"}
    other = subprocess.run([sys.executable, __file__], capture_output=True, check=True, env=environment)
    found, imported = json.loads(other.stdout)
    assert found == digests()
    assert "numpy" in imported and "torch" not in imported


def test_make_fills_in_a_preset() -> None:
    assert make("shift", preset="small").length == registry.get("shift").presets["small"]["length"]
    assert make("shift", preset="small", length=64).length == 64


if __name__ == "__main__":
    print(json.dumps([digests(), sorted(sys.modules)]))
