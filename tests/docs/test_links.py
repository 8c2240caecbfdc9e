"""Relative links lead to files of the repository; mkdocs sees those within the site alone."""

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
