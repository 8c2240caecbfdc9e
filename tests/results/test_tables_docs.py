"""What docs/tables.md says of tables and intervals is so."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy import stats

from lrtasks.results.compare import ENOUGH_TASKS
from lrtasks.results.settings import SHARED_BUDGET

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tables.md").read_text()


def test_the_table_is_what_the_command_prints(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    ((words, shown),) = re.findall(r"```bash\nlrtasks ([^\n]*)\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
    assert command(*words.split()).out == shown


def test_the_factors_are_students() -> None:
    three, two = (stats.t.ppf(0.975, count - 1) for count in (3, 2))
    page = " ".join(PAGE.split())
    assert f"{three:.2f} standard errors for three seeds and {two:.1f} for two" in page
    assert f"{three / 3**0.5:.1f} times its standard deviation" in page


def test_the_smallest_number_of_tasks_is_right() -> None:
    assert "With fewer than six tasks that differ, p cannot be below 0.05" in " ".join(PAGE.split())
    assert ENOUGH_TASKS == 6
    assert 2 / 2**ENOUGH_TASKS < 0.05 < 2 / 2 ** (ENOUGH_TASKS - 1)


def test_every_shared_field_of_the_budget_is_named() -> None:
    (named,) = re.findall(r"must agree in these fields of the budget: ([^.]*)\.", PAGE)
    assert set(re.findall(r"`(\w+)`", named)) == set(SHARED_BUDGET)
