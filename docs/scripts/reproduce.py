"""The commands that repeat the papers' tables, one for each figure of ``lrtasks/results/reported.toml`` and others."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lrtasks.evaluation.presets import resolve
from regions import table

import lrtasks.results
from lrtasks import models

REPORTED = Path(lrtasks.results.__file__).with_name("reported.toml")
OTHERS = Path(__file__).with_name("other_figures.toml")
PRESETS = {"DLR paper, Table 2": "long"}
"""The preset of a table; the others have ``paper``."""

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
"""What a figure was measured with beyond its preset: which figures, and settings of model and budget (DLR code)."""


class Cell(NamedTuple):
    """One figure of a paper: where it stands, what it is, and the words of the command that repeats it."""

    source: str
    column: str
    task: str
    value: float
    metric: str
    command: list[str]


def cells(file: Path) -> Iterator[Cell]:
    """Every figure of ``file``, in its order."""
    for entry in tomllib.loads(file.read_text())["figures"]:
        where = {**entry.get("parameters", {}), **({"length": entry["length"]} if "length" in entry else {})}
        column = ", ".join([entry["model"], *_written({**_uncommon(entry), **where})])
        for task, value in entry["scores"].items():
            command = _command(entry, task, where)
            yield Cell(entry["source"], column, task, value, entry["metric"], command)


def commands(_: Path, words: Sequence[str]) -> str:
    """The commands of one table of a paper, by column."""
    source = " ".join(words)
    columns: dict[str, list[Cell]] = {}
    for cell in (*cells(REPORTED), *cells(OTHERS)):
        if cell.source == source:
            columns.setdefault(cell.column, []).append(cell)
    if all(len(found) == 1 for found in columns.values()):
        rows = [[column, *_row(cell)] for column, (cell,) in columns.items()]
        return table(["model", "task", "paper", "command"], rows)
    parts = []
    for column, found in columns.items():
        parts += [f"**{column}**", table(["task", "paper", "command"], map(_row, found))]
    return "\n\n".join(parts)


def _command(entry: Mapping[str, Any], task: str, where: Mapping[str, Any]) -> list[str]:
    """The preset, and what of the figure's own settings the preset does not have."""
    preset, name = PRESETS.get(entry["source"], "paper"), entry["model"]
    plan = resolve(task, name, preset=preset)
    hyper = models.registry.get(name).make(**plan.hyper).parameters()
    known = {**plan.task.parameters(), **hyper, **plan.budget.parameters()}
    like = models.registry.presets(name)[preset]["tasks"][entry["like"]] if "like" in entry else {}
    wanted = {**where, **like.get("hyper", {}), **like.get("training", {}), **entry["hyper"]}
    for figures, extra in BUDGETS:
        if figures.items() <= {**where, "model": name}.items():
            wanted.update(extra)
    options = [
        word
        for key, value in wanted.items()
        if known[key] != value
        for word in (f"--{key.replace('_', '-')}", _text(value))
    ]
    return ["lrtasks", "eval", "--model", name, "--task", task, "--preset", preset, *options]


def _uncommon(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The number of layers, and the hyper-parameters that are not the model's defaults."""
    defaults = models.registry.get(entry["model"])().parameters()
    return {name: value for name, value in entry["hyper"].items() if name == "layers" or value != defaults[name]}


def _row(cell: Cell) -> list[str]:
    return [cell.task, f"{cell.value:g}", f"`{shlex.join(cell.command)}`"]


def _written(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_text(value)}" for name, value in values.items()]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
