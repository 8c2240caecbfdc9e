"""The page: templates filled in, style and scripts put inside, and nothing allowed in but these."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import inspect
import io
import json
import shlex
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from lrtasks import __version__
from lrtasks.errors import UsageError, printable
from lrtasks.results.formats import number
from lrtasks.results.report import details, heatmap
from lrtasks.results.report.charts import chart_data, further_scores, length_groups, vega
from lrtasks.results.report.content import COSTS, SOLVED, STATES, Report, two_digits

STYLES = ("base.css", "scores.css", "details.css")
SCRIPTS = ("theme.js", "sort.js", "charts.js", "details.js", "filter.js")
MAX_POSITIONS = 1024
"""Longer samples are drawn at the task's ``small`` preset."""
MAX_TEXT = 2000
"""Characters of a sample's text that are shown."""


def render_page(report: Report) -> str:
    """The whole page as HTML; the same report gives the same text.

    Raises:
        UsageError: if the packages of the extra ``report`` are missing.
    """
    scripts = [vega(), *map(_asset, SCRIPTS)]
    ramps = [
        f".h{place}{{--heat:light-dark({light[0]},{dark[0]});--ink:light-dark({light[1]},{dark[1]})}}"
        for place, (light, dark) in enumerate(zip(heatmap.ramp(heatmap.LIGHT), heatmap.ramp(heatmap.DARK), strict=True))
    ]
    style = "\n".join([f":root{{--models:{len(report.columns)}}}", *ramps, *map(_asset, STYLES)])
    tasks = [
        {
            "name": name,
            "sample": draw_sample(name, report.in_row(rows[0])[0].records[0].task["parameters"]),
            "lengths": length_groups(report, rows),
            "further": [row for row in rows if any(further_scores(report, result) for result in report.in_row(row))],
            "rows": [(row, report.rows[row], report.in_row(row)) for row in rows],
        }
        for name, rows in report.tasks().items()
    ]
    templates = environment()
    behind = templates.get_template("details.html")
    opened = {result.id: behind.render(report=report, result=result) for result in report.results.values()}
    return templates.get_template("page.html").render(
        report=report,
        tasks=tasks,
        packed=base64.b64encode(gzip.compress(json.dumps(opened).encode(), mtime=0)).decode(),
        data=chart_data(report),
        style=Markup(style),
        scripts=list(map(Markup, scripts)),
        policy=_policy(style, scripts),
    )


@functools.cache
def environment() -> jinja2.Environment:
    """The templates; every text that they are given is printable and escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("lrtasks.results.report"),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "scaled": two_digits,
        "step": heatmap.step,
        "lines": _lines,
    }
    made.globals |= {
        "details": details,
        "costs": COSTS,
        "states": STATES,
        "solved": SOLVED,
        "version": __version__,
        "breakdowns": details.breakdowns,
    }
    return made


@dataclass(frozen=True)
class Sample:
    """One sample of a task.

    Attributes:
        summary: what the task asks for, in one sentence of its own.
        command: what draws it again.
        text: the sample as text, for tasks that are read.
        picture: input and target as a picture in a data URI, for the others.
    """

    summary: str
    command: str
    text: str | None = None
    picture: str | None = None


def draw_sample(name: str, parameters: dict[str, Any]) -> Sample | str:
    """Sample 0 of a task with these parameters, or why there is none: another machine may lack the task."""
    from lrtasks import generators
    from lrtasks.generators.preview import preview

    try:
        task = generators.make(name, **parameters)
        if task.input.length > MAX_POSITIONS and task.image_shape() is None:
            parameters = generators.registry.get(name).preset_values("small")[0]
            task = generators.make(name, **parameters)
        settings = [f"{key}={details.as_text(value)}" for key, value in parameters.items() if value is not None]
        command = shlex.join(["lrtasks", "preview", name, *(word for entry in settings for word in ("--set", entry))])
        summary = inspect.cleandoc(type(task).__doc__ or "").split("\n\n")[0].replace("``", "")
        text = task.text(task.batch(range(1)), 0)
        if text is not None:
            return Sample(summary, command, text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...")
        buffer = io.BytesIO()
        preview(task, samples=1).savefig(buffer, format="png")
        return Sample(summary, command, picture=details.data_uri(Image.open(buffer).convert("RGB")))
    except UsageError as error:
        return str(error)
    except Exception as error:  # a plug-in's own code may raise anything, and the report goes on without it
        return f"{type(error).__name__}: {error}"


def _lines(text: str) -> Markup:
    """Text of several lines."""
    return Markup("\n").join(escape(printable(line)) for line in text.split("\n"))


def _asset(name: str) -> str:
    return (resources.files("lrtasks.results.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(style: str, scripts: list[str]) -> str:
    """A content security policy that lets in this style, these scripts and pictures inside the page, nothing else."""
    rules = ["default-src 'none'", "img-src data:", f"style-src {_hash(style)}"]
    return "; ".join([*rules, f"script-src {' '.join(map(_hash, scripts))}", "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
