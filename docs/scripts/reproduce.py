"""Commands that reproduce the papers' tables: one per score of ``reported.toml`` and of ``other_figures.toml``."""

from __future__ import annotations

import functools
import json
import shlex
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from regions import table
from scores import RESULTS, records

import lrtasks.results
from lrtasks import models
from lrtasks.record import RunRecord
from lrtasks.run_config import RunConfig

REPORTED = Path(lrtasks.results.__file__).with_name("reported.toml")
OTHERS = Path(__file__).with_name("other_figures.toml")
PRESETS = {"DLR paper, Table 2": "long"}
"""Presets by table; all other tables use ``paper``."""

AT_512 = {"batch_size": 64, "steps": 10_800, "eval_every": 900, "val_batches": 10, "test_batches": 100}
AT_RES_256 = {"batch_size": 18, "steps": 177_760, "warmup_steps": 1_000, "eval_every": 4_444, "test_batches": 112}
AT_RES_512 = {"batch_size": 14, "steps": 119_994, "warmup_steps": 200, "eval_every": 5_714, "test_batches": 143}
BUDGETS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"length": 512}, AT_512),
    ({"length": 512, "model": "dlr"}, {"lr": 5e-5}),
    ({"length": 512, "model": "attention"}, {"lr": 1e-3}),
    ({"res": 256}, {**AT_RES_256, "kernel_length": 32_768}),
    ({"res": 256, "model": "dlr"}, {"lr": 5e-5}),
    ({"res": 256, "model": "dss"}, {"lr": 5e-4}),
    ({"res": 512}, {**AT_RES_512, "kernel_length": 32_768, "d_model": 64, "d_state": 2_048}),
    ({"res": 512, "model": "dlr"}, {"lr": 1e-5}),
    ({"res": 512, "model": "dss"}, {"lr": 5e-4, "kernel_lr": 1e-4}),
]
"""Settings of model and budget in addition to the preset (from the DLR code), as (selection of scores, settings)."""


class Cell(NamedTuple):
    """One score of a paper: its place in the paper, its value, and the command and run config that reproduce it."""

    source: str
    column: str
    task: str
    value: float
    metric: str
    command: list[str]
    run: RunConfig


@functools.cache
def cells(file: Path) -> list[Cell]:
    """Return every score of ``file``, in the order of the file."""
    found = []
    for entry in tomllib.loads(file.read_text())["figures"]:
        where = {**entry.get("parameters", {}), **({"length": entry["length"]} if "length" in entry else {})}
        column = ", ".join([entry["model"], *_written({**_uncommon(entry), **where})])
        for task, value in entry["scores"].items():
            preset, settings = _settings(entry, task, where)
            run = RunConfig.make(task, entry["model"], preset=preset, settings=settings)
            options = [word for key, given in settings.items() for word in (f"--{key.replace('_', '-')}", _text(given))]
            command = ["lrtasks", "eval", "--model", entry["model"], "--task", task, "--preset", preset, *options]
            found.append(Cell(entry["source"], column, task, value, entry["metric"], command, run))
    return found


def commands(_: Path, words: Sequence[str]) -> str:
    """Return one table of a paper: the paper's scores, our scores if there are any, and the commands."""
    source = " ".join(words)
    columns: dict[str, list[Cell]] = {}
    for cell in (*cells(REPORTED), *cells(OTHERS)):
        if cell.source == source:
            columns.setdefault(cell.column, []).append(cell)
    if all(len(found) == 1 for found in columns.values()):
        rows = [[column, *_row(cell), f"`{shlex.join(cell.command)}`"] for column, (cell,) in columns.items()]
        return table(["model", "task", "paper", "ours", "command"], rows)
    header, shown = ["task"], {cell.task: [cell.task] for found in columns.values() for cell in found}
    lines = []
    for column, found in columns.items():
        any_ours = any(ours(cell) is not None for cell in found)
        header += [column, *(["ours"] if any_ours else [])]
        there = {cell.task: _row(cell)[1:] for cell in found}
        for task, row in shown.items():
            row += there.get(task, ["", ""])[: 1 + any_ours]
        common, own = common_command(found)
        lines += [
            common,
            *(f"{common} {words}  # {cell.task}" for cell, words in zip(found, own, strict=True) if words),
        ]
    return f"{table(header, shown.values())}\n\nThe commands, by column:\n\n```text\n{chr(10).join(lines)}\n```"


def common_command(found: Sequence[Cell]) -> tuple[str, list[str]]:
    """Return the command that several scores share, with TASK for the task, and each score's additional arguments."""
    named = [shlex.join(["TASK" if word == cell.task else word for word in cell.command]) for cell in found]
    common = min(named, key=len)
    if not all(name.startswith(common) for name in named):
        raise ValueError(f"{found[0].source}, {found[0].column}: the commands share no beginning: {named}")
    return common, [name.removeprefix(common).strip() for name in named]


def _settings(entry: Mapping[str, Any], task: str, where: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the preset, and the settings of a paper's score that differ from the preset."""
    preset, name = PRESETS.get(entry["source"], "paper"), entry["model"]
    run = RunConfig.make(task, name, preset=preset)
    known = {**run.task.parameters(), **run.model.parameters, **run.budget.parameters()}
    like, like_budget = models.registry.get(name).preset_values(f"{preset}/{entry.get('like')}")
    wanted = {**where, **like, **like_budget, **entry["hyper"]}
    wanted = {key: list(value) if isinstance(value, tuple) else value for key, value in wanted.items()}
    for figures, extra in BUDGETS:
        if figures.items() <= {**where, "model": name}.items():
            wanted.update(extra)
    return preset, {key: value for key, value in wanted.items() if known[key] != value}


def ours(cell: Cell) -> float | None:
    """Return the mean score over seeds of the published runs with the cell's settings; ``None`` without runs."""
    run = cell.run
    scores = [
        record.scores["test"][cell.metric]
        for record in _published()
        if (record.task["name"], record.model["name"]) == (run.task.name, run.model.name)
        and record.task["parameters"] == run.task.parameters()
        and record.model["parameters"] == run.model.parameters
        and all(record.budget[name] == getattr(run.budget, name) for name in ("steps", "batch_size", "lr"))
        and "test" in record.scores
    ]
    return statistics.fmean(scores) if scores else None


@functools.cache
def _published() -> list[RunRecord]:
    return [record for folder in sorted(RESULTS.iterdir()) if folder.name != "bench" for record in records(folder)]


def _uncommon(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of layers, and the hyper-parameters that differ from the model's defaults."""
    defaults = models.registry.get(entry["model"])().parameters()
    return {name: value for name, value in entry["hyper"].items() if name == "layers" or value != defaults[name]}


def _row(cell: Cell) -> list[str]:
    score = ours(cell)
    return [cell.task, f"{cell.value:g}", "" if score is None else f"{score:.3f}"]


def _written(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in values.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
