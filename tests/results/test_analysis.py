"""Analysis of a run: its tables say what the record says, and its pictures are drawn from weights before and after."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.models.portraits import Portrait
from lrtasks.results import analysis, plots

BUDGET = {"steps": 30, "eval_every": 10, "val_batches": 1, "test_batches": 2, "batch_size": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    lrtasks.evaluate(
        "dlr",
        "shift",
        parameters={"length": 32},
        hyper={"d_state": 8, "d_model": 8},
        budget=BUDGET,
        out=out,
        quiet=True,
    )
    return next(out.rglob("record.json")).parent


def test_analysis_writes_curve_breakdowns_and_portraits(run: Path, tmp_path: Path) -> None:
    record, written = analysis.analyze(run, tmp_path)
    names = {path.name for path in written}
    assert {"curve.png", "slices.png"} <= names
    assert any("kernel" in name for name in names)
    assert any("eigenvalues" in name for name in names)
    for path in written:
        assert np.asarray(Image.open(path).convert("L")).std() > 5, f"{path.name} is blank"
    table = analysis.slice_tables(record)
    for rows in record.slices.values():
        for row in rows:
            assert f"{row['r2']:.4f}" in table


def test_portraits_differ_before_and_after_training(run: Path) -> None:
    found = analysis.portraits(run, analysis.read_record(run))
    assert found
    for states in found.values():
        before, after = states["before training"], states["after training"]
        assert before.series.keys() == after.series.keys()
        assert any(not np.allclose(before.series[name], after.series[name]) for name in before.series)


def test_the_untrained_model_is_the_one_that_training_started_from(run: Path) -> None:
    record = analysis.read_record(run)
    torch.manual_seed(record.seed)
    task = lrtasks.make("shift", **record.task["parameters"])
    model = lrtasks.models.build("dlr", task.input, task.target, causal=True, **record.model["parameters"])
    (kernel,) = [states for title, states in analysis.portraits(run, record).items() if title.endswith("kernel")]
    taps = model.blocks[0].mixer.kernel(32)[0].detach().numpy()
    drawn = kernel["before training"].series
    assert any(np.allclose(values, taps[0], atol=1e-6) for values in drawn.values())


def test_a_run_without_a_curve_is_refused(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "record.json").read_text())
    content.update(curve=[], status="running")
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="nothing to analyze yet"):
        analysis.analyze(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    "portrait",
    [
        Portrait("l", "lines", {"a": np.arange(1, 9.0), "b": np.ones(8)}, log_x=True, log_y=True),
        Portrait("p", "plane", {"a": np.exp(1j * np.arange(8))}),
        Portrait("i", "image", {"a": np.eye(4)}),
        Portrait("b", "bars", {"a": np.arange(3.0), "b": np.ones(3)}, labels=("x", "y", "z")),
    ],
    ids=lambda portrait: portrait.kind,
)
def test_every_kind_of_portrait_is_drawn(portrait: Portrait, tmp_path: Path) -> None:
    path = plots.save(plots.draw_portrait({"before": portrait, "after": portrait}), tmp_path / "p.png")
    assert np.asarray(Image.open(path).convert("L")).std() > 2


def test_predictions_are_drawn_beside_image_and_target() -> None:
    target = np.arange(16).reshape(1, 16) % 3
    figure = plots.draw_predictions(np.random.rand(1, 16, 1), target, target, (4, 4), 3)
    assert [panel.get_title() for panel in figure.axes] == ["image", "target", "prediction"]
    assert np.array_equal(figure.axes[1].images[0].get_array(), target.reshape(4, 4))
