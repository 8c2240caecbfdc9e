"""What a report reads, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_records import made
from report_pages import trained, write_runs

from lrtasks.errors import UsageError
from lrtasks.results.report import read_sources


def broken(folder: Path, change: dict[str, Any]) -> Path:
    """A record in ``folder`` with some fields replaced by something else."""
    content = json.loads(trained().to_json())
    for path, value in change.items():
        *owners, name = path.split(".")
        place = content
        for owner in owners:
            place = place[owner]
        place[name] = value
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(content))
    return folder


BROKEN: dict[str, dict[str, Any]] = {
    "'name'": {"task.name": 5},
    "'task'": {"task.parameters": [256]},
    "'model'": {"model.count": "many"},
    "'budget'": {"budget.steps": "2000"},
    "'scores'": {"scores.test": {"r2": "0.9"}},
    "'baselines'": {"baselines": {"copy": 0.2}},
    "'curve' has": {"curve": [[1, 2]]},
    "'curve'": {"curve": [{"loss": 0.5}]},
    "'curve' has entries": {"curve": [{"step": float("nan")}]},
    "'slices' has": {"slices": {"position": [{"label": 0}]}},
    "'slices'": {"slices": {"position": {"label": 0, "r2": 1}}},
    "'cost'": {"cost.seconds_per_step": "fast"},
    "'cost' has": {"cost.peak_memory_bytes": "much"},
    "'notes'": {"notes": [{"html": 1}]},
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_record_of_another_form_is_left_out_and_named(tmp_path: Path, said: str) -> None:
    broken(tmp_path / "broken", BROKEN[said])
    write_runs(tmp_path / "whole", made())
    sources = read_sources([tmp_path])
    assert len(sources.runs) == 1
    (line,) = sources.left_out
    assert str(tmp_path / "broken") in line and said in line


def test_a_whole_record_is_not_left_out(tmp_path: Path) -> None:
    broken(tmp_path / "whole", {})
    assert read_sources([tmp_path]).left_out == ()


def test_what_cannot_be_parsed_is_left_out(tmp_path: Path) -> None:
    write_runs(tmp_path, made())
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "record.json").write_text('{"schema": 1')
    sources = read_sources([tmp_path])
    assert len(sources.runs) == 1
    assert "is damaged" in sources.left_out[0]


def test_numbers_that_are_not_finite_become_none(tmp_path: Path) -> None:
    broken(
        tmp_path / "run",
        {"scores.test": {"r2": float("nan")}, "baselines.copy.r2": -1e101, "curve": [{"step": 1, "r2": float("-inf")}]},
    )
    ((_, record),) = read_sources([tmp_path]).runs
    assert record.scores["test"] == {"r2": None} and record.baselines["copy"]["r2"] is None
    assert record.curve == [{"step": 1, "r2": None}]


def test_a_folder_counts_once(tmp_path: Path) -> None:
    write_runs(tmp_path / "a", made())
    assert len(read_sources([tmp_path, tmp_path / "a", tmp_path / "a" / ".." / "a"]).runs) == 1


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^no run records below {tmp_path}$"):
        read_sources([tmp_path])
    broken(tmp_path / "broken", {"task.name": 5})
    with pytest.raises(UsageError, match=r"1 cannot: .*broken"):
        read_sources([tmp_path])
