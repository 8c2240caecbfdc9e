"""Make tables of measurements: costs, ratios to the Transformer, and growth with the length."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lrtasks.bench import BASELINE, CLASSES, PARTS, PHASES, SHARED_PARAMETERS, UNFUSED, VOCABULARY
from lrtasks.errors import UsageError
from lrtasks.results.formats import TextTable, number

SCHEMA = 1
KEYS = {"identity", "environment", "sizes", "training", "inference", "schema"}
SHARED = ("settings", "device", "device_name", "torch", "source", "baseline")
"""Parts of the identity in which the measurements of one table must agree."""

COSTS = {
    "training_seconds": ("training time", "training ms", 1e-3),
    "inference_seconds": ("inference time", "inference ms", 1e-3),
    "training_bytes": ("training memory", "training MB", 1e6),
    "inference_bytes": ("inference memory", "inference MB", 1e6),
    "state_bytes": ("state", "state kB", 1e3),
    "parameters": ("parameters", "parameters", 1),
}
"""Costs of a model: name, column of the table, unit of that column."""
RATIOS = {
    "training_speed": ("training_speed", "training faster"),
    "inference_speed": ("inference_speed", "inference faster"),
    "training_memory": ("training_bytes", "training memory"),
    "inference_memory": ("inference_bytes", "inference memory"),
    "state": ("state_bytes", "state"),
    "parameters": ("parameters", "parameters"),
}
"""Ratios to the Transformer: the column of a row that gives the ratio, and the name of the ratio in tables."""

Row = dict[str, Any]


def read_measurements(folder: Path) -> list[dict[str, Any]]:
    """Return all measurements in ``folder``, sorted by length, with the Transformer first at each length.

    Raises:
        UsageError: if there are none, one is damaged, two differ in a part of :data:`SHARED`, or two of one model in
            its settings or its code.
    """
    found = {file: read_measurement(file) for file in sorted(folder.glob("*.json"))}
    if not found:
        raise UsageError(f"no measurements in {folder}")
    first, *_ = found
    firsts: dict[str, Path] = {}
    for file, entry in found.items():
        for name in SHARED:
            if entry["identity"].get(name) != found[first]["identity"].get(name):
                differ = f"{first} and {file} were measured with different {name}"
                raise UsageError(f"{differ}; keep them in separate folders")
        model = entry["identity"]["model"]
        other = firsts.setdefault(model, file)
        if any(entry["identity"].get(name) != found[other]["identity"].get(name) for name in ("hyper", "module")):
            differ = f"{other} and {file} were measured with different settings or different code of {model}"
            raise UsageError(f"{differ}; remove one, or keep them in separate folders")

    def order(entry: dict[str, Any]) -> tuple[int, bool, str]:
        model: str = entry["identity"]["model"]
        return entry["identity"]["length"], model != BASELINE, model

    return sorted(found.values(), key=order)


def read_measurement(file: Path) -> dict[str, Any]:
    """Return the measurement in ``file``.

    Raises:
        UsageError: if it is damaged or of another schema.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged and cannot be read as a measurement: {error}; remove it") from None
    if not isinstance(content, dict) or set(content) != KEYS or content["schema"] != SCHEMA:
        raise UsageError(f"{file} is not a measurement of schema {SCHEMA}; remove it")
    return content


def make_row(found: Mapping[str, Any]) -> Row:
    """Return a measurement as a flat row: ``model``, ``length``, costs, speeds, ``reasons``; None for missing values.

    Times are the shortest repeats, CPU time on a CPU and elapsed time on a GPU; ``training_speed`` and
    ``inference_speed`` are the Transformer's time in the same process divided by the model's time.
    """
    clock = "cpu_seconds" if found["identity"]["device"] == "cpu" else "wall_seconds"
    row: Row = {"model": found["identity"]["model"], "length": found["identity"]["length"]}
    for phase in PHASES:
        own, other = (min(found[phase].get(name, []), default=None) for name in (clock, f"baseline_{clock}"))
        row[f"{phase}_seconds"], row[f"{phase}_bytes"] = own, found[phase].get("peak_bytes")
        row[f"{phase}_speed"] = other / own if own and other else None
    row |= {name: found["sizes"].get(name) for name in ("state_bytes", "parameters")}
    row["reasons"] = {part: found[part]["reason"] for part in PARTS if "reason" in found[part]}
    return row


def ratios(row: Row, transformer: Row) -> dict[str, float | None]:
    """Return how many times faster a model is than the Transformer, and its shares of memory, state and parameters."""
    found: dict[str, float | None] = {}
    for name, (column, _) in RATIOS.items():
        base = 1.0 if name.endswith("speed") else transformer[column]
        found[name] = row[column] / base if row[column] is not None and base else None
    return found


def growth(costs: Iterable[tuple[int, float | None]]) -> dict[str, float] | None:
    """Return the exponents of the growth of a cost with the length; None for fewer than two costs above 0.

    Args:
        costs: pairs of length and cost.

    Returns:
        ``slope``: least-squares slope of log cost against log length; ``last``: slope between the two longest lengths,
        where a fixed cost has the smallest effect; ``points``: number of lengths.

    >>> growth([(16, 5.0), (64, 20.0), (256, 320.0)])
    {'slope': 1.5, 'last': 2.0, 'points': 3}
    """
    points = sorted((math.log(length), math.log(cost)) for length, cost in costs if cost and cost > 0)
    if len(points) < 2:
        return None
    x, y = np.array(points).T
    slope, last = np.polyfit(x, y, 1)[0], (y[-1] - y[-2]) / (x[-1] - x[-2])
    # + 0.0: no -0.0, whose sign depends on the machine
    return {"slope": round(float(slope), 6) + 0.0, "last": round(float(last), 6) + 0.0, "points": len(points)}


class Report:
    """Tables of the measurements that :func:`read_measurements` returns."""

    def __init__(self, measurements: Sequence[Mapping[str, Any]]) -> None:
        self._found = measurements
        self._rows = list(map(make_row, measurements))
        self._models = list(dict.fromkeys(row["model"] for row in self._rows))
        self._lengths = sorted({row["length"] for row in self._rows})
        transformers = {row["length"]: row for row in self._rows if row["model"] == BASELINE}
        for row in self._rows:
            beside = transformers.get(row["length"])
            row["ratios"] = ratios(row, beside) if beside else dict.fromkeys(RATIOS)

    def rows(self) -> list[Row]:
        """Return one flat entry per measurement."""
        columns = ("model", "length", *COSTS)
        return [
            {
                **{name: row[name] for name in columns},
                **{f"relative_{name}": value for name, value in row["ratios"].items()},
                "reasons": row["reasons"],
            }
            for row in self._rows
        ]

    def growths(self) -> list[dict[str, Any]]:
        """Return one flat entry per model and cost, with the exponents of the length."""
        return [
            {"model": model, "cost": cost, **found}
            for model in self._models
            for cost in COSTS
            if (found := growth((row["length"], row[cost]) for row in self._rows if row["model"] == model))
        ]

    def content(self) -> dict[str, Any]:
        """Return the whole report, JSON-ready."""
        identity, environment = self._found[0]["identity"], self._found[0]["environment"]
        shared = {"settings": identity["settings"], "device": identity["device_name"], "environment": environment}
        return {**shared, "rows": self.rows(), "growth": self.growths(), "notes": self.notes()}

    def tables(self) -> list[TextTable]:
        """Return tables of costs, ratios to the Transformer, and growth, without empty tables."""
        costs, against = [], []
        for row in sorted(self._rows, key=lambda row: self._models.index(row["model"])):
            name = [row["model"], f"{row['length']:,}"]
            costs.append([*name, *(_cell(row[cost], unit) for cost, (_, _, unit) in COSTS.items())])
            against.append([*name, *("" if value is None else f"{number(value)}×" for value in row["ratios"].values())])
        growing = [name for name in COSTS if name != "parameters"]
        exponents: dict[str, dict[str, str]] = {}
        for entry in self.growths():
            fewer = f" (of {entry['points']})" if entry["points"] < len(self._lengths) else ""
            if entry["cost"] in growing:
                shown = f"{entry['slope']:.2f}, {entry['last']:.2f}{fewer}"
                exponents.setdefault(entry["model"], {})[entry["cost"]] = shown
        growths = [[model, *(found.get(name, "") for name in growing)] for model, found in exponents.items()]
        header = [f"growth over {len(self._lengths)} lengths, last two", *(COSTS[name][0] for name in growing)]
        tables = [
            TextTable(["model", "length", *(column for _, column, _ in COSTS.values())], costs),
            TextTable([f"against {BASELINE}", "length", *(name for _, name in RATIOS.values())], against),
            TextTable(header, growths),
        ]
        return [table for table in tables if table.lines]

    def notes(self) -> list[str]:
        """Return notes on the measured models and costs, the method, and missing values."""
        first = self._found[0]["identity"]
        shared = first["settings"]
        clock = "CPU time" if first["device"] == "cpu" else "elapsed time"
        form = "bidirectional" if shared["bidirectional"] else "causal"
        notes = [
            f"{VOCABULARY} different tokens, one of {CLASSES} classes per sequence; {form} models, d_model"
            f" {shared['d_model']}, {shared['layers']} layers, other settings below (none: see lrtasks describe); batch"
            f" {shared['batch']}, float32, {first['device_name']}, threads {shared['threads']}",
            f"training: forward, loss, backward, AdamW step; ms: shortest repeat, {clock}; MB (10^6 bytes): peak minus"
            " the memory before the model was built; kB: streaming state of one sequence at its end",
            "faster: the Transformer's time / the model's, timed in turn in one process (the Transformer's own row"
            " shows the error); memory, state, parameters: shares of the Transformer's",
            "growth: exponent of the length, by least squares over all lengths, and between the two longest;"
            " a fixed cost at short lengths lowers it",
        ]
        if UNFUSED in self._models:
            notes.append(
                f"{UNFUSED}: holds its attention weights as an array, as the papers' Transformer does; the multi-head"
                " attention of the other models runs in torch's fused kernel"
            )
        missing, settings, active = [], dict[str, str](), []
        for entry, row in zip(self._found, self._rows, strict=True):
            name, reasons = f"{row['model']} at {row['length']:,}", row["reasons"]
            for reason in dict.fromkeys(reasons.values()):
                parts = [part for part in reasons if reasons[part] == reason]
                missing.append(f"{name}: no {' nor '.join(parts)}: {reason}")
            for phase in PHASES:
                if phase not in reasons and row[f"{phase}_speed"] is None:
                    missing.append(f"{name}: {phase} was timed alone: the Transformer failed, or both together")
            if row["model"] not in settings:  # leave out shared parameters, and options that are off
                own = [
                    f"{key} {'none' if value is None else value}"
                    for key, value in entry["identity"]["hyper"].items()
                    if key not in SHARED_PARAMETERS and value is not False and value != ""
                ]
                settings[row["model"]] = ", ".join(own)
            reports = entry["training"].get("diagnostics", {}).values()
            rates = [report.get("activation_rate") for report in reports]
            rates = [rate for rate in rates if isinstance(rate, int | float) and rate < 1]
            if rates:
                active.append(f"{name}: {', '.join(f'{rate:.2f}' for rate in rates)} of the positions active")
        own_settings = [f"{model}: {own}" for model, own in settings.items() if own]
        return [*notes, *missing, *own_settings, *active]


def _cell(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value:,}" if unit == 1 else number(value / unit)
