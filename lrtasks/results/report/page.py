"""The page: templates filled in, style and scripts put inside, and nothing allowed in but these."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from lrtasks import __version__
from lrtasks.results.report import readable, scale
from lrtasks.results.report.charts import series_class
from lrtasks.results.report.content import COSTS, SOLVED, STATES, Report
from lrtasks.results.report.details import details
from lrtasks.results.report.tasks import task_sections

STYLES = ("base.css", "figures.css", "details.css")
SCRIPTS = ("theme.js", "sort.js", "details.js", "filter.js", "highlight.js", "scatter.js")


def render_page(report: Report) -> str:
    """The whole page as HTML; the same report gives the same text."""
    assets = resources.files("lrtasks.results.report") / "assets"
    style = "\n".join(
        [f":root{{--models:{len(report.columns)}}}", _ramps(), *((assets / name).read_text() for name in STYLES)]
    )
    scripts = [(assets / name).read_text() for name in SCRIPTS]
    return (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            tasks=task_sections(report),
            details=[details(report, result) for _, result in sorted(report.results.items())],
            data=_data(report),
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            policy=_policy(style, scripts),
            version=__version__,
            solved=SOLVED,
            costs=COSTS,
            states=STATES,
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lrtasks.results.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "score": readable.score,
        "above": readable.above,
        "count": readable.count,
        "series": series_class,
        "heat": lambda value: f"h{scale.step(value)}",
    }
    return environment


def _data(report: Report) -> dict[str, Any]:
    """What the scripts know: places, scores, costs and words of each result."""
    results = [
        {
            "id": result.id,
            "row": result.row,
            "column": result.column,
            "above": result.above,
            "costs": dict(result.costs),
            "text": " ".join(
                [
                    report.rows[result.row].label,
                    report.columns[result.column].label,
                    *(f"{record.status} {record.command} {' '.join(record.notes)}" for record in result.cell.records),
                ]
            ).lower(),
        }
        for _, result in sorted(report.results.items())
    ]
    return {
        "rows": [row.label for row in report.rows],
        "columns": [{"label": column.label, "id": column.id} for column in report.columns],
        "results": results,
    }


def _ramps() -> str:
    """Classes ``h0``, ``h1``, ...: colour of a score and of the text on it, on light and on dark pages."""
    pairs = zip(scale.ramp(scale.LIGHT), scale.ramp(scale.DARK), strict=True)
    return "\n".join(
        f".h{number}{{--heat:light-dark({light[0]},{dark[0]});--ink:light-dark({light[1]},{dark[1]})}}"
        for number, (light, dark) in enumerate(pairs)
    )


def _policy(style: str, scripts: list[str]) -> str:
    """A content security policy that lets in this style, these scripts and pictures inside the page, nothing else."""
    allowed = " ".join(_hash(script) for script in scripts)
    rules = ("default-src 'none'", "img-src data:", f"style-src {_hash(style)}", f"script-src {allowed}")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
