"""A model's profile: its score in each capability group, compared with the profiles of published models.

A group's score is the mean over its instances of the median scaled score over seeds. A score below the floor and a run
that diverged count as 0. Instances without a score are left out; the tables show how many have a score.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from lrtasks.budget import SHARED_BUDGET
from lrtasks.errors import printable
from lrtasks.files import write_output
from lrtasks.generators.base import GROUPS, Task
from lrtasks.generators.fingerprint import FINGERPRINT, SCORED_ON
from lrtasks.metrics import TEST_SOLVED
from lrtasks.record import NOT_COMPARABLE
from lrtasks.registry import own_source
from lrtasks.results.compare import by_column
from lrtasks.results.formats import TextTable, number, render
from lrtasks.results.settings import Settings, key, labels, owned, settings_in, without_none
from lrtasks.results.style import COLOURS, encode, literal, panels, save, styled, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR = 20
"""Number of characters of a full bar."""
ENOUGH_SHARED = 3
"""Smallest number of shared instances for a distance between two profiles."""
DRAWN = 3
"""Number of published profiles that are drawn with the model's profile: the nearest ones."""
TITLE = 34
"""Characters in a line of a panel's title."""
MAY_DIFFER = ("stop_at", "stop_solved")
"""Fields of the shared budget that may differ between two profiles: they only end a run early, at a good score."""


class Cell(NamedTuple):
    """Result of one model on one instance.

    Attributes:
        instance: name of the task and its preset, as in a suite.
        scaled: median over seeds of the scaled score, with 0 for a seed that diverged.
        solved: number of seeds with a scaled score of at least 0.95.
        seeds: number of seeds with a score, and of seeds that diverged.
        length: length at which the model was trained.
        generalisation_length: median over seeds, where a seed without one counts as 0; ``None`` without further tests
            at other lengths.
        selected: the selected settings and their values; empty without a selection.
        seconds: mean seconds of one training.
        budget: the shared budget.
        not_causal: whether a run is not causal although the task is: the result is not comparable.
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
    not_causal: bool

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
        generalisation_times: generalisation length divided by the trained length, median over the instances.
        seconds: seconds of training one seed of each instance; ``None`` if no training was timed.
    """

    name: str
    cells: Sequence[Cell]
    of: int

    def __post_init__(self) -> None:
        reached = [(cell.generalisation_length, cell.length) for cell in self.cells]
        times = [reach / length for reach, length in reached if reach is not None]
        timed = [cell.seconds for cell in self.cells if cell.seconds is not None]
        self.scaled = float(np.mean([cell.limited for cell in self.cells])) if self.cells else None
        self.solved, self.seeds = sum(cell.solved for cell in self.cells), sum(cell.seeds for cell in self.cells)
        self.generalisation_times = float(np.quantile(times, 0.5, method="lower")) if times else None
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
        """Return the root mean square difference of :attr:`Cell.limited`; ``None`` for few shared instances."""
        differences = [one.limited - two.limited for one, two in self.shared(other)]
        return float(np.sqrt(np.mean(np.square(differences)))) if len(differences) >= ENOUGH_SHARED else None

    def content(self) -> dict[str, Any]:
        """Return the profile as plain data, for JSON."""
        names, groups = ("scaled", "solved", "seeds", "generalisation_times", "seconds"), {}
        for group in self.groups:
            cells = {"instances": len(group.cells), "of": group.of, "cells": [cell._asdict() for cell in group.cells]}
            groups[group.name] = {**{name: getattr(group, name) for name in names}, **cells}
        return {"model": self.label, "groups": groups}


def make_profile(
    runs: pd.DataFrame, tasks: Mapping[str, Task], label: str, like: Profile | None = None, *, strict: bool = False
) -> Profile:
    """Return the profile of one model.

    Args:
        runs: rows of :func:`lrtasks.results.frame` of one model; runs on other tasks are ignored.
        tasks: task of each instance.
        label: label of the model in tables.
        like: if the runs have several budgets on an instance, the runs with the budget of this profile are used.
            Without it, the budget with the most runs is used.
        strict: leave out runs with another budget than ``like``.
    """
    wanted = {} if like is None else {name: _compared(cell.budget) for name, cell in like.cells.items()}
    ended = runs[runs["status"].isin(("done", "diverged"))]
    found: dict[str, list[Cell]] = {}
    counts = {group: set(names) for group, names in FINGERPRINT.items()}
    for name, task in tasks.items():
        group = next((group for group, names in FINGERPRINT.items() if name in names), type(task).group)
        counts.setdefault(group, set()).add(name)
        own = ended[ended["task"] == task.name]
        on = budgets_on(own[has_source(own, type(task))], task)
        counted = Counter(on)
        equal = [budget for budget in counted if _compared(json.loads(budget)) == wanted.get(name)]
        chosen = max(equal or ([] if strict else counted), key=counted.__getitem__, default="")
        if chosen and (cell := _cell(name, task, ended.loc[on.index[on == chosen]], chosen)):
            found.setdefault(group, []).append(cell)
    groups = tuple(Group(name, tuple(found.get(name, ())), len(counts[name])) for name in GROUPS if name in counts)
    return Profile(label, str(runs["model"].iloc[0]), groups)


def runs_by_label(runs: pd.DataFrame, given: Mapping[str, Settings]) -> dict[str, pd.DataFrame]:
    """Return the runs of each model by label, which shows the hyper-parameters that the user set.

    Args:
        runs: rows of :func:`lrtasks.results.frame`.
        given: hyper-parameters that the user set, by name of the model.
    """
    columns = list(by_column(runs).values())
    models = [settings_in(rows["variant"].iloc[0]) for rows in columns]
    groups = [models]
    for model in models:
        own = settings_in(key({f"model {name}": value for name, value in given.get(model["name"], {}).items()}))
        # a value that validation selected belongs to the result
        shown = {name for name in own if model.get(name) != "selected"}
        groups.append([model, {name: value for name, value in model.items() if name not in shown}])
    return {label: rows for (label, _), rows in zip(labels(models, groups), columns, strict=True)}


def published_profiles(own: Profile, runs: pd.DataFrame, tasks: Mapping[str, Task]) -> list[Profile]:
    """Return the profiles of all models of ``runs`` that share an instance with ``own``, the nearest first.

    Runs with another budget than ``own`` count only if no published run has the same budget.
    """
    found: list[Profile] = []
    for strict in (True, False):
        made = (make_profile(rows, tasks, label, own, strict=strict) for label, rows in by_column(runs).items())
        found = found or [profile for profile in made if own.shared(profile)]
    return sorted(found, key=lambda one: (math.inf if (away := own.distance(one)) is None else away, one.label))


def nearest(own: Profile, others: Sequence[Profile]) -> Profile | None:
    """Return the nearest other model; it shares at least half as many instances as the model that shares most."""
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
        cells = [*cells, number(group.seconds, unit="s")] if group.cells else [""] * 5
        lines.append([group.name, *cells, f"{len(group.cells)} of {group.of}"])
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
        "generalises to: the generalisation length as a multiple of the trained length, median over instances",
    ]
    if not own.cells:
        return [*said, f"{own.label} has no score on any instance"]
    if unfair := [name for name, cell in own.cells.items() if cell.not_causal]:
        said.append(f"{NOT_COMPARABLE}: {own.label} on {', '.join(unfair)}")
    if not others:
        return [*said, "no published model has run on these instances"]
    said.append(
        "distance: root mean square difference on shared instances; (n): only n instances of a group have a score"
    )
    near = nearest(own, others)
    if near is None:
        said.append(f"no published model shares {ENOUGH_SHARED} instances with {own.label}: none is named as nearest")
    else:
        shared, away = len(own.shared(near)), own.distance(near)
        said.append(f"nearest published model: {near.label}, distance {number(away, 2)} over {shared} instances")
    pairs = [pair for other in others for pair in own.shared(other)]
    unequal = sum(_compared(one.budget) != _compared(two.budget) for one, two in pairs)
    selected = sum(bool(one.selected) != bool(two.selected) for one, two in pairs)
    if unequal:
        said.append(f"{unequal} of {len(pairs)} published cells had another budget and are not strictly comparable")
    if selected:
        said.append(f"{selected} of {len(pairs)} published cells: settings of only one model were selected")
    return said


def content(own: Profile, others: Sequence[Profile]) -> dict[str, Any]:
    """Return a profile and those of published models as plain data, for JSON."""
    near = nearest(own, others)
    apart = [{**other.content(), "distance": own.distance(other)} for other in others]
    return {**own.content(), "nearest": near and near.label, "published": apart}


def save_profiles(found: Sequence[tuple[Profile, Sequence[Profile]]], path: Path) -> None:
    """Draw profiles with the nearest published ones, as .svg, .pdf or .png, or as .html with the tables below."""
    drawn = [one for own, others in found for one in (own, *[two for two in others if two.model != own.model][:DRAWN])]
    figure = draw_profile(drawn)
    if path.suffix.lower() != ".html":
        save(figure, path)
        return
    drawing = encode(figure, ".svg").decode()
    head = render("html")
    parts = [render("html", tables(*pair), notes(*pair)).removeprefix(f"{head}\n") for pair in found]
    page = "\n".join([head, *parts])
    box = '<div class="wide">'
    page = page.replace(box, f"{box}{drawing[drawing.index('<svg') :]}</div>\n{box}", 1)
    write_output(path, page.encode(errors="replace"))


@styled
def draw_profile(profiles: Sequence[Profile]) -> Figure:
    """Draw one panel per profile, with a bar from 0 to 1 per group, or the words "not run" without a score."""
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
        panel.grid(visible=False, axis="y")  # its lines would cross the numbers
        panel.set_title(literal(textwrap.fill(printable(title(profile.label)), TITLE)), fontsize=8)
        panel.tick_params(length=0, labelsize=8, labelbottom=True)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    figure.supxlabel("scaled score", fontsize=8)
    return figure


def _cell(name: str, task: Task, runs: pd.DataFrame, budget: str) -> Cell | None:
    """Return the cell of runs that differ only in their seeds; ``None`` without a score."""
    diverged, scaled = runs["status"] == "diverged", runs["scaled_score"]
    if name in SCORED_ON:
        scaled = runs.get(f"scaled.{SCORED_ON[name]}", scaled).fillna(scaled)
    runs = runs.assign(scaled=scaled.mask(diverged, 0.0)).dropna(subset="scaled").drop_duplicates("seed")
    if runs.empty:
        return None
    by_length = any(test.input.length != task.input.length for test in task.tests().values())
    # records of old versions have no further tests
    further = diverged.any() or runs.filter(regex=r"^scaled\.").notna().any(axis=None)
    # of two lengths the lower one, which is a tested length
    reached = runs["generalisation_length"].fillna(0.0).quantile(0.5, interpolation="lower")
    generalises = float(reached) if by_length and further else None
    selected, seconds = json.loads(runs["selected"].iloc[0] or "{}"), runs["seconds"].mean()
    timed = None if math.isnan(seconds) else float(seconds)
    median, solved = float(runs["scaled"].median()), int((runs["scaled"] >= TEST_SOLVED).sum())
    length = task.input.length
    unfair = bool(runs["not_causal"].eq(True).any())
    return Cell(name, median, solved, len(runs), length, generalises, selected, timed, json.loads(budget), unfair)


def _compared(budget: Settings) -> Settings:
    return {name: value for name, value in budget.items() if name not in MAY_DIFFER}


def has_source(runs: pd.DataFrame, kind: type[Task]) -> pd.Series:
    """Return whether the task of each run has the source of ``kind``: two files may use one name."""
    source = own_source(kind)
    return runs["setup"].map(lambda setup: json.loads(setup).get("source") == source).astype(bool)


def budgets_on(runs: pd.DataFrame, task: Task) -> pd.Series:
    """Return the shared budgets, as JSON, of the runs that are on ``task`` and did not use a stored dataset."""
    # an old record lacks parameters that were added to the task later
    defaults = {entry["name"]: entry["default"] for entry in task.describe_parameters()}

    def budget(text: str) -> str | None:
        setup = json.loads(text)
        shared = {name: setup.pop(name) for name in SHARED_BUDGET if name in setup}
        same = key(without_none({**defaults, **owned("task ", setup)})) == key(without_none(task.parameters()))
        return key(shared) if same and setup["version"] == task.version and "data" not in setup else None

    return runs.loc[runs["task"] == task.name, "setup"].map(budget).dropna()
