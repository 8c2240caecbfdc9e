"""The documentation site builds without a warning, holds the published results, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from snippets import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("site")]
LOADED = {"link": "href", **dict.fromkeys(("audio", "embed", "iframe", "img", "script", "video"), "src")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; --strict makes a failure of every warning: dead links, pages missing from the menu."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


class Addresses(HTMLParser):
    """What a page loads, what it links to, and which anchors it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if LOADED.get(tag) in given:
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])


def pages(site: Path) -> Iterator[tuple[Path, Addresses]]:
    """The pages of the documentation; the report among them is tested by its own tests."""
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html" and page != site / "results" / "report.html":
            yield page, Addresses(page)


def test_one_process_makes_all_tests_of_the_site(request: pytest.FixtureRequest) -> None:
    """``--dist loadgroup`` finds the group of a test in its id."""
    assert request.node.nodeid.endswith("@site") == getattr(request.config.option, "loadgroup", False)


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = {(page.name, address) for page, seen in pages(site) for address in seen.loaded}
    assert found
    assert {(page, address) for page, address in found if re.match(r"(\w+:)?//", address)} == set()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\((\"|')?(https?:)?//", sheet.read_text()), sheet


def test_every_link_and_anchor_inside_is_there(site: Path) -> None:
    anchors = {page: seen.anchors for page, seen in pages(site)}
    for page, seen in pages(site):
        for address in [*seen.loaded, *seen.linked]:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.exists(), f"{page.relative_to(site)} leads to {address}"
            if parts.fragment and target in anchors:
                assert unquote(parts.fragment) in anchors[target] | {"__toc", "__search"}, f"{page}: {address}"


def test_it_holds_the_report(site: Path) -> None:
    assert (site / "results" / "report.html").stat().st_size < 10_000_000


def test_no_page_asks_for_what_nobody_puts_in(site: Path) -> None:
    asked = {page.name for page, _ in pages(site) if "<!-- chart" in page.read_text()}
    assert asked == set()


def test_search_finds_every_page(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    missing = [page for page, _ in pages(site) if f'"location":"{page.relative_to(site).as_posix()}"' not in index]
    assert missing == []


def test_pictures_stay_small() -> None:
    pictures = [path for kind in ("png", "svg", "jpg") for path in (ROOT / "docs").rglob(f"*.{kind}")]
    assert sum(path.stat().st_size for path in pictures) < 3_000_000
