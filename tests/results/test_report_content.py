"""How records become results, and in which order these stand."""

from __future__ import annotations

import base64
import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
from made_records import made
from PIL import Image
from report_pages import HOSTILE, report_of, trained

from lrtasks.metrics import TEST_SOLVED
from lrtasks.record import NOT_CAUSAL, PANEL
from lrtasks.results import RunRecord
from lrtasks.results.report import content as details
from lrtasks.results.report import page
from lrtasks.results.report.charts import chart_data, further_scores, length_groups
from lrtasks.results.report.content import slices
from lrtasks.results.report.page import Sample, draw_sample


def test_a_floor_that_leaves_no_room() -> None:
    for score, scaled in ((0.9, 0.0), (1.0, 1.0)):
        (result,) = report_of(made(score=score, floor=1.0)).results.values()
        assert (result.score, result.scaled, result.state) == (score, scaled, "scored")


def test_seeds_are_one_result() -> None:
    runs = [made(seed=seed, score=score) for seed, score in enumerate((0.4, 1.0, 0.97))]
    (result,) = report_of(*runs).results.values()
    assert (result.score, result.solved) == (0.97, "2/3")
    assert result.scaled == pytest.approx((0.97 - 0.2) / 0.8)
    (unscaled,) = report_of(*(made(seed=seed, baselines={}) for seed in range(2))).results.values()
    assert (unscaled.solved, next(iter(report_of(made()).results.values())).solved) == ("×2", "")


def test_a_run_without_floors_is_measured_by_those_of_its_row() -> None:
    report = report_of(made(score=0.6, floor=0.2), made(model="dss", score=0.6, baselines={}))
    assert [result.scaled for result in report.results.values()] == [pytest.approx(0.5)] * 2


NO_SCORE = {
    "diverged": made(score=None, status="diverged"),
    "failed": made(score=None, status="failed"),
    "running": made(score=None, status="running"),
    "interrupted": made(score=None, status="interrupted"),
    "nan": dataclasses.replace(made(), scores={"test": {"r2": None}}),
    "unscored": dataclasses.replace(made(), scores={"test": {"accuracy": 0.5}}),
}


@pytest.mark.parametrize("state", NO_SCORE)
def test_why_there_is_no_score(state: str) -> None:
    report = report_of(NO_SCORE[state])
    (result,) = report.results.values()
    assert (result.score, result.scaled, result.state) == (None, None, state)
    assert list(report.states()) == [state]


def test_a_score_does_not_hide_that_other_seeds_have_none() -> None:
    records = [made(seed=0, score=0.5), made(seed=1, score=None), made(seed=2, score=None, status="failed")]
    (result,) = report_of(*records).results.values()
    assert result.remarks == ["1 of 3 runs failed", "1 of 3 runs without a score"]
    (result,) = report_of(NO_SCORE["failed"], dataclasses.replace(NO_SCORE["diverged"], seed=1)).results.values()
    assert result.state == "diverged", "a result of the model"


def test_a_model_that_is_not_causal_is_marked() -> None:
    unfair, fair = made(score=1.0, notes=[f"{NOT_CAUSAL}: outputs change"]), made(model="dss", score=0.9)
    marked, plain = report_of(unfair, fair).results.values()
    assert marked.remarks == ["not comparable: not causal on a causal task"]
    assert plain.remarks == []


def test_the_best_come_first() -> None:
    scores = {("sort", "a"): 0.3, ("sort", "b"): 0.4, ("shift", "a"): 0.5, ("shift", "b"): 0.9}
    report = report_of(*(made(task=task, model=model, score=score) for (task, model), score in scores.items()))
    assert [row.label for row in report.rows] == ["shift", "sort"]
    assert [column.label for column in report.columns] == ["b", "a"]
    assert [result.score for _, result in sorted(report.results.items())] == [0.9, 0.5, 0.4, 0.3]
    assert [result.score for result in report.in_row(0, 1)] == [0.9, 0.5, 0.4, 0.3]


def test_one_easy_task_does_not_put_a_model_first() -> None:
    few = [made(task="cumsum", model="few", score=1.0)]
    many = [made(task=task, model="many", score=0.9) for task in ("cumsum", "shift", "sort")]
    report = report_of(*few, *many)
    assert [column.label for column in report.columns] == ["many", "few"]


def test_a_score_below_the_floor_costs_a_model_no_more_than_a_score_at_the_floor() -> None:
    records = [made(task=task, model="steady", score=0.5) for task in ("cumsum", "shift")]
    records += [made(model="uneven", score=-9.0), made(task="cumsum", model="uneven", score=1.0)]
    assert [column.label for column in report_of(*records).columns] == ["uneven", "steady"]


def test_names_within_the_page_are_plain_and_unique() -> None:
    report = report_of(*(made(model=model) for model in ("a b", "a-b", "A/B", HOSTILE, "", "模型")))
    names = [result.id for result in report.results.values()] + [part.id for part in (*report.rows, *report.columns)]
    assert len(set(names)) == len(names) == 13
    assert all(name.isascii() and name.replace("-", "").isalnum() for name in names)


def test_a_model_that_was_trained_once_has_a_score_at_every_tested_length() -> None:
    scores = {"test": {"r2": 0.9}, "2x": {"r2": 0.5}, "64": {"r2": 1.0}, "8x": {}, "sparse": {"r2": 0.1}}
    # the other task's test at 512 is no test of this one
    report = report_of(made(scores=scores), made(task="sort"), made(task="mips", scores={"512": {"r2": 0.5}}))
    found = {report.rows[result.row].name: result for result in report.results.values()}
    assert further_scores(found["shift"]) == [(64, 1.0), (256, 0.9), (512, 0.5)]
    assert further_scores(found["sort"]) == []


def test_a_dataset_whose_name_looks_like_a_length_is_at_no_length() -> None:
    tests = {"2x": {"copy": {"r2": 0.1}}, "4096": {"copy": {"r2": 0.1}}}
    scores = {"test": {"r2": 0.9}, "2x": {"r2": 0.5}, "4096": {"r2": 0.4}}
    record = made(scores=scores, further_baselines=tests, budget={"test_data": ("data/4096",)})
    for length, place in ((256, 256), (None, 1)):
        record.task["parameters"] = {"length": length}
        report = report_of(record)
        assert further_scores(report.results[0, 0]) == [(place, 0.9), (2 * place, 0.5)]
        assert [at["x"] for at in chart_data(report)["rows"][0]["floors"]] == [place, 2 * place]


def test_each_tested_length_has_its_own_floor() -> None:
    scores = {"test": {"r2": 0.9}, "2x": {"r2": 0.5}, "64": {"r2": 1.0}, "sparse": {"r2": 0.1}}

    def run(seed: int, at_64: float) -> RunRecord:
        further = {"2x": {"copy": {"r2": 0.1}}, "64": {"mean": {"r2": at_64}, "copy": {"r2": 0.3}}, "sparse": {}}
        further["256"] = {"copy": {"r2": 0.9}}  # the floor of the test itself counts at its length
        return made(seed=seed, scores=scores, floor=0.2, further_baselines=further)

    data = chart_data(report_of(run(0, 0.4), run(1, 0.5), run(2, 0.9), made(task="sort")))
    floors = {row["label"]: [(at["x"], at["y"], at["name"]) for at in row["floors"]] for row in data["rows"]}
    assert floors["shift"] == [(64, 0.5, "floor: mean"), (256, 0.2, "floor: copy"), (512, 0.1, "floor: copy")]
    assert floors["sort"] == [(256, 0.2, "floor: copy")]


def test_rows_that_differ_in_length_alone_share_a_chart() -> None:
    runs = [made(length=256 * 4**i) for i in range(3)]
    report = report_of(*runs, made(task="sort", length=512))
    (group,) = length_groups(report, report.tasks()["shift"])
    assert {report.rows[row].label for row in group} == {f"shift (length={256 * 4**i})" for i in range(3)}
    assert length_groups(report, report.tasks()["sort"]) == []
    report = report_of(made(length=256), made(length=1024, budget={"steps": 5}))
    assert length_groups(report, report.tasks()["shift"]) == []


def test_no_line_over_length_joins_models_with_different_settings() -> None:
    own = [made(length=length, hyper={"d_state": length}) for length in (64, 128)]
    equal = [made(length=length, model="dss", source=source) for length, source in ((64, "object " + "a" * 16),)]
    equal += [made(length=128, model="dss", source="object " + "b" * 16)]
    variants: dict[str, set[int]] = {}
    report = report_of(*own, *equal)
    for result in chart_data(report)["results"]:
        variants.setdefault(report.columns[result["column"]].name, set()).add(result["variant"])
    assert {name: len(found) for name, found in variants.items()} == {"dlr": 2, "dss": 1}


def test_the_unit_of_a_length_is_that_of_the_task_or_the_trained_length() -> None:
    scores = {"test": {"r2": 0.9}, "2x": {"r2": 0.5}}
    without = dataclasses.replace(made(task="sort", scores=scores), task=made(task="sort").task | {"parameters": {}})
    alone = dataclasses.replace(without, scores={"test": {"r2": 0.9}, "512": {"r2": 0.5}, "64": {"r2": 0.7}})
    assert further_scores(report_of(alone).results[0, 0]) == [(64, 0.7), (512, 0.5)], "no length of the test is known"
    data = chart_data(report_of(made(scores=scores), without))
    assert {row["label"]: row["relative"] for row in data["rows"]} == {"shift": False, "sort": True}


def test_charts_get_scores_and_losses_of_each_seed_rounded() -> None:
    curve = [{"step": 20, "loss": 0.0, "r2": 1 / 3}, {"step": 40, "loss": 1.0, "r2": None}]
    data = chart_data(report_of(trained(seed=0, curve=curve), trained(seed=1), made(model="empty")))
    by_model = {data["columns"][result["column"]]["label"]: result for result in data["results"]}
    assert by_model["dlr"]["curves"][0] == [0, [[20, 0.33333, 0.0], [40, None, 1.0]]]
    assert [seed for seed, _ in by_model["dlr"]["curves"]] == [0, 1] and by_model["empty"]["curves"] == []
    assert data["rows"][0]["floor"] == {"name": "floor: copy", "y": 0.2} and data["rows"][0]["length"] == 256
    assert "a slow path was taken" in by_model["dlr"]["text"]
    assert data["solved"] == TEST_SOLVED and data["costs"]["seconds_per_step"] == "s"
    assert data["specs"]["loss"]["layer"][0]["encoding"]["y"]["scale"]["type"] == "log"


def test_the_mean_curve_keeps_a_seed_that_stopped_because_it_solved_the_task() -> None:
    def run(seed: int, *scores: float | None, status: str = "done") -> RunRecord:
        curve = [{"step": 20 * (place + 1), "loss": 1.0, "r2": score} for place, score in enumerate(scores)]
        return made(seed=seed, curve=curve, status=status)

    def mean_curve(*runs: RunRecord) -> list[list[float | None]]:
        (result,) = chart_data(report_of(*runs))["results"]
        found: list[list[float | None]] = result["mean_curve"]
        return found

    slow, solved = run(0, 0.0, 0.5, 0.5, 0.6), run(1, 0.5, 1.0)
    assert mean_curve(slow, solved) == [[20, 0.25], [40, 0.75], [60, 0.75], [80, 0.8]]
    diverged = run(1, 0.5, 0.1, status="diverged")
    assert mean_curve(slow, diverged) == mean_curve(slow) == [[20, 0.0], [40, 0.5], [60, 0.5], [80, 0.6]]
    assert mean_curve(diverged) == [[20, 0.5], [40, 0.1]]
    assert mean_curve(run(0, None, 0.5), run(1, None)) == [[20, None], [40, 0.5]]


def test_a_slice_is_the_median_over_seeds_like_the_score() -> None:
    scores = (0.0, 0.75, 1.0)
    rows = [
        [{"label": 8, "r2": 0.5, "elements": 4 + int(score)}, {"label": 0, "r2": score, "elements": 4}]
        for score in scores
    ]
    records = [made(seed=seed, slices={"distance": own}) for seed, own in enumerate(rows)]
    report = report_of(*records, made(model="dss", slices={"distance": [{"label": 16, "r2": None, "elements": 9}]}))
    (distance,) = slices(report.in_row(0))
    assert (distance.name, distance.score, distance.labels) == ("distance", "r2", [0, 8, 16])
    assert distance.elements == [4, None, 9], "the runs have different numbers at 8"
    by_model = {report.columns[result.column].label: distance.values[result.id] for result in report.in_row(0)}
    assert by_model == {"dlr": [0.75, 0.5, None], "dss": [None, None, None]}


def test_a_run_that_failed_after_its_test_counts_in_no_slice_beside_a_finished_one() -> None:
    def run(seed: int, score: float, status: str) -> RunRecord:
        return made(seed=seed, score=score, status=status, slices={"distance": [{"label": 8, "r2": score}]})

    report = report_of(run(0, 0.5, "done"), run(1, 0.9, "failed"))
    (result,) = report.in_row(0)
    (distance,) = slices([result])
    assert distance.values == {result.id: [result.score]} == {result.id: [0.5]}
    (alone,) = report_of(run(1, 0.9, "failed")).in_row(0)
    assert slices([alone])[0].values == {alone.id: [0.9]}


def test_labels_that_are_words_keep_their_order() -> None:
    rows = [{"label": label, "accuracy": 0.5} for label in ("MIN", "MAX", "SM")]
    (operator,) = slices(report_of(made(slices={"operator": rows})).in_row(0))
    assert operator.labels == ["MIN", "MAX", "SM"]


def test_details_hold_settings_scores_and_diagnostics() -> None:
    (result,) = report_of(trained(score=0.6)).results.values()
    (record,) = result.records
    settings = {title: dict(pairs) for title, pairs in details.settings_of(result).items()}
    assert settings["Task"] == {"version": "1", "length": "256"}
    assert (settings["Budget"]["steps"], settings["Model"]["kernel"]) == ("2000", "real")
    assert settings["Budget"]["preset"] == record.preset
    columns, rows = details.scores_of(record)
    assert columns == ["test", "baseline: constant", "baseline: copy"]
    assert dict(rows)["r2"] == [0.6, 0.0, 0.2]
    costs = dict(details.costs_of(record))
    assert (costs["time per step"], costs["training"]) == ("10 ms", "1 s")


def test_details_name_all_selected_values_of_the_seeds() -> None:
    selection = {"by": "val", "values": {"lr": [0.001, 0.01]}, "chosen": True}
    runs = [made(seed=seed, budget={"lr": lr}, selection=selection) for seed, lr in enumerate((0.001, 0.01))]
    (result,) = report_of(*runs).results.values()
    assert dict(details.settings_of(result)["Budget"])["lr"] == "0.001 or 0.01"


def test_memory_of_a_processor_is_named_the_process_and_stands_in_no_comparison() -> None:
    def on(device: str) -> RunRecord:
        return made(cost={"seconds_per_step": 1.0, "peak_memory_bytes": 2**30, "device": device})

    (result,) = report_of(on("cpu (2 cores)")).results.values()
    assert "peak_memory_bytes" not in result.costs
    assert dict(details.costs_of(result.records[0]))["peak memory of the process"] == "1 GiB"
    (result,) = report_of(on("NVIDIA H100")).results.values()
    assert result.costs["peak_memory_bytes"] == 2**30


def test_the_panel_that_a_run_leaves_is_made_smaller(tmp_path: Path) -> None:
    Image.new("RGB", (2 * details.MAX_WIDTH, 50), "red").save(tmp_path / PANEL)
    kind, _, content = (details.predictions_of(tmp_path) or "").partition(",")
    assert kind == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(content))).size == (details.MAX_WIDTH, 25)


@pytest.mark.parametrize("content", [None, b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"<svg onload='alert(1)'/>"])
def test_a_panel_that_is_no_picture_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / PANEL).write_bytes(content)
    assert details.predictions_of(tmp_path) is None


@pytest.mark.parametrize(("stops", "direction"), [(page.LIGHT, -1), (page.DARK, 1)])
def test_colours_are_legible_and_steady(stops: tuple[str, ...], direction: int) -> None:
    ramp = page.ramp(stops)
    assert len(ramp) == page.STEPS
    for pair in ramp:
        darker, lighter = sorted(map(page.luminance, pair))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5  # WCAG 2
    assert (direction * np.diff([page.luminance(colour) for colour, _ in ramp]) > 0).all()
    assert (ramp[0][0], ramp[-1][0]) == (stops[0], stops[-1])


def sample(name: str, **parameters: object) -> Sample:
    drawn = draw_sample(name, parameters)
    assert isinstance(drawn, Sample)
    return drawn


def test_a_sample_of_signals_is_a_picture() -> None:
    drawn = sample("shift", length=64, shifts=8)
    assert drawn.command == "lrtasks preview shift --set length=64 --set shifts=8"
    assert "delayed" in drawn.summary
    assert drawn.text is None and drawn.image is not None
    image = Image.open(io.BytesIO(base64.b64decode(drawn.image.partition(",")[2])))
    assert len(image.convert("RGB").getcolors()) > 3


def test_a_sample_of_tokens_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = sample("recall", length=16)
    assert drawn.text is not None and "=>" in drawn.text and drawn.image is None
    monkeypatch.setattr(page, "MAX_TEXT", 5)
    assert sample("recall", length=16).text == f"{drawn.text[:5]} ..."


def test_a_long_sample_is_drawn_small_and_says_so() -> None:
    assert sample("cumsum", length=2**20).command == "lrtasks preview cumsum --set length=256"


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [("nowhere", {}, "unknown task 'nowhere'"), ("shift", {"width": 3}, "shift has no parameter 'width'")],
)
def test_a_task_that_is_not_here_has_no_sample(name: str, parameters: dict[str, object], said: str) -> None:
    drawn = draw_sample(name, parameters)
    assert isinstance(drawn, str) and said in drawn


def test_an_own_task_with_the_name_of_a_registered_one_has_no_sample() -> None:
    drawn = draw_sample("shift", {"length": 64}, "0123456789abcdef")
    assert isinstance(drawn, str) and "another task" in drawn


def test_a_record_does_not_choose_code_that_the_report_runs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    drawn = draw_sample(f"{tmp_path}/own.py:Task", {})
    assert isinstance(drawn, str) and "own.py:Task' is an address" in drawn
    assert not (tmp_path / "ran").exists()


def test_a_task_that_breaks_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("lrtasks.generators.make", breaks)
    assert draw_sample("shift", {}) == "ZeroDivisionError: oh"
