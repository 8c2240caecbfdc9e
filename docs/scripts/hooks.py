"""What MkDocs does while it builds the site: make the report of published runs, fill in scores, set formulas.

A page asks for scores by a comment, ``<!-- scores: task shift -->`` or ``<!-- scores: models dlr dss -->``.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import scores
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPORT = "results/report.html"
DOCS = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\[\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
_SCORES = re.compile(r"^<!-- scores: (\w+) (.+?) -->$", re.MULTILINE)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the report of all published runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        words = ["report", str(scores.RESULTS), "--unequal-budgets", "--out", str(path)]
        ended = subprocess.run([sys.executable, "-m", "lrtasks", *words], capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise PluginError(f"lrtasks report failed: {ended.stderr.strip()}")
        files.append(File.generated(config, REPORT, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Put scores where a page asks for them, and leave of links to files of the repository their words."""
    with_scores = _SCORES.sub(lambda match: scores.KINDS[match[1]](match[2].split()), markdown)
    return _LINK.sub(lambda match: match[1] if _leaves_the_site(page, match[2]) else match[0], with_scores)


def on_page_content(content: str, *, page: Page, **_: object) -> str:
    """Write formulas as MathML, which browsers draw by themselves."""
    return _FORMULA.sub(lambda match: _mathml(match[2], page, display=match[1] == "div"), content)


def _mathml(formula: str, page: Page, *, display: bool) -> str:
    """A formula in LaTeX, with its marks, as MathML; an error if a command in it is unknown."""
    latex = html.unescape(formula).strip()[2:-2].strip()
    made = convert(latex, display="block" if display else "inline")
    if re.search(r"<mi>(\\|&</)", made):
        raise PluginError(f"{page.file.src_path}: this formula cannot be set: {latex}")
    return f'<div class="formula">{made}</div>' if display else made


def _leaves_the_site(page: Page, address: str) -> bool:
    target = (Path(page.file.abs_src_path or "").parent / address).resolve()
    return target.exists() and not target.is_relative_to(DOCS)
