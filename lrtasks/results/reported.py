"""Scores that papers report, and the differences between a paper's setup and a run's."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Collection
from importlib import resources
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.generators import registry
from lrtasks.record import RunRecord


def reported_figure(record: RunRecord) -> dict[str, Any]:
    """Return the columns ``paper...`` of :data:`lrtasks.results.frame.COLUMNS` for the nearest reported length.

    The result is empty without a reported score for the record's task and model, and for a user's own task or model,
    which may have the same name.
    """
    if record.model.get("source") is not None or record.task.get("source") is not None:
        return {}
    task, model = record.task["parameters"], record.model["parameters"]
    matching = [
        entry
        for entry in _figures().get((record.model["name"], record.task["name"]), [])
        if entry["hyper"].items() <= model.items() and entry.get("parameters", {}).items() <= task.items()
    ]
    if not matching:
        return {}
    entry = min(matching, key=lambda entry: _octaves(entry.get("length"), task.get("length")))
    steps, batch = (record.budget.get(name) for name in ("steps", "batch_size"))
    samples = steps * batch if isinstance(steps, int) and isinstance(batch, int) else None
    sizes = {
        "length": (entry.get("length"), task.get("length")),
        "d_model": (entry["d_model"], model.get("d_model")),
        "training samples": (entry["samples"], samples),
    }
    # sizes count as equal within 0.5 %, since epochs were rounded to steps
    differs = [
        name
        for name, (theirs, ours) in sizes.items()
        if theirs is not None and not (isinstance(ours, int) and abs(theirs - ours) <= 0.005 * theirs)
    ]
    differs += _other_parameters(record, {"length", *entry.get("parameters", {})})
    settings = {"length": entry["length"]} if "length" in entry else entry["parameters"]
    where = [f"{name} {value}" for name, value in {**settings, "d_model": entry["d_model"]}.items()]
    where.append(f"{entry['samples']:,} training samples")
    where += ["averaged over batches"] if entry["metric"].endswith("_batch_mean") else []
    figure = {"paper": entry["scores"][record.task["name"]], "paper_source": entry["source"]}
    return {**figure, "paper_where": ", ".join(where), "paper_differs": ", ".join(differs)}


def _other_parameters(record: RunRecord, known: Collection[str]) -> list[str]:
    """Return the task parameters, except those in ``known``, in which a run differs from the preset ``paper``."""
    name = record.task["name"]
    if name not in registry.built_in():
        return []
    cls, ours = registry.get(name), record.task["parameters"]
    shared = {key: value for key, value in ours.items() if key in known and key in cls.parameter_names()}
    try:
        paper = cls.make(**{**cls.preset_values("paper")[0], **shared}).parameters()
    except UsageError:  # the record holds a value that the task does not allow
        return []
    return [key for key, value in paper.items() if key in ours and key not in known and ours[key] != value]


def _octaves(reported: int | None, ours: Any) -> float:
    """Return the distance of two lengths in octaves; 0 if the paper has no length or the record no valid one."""
    if reported is None or not isinstance(ours, int | float) or not ours > 0:
        return 0.0
    return abs(math.log2(reported) - math.log2(ours))


@functools.cache
def _figures() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the entries of ``reported.toml`` by model and task, each merged with the protocol of its source."""
    content = tomllib.loads((resources.files("lrtasks.results") / "reported.toml").read_text(encoding="utf-8"))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for figure in content["figures"]:
        own = figure.get("parameters", {})
        protocols = (entry for entry in content["protocols"] if entry["source"] == figure["source"])
        protocol = next(entry for entry in protocols if entry.get("parameters", {}).items() <= own.items())
        for task in figure["scores"]:
            found.setdefault((figure["model"], task), []).append({**protocol, **figure})
    return found
