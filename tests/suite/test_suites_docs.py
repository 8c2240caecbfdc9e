"""What docs/suites.md says of suites is so; its commands are run by tests/docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lrtasks.budget import SHARED_BUDGET
from lrtasks.suite.expand import read_suite

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "suites.md").read_text()


@pytest.mark.parametrize("name", SHARED_BUDGET)
def test_every_shared_field_of_the_budget_is_named(name: str) -> None:
    assert "eight fields of the budget](tables.md#tables)" in PAGE
    assert len(SHARED_BUDGET) == 8
    assert f"`{name}`" in (DOCS / "tables.md").read_text().split("must agree in ")[1].split(".")[0]


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
