"""How results are drawn and named, the same in every figure and in LaTeX: palette, markers, spellings."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from lrtasks.errors import UsageError
from lrtasks.files import write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
"""Okabe and Ito's palette (jfly.uni-koeln.de/color), which colour-blind readers tell apart; without its yellow."""
MARKERS = "osD^vPX*<>hp"
"""As many markers share no factor with as many colours: 84 series differ before one looks like another."""
TITLES = {
    "attention": "Attention",
    "deltanet": "DeltaNet",
    "dlr": "DLR",
    "dss": "DSS",
    "focus": "Focus",
    "focus-h": "Focus-H",
    "gated-deltanet": "Gated DeltaNet",
    "gated-deltaproduct": "Gated DeltaProduct",
    "gla": "GLA",
    "gru": "GRU",
    "hybrid": "Hybrid",
    "hyena": "Hyena",
    "kda": "KDA",
    "linear-attention": "Linear attention",
    "local-attention": "Local attention",
    "longvq": "LongVQ",
    "lru": "LRU",
    "lstm": "LSTM",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "mamba3": "Mamba-3",
    "mega": "Mega",
    "mega-chunk": "Mega-chunk",
    "mingru": "minGRU",
    "minlstm": "minLSTM",
    "mlstm": "mLSTM",
    "retnet": "RetNet",
    "rglru": "RG-LRU",
    "rwkv7": "RWKV-7",
    "s4d": "S4D",
    "s5": "S5",
    "seqboat": "SeqBoat",
    "seqboat-full": "SeqBoat-full",
    "seqboat-local": "SeqBoat-local",
    "sgconv": "SGConv",
    "slstm": "sLSTM",
    "transformer": "Transformer",
}
"""How papers spell the names of the models."""
METRICS = {"r2": "$R^2$", "macro_f1": "macro $F_1$"}
"""Names of scores, for LaTeX and for Matplotlib, which reads the same formulas."""
SETTINGS: Any = {
    "axes.prop_cycle": f"cycler('color', {COLOURS})",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text, which journals ask for
    "svg.fonttype": "none",
    "savefig.dpi": 200,
}
"""Matplotlib's settings of every figure."""
FORMATS = (".pdf", ".png", ".svg")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorator of a function that draws a figure: Matplotlib's settings are :data:`SETTINGS` while it does."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Figure:
        import matplotlib as mpl

        with mpl.rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return wrapped


def title(label: str) -> str:
    """A model's label as papers spell it, its settings unchanged.

    >>> title("mamba2 (lr=0.003)"), title("MyLayer")
    ('Mamba-2 (lr=0.003)', 'MyLayer')
    """
    name, space, settings = label.partition(" ")
    return TITLES.get(name, name) + space + settings


def series(number: int) -> dict[str, Any]:
    """Colour and marker of a series; figures with the same models in the same order show them alike.

    >>> series(0), series(8)
    ({'color': '#0072b2', 'marker': 'o'}, {'color': '#e69f00', 'marker': '<'})
    """
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PDF, PNG or SVG, by the end of the name; the same figure gives the same bytes.

    Raises:
        UsageError: for another ending, or a file that cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"a figure is written as {', '.join(FORMATS)}, found {path}")
    write_output(path, encode(figure, ending))
    return path


def encode(figure: Figure, ending: str) -> bytes:
    """A figure as a file's content, of the ending ``.pdf``, ``.png`` or ``.svg``."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    undated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": None}[ending]
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": "lrtasks"}):
        figure.savefig(buffer, format=ending[1:], metadata=undated)
    return buffer.getvalue()


def metric(name: str) -> str:
    """A score's name for LaTeX and for a figure.

    >>> metric("r2"), metric("accuracy")
    ('$R^2$', 'accuracy')
    """
    return METRICS.get(name, re.sub("_", " ", name))
