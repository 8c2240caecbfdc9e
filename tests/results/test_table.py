"""Tables: what is merged, what is kept apart, and what stands beside it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import made, stored, tabled

import lrtasks
from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.record import NOT_CAUSAL
from lrtasks.results import RunRecord


def grid(*records: RunRecord) -> dict[str, dict[str, str]]:
    """Cells of the printed table by row label and header."""
    found = tabled(records, unequal_budgets=True).scores()
    assert len({line[0] for line in found.lines}) == len(found.lines)
    return {line[0]: dict(zip(found.header[1:], line[1:], strict=True)) for line in found.lines}


def test_seeds_are_merged_to_mean_and_interval() -> None:
    table = tabled([made(seed=seed, score=score) for seed, score in ((2, 0.8), (0, 0.5), (1, 0.6))])
    (row,) = table.rows()
    assert row["seeds"] == [0, 1, 2]
    assert row["score"] == pytest.approx(1.9 / 3)
    spread = np.std([0.5, 0.6, 0.8], ddof=1)
    assert row["score_std"] == pytest.approx(spread)
    # 4.3027 is the 0.975 quantile of Student's t with two degrees of freedom
    half = 4.30265273 * spread / 3**0.5
    assert (row["score_low"], row["score_high"]) == pytest.approx((1.9 / 3 - half, 1.9 / 3 + half))
    with_means = tabled([made(seed=seed, score=score) for seed, score in ((2, 0.8), (0, 0.5), (1, 0.6))], mean=True)
    assert with_means.scores().lines[0][3] == "0.633 ±0.379"
    assert "±: half the 95 % interval of the mean over 3 seeds (Student t), seeds alone" in with_means.notes()


def test_a_cell_of_several_seeds_is_the_median_and_how_many_solved_the_task() -> None:
    table = tabled([made(seed=seed, score=score, floor=0.2) for seed, score in ((0, 0.99), (1, 0.97), (2, 0.25))])
    assert table.scores().lines[0][3] == "0.970 (2/3)"
    (row,) = table.rows()
    assert (row["median"], row["solved"]) == (0.97, 2)
    # of three seeds the bootstrap's interval reaches from the least to the largest
    assert (row["median_low"], row["median_high"]) == (0.25, 0.99)
    lost = tabled([made(seed=0, score=0.97), made(seed=1, score=None, status="diverged", cost={})])
    assert lost.scores().lines[0][3] == "0.970 (1/2, 1 diverged)"
    unscaled = tabled([made(seed=seed, baselines={}) for seed in range(2)])
    assert unscaled.scores().lines[0][3] == "0.900 ±0.000"


def test_the_test_samples_of_one_seed_give_an_interval() -> None:
    (row,) = tabled([made(score=0.9, errors={"test": 0.01})]).rows()
    assert (row["median_low"], row["median_high"]) == pytest.approx((0.88, 0.92), abs=0.002)


def test_scores_on_further_tests_stand_by_length() -> None:
    scores = {"test": {"r2": 0.9}, "16x": {"r2": 0.2}, "2x": {"r2": 0.8}, "sparse": {}}
    record = made(scores=scores, scaled={"2x": 0.7, "16x": 0.1}, generalisation_length=256)
    table = tabled([record, made(task="mips")]).by_length()
    assert table is not None
    assert table.header == ["task", "model", "test", "2x", "16x", "sparse", "generalisation length"]
    assert table.lines == [["shift", "dlr", "0.900", "0.800", "0.200", "not possible", "256"]]
    assert tabled([made()]).by_length() is None


def test_the_name_of_a_test_that_is_not_possible_may_contain_a_comma() -> None:
    table = tabled([made(scores={"test": {"r2": 0.9}, "old, new": {}})]).by_length()
    assert table is not None
    assert table.header == ["task", "model", "test", "old, new", "generalisation length"]


def test_csv_and_json_hold_the_medians_on_further_tests() -> None:
    further = [{"test": {"r2": 0.9}, "2x": {"r2": score}, "sparse": {}} for score in (0.8, 0.3, 0.5)]
    records = [made(seed=seed, scores=scores) for seed, scores in enumerate(further)]
    rows = tabled([*records, made(task="mips")]).rows()
    assert {row["task"]: row["tests"] for row in rows} == {"mips": {}, "shift": {"2x": 0.5}}


@pytest.mark.parametrize(
    ("lengths", "steps", "expected"),
    [
        ((None, None, 256), (None, None, 300), (None, None)),
        ((512, None, 256), (100, None, 300), (256, 300)),
        ((512, None), (100, None), (None, None)),
        ((512, 256), (100, 300), (256, 300)),
    ],
)
def test_a_seed_that_reaches_nothing_has_a_part_in_the_median(
    lengths: tuple[int | None, ...], steps: tuple[int | None, ...], expected: tuple[int | None, int | None]
) -> None:
    reached = enumerate(zip(lengths, steps, strict=True))
    runs = [made(seed=seed, generalisation_length=length, steps_to_solve=step) for seed, (length, step) in reached]
    table = tabled(runs)
    (cell,), (row,) = table.cells, table.rows()
    assert (cell["generalisation_length"], cell["steps_to_solve"]) == expected
    samples = expected[1] and expected[1] * runs[0].budget["batch_size"]
    assert (row["steps_to_solve"], row["samples_to_solve"]) == (expected[1], samples)


def test_one_seed_has_no_interval() -> None:
    scores = {"test": {"r2": 0.5, "r2_batch_mean": 0.5, "r2_batch_std": 0.125}}
    table = tabled([made(scores=scores)])
    (row,) = table.rows()
    assert (row["score"], row["score_low"], row["score_high"], row["score_std"]) == (0.5, None, None, None)
    assert (row["batch_mean"], row["batch_std"]) == (0.5, 0.125)
    assert table.scores().lines[0][3] == "0.500"
    assert tabled([made(scores=scores)], mean=True).notes()[0] == "without ±: a single seed, which has no interval"


def test_a_seed_without_a_score_does_not_make_the_interval_of_the_mean_narrower() -> None:
    scored = [made(seed=seed, score=score) for seed, score in enumerate((0.5, 0.7))]
    lost = made(seed=2, score=None, status="diverged", cost={})
    (alone,), (beside,) = tabled(scored).rows(), tabled([*scored, lost]).rows()
    names = ("score", "score_low", "score_high", "score_std")
    assert [beside[name] for name in names] == [alone[name] for name in names]


def test_the_notes_name_how_many_seeds_there_are() -> None:
    records = [made(seed=seed) for seed in range(3)] + [made(task="mips", seed=seed) for seed in range(2)]
    assert "over 2 to 3 seeds" in tabled(records, mean=True).notes()[0]
    assert "without ±" not in " ".join(tabled(records, mean=True).notes())


def test_the_notes_count_choices_at_the_end_of_the_tried_values() -> None:
    def chosen(model: str, lr: float, score: float = 0.99, seed: int = 0) -> RunRecord:
        selection = {"by": "val", "values": {"lr": [0.01, 0.001, 0.003]}, "chosen": True}
        return made(model=model, budget={"lr": lr}, score=score, selection=selection, seed=seed)

    kernels = {"by": "val", "values": {"kernel": ["complex", "real"]}, "chosen": True}
    others = [chosen("dlr", 0.003), made(model="gla", selection=kernels)]
    seeds = [chosen("lstm", 0.001, score, seed) for seed, score in enumerate((0.99, 0.5))]
    notes = tabled([*others, chosen("dss", 0.01), *seeds]).notes()
    counted = "2 of 4 cells chose the lowest or highest lr that was tried: a value beyond it may be better"
    assert f"{counted} (1 of these cells are not solved by every seed)" in notes
    assert not [note for note in tabled([*others, made(model="s4d")]).notes() if "chose" in note]


MUST_AGREE = {
    "steps",
    "batch_size",
    "train_samples",
    "val_batches",
    "test_batches",
    "stop_at",
    "stop_solved",
    "precision",
}
"""What two models must share to stand in one row; the rest is each model's own tuning."""

OTHERS: dict[str, Any] = {
    "steps": 5,
    "batch_size": 5,
    "train_samples": 64,
    "val_batches": 5,
    "test_batches": 5,
    "stop_at": 0.5,
    "stop_solved": True,
    "test_lengths": (5,),
    "test_data": ("stored",),
    "class_weights": (1.0, 2.0),
    "accumulate": 2,
    "checkpoint_blocks": True,
    "precision": "bf16",
    "lr": 0.5,
    "weight_decay": 0.5,
    "betas": (0.5, 0.5),
    "schedule": "cosine",
    "warmup_steps": 5,
    "clip": 0.5,
    "eval_every": 5,
}


def test_the_list_of_other_budgets_is_complete() -> None:
    assert set(OTHERS) == set(made().budget)


@pytest.mark.parametrize("name", OTHERS)
def test_different_budgets_are_never_merged(name: str) -> None:
    records = [made(seed=0, score=0.25), made(seed=1, score=0.75, budget={name: OTHERS[name]})]
    cells = grid(*records)
    shown = [text for row in cells.values() for header, text in row.items() if header.startswith("dlr") and text]
    assert sorted(shown) == ["0.250", "0.750"]
    labels = [*cells, *(header for row in cells.values() for header in row)]
    assert any(f"{name}=" in label for label in labels)
    assert len(cells) == (2 if name in MUST_AGREE else 1)


@pytest.mark.parametrize(
    "other",
    [
        made(score=0.75, seed=1, hyper={"layers": 2}),
        made(score=0.75, seed=1, length=512),
        made(score=0.75, seed=1, source="ab"),
        made(score=0.75, seed=1, hyper={"lr": 3.0}),
        dataclasses.replace(made(score=0.75, seed=1), task={**made().task, "version": 2}),
        dataclasses.replace(made(score=0.75, seed=1), task={**made().task, "data": "ab"}),
        dataclasses.replace(made(score=0.75, seed=1), task={**made().task, "source": "ab"}),
        dataclasses.replace(made(score=0.75, seed=1), model={**made().model, "version": 2}),
    ],
)
def test_different_settings_are_never_merged(other: RunRecord) -> None:
    shown = [text for row in grid(made(score=0.25), other).values() for text in row.values()]
    assert {"0.250", "0.750"} <= set(shown)


def test_settings_that_never_meet_share_a_column() -> None:
    cells = grid(made(score=0.25), made(task="mips", score=0.75, budget={"lr": 0.5}))
    assert cells["shift"]["dlr"] == "0.250"
    assert cells["mips"]["dlr"] == "0.750"


def test_a_setting_that_an_older_record_does_not_know_is_none() -> None:
    older = made(seed=1)
    del older.budget["stop_at"]
    assert len(tabled([made(), older]).rows()) == 1


@pytest.mark.parametrize("name", sorted(MUST_AGREE))
def test_unequal_budgets_are_refused_unless_asked_for(name: str) -> None:
    records = [made(), made(model="dss", seed=3, budget={name: OTHERS[name]}), made(task="mips")]
    values = f"{name} is {records[0].budget[name]} for dlr seed 0 and {OTHERS[name]} for dss seed 3"
    with pytest.raises(UsageError, match=rf"^unequal budgets on shift: {values}; .*--unequal-budgets") as caught:
        tabled(records)
    assert "\n" not in str(caught.value)
    assert len(tabled(records, unequal_budgets=True).labels("row")) == 3


def test_budgets_may_differ_between_tasks_and_their_parameters_and_in_a_models_tuning() -> None:
    records = [
        made(),
        made(length=512, budget={"steps": 5}),
        made(task="mips", budget={"steps": 6}),
        made(model="dss", budget={"lr": 0.5, "schedule": "cosine"}),
        dataclasses.replace(made(budget={"steps": 7}), task={**made().task, "version": 2}),
    ]
    assert len(tabled(records).labels("row")) == 4


def test_a_copy_counts_once_and_a_repeated_seed_is_named_and_no_seed_of_its_own() -> None:
    assert grid(made(), made())["shift"]["dlr"] == "0.900"
    assert grid(made(score=0.5), made(score=0.7))["shift"]["dlr"] == "0.600 (seed 0 2 times)"
    (row,) = tabled([made(score=0.5), made(score=0.7), made(score=0.8, seed=1)]).rows()
    assert (row["score"], row["score_std"]) == (pytest.approx(0.7), pytest.approx(np.std([0.6, 0.8], ddof=1)))

    # of a seed with two outcomes, both must be solved
    (row,) = tabled([made(score=0.99), made(score=0.95), made(score=0.99, seed=1)]).rows()
    assert row["solved"] == 1


def test_rows_are_ordered_by_number() -> None:
    table = tabled([made(length=length) for length in (1024, 256, 4096)])
    assert table.labels("row") == ["shift (length=256)", "shift (length=1024)", "shift (length=4096)"]


def test_the_best_floor_stands_beside() -> None:
    assert grid(made(floor=0.22))["shift"]["floor"] == "0.220 copy"
    assert grid(made(floor=-0.1))["shift"]["floor"] == "0.000 constant"
    seeds = [made(seed=seed, floor=floor) for seed, floor in ((0, 0.1), (1, 0.6), (2, 0.2))]
    assert grid(*seeds)["shift"]["floor"] == "0.200 copy"
    # a seed counts once, however many models have run with it
    assert grid(*seeds, made(model="dss", floor=0.1))["shift"]["floor"] == "0.200 copy"


def test_diverged_runs_are_shown_and_do_not_count() -> None:
    lost = made(seed=1, score=None, status="diverged", cost={})
    assert grid(lost)["shift"]["dlr"] == "diverged"
    both = tabled([lost, made(seed=2, score=0.5)])
    assert both.scores().lines[0][2:4] == ["0.200 copy", "0.500 (0/2, 1 diverged)"]
    (row,) = both.rows()
    assert (row["score"], row["floor"], row["statuses"]) == (0.5, 0.2, ["diverged", "done"])
    assert row["seconds_per_step"] == 0.01


def test_versions_of_lrtasks_beside_each_other_are_named() -> None:
    versions = ("0.10.0", "0.2.0", "0.10.0")
    records = [made(seed=seed, environment={"lrtasks": version}) for seed, version in enumerate(versions)]
    assert "made by lrtasks 0.2.0 and 0.10.0, whose models may differ" in tabled(records).notes()
    assert not any("made by" in note for note in tabled([*records[::2], made(seed=3)]).notes())


def test_a_score_that_is_no_number_does_not_count() -> None:
    (row,) = tabled([made(score=math.nan), made(seed=1, score=0.5)]).rows()
    assert row["score"] == 0.5


def test_a_run_that_is_done_without_a_score_is_said() -> None:
    without = made(score=math.nan)
    assert grid(without)["shift"]["dlr"] == "no score"
    assert grid(without, made(seed=1, score=0.5))["shift"]["dlr"] == "0.500 (0/2, 1 no score)"


ATTENTION = {"layers": 1, "feedforward": 0, "glu": False}


@pytest.mark.parametrize(
    ("record", "value", "where"),
    [
        (made(), 1.0, "length 4096, d_model 128, 691,200 training samples, averaged over batches"),
        (made(task="reverse"), 0.01, "length 4096, "),
        (made(task="reverse", hyper={"layers": 6}, length=4096), 0.99, "length 4096, "),
        (made(task="reverse", hyper={"layers": 6}, length=512), 0.95, "length 512, "),
        (made(task="reverse", hyper={"layers": 6}, length=256), 0.95, "length 512, "),
        (made(task="reverse", hyper={"layers": 6}, length=2048), 0.99, "length 4096, "),
        (made(model="attention", hyper=ATTENTION), 0.72, "length 4096, "),
        (made(model="attention", hyper={**ATTENTION, "feedforward": 2}), 0.69, "length 4096, "),
        (made(hyper={"layers": 3}), None, None),
        (made(hyper={"layers": 1, "kernel": "prod"}), 1.0, "length 16384, d_model 32, 345,600 training samples, "),
        (made(hyper={"layers": 1, "kernel": "prod"}, length=2**20), 0.78, "length 1048576, "),
        (made(task="recall", model="focus", hyper={"layers": 2}, length=64), 1.0, "length 30, d_model 64, 396,800 "),
        (made(task="reverse", hyper={"layers": 1, "kernel": "prod"}), None, None),
        (made(model="other"), None, None),
        (made(source="a"), None, None),
        (made(task="unheard"), None, None),
    ],
)
def test_the_papers_figure_is_that_of_the_settings(record: RunRecord, value: float | None, where: str | None) -> None:
    """None of these runs has the paper's size and budget: the figure is a footnote."""
    table = tabled([record])
    (row,) = table.rows()
    assert row["paper"] == value and (row["paper_where"] or "").startswith(where or "")
    assert "paper" not in table.scores().header
    notes = [note for note in table.notes() if "paper" in note]
    if value is None:
        assert not notes and row["paper_where"] is None
    else:
        (note,) = notes
        assert note.startswith("not comparable: ") and f"({row['paper_where']})" in note
        assert note.endswith(f": {record.task['name']}: {record.model['name']} {value:g}")


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, ""),
        ({"length": 2048}, "length"),
        ({"hyper": {"d_model": 64}}, "d_model"),
        ({"hyper": {}}, "d_model"),
        ({"budget": {"steps": 43_000}}, ""),  # as epochs are rounded to steps
        ({"budget": {"steps": 42_500}}, "training samples"),
        ({"budget": {"steps": 2_000}, "length": 2048}, "length, training samples"),
    ],
)
def test_the_papers_figure_stands_beside_a_score_only_if_length_size_and_budget_match(
    change: dict[str, Any], differs: str
) -> None:
    as_in_the_paper = {"length": 4096, "hyper": {"d_model": 128}, "budget": {"steps": 43_200, "batch_size": 16}}
    table = tabled([made(score=0.7, **{**as_in_the_paper, **change})])
    assert table.rows()[0]["paper_differs"] == differs
    assert table.scores().lines[0][3:] == (["0.700"] if differs else ["0.700", "1"])
    assert any(note.startswith("not comparable: DLR" if differs else "paper: DLR") for note in table.notes())
    # a run without a score has nothing to compare, but its row still shows a comparable figure, with its source
    failed = tabled([made(status="failed", **{**as_in_the_paper, **change})])
    assert any("DLR" in note for note in failed.notes()) == (not differs)


def test_a_run_with_other_task_parameters_than_the_papers_does_not_compare() -> None:
    record = made(length=4096, hyper={"d_model": 128}, budget={"steps": 43_200, "batch_size": 16})
    record.task["parameters"]["shifts"] = 2
    assert tabled([record]).rows()[0]["paper_differs"] == "shifts"


@pytest.mark.parametrize(
    "length", [0, -256, math.inf, "long", [256]], ids=["zero", "negative", "infinite", "text", "list"]
)
def test_an_odd_length_does_not_hide_the_papers_figure(length: Any) -> None:
    (row,) = tabled([made(length=length)]).rows()
    assert row["paper"] is not None


def cost(seconds: float, device: str = "cpu") -> dict[str, Any]:
    return {"seconds_per_step": seconds, "seconds": 1.0, "device": device}


def sized(record: RunRecord, count: int | None, state: int | None) -> RunRecord:
    return dataclasses.replace(record, model={**record.model, "count": count, "state_bytes": state})


def test_costs_are_the_range_over_the_rows() -> None:
    records = [
        sized(made(cost=cost(0.0123)), 12345, 64),
        sized(made(task="mips", cost=cost(1.5)), 99999, 64),
        sized(made(model="dss", cost=cost(0.002, "gpu")), 100, None),
        sized(made(model="lost", score=None, status="failed", cost={}), None, None),
    ]
    assert tabled(records).costs().lines == [
        ["dlr", "12,345 – 99,999", "64", "12.3 – 1,500", "cpu"],
        ["dss", "100", "none", "2", "gpu"],
        ["lost", "", "", "", ""],
    ]


def test_a_failed_run_hides_no_cost_of_its_fellows() -> None:
    failed = sized(made(score=None, status="failed", cost={}), None, None)
    (row,) = tabled([failed, made(seed=1)]).rows()
    assert (row["parameter_count"], row["state_bytes"], row["seconds_per_step"]) == (100, 64, 0.01)


def test_times_of_different_devices_have_no_mean() -> None:
    (row,) = tabled([made(cost=cost(0.1)), made(seed=1, cost=cost(0.3))]).rows()
    assert (row["seconds_per_step"], row["devices"]) == (pytest.approx(0.2), ["cpu"])
    (row,) = tabled([made(cost=cost(0.1)), made(seed=1, cost=cost(0.3, "gpu"))]).rows()
    assert (row["seconds_per_step"], row["devices"]) == (None, ["cpu", "gpu"])


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one run record"):
        tabled([])


@pytest.fixture
def results(command: Callable[..., Any]) -> Callable[..., Any]:
    """``lrtasks table ...`` with a folder ``runs`` of four runs, one of them of a later version of lrtasks."""
    records = [made(), made(seed=1, score=0.7), made(model="dss", task="mips", budget={"steps": 5})]
    for number, record in enumerate(records):
        stored(record, Path("runs") / str(number))
    later = dataclasses.replace(made(seed=5, score=0.0), schema=9, environment={"lrtasks": "9.0"})
    stored(later, Path("runs/other"))
    return lambda *words: command("table", *words)


def test_a_record_of_another_version_is_said_and_left_out(results: Callable[..., Any]) -> None:
    said = results("--json")
    assert said.code == 0
    assert [row["seeds"] for row in json.loads(said.out)] == [[0], [0, 1]]
    assert said.err == (
        "lrtasks: left out: runs/other/record.json has schema 9; this version of lrtasks reads schemas 1 to 3; "
        "it was written by lrtasks 9.0\n"
    )
    said = results("runs/other")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("lrtasks: no run records below runs/other that can be read; 1 cannot: runs/other/record")


def test_records_are_chosen_by_model_and_task(results: Callable[..., Any]) -> None:
    assert [row["model"] for row in json.loads(results("--models", "dss", "--json").out)] == ["dss"]
    assert [row["task"] for row in json.loads(results("--tasks", "shift", "--json").out)] == ["shift"]
    assert len(json.loads(results("--tasks", "shift,mips", "--models", "dlr,dss", "--json").out)) == 2
    said = results("--models", "dsss")
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[-1] == "lrtasks: unknown model 'dsss'; did you mean 'dss'? Allowed: dlr, dss"
    said = results("--models", "dss", "--tasks", "shift")
    assert said.err.splitlines()[-1] == "lrtasks: unknown task 'shift'. Allowed: mips"


def test_a_model_is_chosen_by_the_label_of_its_column(results: Callable[..., Any]) -> None:
    for number, d_state in enumerate((4, 8)):
        stored(made(model="lru", hyper={"d_state": d_state, "glu": d_state > 4}), Path("runs") / f"variant{number}")
    labels = ["lru (d_state=4, glu=false)", "lru (d_state=8, glu=true)"]
    assert all(label in results().out for label in labels)
    for chosen, count in ((labels[1], 1), (",".join(labels), 2), (f"dss,{labels[0]}", 2), ("lru,dss", 3)):
        assert len(json.loads(results("--models", chosen, "--json").out)) == count
    (row,) = json.loads(results("--models", labels[1], "--tasks", "shift", "--json").out)
    assert row["model_parameters"]["d_state"] == 8
    assert f"did you mean {labels[1]!r}" in results("--models", "lru (d_state=8, glu=tru)").err


def test_a_preset_chooses_the_runs_with_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("--model", "dlr", "--steps", "2", "--test-batches", "1", "--val-batches", "1", "--d-state", "4")
    for task in ("word-problem@a5", "word-problem@z2", "shift"):
        assert command("eval", "--task", task, *quick).code == 0
    chosen = json.loads(command("table", "--tasks", "word-problem@a5,shift", "--json").out)
    assert [row["task"] for row in chosen] == ["shift", "word-problem"]
    assert [row["task_parameters"].get("group") for row in chosen] == [None, "A5"]
    said = command("table", "--tasks", "word-problem@s3")
    assert (said.code, "no run on word-problem has the parameters of preset s3" in said.err) == (2, True)


def test_a_preset_of_an_own_task_needs_its_address(results: Callable[..., Any]) -> None:
    Path("mine.py").write_text("from lrtasks.generators.tasks.shift import Shift\n\nclass Mine(Shift): pass\n")
    stored(made(task="Mine"), Path("runs/own"))
    said = results("--tasks", "Mine@small")
    assert (said.code, said.out) == (2, "")
    assert "write FILE.py:Mine@small" in said.err.splitlines()[-1]
    assert results("--tasks", "Mine").code == 0
    assert results("--tasks", "mine.py:Mine@small").code == 0


def test_the_command_refuses_unequal_budgets_unless_asked(results: Callable[..., Any]) -> None:
    stored(made(seed=2, budget={"steps": 7}), Path("runs/3"))
    said = results()
    assert (said.code, said.out) == (2, "")
    assert "steps is 2000 for dlr seed 0 and 7 for dlr seed 2" in said.err.splitlines()[-1]
    said = results("--unequal-budgets")
    assert said.code == 0
    assert [line.split("  ")[0] for line in said.out.splitlines()[2:4]] == ["shift (steps=7)", "shift (steps=2000)"]


def test_a_table_can_have_the_models_as_rows(results: Callable[..., Any]) -> None:
    rows = [line.split("  ")[0] for line in results("--transpose").out.splitlines()]
    assert rows[:6] == ["task", "metric", "floor", "dlr", "dss", ""]
    stored(made(scores={"test": {"r2": 0.9}, "2x": {"r2": 0.8}}), Path("further"))
    assert ["2x" in results("further", *option).out for option in ((), ("--by-length",))] == [False, True]
    for form in ("csv", "json"):
        said = results("--transpose", "--format", form)
        message = f"lrtasks: --transpose has no meaning with {form}, which lists single cells\n"
        assert (said.code, said.out, said.err) == (2, "", message)


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "task   metric"),
        ("markdown", "| task |"),
        ("latex", "% needs"),
        ("html", "<!doctype"),
        ("csv", "task,"),
    ],
)
def test_every_form_holds_scores_and_costs(results: Callable[..., Any], form: str, start: str) -> None:
    said = results("--format", form)
    assert said.code == 0
    assert said.out.startswith(start)
    plain = re.sub(r"\\textbf|[{}]", "", said.out).replace(" & .", ".").lower()  # LaTeX splits numbers at their points
    for word in ("shift", "mips", "dss", "0.8", "copy", "100", "64"):
        assert word in plain
    assert results("--format", form, "-o", "table.txt").out == "wrote table.txt\n"
    assert Path("table.txt").read_text() == said.out
    ending = {"text": ".txt", "markdown": ".md", "latex": ".tex"}.get(form, f".{form}")
    assert results("-o", f"TABLE{ending.upper()}").code == 0
    assert Path(f"TABLE{ending.upper()}").read_text() == said.out


def test_a_wide_table_is_folded_to_the_terminal(results: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    wide = results().out
    monkeypatch.setenv("COLUMNS", "40")
    assert results().out == wide  # standard output is no terminal here
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert results("-o", "wide.txt").code == 0 and Path("wide.txt").read_text() == wide
    folded = results("--mean").out.split("±: ")[0].splitlines()
    assert max(map(len, folded)) <= 40 < max(map(len, wide.splitlines()))
    assert [line.split("  ")[0] for line in folded].count("task") > 1


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([{}, {"window": None}], ["net (window=default)", "net (window=none)"]),
        (
            [{}, {"window": None}, {"window": "none"}],
            ['net (window="none")', "net (window=default)", "net (window=none)"],
        ),
        ([{"window": 4}, {"window": "4"}], ['net (window="4")', "net (window=4)"]),
        ([{"window": True}, {"window": "True"}], ['net (window="True")', "net (window=true)"]),
    ],
)
@pytest.mark.parametrize("alike", [True, False])
def test_settings_of_an_own_model_that_look_alike_are_kept_apart(
    parameters: list[dict[str, Any]], expected: list[str], alike: bool
) -> None:
    records = []
    for number, entry in enumerate(parameters):
        record = made(model="net", score=0.1 * number, source="0" if alike else str(number))
        record.model["parameters"] = entry
        records.append(record)
    table = tabled(records)
    assert sorted(table.labels("column")) == expected
    assert sorted(row["score"] for row in table.rows()) == [pytest.approx(0.1 * n) for n in range(len(parameters))]


def test_a_setting_that_was_added_later_is_shown_with_its_default() -> None:
    records = [made(model="transformer"), made(model="transformer"), made(model="transformer")]
    records[1].model["parameters"] = {**records[1].model["parameters"], "positions": "nope"}
    records[2].model["parameters"] = {**records[2].model["parameters"], "conv": True}
    assert sorted(tabled(records).labels("column")) == [
        "transformer (conv=false, positions=nope)",
        "transformer (conv=false, positions=rope)",
        "transformer (conv=true, positions=rope)",
    ]


def test_a_setting_of_a_mixer_in_a_stack_has_its_own_name() -> None:
    stacks = [
        {"layers": "gla:1,attention:1", "hyper": []},
        {"layers": "gla:1,attention:1", "hyper": ["attention.positions=nope"]},
        {"layers": "gla:2", "hyper": []},
    ]
    records = [made(model="hybrid", hyper=hyper, score=0.1 * number) for number, hyper in enumerate(stacks)]
    assert tabled(records[:2]).labels("column") == [
        "hybrid (attention.positions=default)",
        "hybrid (attention.positions=nope)",
    ]
    table = tabled(records)
    assert table.labels("column") == [
        "hybrid (attention.positions=default, layers=gla:1,attention:1)",
        "hybrid (layers=gla:2)",
        "hybrid (attention.positions=nope, layers=gla:1,attention:1)",
    ]
    assert [row["model_parameters"]["hyper"] for row in table.rows()] == [[], [], ["attention.positions=nope"]]


def test_labels_show_the_digests_of_different_files_beside_other_settings() -> None:
    records = [
        made(model="net", source=letter * 32, hyper={"window": window}) for letter, window in (("a", 4), ("b", 8))
    ]
    assert tabled(records).labels("column") == ["net (window=4, source=aaaaaaaa)", "net (window=8, source=bbbbbbbb)"]


def test_an_own_model_of_a_registered_name_has_the_digest_in_its_label() -> None:
    own = made(source="a")
    own.model["parameters"] = {"window": 4}
    assert tabled([made(), own]).labels("column") == ["dlr", "dlr (source=a)"]
    wider = made(source="a", score=0.5)
    wider.model["parameters"] = {"window": 8}
    assert tabled([made(), own, wider]).labels("column")[1:] == ["dlr (window=4, source=a)", "dlr (window=8, source=a)"]
    elsewhere = made(source="a", length=64)
    assert tabled([made(length=128), elsewhere]).labels("column") == ["dlr", "dlr (source=a)"]


def test_rows_that_are_presets_of_one_task_have_their_names() -> None:
    def of(preset: str, **parameters: Any) -> RunRecord:
        task = {**lrtasks.make("copying", preset=preset, **parameters).identity(), "name": "copying"}
        return dataclasses.replace(made(), task={**task, "metric": "r2", "data": None})

    both = [of("reverse"), of("forward")]
    assert tabled(both).labels("row") == ["copying@forward", "copying@reverse"]
    assert tabled([of("forward")]).labels("row") == ["copying"]
    changed = tabled([*both, of("reverse", ngram=2)]).labels("row")
    assert changed[0] == "copying (mode=copy, ngram=3, string=[3, 8])"
    budgets = [dataclasses.replace(of("reverse"), budget=Budget(steps=steps).parameters()) for steps in (2000, 3000)]
    again = tabled([both[1], *budgets], unequal_budgets=True).labels("row")
    assert len(again) == 3 and not any("@" in row for row in again)
    for name, value in (("data", "a" * 32), ("version", 2)):
        other = of("reverse")
        other.task[name] = value
        assert not any("@" in row for row in tabled([both[1], other]).labels("row"))


def test_settings_are_ordered_as_numbers() -> None:
    table = tabled([made(budget={"lr": lr}) for lr in (0.01, 0.001, 1e-5, 0.003)])
    assert table.labels("column") == ["dlr (lr=1e-05)", "dlr (lr=0.001)", "dlr (lr=0.003)", "dlr (lr=0.01)"]


def test_a_model_that_is_not_causal_is_named_and_is_never_the_best() -> None:
    records = [made(model="dlr", score=0.99, notes=[f"{NOT_CAUSAL}: outputs change"]), made(model="dss", score=0.5)]
    records += [made(model="s4d", score=0.4)]
    table = tabled(records)
    scores = table.scores()
    assert {scores.header[column] for _, column in scores.best} == {"dss"}
    assert "not comparable: not causal on a causal task: dlr on shift" in table.notes()


def test_a_run_that_failed_after_its_test_does_not_change_the_others() -> None:
    records = [made(seed=seed, score=score, errors={"test": 0.05}) for seed, score in enumerate((0.6, 0.62, 0.64))]
    late = made(seed=3, score=0.7, errors={"test": 0.05}, status="failed", generalisation_length=256, steps_to_solve=9)
    alone, beside = tabled(records), tabled([*records, late])
    assert beside.scores().lines[0][3] == "0.620 (0/4, 1 failed)"
    for names, one, other in (
        (("median", "median_low", "median_high", "generalisation_length", "steps_to_solve"), alone.cells, beside.cells),
        (("score", "batch_mean"), alone.rows(), beside.rows()),
    ):
        assert [other[0][name] for name in names] == [one[0][name] for name in names]


def test_a_further_test_that_one_seed_could_not_run_shows_the_others() -> None:
    scores = [{"test": {"r2": 0.3 * seed}, "2x": {"r2": 0.8} if seed else {}} for seed in (0, 1, 3)]
    lines = tabled([made(seed=seed, scores=found) for seed, found in enumerate(scores)]).by_length()
    assert lines is not None and lines.lines[0][2:4] == ["0.300", "0.800 (not for every seed)"]


def test_texts_that_look_like_a_missing_value_or_a_list_are_quoted() -> None:
    own: dict[str, Any] = {"model": "Net", "source": "f" * 64}
    records = [
        made(**own, hyper=hyper)
        for hyper in ({"mode": "default"}, {}, {"mode": "other"}, {"mode": "[1, 2]"}, {"mode": [1, 2]})
    ]
    assert len(tabled(records).labels("column")) == 5


def test_a_diverged_seed_has_neither_solved_its_task_nor_generalised() -> None:
    done = made(score=0.99, steps_to_solve=100, generalisation_length=1024)
    diverged = [made(seed=seed, score=None, status="diverged") for seed in (1, 2)]
    found = tabled([done, *diverged])
    (entry,) = found.rows()
    assert (entry["median"], entry["steps_to_solve"], entry["generalisation_length"]) == (0.99, None, None)
    assert any(note.endswith("seeds without a score do not count in the median") for note in found.notes())
    (entry,) = tabled([done, dataclasses.replace(done, seed=1), diverged[1]]).rows()
    assert (entry["steps_to_solve"], entry["generalisation_length"]) == (100, 1024)


def test_a_cell_names_all_selected_values_of_its_runs() -> None:
    """Two folders may hold selections that chose different values."""
    selection = {"by": "val", "values": {"lr": [0.001, 0.003, 0.01]}, "chosen": True}
    runs = [
        made(seed=seed, budget={"lr": lr}, selection=selection) for seed, lr in ((0, 0.001), (1, 0.001), (2, 0.003))
    ]
    table = tabled(runs)
    assert table.scores().lines[0][3].endswith("lr 0.001 or 0.003)")
    assert [row["selected"] for row in table.rows()] == [{"lr": "0.001 or 0.003"}]
