"""A model's profile: its score in each capability group, compared with the profiles of published models.

A group's score is the mean over its instances of the median scaled score over seeds. A score below the floor and a run
that diverged count as 0. Instances without a score are left out; the tables show how many have a score.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lrtasks.budget import SHARED_BUDGET
from lrtasks.errors import printable
from lrtasks.generators.base import GROUPS, Task
from lrtasks.generators.fingerprint import INSTANCES, SCORED_ON
from lrtasks.metrics import TEST_SOLVED
from lrtasks.results.compare import by_column
from lrtasks.results.formats import TextTable, number
from lrtasks.results.settings import Settings, key, owned, without_none
from lrtasks.results.style import COLOURS, panels, styled, title
from lrtasks.results.table import Row, plain_rows

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

BAR = 20
"""Number of characters of a full bar."""
ENOUGH_SHARED = 3
"""Least number of shared instances for a distance between two profiles."""
MAY_DIFFER = {"stop_at": None, "stop_solved": None}
"""Fields of the shared budget that may differ between two profiles: they only end a run early, at a good score."""


class Cell(NamedTuple):
    """Result of one model on one instance.

    Attributes:
        instance: name of the task and its preset, as in a suite.
        scaled: median over seeds of the scaled score.
        solved: seeds with a scaled score of at least 0.95.
        seeds: seeds with a score.
        length: length at which the model was trained.
        generalisation_length: median over seeds, where a seed without one counts as 0; ``None`` without further tests
            at other lengths.
        selected: the selected settings and their values; empty without a selection.
        seconds: mean seconds of one training.
        budget: the shared budget.
    """

    instance: str
    scaled: float
    solved: int
    seeds: int
    length: int
    generalisation_length: float | None
    selected: Settings
    seconds: float | None
    budget: Settings

    @property
    def limited(self) -> float:
        """The scaled score within 0 to 1."""
        return min(max(self.scaled, 0.0), 1.0)


@dataclass
class Group:
    """Results of one model on the instances of a group.

    Attributes:
        cells: results on the instances that have a score.
        of: number of instances in the group.
        scaled: mean of the scaled scores over the instances, each limited to 0..1; ``None`` if there are none.
        solved: number of solved seeds, summed over the instances.
        seeds: number of seeds, summed over the instances.
        generalisation_times: generalisation length divided by the training length, median over the instances.
        seconds: seconds of training one seed of each instance; ``None`` if no training was timed.
    """

    name: str
    cells: Sequence[Cell]
    of: int

    def __post_init__(self) -> None:
        reached = [(cell.generalisation_length, cell.length) for cell in self.cells]
        times = [reach / length for reach, length in reached if reach is not None]
        timed = [cell.seconds for cell in self.cells if cell.seconds is not None]
        limited = [cell.limited for cell in self.cells]
        self.scaled = float(np.mean(limited)) if limited else None
        self.solved, self.seeds = sum(cell.solved for cell in self.cells), sum(cell.seeds for cell in self.cells)
        self.generalisation_times = _lower_median(times) if times else None
        self.seconds = math.fsum(timed) if timed else None

    @property
    def short(self) -> str:
        """The score as text, with the number of scored instances if some are missing."""
        missing = f" ({len(self.cells)})" if self.cells and len(self.cells) < self.of else ""
        return number(self.scaled, 2) + missing


@dataclass(frozen=True)
class Profile:
    """Results of one model, under its label in tables, in each capability group that has an instance."""

    label: str
    model: str
    groups: tuple[Group, ...]

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """All cells by instance."""
        return {cell.instance: cell for group in self.groups for cell in group.cells}

    def shared(self, other: Profile) -> list[tuple[Cell, Cell]]:
        """Return the pairs of cells on the instances that both profiles have."""
        return [(cell, other.cells[name]) for name, cell in self.cells.items() if name in other.cells]

    def distance(self, other: Profile) -> float | None:
        """Return the root mean square difference of scaled scores on shared instances, each score limited to 0..1.

        The distance is ``None`` if fewer than :data:`ENOUGH_SHARED` instances are shared.
        """
        differences = [one.limited - two.limited for one, two in self.shared(other)]
        return float(np.sqrt(np.mean(np.square(differences)))) if len(differences) >= ENOUGH_SHARED else None

    def content(self) -> dict[str, Any]:
        """Return the profile as plain data, for JSON."""
        names = ("scaled", "solved", "seeds", "generalisation_times", "seconds")
        groups = {
            group.name: {
                **{name: getattr(group, name) for name in names},
                "instances": len(group.cells),
                "of": group.of,
                "cells": [cell._asdict() for cell in group.cells],
            }
            for group in self.groups
        }
        return {"model": self.label, "groups": groups}


def make_profile(
    runs: pd.DataFrame, tasks: Mapping[str, Task], label: str, budgets: Mapping[str, Settings] | None = None
) -> Profile:
    """Return the profile of one model.

    Args:
        runs: rows of :func:`lrtasks.results.frame` of one model; runs on other tasks are ignored.
        tasks: task of each instance.
        label: label of the model in tables.
        budgets: preferred shared budget by instance (:attr:`Cell.budget`), where the runs have several. Without it,
            the budget with the most runs is used.
    """
    rows = plain_rows(runs[runs["status"].isin(("done", "diverged"))])
    found: dict[str, list[Cell]] = {}
    counts = {group: set(names) for group, names in INSTANCES.items()}
    for name, task in tasks.items():
        group = next((group for group, names in INSTANCES.items() if name in names), task.group)
        counts.setdefault(group, set()).add(name)
        by_budget: dict[str, list[Row]] = {}
        for row in rows:
            if row["task"] == task.name and (budget := budget_on(row, task)) is not None:
                by_budget.setdefault(budget, []).append(row)
        chosen = key(budgets[name]) if budgets and name in budgets else ""
        if chosen not in by_budget:
            chosen = max(by_budget, key=lambda one: len(by_budget[one]), default="")
        if cell := _cell(name, task, by_budget.get(chosen, ()), chosen):
            found.setdefault(group, []).append(cell)
    groups = tuple(Group(name, tuple(found.get(name, ())), len(counts[name])) for name in GROUPS if name in counts)
    return Profile(label, str(runs["model"].iloc[0]), groups)


def published_profiles(own: Profile, runs: pd.DataFrame, tasks: Mapping[str, Task]) -> list[Profile]:
    """Return the profiles of all models of ``runs`` that share an instance with ``own``, the nearest first.

    If a model has runs of several budgets on an instance, those with the budget of ``own`` are used.
    """
    budgets = {name: cell.budget for name, cell in own.cells.items()}
    made = [make_profile(rows, tasks, label, budgets) for label, rows in by_column(runs).items()]
    found = [profile for profile in made if own.shared(profile)]
    return sorted(found, key=lambda one: (math.inf if (away := own.distance(one)) is None else away, one.label))


def nearest(own: Profile, others: Sequence[Profile]) -> Profile | None:
    """Return the nearest profile of another model that shares at least half of the largest number of instances."""
    others = [other for other in others if other.model != own.model and own.distance(other) is not None]
    most = max((len(own.shared(other)) for other in others), default=0)
    enough = [other for other in others if 2 * len(own.shared(other)) >= most]
    return min(enough, key=lambda other: own.distance(other) or 0.0, default=None)


def tables(own: Profile, others: Sequence[Profile]) -> list[TextTable]:
    """Return a table with one line per group, and a table with one line per published model."""
    lines = []
    for group in own.groups:
        full, times = round(BAR * (group.scaled or 0.0)), group.generalisation_times
        reach = "" if times is None else f"{number(times)}x" if times else "none"
        cells = ["█" * full + "·" * (BAR - full), number(group.scaled, 2), f"{group.solved}/{group.seeds}", reach]
        cells.append(number(group.seconds, unit="s"))
        coverage = f"{len(group.cells)} of {group.of}"
        lines.append([group.name, *(cells if group.cells else [""] * len(cells)), coverage])
    header = ["group", own.label, "scaled score", "solved seeds", "generalises to", "training", "instances"]
    first = TextTable(header, lines)
    if not others:
        return [first]
    rows = [
        [one.label, *(group.short for group in one.groups), number(own.distance(one), 2) if one is not own else ""]
        for one in (own, *others)
    ]
    return [first, TextTable(["model", *(group.name for group in own.groups), "distance"], rows)]


def notes(own: Profile, others: Sequence[Profile]) -> list[str]:
    """Return the notes below the tables: meaning of the numbers, nearest published model, unequal conditions."""
    said = [
        "scaled score: 0 is the best trivial baseline, 1 is perfect; mean over instances of the median over seeds",
        f"solved: a scaled score of at least {TEST_SOLVED:g}; training: one seed of each instance",
        "generalises to: the generalisation length as a multiple of the training length, median over instances",
    ]
    if not own.cells:
        return [*said, f"{own.label} has no score on any instance"]
    if not others:
        return [*said, "no published model has run on these instances"]
    said.append("distance: root mean square difference of scaled scores on shared instances; in brackets their number")
    near = nearest(own, others)
    if near is None:
        said.append(f"no published model shares {ENOUGH_SHARED} instances with {own.label}: none is named as nearest")
    else:
        shared, away = len(own.shared(near)), own.distance(near)
        said.append(f"nearest published model: {near.label}, distance {number(away, 2)} over {shared} instances")
    pairs = [pair for other in others for pair in own.shared(other)]
    budgets = [[{**cell.budget, **MAY_DIFFER} for cell in pair] for pair in pairs]
    unequal = sum(one != two for one, two in budgets)
    selected = sum(bool(one.selected) != bool(two.selected) for one, two in pairs)
    if unequal:
        said.append(f"{unequal} of {len(pairs)} published cells had another budget: they do not compare strictly")
    if selected:
        said.append(f"{selected} of {len(pairs)} published cells: only one side was selected on validation")
    return said


@styled
def draw_profile(profiles: Sequence[Profile]) -> Figure:
    """Draw one panel per profile, with a bar from 0 to 1 per group, in one colour that is also legible in grey.

    Args:
        profiles: at least one profile; a group without a score is labelled "not run".
    """
    names = list(dict.fromkeys(group.name for profile in profiles for group in profile.groups))
    height = 0.9 + 0.28 * len(names)
    figure, drawn = panels(len(profiles), 4, 2.3, height, margin=(1.2, 0), sharex=True, sharey=True)
    for panel, profile in zip(drawn, profiles, strict=True):
        by_name = {group.name: group for group in profile.groups if group.cells}
        for place, name in enumerate(names):
            scaled = by_name[name].scaled or 0 if name in by_name else 0
            panel.barh(place, 1, height=0.7, color="#f0f0f0")
            panel.barh(place, scaled, height=0.7, color=COLOURS[0])
            text = by_name[name].short if name in by_name else "not run"
            at, side, colour = (-0.03, "right", "white") if scaled > 0.6 else (0.03, "left", "black")
            panel.text(scaled + at, place, text, ha=side, va="center", fontsize=7, color=colour)
        panel.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6), yticks=range(len(names)), xticks=[0, 0.5, 1])
        panel.set_yticklabels(names, fontsize=8)
        panel.set_title(printable(title(profile.label)), fontsize=8)
        panel.tick_params(length=0, labelsize=8, labelbottom=True)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    figure.supxlabel("scaled score", fontsize=8)
    return figure


def _cell(name: str, task: Task, rows: Sequence[Row], budget: str) -> Cell | None:
    """Return the cell of runs that differ only in their seeds; ``None`` without a score."""
    column = f"scaled.{SCORED_ON.get(name)}"
    scored: dict[int, tuple[float, Row]] = {}
    for row in rows:
        value = row["scaled_score"] if row.get(column) is None else row[column]
        value = 0.0 if row["status"] == "diverged" else value
        if value is not None:
            scored[row["seed"]] = (value, row)
    if not scored:
        return None
    values, runs = zip(*scored.values(), strict=True)
    tests = [name for name in runs[0] if name.startswith("scaled.")]
    by_length = any(test.input.length != task.input.length for test in task.tests().values())
    # records of old versions have no further tests
    further = any(row["status"] == "diverged" or any(row[name] is not None for name in tests) for row in runs)
    reached = [row["generalisation_length"] or 0.0 for row in runs]
    timed = [row["seconds"] for row in runs if row["seconds"] is not None]
    return Cell(
        name,
        float(np.median(values)),
        sum(value >= TEST_SOLVED for value in values),
        len(values),
        task.input.length,
        _lower_median(reached) if by_length and further else None,
        json.loads(runs[0]["selected"] or "{}"),
        float(np.mean(timed)) if timed else None,
        json.loads(budget),
    )


def _lower_median(values: Sequence[float]) -> float:
    """Return the median; for an even number of values the lower of the two middle ones, which is a tested length."""
    return float(np.quantile(values, 0.5, method="lower"))


def budget_on(row: Row, task: Task) -> str | None:
    """Return a run's shared budget as JSON; ``None`` if the run is not on ``task`` or used a stored dataset."""
    setup = json.loads(row["setup"])
    budget = {name: setup.pop(name) for name in SHARED_BUDGET if name in setup}
    # an old record lacks parameters that were added to the task later
    defaults = {entry["name"]: entry["default"] for entry in task.describe_parameters()}
    same = key(without_none({**defaults, **owned("task ", setup)})) == key(without_none(task.parameters()))
    return key(budget) if same and setup["version"] == task.version and "data" not in setup else None
