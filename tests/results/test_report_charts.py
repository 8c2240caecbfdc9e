"""Axes, charts, colours and pictures of the report."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_pages import HOSTILE, parse

from lrtasks.record import PANEL
from lrtasks.results.report import pictures, scale
from lrtasks.results.report.axes import Axis, axis_for
from lrtasks.results.report.charts import LOWEST, Series, line_chart, score_axis
from lrtasks.results.report.samples import Sample, draw_sample


def test_places_on_an_axis() -> None:
    assert [Axis(0, 10).place(value) for value in (-5, 0, 5, 10, 20)] == [0, 0, 0.5, 1, 1]
    assert Axis(1, 100, log=True).place(10) == pytest.approx(0.5)


@pytest.mark.parametrize("axis", [Axis(0, 1), Axis(-0.25, 1), Axis(0, 43200), Axis(3, 3.001), Axis(1e-14, 5e-14)])
def test_ticks_are_inside_and_evenly_spaced(axis: Axis) -> None:
    ticks = axis.ticks()
    assert 3 <= len(ticks) <= 8
    room = axis.high - axis.low
    assert axis.low - 1e-9 * room <= ticks[0] < ticks[-1] <= axis.high + 1e-9 * room
    assert np.allclose(np.diff(ticks) / room, (ticks[1] - ticks[0]) / room)


@pytest.mark.parametrize(
    "axis", [Axis(1e-4, 2, log=True), Axis(0.3, 2.5, log=True), Axis(1.1, 1.4, log=True), Axis(1e-14, 3e-14, log=True)]
)
def test_a_logarithmic_axis_has_ticks(axis: Axis) -> None:
    ticks = axis.ticks()
    assert len(ticks) >= 2
    assert axis.low <= ticks[0] < ticks[-1] <= axis.high


def test_one_value_alone_makes_an_axis() -> None:
    assert axis_for([3.0]).place(3.0) == 0.5
    assert axis_for([1e17]).place(1e17) == 0.5 and axis_for([-1e17]).ticks()
    assert axis_for([8.0], log=True).place(8.0) == pytest.approx(0.5)


def test_the_axis_of_scores_shows_zero_to_one_and_little_below() -> None:
    def axis(*values: float | None) -> Axis:
        return score_axis([Series("a", list(enumerate(values)), 0)], {})

    assert (axis(0.5, 0.9).low, axis(0.5, 0.9).high) == (0, 1)
    assert axis(-0.1, None).low == -0.1
    assert axis(-900.0).low == LOWEST


def chart(*points: tuple[float, float | None], label: str = "a") -> str:
    series = [Series(label, points, 9, "shift--a")]
    return str(
        line_chart(
            series, description=label, x_label="step", y_label=label, x=Axis(0, 10), y=Axis(0, 1), marks={label: 0.5}
        )
    )


def test_a_chart_has_a_gap_where_a_value_is_missing() -> None:
    group = parse(chart((0, 0.5), (2, 0.25), (4, None), (6, 1.0))).one("g")
    assert group.attributes["data-result"] == "shift--a"
    assert group.attributes["class"] == "series m2 d1"
    assert len(group.all("circle")) == 3
    assert [len(re.findall(r"[\d.]+", path.attributes["d"])) for path in group.all("path")] == [4, 2]


def test_values_outside_a_chart_lie_on_its_edge() -> None:
    circles = parse(chart((0, 0.0), (5, -100.0), (10, 7.0))).all("circle")
    heights = [float(circle.attributes["cy"]) for circle in circles]
    assert heights[0] == heights[1] > heights[2] > 0


def test_a_chart_escapes_what_it_is_given() -> None:
    svg = parse(chart((0, 0.5), label=HOSTILE)).one("svg")
    assert svg.attributes["aria-label"] == HOSTILE
    assert not svg.all("img") and not svg.all("b")
    assert HOSTILE in [text.children[0] for text in svg.all("text") if text.children]


def test_no_line_runs_through_the_name_of_a_level() -> None:
    drawn = [child for child in parse(chart((0, 0.5), (5, 0.5))).one("svg").children if not isinstance(child, str)]
    assert drawn[-2].attributes["class"].startswith("series") and drawn[-1].attributes["class"] == "mark-label"


@pytest.mark.parametrize(("stops", "direction"), [(scale.LIGHT, -1), (scale.DARK, 1)])
def test_colours_are_legible_and_steady(stops: tuple[str, ...], direction: int) -> None:
    ramp = scale.ramp(stops)
    assert len(ramp) == scale.STEPS
    assert min(scale.contrast(ink, colour) for colour, ink in ramp) >= 4.5
    assert (direction * np.diff([scale.luminance(colour) for colour, _ in ramp]) > 0).all()
    assert (ramp[0][0], ramp[-1][0]) == (stops[0], stops[-1])


def test_contrast_is_that_of_the_standard() -> None:
    assert scale.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert scale.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def decode(uri: str) -> np.ndarray:
    kind, _, content = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_signs_have_colours_and_sizes_have_strengths() -> None:
    pixels = decode(pictures.signed_rows(np.array([[1.0, -0.5, 0.0]])))
    assert pixels[0, :, 3].tolist() == [255, 128, 0]
    assert tuple(pixels[0, 0, :3]) == pictures.POSITIVE and tuple(pixels[0, 1, :3]) == pictures.NEGATIVE


def test_classes_have_colours_and_ignored_ones_none() -> None:
    pixels = decode(pictures.class_image(np.array([[0, 1, -100]])))
    assert pixels[0].tolist() == [list(pictures.CLASSES[0]), list(pictures.CLASSES[1]), [0, 0, 0, 0]]


def test_the_panel_that_a_run_leaves_is_made_smaller(tmp_path: Path) -> None:
    Image.new("RGB", (2 * pictures.MAX_WIDTH, 50), "red").save(tmp_path / PANEL)
    uri = pictures.predictions_panel(tmp_path)
    assert uri is not None and decode(uri).shape[:2] == (25, pictures.MAX_WIDTH)


@pytest.mark.parametrize("content", [None, b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"<svg onload='alert(1)'/>"])
def test_a_panel_that_is_no_picture_is_left_out(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / PANEL).write_bytes(content)
    assert pictures.predictions_panel(tmp_path) is None


def sample(name: str, **parameters: object) -> Sample:
    drawn = draw_sample(name, parameters)
    assert isinstance(drawn, Sample)
    return drawn


def test_a_sample_of_signals() -> None:
    drawn = sample("shift", length=64, shifts=8)
    assert drawn.command == "lrtasks preview shift --set length=64 --set shifts=8"
    assert "delayed" in drawn.summary
    source, target = drawn.panels
    assert source.svg is not None and len(parse(source.svg).all("path", class_="line")) == 3
    assert target.picture is not None and decode(target.picture).shape == (8, 64, 4)


def test_a_sample_of_tokens_is_text() -> None:
    drawn = sample("recall", length=16)
    assert drawn.text is not None and "=>" in drawn.text
    assert drawn.panels == ()


def test_a_long_sample_is_drawn_small_and_says_so() -> None:
    assert sample("cumsum", length=2**20).command == "lrtasks preview cumsum --set length=256"


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [("nowhere", {}, "unknown task 'nowhere'"), ("shift", {"width": 3}, "shift has no parameter 'width'")],
)
def test_a_task_that_is_not_here_has_no_sample(name: str, parameters: dict[str, object], said: str) -> None:
    drawn = draw_sample(name, parameters)
    assert isinstance(drawn, str) and said in drawn


def test_a_task_that_breaks_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("lrtasks.generators.make", breaks)
    assert draw_sample("shift", {}) == "ZeroDivisionError: oh"
