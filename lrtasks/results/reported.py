"""The papers' figures that stand beside ours."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lrtasks.results.records import RunRecord


@dataclass(frozen=True)
class Figure:
    """One figure of a paper.

    Attributes:
        value: the figure.
        metric: which score it is; the papers average over batches.
        source: paper and table.
        length: task length at which it was measured.
    """

    value: float
    metric: str
    source: str
    length: int


def reported_figure(record: RunRecord) -> Figure | None:
    """The paper's figure for the record's task and model, at the nearest length that the paper has; else ``None``."""
    matching = [
        Figure(entry["scores"][record.task["name"]], entry["metric"], entry["source"], entry["length"])
        for entry in _figures()
        if entry["model"] == record.model["name"]
        and record.task["name"] in entry["scores"]
        and all(record.model["parameters"].get(name) == value for name, value in entry["hyper"].items())
    ]
    length = record.task["parameters"].get("length")
    if not matching or length is None:
        return None
    return min(matching, key=lambda figure: abs(math.log(figure.length / length)))


@functools.cache
def _figures() -> list[dict[str, Any]]:
    text = (resources.files("lrtasks.results") / "reported.toml").read_text()
    figures: list[dict[str, Any]] = tomllib.loads(text)["figures"]
    return figures
