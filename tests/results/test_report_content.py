"""How records become results, and in which order these stand."""

from __future__ import annotations

import dataclasses
import re

import pytest
from made_records import made
from report_pages import HOSTILE, renamed, report_of, trained

from lrtasks.errors import UsageError
from lrtasks.results import RunRecord
from lrtasks.results.report import readable
from lrtasks.results.report.curves import length_curves, loss_curves, run_curves, score_curves
from lrtasks.results.report.details import details
from lrtasks.results.report.slices import breakdowns


def test_score_above_floor_is_by_the_best_floor() -> None:
    (result,) = report_of(made(score=0.6, floor=0.2)).results.values()
    assert result.floor == ("copy", 0.2)
    assert result.above == pytest.approx(0.5)


def test_a_floor_that_leaves_no_room() -> None:
    report = report_of(made(score=0.9, floor=1.0))
    (result,) = report.results.values()
    assert (result.score, result.above, result.state) == (0.9, None, "scored")
    assert list(report.states()) == ["scored"]
    assert report.columns[0].mean is None


def test_seeds_are_one_result() -> None:
    (result,) = report_of(made(seed=0, score=0.4), made(seed=1, score=0.6)).results.values()
    assert result.score == pytest.approx(0.5)
    assert result.half_width is not None and result.half_width > 0.1
    assert result.above == pytest.approx((0.5 - 0.2) / 0.8)


def test_a_run_without_floors_is_measured_by_those_of_its_row() -> None:
    report = report_of(made(score=0.6, floor=0.2), made(model="dss", score=0.6, baselines={}))
    assert [result.above for result in report.results.values()] == [pytest.approx(0.5)] * 2


NO_SCORE = {
    "diverged": made(score=None, status="diverged"),
    "failed": made(score=None, status="failed"),
    "running": made(score=None, status="running"),
    "nan": dataclasses.replace(made(), scores={"test": {"r2": None}}),
    "unscored": dataclasses.replace(made(), scores={"test": {"accuracy": 0.5}}),
}


@pytest.mark.parametrize("state", NO_SCORE)
def test_why_there_is_no_score(state: str) -> None:
    report = report_of(NO_SCORE[state])
    (result,) = report.results.values()
    assert (result.score, result.above, result.state) == (None, None, state)
    assert list(report.states()) == [state]


def test_a_score_does_not_hide_that_other_seeds_diverged() -> None:
    records = [made(seed=0, score=0.5), made(seed=1, score=None, status="diverged")]
    (result,) = report_of(*records).results.values()
    assert (result.state, result.score) == ("scored", 0.5)
    assert result.remarks == ["1 of 2 runs diverged"]


def test_a_score_does_not_hide_that_other_seeds_have_none() -> None:
    records = [made(seed=0, score=0.5), made(seed=1, score=None), made(seed=2, score=None, status="failed")]
    (result,) = report_of(*records).results.values()
    assert result.remarks == ["1 of 3 runs failed", "1 of 3 runs without a score"]


def test_costs_of_different_machines_have_no_mean() -> None:
    def on(device: str, seconds: float) -> dict[str, object]:
        return {"seconds_per_step": seconds, "peak_memory_bytes": 10, "device": device}

    records = [made(seed=0, cost=on("cpu", 1.0)), made(seed=1, cost=on("gpu", 0.001))]
    (result,) = report_of(*records).results.values()
    assert result.costs == {"state_bytes": 64, "count": 100}
    (result,) = report_of(*records[:1], made(seed=1, cost=on("cpu", 3.0))).results.values()
    assert result.costs["seconds_per_step"] == 2.0


def test_the_best_come_first() -> None:
    scores = {("sort", "a"): 0.3, ("sort", "b"): 0.4, ("shift", "a"): 0.5, ("shift", "b"): 0.9}
    report = report_of(*(made(task=task, model=model, score=score) for (task, model), score in scores.items()))
    assert [row.label for row in report.rows] == ["shift", "sort"]
    assert [column.label for column in report.columns] == ["b", "a"]
    assert [result.score for _, result in sorted(report.results.items())] == [0.9, 0.5, 0.4, 0.3]


def test_one_easy_task_does_not_put_a_model_first() -> None:
    few = [made(task="cumsum", model="few", score=1.0)]
    many = [made(task=task, model="many", score=0.9) for task in ("cumsum", "shift", "sort")]
    report = report_of(*few, *many)
    assert [column.label for column in report.columns] == ["many", "few"]
    assert [column.above for column in report.columns] == [3, 1]


def test_a_mean_is_over_limited_values() -> None:
    report = report_of(made(task="shift", score=-50.0, floor=0.5), made(task="sort", score=0.75, floor=0.5))
    assert report.columns[0].mean == pytest.approx(0.25)


def test_solved_tasks_and_costs_of_a_model() -> None:
    records = [made(task=task, score=score) for task, score in (("shift", 0.96), ("sort", 0.95), ("mips", 0.94))]
    records[0] = dataclasses.replace(
        records[0], cost={"seconds_per_step": 3.0, "peak_memory_bytes": None, "device": "cpu"}
    )
    (column,) = report_of(*records).columns
    assert (column.solved, column.scored) == (2, 3)
    assert column.costs == {"seconds_per_step": 0.01, "state_bytes": 64, "count": 100, "peak_memory_bytes": 1}


def test_names_within_the_page_are_plain_and_unique() -> None:
    report = report_of(*(made(model=model) for model in ("a b", "a-b", "A/B", HOSTILE, "", "模型")))
    names = [result.id for result in report.results.values()] + [part.id for part in (*report.rows, *report.columns)]
    assert len(set(names)) == len(names) == 13
    assert all(name.isascii() and name.replace("-", "").isalnum() for name in names)


def test_unequal_budgets_have_to_be_asked_for() -> None:
    with pytest.raises(UsageError, match="unequal budgets on shift: steps is"):
        report_of(made(), made(model="dss", budget={"steps": 5}))


def lengths(model: str, *scores: float | None, **changes: object) -> list[RunRecord]:
    return [made(model=model, length=256 * 4**i, score=score, **changes) for i, score in enumerate(scores)]  # type: ignore[arg-type]


def test_score_over_length() -> None:
    report = report_of(*lengths("dlr", 0.9, 0.8, 0.7), *lengths("dss", 0.6, 0.5), made(task="sort", length=512))
    (chart,) = length_curves(report, "shift")
    assert chart.places == (256, 1024, 4096)
    assert {name: values for name, _, values in chart.rows} == {"dlr": (0.9, 0.8, 0.7), "dss": (0.6, 0.5, None)}
    assert length_curves(report, "sort") == []


def test_runs_that_differ_in_more_than_length_are_not_joined() -> None:
    other = made(length=1024, task="shift", budget={"steps": 5})
    assert length_curves(report_of(made(length=256), other), "shift") == []


def test_a_level_is_drawn_for_a_floor_that_length_does_not_change() -> None:
    same = report_of(*lengths("dlr", 0.9, 0.8))
    falling = report_of(made(length=256, floor=0.4), made(length=1024, floor=0.2))
    assert "floor: copy" in length_curves(same, "shift")[0].svg
    assert "floor" not in length_curves(falling, "shift")[0].svg


def test_learning_curves_are_means_over_seeds() -> None:
    short = [{"step": 20, "loss": 1.0, "r2": 0.6}, {"step": 40, "loss": 1.0, "r2": None}]
    seeds = trained(seed=0), trained(seed=1, curve=short)
    report = report_of(*seeds, renamed(trained(), model="dss"), made(model="empty"))
    names = {result.id: report.columns[result.column].label for result in report.in_row(0)}
    chart = score_curves(report.in_row(0), names)
    assert chart is not None and chart.title == "Validation r2 while training, mean over seeds"
    assert chart.places == (20, 40, 60, 80)
    assert [(name, values) for name, _, values in chart.rows] == [
        ("dlr", (0.4, 0.4, 0.6, 0.8)),
        ("dss", (0.2, 0.4, 0.6, 0.8)),
    ]
    one = score_curves(report.in_row(0)[1:], names)
    assert one is not None and one.title == "Validation r2 while training"


def test_the_runs_of_a_result_have_lines_of_their_own() -> None:
    report = report_of(trained(model="dss", score=1.0), trained(seed=0), trained(seed=1))
    result = report.results[0, 1]
    scores, losses = run_curves(result, "dlr"), loss_curves(result)
    assert scores is not None and losses is not None
    assert [name for name, _, _ in scores.rows] == ["dlr, seed 0", "dlr, seed 1"]
    for chart in (scores, losses):  # seed by seed in the same colours
        assert re.findall(r"series (m\d d\d)", chart.svg) == ["m0 d0", "m1 d0"]


def test_no_curve_no_chart() -> None:
    report = report_of(made())
    (result,) = report.results.values()
    assert score_curves([result], {result.id: "dlr"}) is None
    assert run_curves(result, "dlr") is None
    assert loss_curves(result) is None


def test_a_loss_of_zero_is_left_out_of_a_logarithmic_axis() -> None:
    (result,) = report_of(trained(curve=[{"step": 1, "loss": 0.0}, {"step": 2, "loss": 0.5}])).results.values()
    chart = loss_curves(result)
    assert chart is not None
    assert chart.rows[0][2] == (None, 0.5)


def test_breakdowns_are_averaged_over_seeds() -> None:
    rows = [[{"label": 8, "r2": 0.5, "elements": 4}, {"label": 0, "r2": score, "elements": 4}] for score in (0.5, 1.0)]
    records = [made(seed=seed, slices={"distance": own}) for seed, own in enumerate(rows)]
    report = report_of(*records, made(model="dss", slices={"distance": [{"label": 16, "r2": None, "elements": 9}]}))
    (breakdown,) = breakdowns(report.in_row(0))
    assert (breakdown.name, breakdown.score, breakdown.labels) == ("distance", "r2", (0, 8, 16))
    assert breakdown.elements == (4, 4, 9)
    by_model = {report.columns[result.column].label: breakdown.values[result.id] for result in report.in_row(0)}
    assert by_model == {"dlr": (0.75, 0.5, None), "dss": (None, None, None)}


def test_labels_that_are_words_keep_their_order() -> None:
    slices = {"operator": [{"label": label, "accuracy": 0.5} for label in ("MIN", "MAX", "SM")]}
    (breakdown,) = breakdowns(report_of(made(slices=slices)).in_row(0))
    assert breakdown.labels == ("MIN", "MAX", "SM")


def test_details_hold_settings_scores_and_diagnostics() -> None:
    report = report_of(trained(score=0.6))
    (result,) = report.results.values()
    found = details(report, result)
    assert dict(found.settings["Task"]) == {"version": "1", "length": "256"}
    assert dict(found.settings["Budget"])["steps"] == "2000"
    assert dict(found.settings["Model"])["kernel"] == "real"
    (run,) = found.runs
    assert run.splits == ("test", "floor: constant", "floor: copy")
    assert dict(run.scores)["r2"] == (0.6, 0.0, 0.2)
    assert run.above == pytest.approx(0.5)
    assert dict(run.costs)["time per step"] == readable.seconds(0.01)
    assert [(d.name, d.value, d.array) for d in run.diagnostics] == [
        ("activation_rate", "0.25", None),
        ("frequency_response", "4 values", "1  0.5\n0.25  –"),
    ]
