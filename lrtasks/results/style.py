"""Style of figures, and names of models and metrics in figures and in LaTeX (from ``style.toml``)."""

from __future__ import annotations

import functools
import io
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from lrtasks.errors import UsageError
from lrtasks.files import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

_STYLE = tomllib.loads((resources.files("lrtasks.results") / "style.toml").read_text(encoding="utf-8"))
TITLES: dict[str, str] = _STYLE["models"]
METRICS: dict[str, str] = _STYLE["metrics"]
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
"""Palette of Okabe and Ito for colour-blind readers (jfly.uni-koeln.de/color), without its yellow."""
MARKERS = "osD^vPX*<>hp"
"""12 markers and 7 colours have no common factor, so 84 series differ before a combination repeats."""
SETTINGS: Any = {"axes.prop_cycle": f"cycler('color', {COLOURS})", **_STYLE["matplotlib"]}
FORMATS = {".pdf": {"CreationDate": None}, ".png": None, ".svg": {"Date": None}}
"""File suffixes of figures, and the metadata that keep the time out of a file."""


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that draws a figure: it runs with Matplotlib's settings set to :data:`SETTINGS`."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return wrapped


def panels(
    count: int, most: int, width: float, height: float, margin: tuple[float, float] = (0, 0), **how: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its ``count`` panels, row by row, at most ``most`` in a row.

    ``width`` and ``height`` of a panel and ``margin`` of the figure are in inches.
    """
    from matplotlib.figure import Figure

    columns = min(most, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(margin[0] + width * columns, margin[1] + height * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **how).ravel()
    for panel in grid[count:]:
        panel.set_axis_off()
    return figure, list(grid[:count])


def title(label: str) -> str:
    """Return a model's label with the name as papers spell it; the settings stay unchanged.

    >>> title("mamba2 (lr=0.003)"), title("MyLayer")
    ('Mamba-2 (lr=0.003)', 'MyLayer')
    """
    name, space, settings = label.partition(" ")
    return TITLES.get(name, name) + space + settings


def literal(label: str) -> str:
    """Return a label that a figure shows as it is.

    Matplotlib would read text between two ``$`` as a formula, and leave a name that begins with ``_`` out of a legend.

    >>> literal("MyLayer (mode=$a$)"), literal("_MyLayer")
    ('MyLayer (mode=\\\\$a\\\\$)', '\\u200b_MyLayer')
    """
    return ("\u200b" if label.startswith("_") else "") + label.replace("$", r"\$")


def metric(name: str) -> str:
    """Return a score's name for LaTeX and for a figure.

    >>> metric("r2"), metric("accuracy")
    ('$R^2$', 'accuracy')
    """
    return METRICS.get(name, name.replace("_", " "))


def series(number: int) -> dict[str, Any]:
    """Return colour and marker of a series; equal numbers look alike in all figures.

    >>> series(0), series(8)
    ({'color': '#0072b2', 'marker': 'o'}, {'color': '#e69f00', 'marker': '<'})
    """
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def save(figure: Figure, path: Path, *, follow: bool = True) -> Path:
    """Write a figure as PDF, PNG or SVG, according to the file suffix; the same figure gives the same bytes.

    Raises:
        UsageError: for another suffix, or a file that cannot be written (:func:`lrtasks.files.write_output`).
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"a figure is written as {', '.join(FORMATS)}, found {path}")
    write_output(path, encode(figure, ending), follow=follow)
    return path


def encode(figure: Figure, ending: str) -> bytes:
    """Return a figure as the content of a file with the suffix ``.pdf``, ``.png`` or ``.svg``."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "lrtasks"}):
        figure.savefig(buffer, format=ending[1:], metadata=FORMATS[ending])
    return buffer.getvalue()
