"""A run that is killed at odd moments ends with exactly the figures of one that nobody disturbed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from quick_runs import outcome

from lrtasks.results import read_records

HERE = Path(__file__).parent


def outcome_below(out: Path) -> dict[str, object]:
    ((folder, record),), problems = read_records(out)
    assert problems == []
    assert sorted(path.name for path in folder.iterdir()) == ["record.json", "weights.pt"]
    return outcome(record)


@pytest.mark.e2e
def test_a_killed_run_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE.parent / "killing.py"), str(tmp_path)]
    script = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert script.returncode == 0, script.stderr
    reports = json.loads(script.stdout)
    assert reports.keys() == {"fresh", "worker"}
    for case, report in reports.items():
        assert report["killed"] >= 6
        # killed before its first checkpoint was in place, the run began anew; from then on it went on
        assert report["starts"][:2] == [0, 0]
        assert report["starts"] == sorted(report["starts"])
        assert report["starts"][-1] > 10
        assert outcome_below(tmp_path / case / "killed") == outcome_below(tmp_path / case / "unbroken")
