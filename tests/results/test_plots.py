"""Figures over many models: what their lines and points hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import COST, framed, made, stored
from matplotlib import cbook
from matplotlib.text import Text

from lrtasks.errors import UsageError
from lrtasks.record import NOT_CAUSAL, NOT_COMPARABLE
from lrtasks.results import RunRecord, plots, style
from lrtasks.results.style import COLOURS, MARKERS, series
from lrtasks.results.table import arrange


def drawn(kind: str, records: list[RunRecord], **options: Any) -> Any:
    return plots.KINDS[kind](arrange(framed(records)), records, **options)


def lines(panel: Any) -> dict[str, list[tuple[float, float]]]:
    """Points of the lines by name; dashed ones with a star."""
    found = {}
    for line in panel.get_lines():
        name = str(line.get_label()) + ("*" if line.get_linestyle() == "--" else "")
        found[name] = [(float(x), round(float(y), 6)) for x, y in line.get_xydata()]
    return found


def curve(*scores: float) -> list[dict[str, Any]]:
    return [{"step": 10 * place, "loss": 1.0, "r2": score} for place, score in enumerate(scores, 1)]


def test_a_curve_is_the_mean_over_seeds_and_its_band_their_range() -> None:
    """A run that stopped early keeps its last score."""
    records = [made(curve=curve(0.2, 0.6)), made(seed=1, curve=curve(0.4)), made(model="mamba2", curve=curve(0.1, 0.3))]
    records.append(made(task="mips", curve=curve(0.5, 0.7)))
    figure = drawn("curves", records)
    mips, shift = figure.axes
    assert (mips.get_title(), shift.get_title()) == ("mips", "shift")
    found = lines(shift)
    assert found["DLR"] == [(10, 0.3), (20, 0.5)]
    assert found["Mamba-2"] == [(10, 0.1), (20, 0.3)]
    assert {y for _, y in found["floor"]} == {0.2}
    (band,) = shift.collections
    edges = band.get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == (0.2, 0.6)
    assert (shift.get_xlabel(), shift.get_ylabel()) == ("training step", "validation $R^2$")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["DLR", "Mamba-2", "floor"]


def test_a_line_over_three_seeds_is_their_mean_and_not_their_median() -> None:
    (panel,) = drawn("curves", [made(seed=seed, curve=curve(score)) for seed, score in enumerate((0.2, 0.4, 0.9))]).axes
    assert lines(panel)["DLR"] == [(10, 0.5)]


def test_names_of_variants_do_not_touch_the_next_panel_or_the_edge() -> None:
    records = [made(curve=curve(0.5)) for _ in range(2)]
    for record, groups in zip(records, (8, 10), strict=True):
        record.task["parameters"] |= {
            "alphabet": groups,
            "memorise": groups,
            "noise": 6 * groups,
            "spread": groups == 8,
        }
    figure = drawn("curves", records)
    figure.draw_without_rendering()
    first, second = (panel.title.get_window_extent() for panel in figure.axes)
    assert first.x1 < second.x0 and second.x1 <= figure.bbox.x1


def test_a_title_ends_inside_the_figure() -> None:
    records = [made(task=task, curve=curve(-4.0)) for task in ("cummax", "cumsum (steps=40, length=32)")]
    figure = drawn("curves", records)
    figure.draw_without_rendering()
    assert figure.axes[-1].title.get_window_extent().x1 <= figure.bbox.x1


def test_a_seed_that_diverged_is_not_carried_on_and_not_in_the_mean() -> None:
    records = [made(curve=curve(0.2, 0.4, 0.6)), made(seed=1, curve=curve(0.9), status="diverged", score=None)]
    records.append(made(model="dss", curve=curve(0.5, 0.7), status="interrupted", score=None))
    figure = drawn("curves", records)
    (panel,) = figure.axes
    found = [(str(line.get_label()), line.get_xydata().tolist()) for line in panel.get_lines()[:-1]]
    assert found == [
        ("DLR", [[10, 0.2], [20, 0.4], [30, 0.6]]),
        ("DLR", [[10, 0.9]]),
        ("diverged", [[10, 0.9]]),
        ("DSS", [[10, 0.5], [20, 0.7]]),
    ]
    assert not panel.collections
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["DLR", "DSS", "diverged", "floor"]


@pytest.mark.parametrize("kind", ["curves", "length", "scatter"])
@pytest.mark.parametrize("score", [-0.26, -1e4])
def test_low_scores_are_on_the_lower_edge_and_do_not_stretch_the_axis(kind: str, score: float) -> None:
    runs = [made(length=length, score=score, curve=curve(score, score)) for length in (256, 512)]
    runs += [made(length=length, seed=1, score=0.7, curve=curve(0.7, 0.7)) for length in (256, 512)]
    tests = {"test": {"r2": score}, "512": {"r2": 2 * score}, "1024": {"r2": 0.9}}
    runs.append(made(length=256, model="dss", scores=tests, curve=curve(score, 0.9)))
    for panel in drawn(kind, runs).axes:
        low, high = panel.get_ylim()
        points = [y for line in panel.get_lines() if line.get_label() != "floor" for y in line.get_ydata()]
        assert low == plots.LOWEST and max(points) < high <= 1.05
        assert points and min(points) >= low


def test_the_axis_of_training_steps_has_whole_numbers() -> None:
    (panel,) = drawn("curves", [made(curve=curve(0.5))]).axes
    assert all(float(tick).is_integer() for tick in panel.get_xticks())


def test_the_axis_points_up_where_all_scores_are_far_below_zero() -> None:
    (panel,) = drawn("curves", [made(baselines={"constant": {"r2": -5.0}}, curve=curve(-4.0, -3.0))]).axes
    low, high = panel.get_ylim()
    assert low == plots.LOWEST < high
    assert {y for _, y in lines(panel)["floor"]} == {plots.LOWEST}
    low, high = drawn("curves", [made(baselines={}, curve=curve(0.999, 1.0))]).axes[0].get_ylim()
    assert high - low >= plots.NARROWEST, "a difference of a thousandth does not fill the panel"


def test_a_model_looks_the_same_in_every_panel() -> None:
    records = [made(task=task, model=model, curve=curve(0.5)) for task in ("shift", "mips") for model in ("s4d", "dlr")]
    looks = [
        {str(line.get_label()): (line.get_color(), line.get_marker()) for line in panel.get_lines()}
        for panel in drawn("curves", records).axes
    ]
    assert looks[0] == looks[1]
    assert len({look for name, look in looks[0].items() if name != "floor"}) == 2


def test_series_differ_in_colour_or_marker() -> None:
    assert len({tuple(series(number).values()) for number in range(len(COLOURS) * len(MARKERS))}) == 84


def test_length_joins_training_at_each_length_and_tests_of_one_model() -> None:
    tests = {"test": {"r2": 0.9}, "512": {"r2": 0.6}, "4x": {"r2": 0.3}, "sparse": {"r2": 0.1}, "val": {"r2": 0.8}}
    floors = {name: {"copy": {"r2": floor}} for name, floor in (("512", 0.2), ("4x", 0.3))}
    records = [made(length=256, scores=tests, further_baselines=floors), made(length=512, score=0.7)]
    records.append(made(task="mips", length=256))
    (panel,) = drawn("length", records).axes
    found = lines(panel)
    assert panel.get_title() == "shift"
    assert found["DLR"] == [(256, 0.9), (512, 0.7)]
    assert found["DLR*"] == [(256, 0.9), (512, 0.6), (1024, 0.3)]
    assert found["floor"] == [(256, 0.2), (512, 0.2), (1024, 0.3)]
    with pytest.raises(UsageError, match="no task has scores at two lengths"):
        drawn("length", [made()])


def test_length_leaves_out_a_run_that_failed_after_its_test() -> None:
    failed = made(model="dss", scores={"test": {"r2": 0.9}, "2x": {"r2": 0.9}}, status="failed")
    (panel,) = drawn("length", [made(), made(length=512), failed]).axes
    assert "dss" not in lines(panel)


def test_a_further_test_at_the_trained_length_does_not_replace_the_test() -> None:
    (panel,) = drawn("length", [made(scores={"test": {"r2": 0.9}, "256": {"r2": 0.5}, "512": {"r2": 0.4}})]).axes
    assert panel.get_lines()[0].get_xydata().tolist() == [[256, 0.9], [512, 0.4]]


def test_length_leaves_out_a_dataset_whose_name_looks_like_a_length() -> None:
    scores = {"test": {"r2": 0.9}, "512": {"r2": 0.5}, "4096": {"r2": 0.4}}
    (panel,) = drawn("length", [made(scores=scores, budget={"test_data": ("data/4096/",)})]).axes
    assert panel.get_lines()[0].get_xydata().tolist() == [[256, 0.9], [512, 0.5]]


def test_length_does_not_join_runs_with_different_settings() -> None:
    records = [made(length=length, hyper={"layers": 1}, score=0.5) for length in (256, 512)]
    records += [made(length=1024, hyper={"layers": 2}, score=0.7)]
    figure = drawn("length", records)
    found = lines(figure.axes[0])
    assert found["DLR (layers=1)"] == [(256, 0.5), (512, 0.5)]
    assert found["DLR (layers=2)"] == [(1024, 0.7)]
    assert "DLR (layers=2)" in [text.get_text() for text in figure.legends[0].get_texts()]
    with pytest.raises(UsageError, match="no task has scores at two lengths"):
        drawn("length", records[1:])


def test_length_joins_runs_of_python_objects_without_a_file() -> None:
    """Their digests differ in every run."""
    records = [
        made(model="net", source=f"object {number:016x}", length=length, hyper={"window": window}, score=window / 10)
        for number, (length, window) in enumerate([(256, 4), (512, 4), (256, 8), (512, 8)])
    ]
    found = lines(drawn("length", records).axes[0])
    assert found["net (window=4)"] == [(256, 0.4), (512, 0.4)]
    assert found["net (window=8)"] == [(256, 0.8), (512, 0.8)]


@pytest.mark.parametrize("kind", ["curves", "scatter", "length"])
def test_the_floor_is_the_median_over_seeds(kind: str) -> None:
    tests = {"test": {"r2": 0.9}, "512": {"r2": 0.6}}
    records = [
        made(seed=seed, scores=tests, floor=floor, further_baselines={"512": {"copy": {"r2": floor}}}, curve=curve(0.5))
        for seed, floor in enumerate((0.6, 0.3, 0.2))
    ]
    (panel,) = drawn(kind, records).axes
    assert {y for _, y in lines(panel)["floor"]} == {0.3}


def test_the_marker_of_the_trained_length_is_filled() -> None:
    tests = {"test": {"r2": 0.9}, "128": {"r2": 0.6}, "512": {"r2": 0.3}}
    figure = drawn("length", [made(length=256, scores=tests)])
    others, trained, _ = figure.axes[0].get_lines()
    assert others.get_xdata().tolist() == [128, 256, 512]
    assert others.get_markerfacecolor() == "white" != trained.get_markerfacecolor() == others.get_color()
    assert trained.get_xydata().tolist() == [[256, 0.9]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["DLR", "floor"]


@pytest.mark.parametrize("score", [0.9, None])
def test_a_length_without_a_score_makes_no_panel(score: float | None) -> None:
    records = [made(length=256, score=score), made(length=512, score=None, status="failed")]
    with pytest.raises(UsageError, match="no task has scores at two lengths"):
        drawn("length", records)


@pytest.mark.parametrize(
    ("kind", "record", "message"),
    [
        ("curves", made(curve=[]), "no run has a learning curve"),
        ("scatter", made(cost={}), "no run has a score and"),
        ("heatmap", made(score=None), "no run has a scaled score"),
    ],
)
def test_a_figure_without_values_is_refused(kind: str, record: RunRecord, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        drawn(kind, [record])


@pytest.mark.parametrize("largest", [0.0344, 0.0545, 0.1, 1.0])
def test_labels_of_costs_do_not_overlap(largest: float) -> None:
    """Four panels side by side are the narrowest."""
    records = [
        made(task=task, model=model, cost=COST | {"seconds_per_step": seconds})
        for task in ("shift", "mips", "cumsum", "recall")
        for model, seconds in (("dlr", 0.0342), ("lstm", largest))
    ]
    figure = drawn("scatter", records)
    figure.draw_without_rendering()
    for panel in figure.axes:
        low, high = panel.get_xlim()
        ticks = zip(panel.get_xticks(), panel.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for tick, label in ticks if low <= tick <= high]
        assert len(boxes) >= 2
        assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_scatter_leaves_out_costs_that_cannot_be_drawn() -> None:
    times = [made(seed=seed, cost={**COST, "device": name}) for seed, name in enumerate(("cpu", "gpu"))]
    records = [*times, made(model="s4d"), made(model="dss")]
    assert len(drawn("scatter", records, cost="seconds_per_step").axes[0].containers) == 2
    records[-1].model["state_bytes"] = 0
    assert len(drawn("scatter", records, cost="state_bytes").axes[0].containers) == 2


def test_scatter_has_a_point_per_model_with_the_range_over_seeds() -> None:
    cost = {**COST, "seconds_per_step": 0.03}
    records = [made(score=0.5), made(seed=1, score=0.7, cost=cost), made(model="dss", score=0.3)]
    (panel,) = drawn("scatter", records).axes
    points = {bars.get_label(): bars.lines[0].get_xydata()[0].tolist() for bars in panel.containers}
    assert points == {"DLR": pytest.approx([20.0, 0.6]), "DSS": pytest.approx([10.0, 0.3])}
    (vertical,) = panel.containers[0].lines[2][0].get_segments()
    assert np.allclose(vertical[:, 1], [0.5, 0.7])
    assert drawn("scatter", [made(seed=seed, score=0.97) for seed in range(3)]).axes, "a mean that is rounded upwards"
    for record in records:
        record.cost = {**record.cost, "peak_memory_bytes": 5_000_000}
    (panel,) = drawn("scatter", records, cost="peak_memory_bytes").axes
    found = {bars.lines[0].get_xydata()[0, 0] for bars in panel.containers}
    assert (panel.get_xlabel(), found) == ("MB of peak memory", {5.0})


def test_the_heat_map_holds_scaled_scores() -> None:
    records = [
        *(made(seed=seed, score=score, floor=0.2) for seed, score in enumerate((0.6, 0.2, 0.64))),  # the median: 0.6
        made(model="dss", score=0.2, floor=0.2),
        made(task="mips", score=1.0),
    ]
    panel, _ = drawn("heatmap", records).axes
    (image,) = panel.get_images()
    shown = np.ma.filled(image.get_array(), np.nan)
    assert np.allclose(shown, [[1.0, np.nan], [0.5, 0.0]], equal_nan=True)
    assert [text.get_text() for text in panel.get_xticklabels()] == ["DLR", "DSS"]
    shown = {text.get_text(): text.get_color() for text in panel.texts}
    assert shown == {"0.00": "white", "0.50": "white", "1.00": "black"}, "legible on dark blue and on yellow"


def test_a_long_label_fits_below_a_heat_map_of_one_task() -> None:
    figure = drawn("heatmap", [made(), made(model="n" * 90)])
    figure.draw_without_rendering()
    panel, colours = figure.axes
    assert min(label.get_window_extent().y0 for label in panel.get_xticklabels()) >= 0
    below, above = colours.bbox.y0, colours.bbox.y1
    label = colours.yaxis.label.get_window_extent()
    assert below <= label.y0
    assert label.y1 <= above


def test_a_score_far_below_the_floor_fits_into_its_cell() -> None:
    panel, _ = drawn("heatmap", [made(score=-1e30), made(model="dss", score=-3.0)]).axes
    assert [text.get_text() for text in panel.texts] == ["-1e+30", "-4.00"]
    assert panel.get_images()[0].get_clim() == (0, 1)


def test_a_panel_per_model_holds_its_profile() -> None:
    records = [made(score=0.6), made(model="dss", score=0.2), made(model="gru", length=7)]
    first, second = drawn("profile", records).axes
    assert (first.get_title(), second.get_title()) == ("DLR", "DSS")
    names = [label.get_text() for label in first.get_yticklabels()]
    widths = [[bar.get_width() for bar in panel.patches][2 * names.index("copying") + 1] for panel in (first, second)]
    assert widths == pytest.approx([0.5, 0.0])
    with pytest.raises(UsageError, match="lrtasks profile --model NAME"):
        drawn("profile", records[2:])


@pytest.mark.parametrize("kind", ["curves", "length", "scatter", "heatmap", "profile"])
def test_any_name_of_a_model_is_drawn_as_it_is(kind: str) -> None:
    names = [r"$\frac{$", "_Layer"]
    further = {"test": {"r2": 0.9}, "2x": {"r2": 0.8}}
    figure = drawn(kind, [made(model=name, scores=further, curve=curve(0.5)) for name in names])
    figure.canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    for name in names:
        text = next(text for text in shown if text.get_text().lstrip("\u200b").replace("\\$", "$") == name)
        assert not cbook.is_math_text(text.get_text())


@pytest.fixture
def results(command: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    for number, model in enumerate(("dlr", "dss")):
        stored(made(model=model, curve=curve(0.1, 0.5)), tmp_path / "runs" / str(number))
    return lambda *words: command("plot", *words)


def test_the_command_writes_the_form_that_the_name_says(results: Callable[..., Any]) -> None:
    for name, start in (("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        assert results("heatmap", "-o", name).out == f"wrote {name}\n"
        assert Path(name).read_bytes().startswith(start)
    results("heatmap", "-o", "again.pdf")
    assert Path("again.pdf").read_bytes() == Path("a.pdf").read_bytes()


def test_the_options_of_the_command_reach_the_figure(
    results: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(style, "save", lambda figure, path: figures.append(figure) or path)
    for number, other in enumerate((made(task="mips"), made(seed=1, budget={"steps": 5}))):
        stored(other, Path("runs") / f"other{number}")
    words = ("scatter", "--tasks", "shift", "--models", "dlr", "--cost", "parameter-count")
    said = results(*words)
    assert said.code == 2 and "unequal budgets on shift" in said.err
    assert results(*words, "--unequal-budgets").code == 0
    (figure,) = figures
    assert [panel.get_title() for panel in figure.axes] == ["shift (steps=5)", "shift (steps=2000)"]
    assert {panel.get_xlabel() for panel in figure.axes} == {"parameters"}
    assert {bars.get_label() for panel in figure.axes for bars in panel.containers} == {"DLR"}


def test_the_command_names_models_that_are_not_causal(results: Callable[..., Any]) -> None:
    record = made(model="dss", curve=curve(0.1, 0.5), notes=[f"{NOT_CAUSAL}: outputs change"], seed=1)
    record.write(Path("runs/1"))
    assert results("heatmap", "-o", "a.pdf").err == f"lrtasks: {NOT_COMPARABLE}: dss on shift\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("curvs",), "unknown figure 'curvs'; did you mean 'curves'"),
        (("curves", "-o", "a.jpg"), ".pdf, .png, .svg, found a.jpg"),
        (("curves", "--cost", "state-bytes"), "--cost belongs to scatter"),
        (("scatter", "--cost", "bytes"), "unknown cost 'bytes'"),
        (("curves", "--models", "dls"), "unknown model 'dls'; did you mean"),
        (("length",), "no task has scores at two lengths"),
    ],
)
def test_mistakes_are_told(results: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    said = results(*words)
    assert said.code == 2 and message in said.err and len(said.err.splitlines()) == 1
