"""What docs/suites.md says of suites is so; its commands are run by tests/docs."""

from __future__ import annotations

import re
from pathlib import Path

from lrtasks.budget import SHARED_BUDGET
from lrtasks.suite.expand import read_suite

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()


def test_the_number_of_shared_fields_of_the_budget_is_right() -> None:
    assert "eight fields of the budget](tables.md#tables)" in PAGE
    assert len(SHARED_BUDGET) == 8


def test_the_file_says_what_its_comments_say(tmp_path: Path) -> None:
    (text,) = re.findall(r"<<'EOF'\n(.*?)EOF", PAGE, flags=re.DOTALL)
    (tmp_path / "suite.toml").write_text(text)
    suite = read_suite(tmp_path / "suite.toml")
    assert [(run.model.name, run.task.name, run.seed) for run in suite.runs] == [
        ("dlr", "cumsum", 0),
        ("dlr", "cumsum", 1),
        ("attention", "cumsum", 0),
        ("attention", "cumsum", 1),
        ("dlr", "shift", 7),
    ]
    settings = {"task.length": 32, "model.kernel": "prod", "budget.steps": 20, "budget.test_batches": 2}
    assert suite.runs[-1].settings == settings
