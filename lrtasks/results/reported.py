"""The papers' figures that stand beside ours."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from lrtasks.record import RunRecord


@dataclass(frozen=True)
class Figure:
    """One figure of a paper.

    Attributes:
        value: the figure.
        metric: which score it is.
        source: paper and table.
        where: how it was measured, as readable text ("length 4096, averaged over batches").
        length: task length at which it was measured, for tasks that have one.
    """

    value: float
    metric: str
    source: str
    where: str
    length: int | None


def reported_figure(record: RunRecord) -> Figure | None:
    """The paper's figure for the record's task and model, at the nearest length that the paper has; else ``None``."""
    matching = [
        Figure(entry["scores"][record.task["name"]], entry["metric"], entry["source"], where, entry.get("length"))
        for entry in _figures()
        if entry["model"] == record.model["name"]
        and record.task["name"] in entry["scores"]
        and _agree(entry["hyper"], record.model["parameters"])
        and _agree(entry.get("parameters", {}), record.task["parameters"])
        for where in [_where(entry)]
    ]
    length = record.task["parameters"].get("length")
    return min(matching, key=lambda figure: _distance(figure.length, length), default=None)


def _agree(wanted: dict[str, Any], found: dict[str, Any]) -> bool:
    return all(found.get(name) == value for name, value in wanted.items())


def _distance(reported: int | None, ours: Any) -> float:
    """How far apart two lengths are, in octaves; 0 where there is none, or what a record holds is not a length."""
    if reported is None or not isinstance(ours, (int, float)) or not 0 < ours < math.inf:
        return 0.0
    return abs(math.log2(reported) - math.log2(ours))


def _where(entry: dict[str, Any]) -> str:
    settings = {"length": entry["length"]} if "length" in entry else entry["parameters"]
    words = [f"{name} {value}" for name, value in settings.items()]
    return ", ".join([*words, "averaged over batches"] if entry["metric"].endswith("_batch_mean") else words)


@functools.cache
def _figures() -> list[dict[str, Any]]:
    text = (resources.files("lrtasks.results") / "reported.toml").read_text()
    figures: list[dict[str, Any]] = tomllib.loads(text)["figures"]
    return figures
