"""Profiles: which cells count, what a group's score is, and which model is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import framed

import lrtasks
from lrtasks.generators import Task
from lrtasks.record import NOT_CAUSAL
from lrtasks.results import RunRecord
from lrtasks.results.profile import (
    Profile,
    draw_profile,
    make_profile,
    nearest,
    notes,
    published_profiles,
    save_profiles,
    tables,
)
from lrtasks.run_config import RunConfig

NAMES = ("cumsum", "cummax", "shift", "flip-flop", "compression")
TASKS: Mapping[str, Task] = {name: lrtasks.make(name, preset="small") for name in NAMES}


def record(name: str, score: float, model: str = "dlr", *, seed: int = 0, **changes: Any) -> RunRecord:
    """A run on an instance whose floor is 0."""
    made = RunConfig.make(name, model, seed=seed).record(changes.pop("status", "done"))
    made.model["count"], metric = 1, made.task["metric"]
    made.scores = {"test": {metric: score}, **{test: {metric: score} for test in ("2x", "sparse")}}
    made.baselines = {"guess": {metric: 0.0}}
    made.cost = {"seconds_per_step": 0.01, "seconds": 2.0, "device": "cpu"}
    for field, value in {"scaled": {"2x": score}, **changes}.items():
        setattr(made, field, value)
    return made


def profile(*records: RunRecord) -> Profile:
    return make_profile(framed(records), TASKS, "own")


def test_a_group_is_the_mean_over_instances_of_the_median_over_seeds() -> None:
    runs = [record("cumsum", score, seed=seed) for seed, score in enumerate((0.2, 1.0, 0.97))]
    found = profile(*runs, record("cummax", -7.0, generalisation_length=None))
    group = {group.name: group for group in found.groups}["latching"]
    assert group.scaled == pytest.approx((0.97 + 0.0) / 2)
    assert (group.solved, group.seeds, len(group.cells), group.of, group.seconds) == (2, 4, 2, 3, 4.0)
    assert found.cells["cummax"].scaled == -7.0


def test_lengths_count_where_a_further_test_is_a_length() -> None:
    found = profile(
        record("cumsum", 1.0, generalisation_length=1024),
        record("shift", 0.0),
        record("compression", 1.0, generalisation_length=31),
    )
    times = {group.name: group.generalisation_times for group in found.groups}
    assert (times["latching"], times["copying"], times["capacity"], times["state"]) == (4, 0, None, None)


def test_of_two_instances_the_lower_reach_counts() -> None:
    lengths = {name: TASKS[name].input.length for name in ("cumsum", "cummax")}
    found = profile(
        record("cumsum", 1.0, generalisation_length=4 * lengths["cumsum"]),
        record("cummax", 1.0, generalisation_length=lengths["cummax"]),
    )
    assert {group.name: group.generalisation_times for group in found.groups}["latching"] == 1


def test_of_two_seeds_the_lower_length_counts_at_any_tested_lengths() -> None:
    scaled = {"test": 1.0, "512": 0.9}
    lengths = [record("cumsum", 1.0, seed=seed, generalisation_length=reach) for seed, reach in ((0, 512), (1, None))]
    for one in lengths:
        one.scores = {"test": one.scores["test"], "512": one.scores["test"]}
        one.scaled = scaled
    (cell,) = (cell for group in profile(*lengths).groups for cell in group.cells)
    assert cell.generalisation_length == 0


def test_a_run_without_further_tests_reaches_no_length_only_if_it_diverged() -> None:
    diverged = record("cumsum", 1.0, status="diverged", scores={}, scaled={})
    older = record("cumsum", 1.0, scaled={})
    older.scores = {"test": older.scores["test"]}
    reached = [profile(one).cells["cumsum"].generalisation_length for one in (diverged, older)]
    assert reached == [0, None]


def test_a_latch_is_scored_where_reads_are_rare() -> None:
    assert profile(record("flip-flop", 1.0, scaled={"sparse": 0.4})).cells["flip-flop"].scaled == 0.4
    older = record("flip-flop", 1.0, seed=1)  # without this test
    assert profile(record("flip-flop", 1.0, scaled={"sparse": 0.4}), older).cells["flip-flop"].scaled == 0.7


def test_a_run_that_diverged_counts_as_0_and_one_that_failed_does_not() -> None:
    diverged = record("cumsum", 0.9, seed=1, status="diverged", scores={})
    cell = profile(record("cumsum", 0.9), diverged).cells["cumsum"]
    assert (cell.scaled, cell.seeds) == (0.45, 2)
    failed = profile(record("cumsum", 0.9, status="failed"))
    assert not failed.cells and notes(failed, [])[-1] == "own has no score on any instance"


def test_of_two_runs_of_a_seed_the_first_counts_as_in_comparisons() -> None:
    cell = profile(record("cumsum", 0.9), record("cumsum", 0.8)).cells["cumsum"]
    assert (cell.scaled, cell.seeds) == (0.9, 1)


def test_a_run_on_other_parameters_is_another_instance() -> None:
    other = record("cumsum", 0.9)
    other.task["parameters"]["length"] = 32
    assert not profile(other).cells
    for name, value in (("version", 99), ("data", "digest of a dataset"), ("source", "digest of a file")):
        other = record("cumsum", 0.9)
        other.task[name] = value
        assert not profile(other).cells
    name, left_out = next(
        (name, entry["name"])
        for name, task in TASKS.items()
        for entry in task.describe_parameters()
        if task.parameters()[entry["name"]] == entry["default"] is not None
    )
    older = record(name, 0.9)
    del older.task["parameters"][left_out]
    assert profile(older).cells, "as if the parameter had been added later"


def test_a_model_that_is_not_causal_is_named() -> None:
    made = profile(record("cumsum", 0.9, notes=[f"{NOT_CAUSAL}: outputs change"]), record("cummax", 0.9))
    assert "not comparable: not causal on a causal task: own on cumsum" in notes(made, [])
    assert {name: cell.not_causal for name, cell in made.cells.items()} == {"cumsum": True, "cummax": False}


def test_the_nearest_model_is_named_and_what_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("cumsum", "cummax", "shift")
    own = [record(name, 0.9) for name in names]
    same = [record(name, 0.88, "dss") for name in names]
    selection = {"by": "val", "values": {"lr": [0.001, 0.01]}, "chosen": True}
    far = [record(name, 0.1, "s4d", selection=selection) for name in names]
    few = [record("cumsum", 0.9, "attention")]
    for one in same:
        one.budget |= {"stop_solved": not one.budget["stop_solved"], "stop_at": 0.9}
    for one in far:
        one.budget["steps"] = 7
    made = profile(*own)
    others = published_profiles(made, framed([*same, *far, *few, *own]), TASKS)
    found = nearest(made, others)
    assert found is not None and found.label == "dss"
    assert made.distance(found) == pytest.approx(0.02)
    monkeypatch.setattr("lrtasks.results.profile.ENOUGH_SHARED", 1)
    found = nearest(made, others)
    assert found is not None and found.label == "dss", "attention is nearer, but shares a third of the instances"
    monkeypatch.undo()
    said = " ".join(notes(made, others))
    assert "nearest published model: dss, distance 0.02 over 3 instances" in said
    assert "another budget" not in said and "selected" not in said
    assert [line[0] for line in tables(made, others)[1].lines] == ["own", "dlr", "dss", "attention"]
    unequal = published_profiles(made, framed(far), TASKS)
    assert [other.label for other in unequal] == ["s4d"], "nothing has the same budget"
    assert "3 of 3 published cells had another budget" in " ".join(notes(made, unequal))
    assert "3 of 3 published cells: settings of only one model were selected" in notes(made, unequal)
    assert nearest(made, [made]) is None, "a model is not its own neighbour"


def test_a_model_with_half_of_the_instances_can_be_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrtasks.results.profile.ENOUGH_SHARED", 2)
    own = profile(*(record(name, 0.9) for name in NAMES[:4]))
    near = profile(*(record(name, 0.88, "dss") for name in NAMES[:2]))
    far = profile(*(record(name, 0.8, "s4d") for name in NAMES[:4]))
    assert nearest(own, [far, near]) is near


def test_the_distance_is_the_root_mean_square_difference() -> None:
    own = profile(*(record(name, 0.9) for name in ("cumsum", "cummax", "shift")))
    scores = {"cumsum": 0.9, "cummax": 0.6, "shift": 0.5}
    other = profile(*(record(name, score, "dss") for name, score in scores.items()))
    assert own.distance(other) == pytest.approx((0.25 / 3) ** 0.5)


def test_of_several_budgets_the_own_is_taken() -> None:
    long, short = record("cumsum", 1.0, "dss"), record("cumsum", 0.2, "dss")
    short.budget["steps"] = 7
    (found,) = published_profiles(profile(record("cumsum", 0.5)), framed([short, long]), TASKS)
    assert found.cells["cumsum"].scaled == 1.0


def test_without_another_profile_the_budget_with_the_most_runs_is_taken() -> None:
    rare = record("cumsum", 0.2)
    rare.budget["steps"] = 7
    cell = profile(rare, *(record("cumsum", 1.0, seed=seed) for seed in (0, 1))).cells["cumsum"]
    assert (cell.scaled, cell.seeds) == (1.0, 2)


def test_every_profile_has_its_panel() -> None:
    profiles = [profile(record("cumsum", 0.9)), profile(record("shift", 0.3))]
    figure = draw_profile([replace(one, label="a long name of a layer " * 3) for one in profiles])
    assert len(figure.axes) == 2
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("not run") == 6 and "0.90 (1)" in texts
    figure.draw_without_rendering()
    lines = figure.axes[0].yaxis.get_gridlines()
    assert lines and not any(line.get_visible() for line in lines), "a line would cross the numbers"
    first, second = (panel.title.get_window_extent() for panel in figure.axes)
    assert not first.overlaps(second)


def test_profiles_of_several_models_are_one_page(tmp_path: Path) -> None:
    made = [profile(record("cumsum", score)) for score in (0.2, 0.9)]
    save_profiles([(one, []) for one in made], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (page.count("<!doctype"), page.count("<title>"), page.count("<svg"), page.count("<table>")) == (1, 1, 1, 2)
    assert page.startswith("<!doctype") and page.index("<svg") < page.index("<table>")
