"""Hooks that MkDocs calls while it builds the site: make the report and the tour, insert charts, convert formulas.

In a page, the comment ``<!-- chart: curves Learning curves -->`` inserts a chart.
"""

from __future__ import annotations

import base64
import html
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import published
import scores
from latex2mathml.converter import convert
from matplotlib.figure import Figure
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from lrtasks.results import plots, style
from lrtasks.results.table import arrange

TOUR = "tour.md"
DOCS = Path(__file__).resolve().parents[1]
NOTEBOOK = DOCS.parent / "examples" / "tour.ipynb"
CURVES = ("mqar", "recall", "reverse", "induction-heads")
"""Tasks whose learning curves the site shows."""
_CHART = re.compile(r"^<!-- chart: (\w+) (.+?) -->$", re.MULTILINE)
_LINK = re.compile(r"\[([^\[\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the report of the published runs, and the tour."""
    for name, content in _tour():
        files.append(File.generated(config, name, content=content))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        words = ["report", *map(str, scores.PUBLISHED), "--unequal-budgets", "--out", str(path)]
        ended = subprocess.run([sys.executable, "-m", "lrtasks", *words], capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise PluginError(f"lrtasks report failed: {ended.stderr.strip()}")
        files.append(File.generated(config, "results/report.html", content=path.read_text()))
    for name, figure in _charts():
        files.append(File.generated(config, f"results/{name}.svg", content=style.encode(figure, ".svg")))
    return files


def _charts() -> Iterator[tuple[str, Figure]]:
    """Yield the charts of the published runs, each with its name."""
    runs, records = scores.runs_of(scores.FAIR), scores.records(scores.FAIR)
    made = arrange(runs, unequal_budgets=True)
    yield "curves", plots.KINDS["curves"](arrange(runs[runs["task"].isin(CURVES)], unequal_budgets=True), records)
    yield "profile", plots.KINDS["profile"](made, records)
    yield "scatter", plots.KINDS["scatter"](made, records, cost="state_bytes")
    yield "cost", published.cost_chart()


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Insert charts for the comments of a page; replace links to files outside the site by their text."""
    with_charts = _CHART.sub(r"![\2](results/\1.svg)", markdown)
    return _LINK.sub(lambda match: match[1] if _leaves_the_site(page, match[2]) else match[0], with_charts)


def on_page_content(content: str, *, page: Page, **_: object) -> str:
    """Convert formulas to MathML, which browsers display without a script."""
    return _FORMULA.sub(lambda match: _mathml(match[2], page, display=match[1] == "div"), content)


def _tour() -> Iterator[tuple[str, str | bytes]]:
    """Yield the images of the tour's notebook, then the notebook as a page: name below docs/ and content."""
    parts = []
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "]("))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in data:
                yield f"tour/{number}.png", base64.b64decode(data["image/png"])
                parts.append(f"![What this code draws](tour/{number}.png)")
            else:
                parts.append(f"```text\n{''.join(data['text/plain']).rstrip()}\n```")
    yield TOUR, "\n\n".join(parts)


def _mathml(formula: str, page: Page, *, display: bool) -> str:
    """Convert a LaTeX formula with its delimiters to MathML; raise PluginError for an unknown LaTeX command."""
    latex = html.unescape(formula).strip()[2:-2].strip()
    made = convert(latex, display="block" if display else "inline")
    if re.search(r"<mi>(\\|&</)", made):
        raise PluginError(f"{page.file.src_path}: this formula cannot be set: {latex}")
    return f'<div class="formula">{made}</div>' if display else made


def _leaves_the_site(page: Page, address: str) -> bool:
    target = (DOCS / page.file.src_uri).parent.joinpath(address).resolve()
    return target.exists() and not target.is_relative_to(DOCS)
