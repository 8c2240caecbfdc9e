"""What MkDocs does while it builds the site: make the report of the published runs, and put their scores into pages.

A page asks for scores by a comment, ``<!-- scores: task shift -->`` or ``<!-- scores: models dlr dss -->``, and for the
heat map of all of them by ``<!-- heat map -->``.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import scores
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPORT = "results/report.html"
HEAT_MAP = "results/heat_map.svg"
DOCS = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\[\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")
_SCORES = re.compile(r"^<!-- scores: (\w+) (.+?) -->$", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the report of all published runs, and the heat map of those at the preset ``small``."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _report(scores.RESULTS, "--unequal-budgets", "--out", str(folder / "report.html"))
        _report(scores.SMALL, "--out", str(folder / "small.html"), "--heat-map", str(folder / "heat_map.svg"))
        files.append(File.generated(config, REPORT, content=(folder / "report.html").read_text()))
        files.append(File.generated(config, HEAT_MAP, content=(folder / "heat_map.svg").read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Put scores and heat map where a page asks for them, and leave of links to files of the repository their words."""
    with_scores = _SCORES.sub(lambda match: scores.KINDS[match[1]](match[2].split()), markdown)
    with_map = with_scores.replace("<!-- heat map -->", f"![Scores above the floor, tasks by models]({HEAT_MAP})")
    return _LINK.sub(lambda match: match[1] if _leaves_the_site(page, match[2]) else match[0], with_map)


def _leaves_the_site(page: Page, address: str) -> bool:
    target = (Path(page.file.abs_src_path or "").parent / address).resolve()
    return target.exists() and not target.is_relative_to(DOCS)


def _report(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "lrtasks", "report", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise PluginError(f"lrtasks report failed: {ended.stderr.strip()}")
