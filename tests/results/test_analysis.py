"""Analysis of a run: its tables say what the record says, and its pictures are drawn from weights before and after."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_records import made, stored
from matplotlib.figure import Figure
from PIL import Image
from plugin_packages import IDENTITY, importable, write_package

import lrtasks
from lrtasks import models
from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint
from lrtasks.evaluation.loop import WEIGHTS
from lrtasks.files import held
from lrtasks.generators.tasks.reverse import Reverse
from lrtasks.models.ops.layers import Portrait
from lrtasks.record import LOCK, read_record
from lrtasks.registry import own_source
from lrtasks.results import analysis, style

BUDGET = {"steps": 6, "eval_every": 2, "val_batches": 1, "test_batches": 2, "batch_size": 4, "test_lengths": ()}


def trained(out: Path, model: str, task: str, parameters: dict[str, Any], **hyper: Any) -> Path:
    """The folder of a short run."""
    lrtasks.evaluate(model, task, parameters=parameters, hyper=hyper, budget=BUDGET, out=out, quiet=True)
    return next(out.rglob("record.json")).parent


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``analyze`` write no figures, which take most of its time; it still returns their paths."""
    monkeypatch.setattr(style, "save", lambda _, path, **__: path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"), "dlr", "shift", {"length": 32}, d_state=8, d_model=8)


def untrained(folder: Path, task: lrtasks.generators.Task, name: str = "seqboat", **hyper: Any) -> Path:
    """A folder as a run of a model leaves it, whose weights are those of another start."""
    torch.manual_seed(1)
    model = models.build(name, task.input, task.target, causal=task.causal, **hyper)
    checkpoint.save(folder / WEIGHTS, {"model": model.state_dict(), "step": 1})
    record = made(curve=[{"step": 1, "loss": 1.0, "r2": 0.0}])
    record.task.update(name=task.name, parameters=task.parameters())
    record.model.update(name=name, address=name, parameters=hyper, source=own_source(models.registry.get(name)))
    record.write(folder)
    return folder


def portraits(run: Path) -> dict[str, dict[str, Portrait]]:
    """Portraits of a run on two test samples."""
    record = read_record(run)
    task = lrtasks.make(record.task["name"], **record.task["parameters"])
    return analysis.module_states(run, task.batch(range(2), 0, "test"))


def test_analysis_writes_curve_slices_and_portraits(run: Path, tmp_path: Path) -> None:
    record, written = analysis.analyze(run, tmp_path)
    names = {path.name for path in written}
    assert {"curve.png", "slices.png"} <= names
    assert any("kernel" in name for name in names)
    assert any("eigenvalues" in name for name in names)
    for path in written:
        assert np.asarray(Image.open(path).convert("L")).std() > 5, f"{path.name} is blank"
    slices = [("{}", record.slices), *((f"{{}} ({test})", own) for test, own in record.further_slices.items())]
    named = [(title.format(name), rows) for title, own in slices for name, rows in own.items()]
    for table, (name, rows) in zip(analysis.slice_tables(record), named, strict=True):
        assert table.header == [name, "r2", "elements"]
        assert [line[1] for line in table.lines] == [f"{row['r2']:z.4f}" for row in rows]


def test_portraits_differ_before_and_after_training(run: Path) -> None:
    found = portraits(run)
    assert found
    for states in found.values():
        before, after = states["before training"], states["after training"]
        assert before.series.keys() == after.series.keys()
        assert any(not np.allclose(before.series[name], after.series[name]) for name in before.series)


def test_the_untrained_model_is_the_one_that_training_started_from(run: Path) -> None:
    record = read_record(run)
    torch.manual_seed(record.seed)
    task = lrtasks.make("shift", **record.task["parameters"])
    model = lrtasks.models.build("dlr", task.input, task.target, causal=True, **record.model["parameters"])
    (kernel,) = [states for title, states in portraits(run).items() if title.endswith("kernel")]
    taps = model.blocks[0].mixer.kernel(32)[0].detach().numpy()
    drawn = kernel["before training"].series
    assert any(np.allclose(values, taps[0], atol=1e-6) for values in drawn.values())


def test_a_slice_without_groups_is_left_out(tmp_path: Path) -> None:
    made(curve=[{"step": 1, "loss": 1.0, "r2": 0.0}], slices={"position": []}).write(tmp_path)
    record, written = analysis.analyze(tmp_path, tmp_path / "out")
    assert [path.name for path in written] == ["curve.png"]
    assert analysis.slice_tables(record) == []


def test_plots_in_place_of_a_file_are_refused(tmp_path: Path) -> None:
    made(curve=[{"step": 1, "loss": 1.0, "r2": 0.0}]).write(tmp_path)
    with pytest.raises(UsageError, match=r"the folder of the plots .* cannot be made: .* is not a folder"):
        analysis.analyze(tmp_path, tmp_path / "record.json")


def test_the_file_of_a_record_stands_for_its_folder(run: Path, tmp_path: Path, command: Any) -> None:
    by_folder, by_file = (command("analyze", where, "-o", tmp_path / "plots") for where in (run, run / "record.json"))
    assert by_folder.code == 0 and "kernel" in by_folder.out
    assert (tmp_path / "plots" / "curve.png").exists() and f"wrote {tmp_path / 'plots' / 'curve.png'}" in by_folder.out
    assert by_file == by_folder


def test_a_run_without_a_curve_is_refused(run: Path, tmp_path: Path) -> None:
    content = json.loads((run / "record.json").read_text())
    content.update(curve=[], status="running")
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="nothing to analyze yet: its status is interrupted"):
        analysis.analyze(tmp_path, tmp_path / "out")
    with held(tmp_path / LOCK, "it"), pytest.raises(UsageError, match="its status is running"):
        analysis.analyze(tmp_path, tmp_path / "out")


def test_a_folder_of_several_runs_is_refused(tmp_path: Path) -> None:
    stored(made(), tmp_path / "shift" / "dlr")
    with pytest.raises(UsageError, match=r"a folder of several runs; analyze takes one of them, such as .*shift/dlr$"):
        analysis.analyze(tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    "portrait",
    [
        Portrait("l", "lines", {"a": np.arange(1, 9.0), "b": np.ones(8)}, log_x=True, log_y=True),
        Portrait("p", "plane", {"a": np.exp(1j * np.arange(8))}),
        Portrait("i", "image", {"a": np.eye(4)}),
        Portrait("s", "positions", {"a": np.eye(4)[:2]}),
        Portrait("b", "bars", {"a": np.arange(3.0), "b": np.ones(3)}, labels=("x", "y", "z")),
    ],
    ids=lambda portrait: portrait.kind,
)
def test_every_kind_of_portrait_is_drawn(portrait: Portrait, tmp_path: Path) -> None:
    path = style.save(analysis.draw_module({"before": portrait, "after": portrait}), tmp_path / "p.png")
    assert np.asarray(Image.open(path).convert("L")).std() > 2


def panels(figure: Figure) -> list[np.ndarray]:
    """What the images of a figure show, colour bars left out."""
    return [np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images]


def test_confidence_on_images_is_drawn_as_images(tmp_path: Path) -> None:
    """As in the SeqBoat paper's Figure 4: beside each sample, a square of its pixels' confidence."""
    task = lrtasks.make("pathfinder", res=32, dashes=3, dash_length=3, seed_distance=3)
    run = untrained(tmp_path, task, d_model=8, d_state=2, layers=2, window=8)
    _, written = analysis.analyze(run, tmp_path / "analysis")
    drawn = [path for path in written if "confidence" in path.name]
    assert [path.name for path in drawn] == [f"blocks-{layer}-sparse-0-confidence.png" for layer in range(2)]
    states = portraits(run)["blocks.1.sparse.0 confidence"]
    for portrait in states.values():
        assert portrait.kind == "positions" and portrait.series["confidence"].shape == (2, 1024)
    before, after = (portrait.series["confidence"].reshape(2, 32, 32) for portrait in states.values())
    pictures = task.batch(range(2), 0, "test").x.reshape(2, 32, 32)
    found = panels(analysis.draw_module(states, pictures))
    wanted = [panel for sample in zip(pictures, before, after, strict=True) for panel in sample]
    assert len(found) == 6 and all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))
    # elsewhere positions are no pixels
    assert [panel.shape for panel in panels(analysis.draw_module(states))] == [(2, 1024), (2, 1024)]


def test_padding_is_never_active(tmp_path: Path) -> None:
    """A model that is asked for its portraits gets the batch's mask."""
    task = lrtasks.make("listops", setting="small")
    run = untrained(tmp_path, task, d_model=8, d_state=2, window=8)
    batch = task.batch(range(4), 0, "test")
    states = analysis.module_states(run, batch)["blocks.0.sparse.0 confidence"]
    assert batch.mask is not None and not batch.mask.all()
    for portrait in states.values():
        assert not portrait.series["confidence"][~batch.mask].any()


def test_module_figures_are_drawn_with_their_spread(run: Path) -> None:
    """Activation rate and span by layer, as in the SeqBoat paper's Figures 3 and 6."""
    record = read_record(run)
    record.diagnostics = {
        "blocks.0.sparse.0": {"activation_rate": 0.25, "activation_rate_std": 0.1, "attention_span": 3.0},
        "blocks.1.sparse.0": {"activation_rate": 0.5, "activation_rate_std": 0.2, "attention_span": 4.0},
        "blocks.1": {"causal": True, "responses": [1.0, 2.0], "depth_std": 7, "log": 0.5, "log_std": -1.0},
    }
    numbers = analysis.module_numbers(record)
    assert numbers == {
        "activation_rate": {"blocks.0.sparse.0": (0.25, 0.1), "blocks.1.sparse.0": (0.5, 0.2)},
        "attention_span": {"blocks.0.sparse.0": (3.0, None), "blocks.1.sparse.0": (4.0, None)},
        "depth_std": {"blocks.1": (7, None)},
        "log": {"blocks.1": (0.5, None)},
        "log_std": {"blocks.1": (-1.0, None)},
    }
    rate, span, *_ = analysis.draw_diagnostics(numbers).axes
    assert [bar.get_height() for bar in rate.patches] == [0.25, 0.5]
    (lower, upper) = (np.array(line.get_segments())[0, :, 1] for line in rate.collections)
    assert lower == pytest.approx([0.15, 0.35]) and upper == pytest.approx([0.3, 0.7])
    assert rate.get_xlabel() == "module" and rate.get_ylabel() == "activation rate"
    assert [label.get_text() for label in rate.get_xticklabels()] == ["blocks.0.sparse.0", "blocks.1.sparse.0"]
    assert not span.collections


def test_huge_integers_and_dollar_signs_in_diagnostics_are_drawn(tmp_path: Path) -> None:
    record = made()
    record.diagnostics = {"blocks.0": {"states": 4**64, "cost in $^{$": 0.5}}
    figure = analysis.draw_diagnostics(analysis.module_numbers(record))
    style.save(figure, tmp_path / "diagnostics.png")
    assert [panel.patches[0].get_height() for panel in figure.axes[:2]] == [4**64, 0.5]


@pytest.mark.parametrize("draw", [analysis.draw_curve, analysis.draw_slices])
def test_dollar_signs_in_slices_and_baselines_are_drawn(draw: Callable[[Any], Figure], tmp_path: Path) -> None:
    record, name = made(), "$^{$"
    record.curve = [{"step": 1, "loss": 1.0, "r2": 0.1}]
    record.baselines, record.slices = {name: {"r2": 0.0}}, {name: [{"label": name, "samples": 1, "r2": 0.5}]}
    style.save(draw(record), tmp_path / "drawn.png")


def test_long_diagnostics_are_told_by_their_shape() -> None:
    record = made()
    response = [[[1.0] * 9] * 4] * 2
    record.diagnostics = {"blocks.0": {"causal": True, "pole_radius": 0.123456, "frequency_response": response}}
    assert analysis.diagnostics_table(record).lines == [
        ["blocks.0", "causal", "True"],
        ["blocks.0", "pole_radius", "0.1235"],
        ["blocks.0", "frequency_response", "2 × 4 × 9 numbers, in record.json"],
    ]


@pytest.mark.usefixtures("undrawn")
def test_diagnostics_of_a_run_are_drawn(tmp_path: Path) -> None:
    run = trained(tmp_path, "longvq", "shift", {"length": 32}, d_model=8, d_state=2, layers=2, codebook=4, window=8)
    record, written = analysis.analyze(run, tmp_path / "analysis")
    assert {"diagnostics.png", "blocks-0-attention-codebook-codebook-usage.png"} <= {path.name for path in written}
    numbers = analysis.module_numbers(record)
    assert set(numbers) == {"codebook_usage", "codebook_perplexity", "dead_codes", "quantisation_error"}
    assert all(len(modules) == 2 for modules in numbers.values())


def test_weights_of_another_model_are_refused(run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    record = read_record(run)
    record.model["parameters"]["d_state"] = 4
    record.write(tmp_path)
    with pytest.raises(UsageError, match=r"weights\.pt does not fit the model \(size mismatch for blocks"):
        analysis.analyze(tmp_path, tmp_path / "analysis")


@pytest.mark.usefixtures("undrawn")
def test_an_own_model_with_the_name_of_a_registered_one_has_no_portraits(tmp_path: Path) -> None:
    record = made(model="seqboat", source="00", curve=[{"step": 1, "loss": 1.0, "r2": 0.0}])
    record.write(tmp_path)
    checkpoint.save(tmp_path / WEIGHTS, {"model": {}, "step": 1})
    _, written = analysis.analyze(tmp_path, tmp_path / "plots")
    assert [path.name for path in written] == ["curve.png"]


@pytest.mark.usefixtures("undrawn")
def test_an_own_task_with_the_name_of_a_registered_one_is_not_taken_for_it(tmp_path: Path) -> None:
    class BothDirections(Reverse):
        causal = False

    run = untrained(tmp_path, BothDirections(length=16), d_model=8, d_state=2, window=8)
    record = read_record(run)
    record.task |= {"address": None, "source": own_source(BothDirections)}
    record.write(run)
    _, written = analysis.analyze(run, tmp_path / "plots")
    assert [path.name for path in written] == ["curve.png"]
    with pytest.raises(UsageError, match=r"Python object .*reverse; .*load_model\(folder, task=CLASS\)"):
        lrtasks.load_model(run)
    assert not lrtasks.load_model(run, task=BothDirections).causal


@pytest.mark.usefixtures("undrawn")
def test_portraits_of_a_model_of_an_installed_package_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    portrait = """
    def portraits(self):
        from lrtasks.models.ops.layers import Portrait
        return [Portrait("map", "image", {"map": self.map.weight.numpy()})]
"""
    code = IDENTITY.replace("\n@dataclass", f"{portrait}\n@dataclass")
    write_package(tmp_path, "own", {"own_models.py": code}, models={"identity": "own_models:Identity"})
    with importable(tmp_path, monkeypatch):
        run = untrained(tmp_path, lrtasks.make("shift", length=8), "identity", d_model=8)
        _, written = analysis.analyze(run, tmp_path / "plots")
    assert "blocks-0-mixer-map.png" in {path.name for path in written}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("where", ["task.name", "model.name", "task.address", "model.address", "layers"])
def test_a_record_does_not_choose_code_that_analyze_runs(run: Path, tmp_path: Path, where: str) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own.py"
    shutil.copytree(run, theirs)
    own.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    record = read_record(theirs)
    if where == "layers":
        record.model |= {"name": "hybrid", "address": "hybrid", "parameters": {"layers": f"{own}:Own:1"}}
    else:
        owner, _, name = where.partition(".")
        getattr(record, owner)[name] = f"{own}:Own"
    record.write(theirs)
    with suppress(UsageError):
        analysis.analyze(theirs, tmp_path / "plots")
    assert not (tmp_path / "ran").exists()


def test_links_are_not_written_through(tmp_path: Path) -> None:
    run, elsewhere = stored(made(curve=[{"step": 1, "loss": 1.0, "r2": 0.0}]), tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "analysis").symlink_to(elsewhere)
    with pytest.raises(UsageError, match="is a symbolic link"):
        analysis.analyze(run, run / "analysis")
    assert not list(elsewhere.iterdir())
    (run / "analysis").unlink()
    (run / "analysis").mkdir()
    (elsewhere / "victim").write_text("precious")
    (run / "analysis" / "curve.png").symlink_to(elsewhere / "victim")
    analysis.analyze(run, run / "analysis")
    assert (elsewhere / "victim").read_text() == "precious"
