"""The command for an hour on a GPU, tried on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_hour.py"


def call(out: Path, only: str, minutes: float) -> str:
    words = ["--device", "cpu", "--tiny", "--out", str(out), "--only", only, "--minutes", str(minutes)]
    ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.e2e
def test_calls_continue_each_other(tmp_path: Path) -> None:
    only = "^model dlr$|resume|Table 2.*--kernel prod"
    assert call(tmp_path, only, 0.0).startswith("3 units are left")
    begun = call(tmp_path, only, 0.001)
    assert "goes on in the next call" in begun or "are left" in begun
    assert "nothing is left; 0 failed" in call(tmp_path, only, 5)
    done = json.loads((tmp_path / "gpu_hour.json").read_text())
    assert [outcome["status"] for outcome in done.values()] == ["done"] * 4
    assert done["model dlr"]["found"]["streaming"] < 1e-4
    (record,) = (tmp_path / "paper").rglob("record.json")
    assert json.loads(record.read_text())["budget"]["steps"] == 2


@pytest.mark.e2e
def test_a_unit_in_which_the_process_died_is_begun_once_more(tmp_path: Path) -> None:
    begun = {"model dlr": {"status": "begun", "tries": 1}, "model dss": {"status": "begun", "tries": 2}}
    (tmp_path / "gpu_hour.json").write_text(json.dumps(begun))
    said = call(tmp_path, "^model (dlr|dss)$", 1)
    assert said.startswith("done") and "1 failed\n  model dss: the process ended" in said


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    found = {"device": "another", "torch": "1.0", "tiny": True}
    (tmp_path / "gpu_hour.json").write_text(json.dumps({"machine": {"status": "done", "found": found}}))
    words = ["--device", "cpu", "--tiny", "--out", str(tmp_path)]
    ended = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "give another --out" in ended.stderr


def test_tables_begin_with_the_cheap_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_hour

    table1 = gpu_hour.commands("DLR paper, Table 1", "paper(?!.*--length)", tiny=False)
    assert len(table1) == 44
    assert [words[2] for words in table1[::11]] == ["dlr", "dss", "attention", "dlr"]
    assert all("--length" not in words for words in table1)
    table2 = gpu_hour.commands("DLR paper, Table 2", "--length 1048576", tiny=False)
    assert {words[2] for words in table2} == {"dlr", "dss", "sgconv"}
