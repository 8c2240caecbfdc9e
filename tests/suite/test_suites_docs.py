"""What docs/suites.md says of suites is so; its commands are run by tests/docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lrtasks.results.settings import SHARED_BUDGET
from lrtasks.suite.suite_file import read_suite

PAGE = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()


@pytest.mark.parametrize("name", SHARED_BUDGET)
def test_every_shared_field_of_the_budget_is_named(name: str) -> None:
    assert f"`{name}`" in PAGE.split("## Equal budgets")[1].split(".")[0]


def test_the_file_says_what_its_comments_say(tmp_path: Path) -> None:
    (text,) = re.findall(r"<<'EOF'\n(.*?)EOF", PAGE, flags=re.DOTALL)
    (tmp_path / "suite.toml").write_text(text)
    suite = read_suite(tmp_path / "suite.toml")
    assert [(entry.model, entry.task, entry.seed) for entry in suite.entries] == [
        ("dlr", "cumsum", 0),
        ("dlr", "cumsum", 1),
        ("attention", "cumsum", 0),
        ("attention", "cumsum", 1),
        ("dlr", "shift", 7),
    ]
    assert suite.entries[-1].settings == {"steps": 20, "test_batches": 2, "length": 32, "kernel": "prod"}
