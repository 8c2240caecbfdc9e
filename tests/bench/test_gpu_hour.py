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
    assert [outcome["status"] for outcome in done.values()] == ["done"] * 3
    assert done["model dlr"]["found"]["streaming"] < 1e-4
    (record,) = (tmp_path / "paper").rglob("record.json")
    assert json.loads(record.read_text())["budget"]["steps"] == 2


@pytest.mark.e2e
def test_a_unit_in_which_the_process_died_is_not_begun_again(tmp_path: Path) -> None:
    (tmp_path / "gpu_hour.json").write_text(json.dumps({"model dlr": {"status": "begun"}}))
    assert "1 failed\n  model dlr: the process ended" in call(tmp_path, "^model dlr$", 1)


def test_tables_begin_with_the_cheap_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_hour

    table1 = gpu_hour.commands("DLR paper, Table 1", "paper(?!.*--length)", tiny=False)
    assert len(table1) == 44
    assert [words[2] for words in table1[::11]] == ["dlr", "dss", "attention", "dlr"]
    assert all("--length" not in words for words in table1)
    table2 = gpu_hour.commands("DLR paper, Table 2", "--length 1048576", tiny=False)
    assert {words[2] for words in table2} == {"dlr", "dss", "sgconv"}
