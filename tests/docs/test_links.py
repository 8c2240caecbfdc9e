"""Pages as GitHub shows them: links lead to files of the repository, and formulas are displayed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from snippets import ROOT

BUILT = {"results/report.html", "tour.md"}
"""What only the built site has."""
PAGES = [
    ROOT / "README.md",
    *sorted(page for name in ("benchmarks", "docs", "examples", "results") for page in (ROOT / name).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    addresses = re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose)
    inside = [address for address in addresses if not re.match(r"\w+:", address) and address not in BUILT]
    assert [address for address in inside if not (page.parent / address).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_github_displays_the_formulas(page: Path) -> None:
    r"""GitHub refuses ``\operatorname``; Markdown drops a backslash before punctuation, and a line may begin a list."""
    assert "\\operatorname" not in page.read_text()
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1|`[^`]+`|^ {4}.*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = [formula for part in prose.split("\n\n") for formula in re.findall(r"\$([^$]+)\$", part)]
    assert [formula for formula in found if re.search(r"\n|\\[^\w\s]", formula)] == []
