"""The report page as HTML from templates.

The page contains its style and scripts; its content security policy allows nothing else. Both colour ramps become
steadily darker or steadily lighter, so that they are legible in grey and for colour-blind readers.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import inspect
import io
import json
import shlex
from importlib import resources
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from PIL import Image

from lrtasks import __version__
from lrtasks.errors import UsageError, printable
from lrtasks.metrics import TEST_SOLVED
from lrtasks.registry import own_source, registered_only
from lrtasks.results.analysis import diagnostics_table
from lrtasks.results.formats import number
from lrtasks.results.report import content
from lrtasks.results.report.charts import chart_data, further_scores, length_groups, vega
from lrtasks.results.report.content import STATES, Report, two_digits

LIGHT = ("#eef1f4", "#cbe4e1", "#86c5c9", "#3f93b8", "#1f5e9c", "#12306b")
DARK = ("#222b3a", "#23466e", "#22708f", "#2f9f97", "#83d18c", "#f6ec85")
STEPS = 21
"""Number of colours of a ramp: one for each multiple of 0.05 from 0 to 1."""

STYLES = ("base.css", "scores.css", "details.css")
SCRIPTS = ("theme.js", "charts.js", "sort.js", "details.js", "filter.js")
MAX_POSITIONS = 1024
"""A task with longer samples is drawn at its preset ``small``, unless it is an image task."""
MAX_TEXT = 2000
"""Maximum number of characters of a sample's text that the page shows."""


def render_page(report: Report) -> str:
    """Return the whole page as HTML; the same report gives the same text.

    Raises:
        UsageError: if the packages of the extra ``report`` are missing.
    """
    scripts = [vega(), *map(_asset, SCRIPTS)]
    ramps = [
        f".h{place}{{--heat:light-dark({light},{dark});--ink:light-dark({on_light},{on_dark})}}"
        for place, ((light, on_light), (dark, on_dark)) in enumerate(zip(ramp(LIGHT), ramp(DARK), strict=True))
    ]
    style = "\n".join([f":root{{--models:{len(report.columns)}}}", *ramps, *map(_asset, STYLES)])
    tasks = [
        {
            "name": name,
            "sample": draw_sample(name, recorded["parameters"], recorded.get("source")),
            "lengths": length_groups(report, rows),
            "further": [row for row in rows if any(further_scores(result) for result in report.in_row(row))],
            "best": next((result for result in report.in_row(*rows) if not result.cell["not_causal"]), None),
            "rows": [(row, report.rows[row], report.in_row(row)) for row in rows],
        }
        for name, rows in report.tasks().items()
        for recorded in [report.in_row(rows[0])[0].records[0].task]
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
    """Return the template environment, which makes every inserted text printable and escapes it."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("lrtasks.results.report"),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "scaled": two_digits, "step": step, "lines": _lines}
    made.globals |= {"details": content, "slices": content.slices, "diagnostics_table": diagnostics_table}
    made.globals |= {"states": STATES, "solved": TEST_SOLVED, "version": __version__}
    return made


class Sample(NamedTuple):
    """One sample of a task, with the command that draws it: as text if the task has a text form, else as an image."""

    summary: str
    command: str
    text: str | None = None
    image: str | None = None


@registered_only()
def draw_sample(name: str, parameters: dict[str, Any], source: str | None = None) -> Sample | str:
    """Return sample 0 of a task with these parameters, or an error message: this machine may lack the task.

    ``source`` is the digest of a user's own task: it may have the name of a registered one.
    """
    from lrtasks import generators
    from lrtasks.generators.preview import preview

    try:
        task = generators.make(name, **parameters)
        if source not in (None, own_source(type(task))):
            return f"the runs are on another task that is named {name}, too"
        if task.input.length > MAX_POSITIONS and task.image_shape() is None:
            parameters = generators.registry.get(name).preset_values("small")[0]
            task = generators.make(name, **parameters)
        settings = [f"{key}={content.as_text(value)}" for key, value in parameters.items() if value is not None]
        command = shlex.join(["lrtasks", "preview", name, *(word for entry in settings for word in ("--set", entry))])
        summary = inspect.cleandoc(type(task).__doc__ or "").split("\n\n")[0].replace("``", "")
        text = task.text(task.batch(range(1)), 0)
        if text is not None:
            return Sample(summary, command, text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ...")
        buffer = io.BytesIO()
        preview(task, samples=1).savefig(buffer, format="png")
        return Sample(summary, command, image=content.data_uri(Image.open(buffer).convert("RGB")))
    except UsageError as error:
        return str(error)
    except Exception as error:  # a plug-in's code may raise anything; the report is made without this sample
        return f"{type(error).__name__}: {error}"


def step(value: float) -> int:
    """Return the number of a value's colour, 0 to ``STEPS - 1``; values outside 0..1 get the nearest colour.

    >>> step(-3.0), step(0.5), step(1.0)
    (0, 10, 20)
    """
    return round(min(max(value, 0.0), 1.0) * (STEPS - 1))


@functools.cache
def ramp(stops: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the colours of a ramp through ``stops``, each with a legible text colour (``#000000`` or ``#ffffff``)."""
    colours = map(to_hex, LinearSegmentedColormap.from_list("", stops, N=STEPS)(range(STEPS)))
    # at the luminance 0.179, black and white have the same contrast as WCAG 2 defines it
    return [(colour, "#000000" if luminance(colour) > 0.179 else "#ffffff") for colour in colours]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour ``#rrggbb``, 0 to 1, as WCAG 2 defines it."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _lines(text: str) -> Markup:
    """Escape a text and keep its line breaks."""
    return Markup("\n").join(escape(printable(line)) for line in text.split("\n"))


def _asset(name: str) -> str:
    return (resources.files("lrtasks.results.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(style: str, scripts: list[str]) -> str:
    """Return a content security policy that allows only this style, these scripts and images inside the page."""
    allowed, *scripts_allowed = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (style, *scripts)
    )
    rules = ["default-src 'none'", "img-src data:", f"style-src {allowed}", f"script-src {' '.join(scripts_allowed)}"]
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])
