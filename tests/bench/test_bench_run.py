"""All cases in turn: no case is measured twice, and a case that fails does not stop the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

import paused
import pytest

from lrtasks.bench import measure, run
from lrtasks.bench.measure import Case, Settings
from lrtasks.bench.report import make_row, read_measurements
from lrtasks.bench.run import file_of, identity, make_cases, run_bench
from lrtasks.errors import UsageError
from lrtasks.evaluation.environment import describe_environment
from lrtasks.files import held

SETTINGS = Settings(d_model=8, layers=1, repeats=2)
FIGURES = {"peak_bytes": 7, "cpu_seconds": [2.0, 1.0], "wall_seconds": [4.0, 3.0]}
PAIRED = {**FIGURES, "baseline_cpu_seconds": [5.0, 6.0], "baseline_wall_seconds": [9.0, 9.0]}

Answer = Callable[[Case, str, bool], dict[str, Any]]


def figures(_: Case, __: str, paired: bool) -> dict[str, Any]:
    return PAIRED if paired else FIGURES


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, bool]]:
    """Record the calls of processes; each returns :func:`figures` at once."""
    return install(monkeypatch, figures)


def install(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[str, int, str, bool]]:
    asked: list[tuple[str, int, str, bool]] = []

    def run_in_process(function: Any, case: Case, *rest: Any, **limits: Any) -> Any:
        if isinstance(function, attrgetter):
            return measure.run_in_process(function, case, **limits)
        if not rest:
            return {"parameters": 10, "state_bytes": 20}
        phase, paired = rest
        asked.append((case.model, case.length, phase, paired))
        return answer(case, phase, paired)

    monkeypatch.setattr(run, "run_in_process", run_in_process)
    return asked


def test_each_case_leaves_a_record(measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, limits, call = make_cases(["seqboat"], [16, 32], SETTINGS), set[float](), run.run_in_process
    monkeypatch.setattr(run, "run_in_process", lambda *words, **how: limits.add(*how.values()) or call(*words))
    found = list(run_bench(made, tmp_path / "new" / "out", time_limit=7))
    assert limits == {7}
    assert [(row["model"], row["length"]) for row in map(make_row, found)] == [(c.model, c.length) for c in made]
    assert len(measured) == 8
    for case, entry in zip(made, found, strict=True):
        content = json.loads(file_of(case, tmp_path / "new" / "out").read_text())
        assert content == entry and content["identity"] == identity(case)
        assert content["training"] == PAIRED and content["sizes"] == {"parameters": 10, "state_bytes": 20}
        assert {"commit", "torch", "processor", "threads"} <= content["environment"].keys()
        row = make_row(entry)
        assert (row["training_seconds"], row["training_speed"], row["inference_bytes"]) == (1.0, 5.0, 7)
        assert (row["parameters"], row["state_bytes"]) == (10, 20)
    assert not list((tmp_path / "new" / "out").glob(".*"))


def test_with_another_kernel_package_a_measurement_on_a_gpu_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "device_name", str)
    version = metadata.version
    found = []
    for kernels in ("0.6.0", "0.7.0"):
        known = {"flash-linear-attention": kernels, "triton": "3.7.1"}
        monkeypatch.setattr(metadata, "version", lambda name, known=known: known.get(name) or version(name))
        found.append([identity(case) for device in ("cpu", "cuda") for case in make_cases([], [16], SETTINGS, device)])
    assert found[0][0] == found[1][0]
    assert [on_gpu["flash-linear-attention"] for _, on_gpu in found] == ["0.6.0", "0.7.0"]
    assert describe_environment()["flash-linear-attention"] == "0.7.0"


def test_a_failure_is_kept_with_its_reason_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(case: Case, phase: str, paired: bool) -> dict[str, Any]:
        if case.model == "seqboat" and phase == "training":
            return {"reason": "out of memory"}
        return figures(case, phase, paired)

    asked = install(monkeypatch, answer)
    made = make_cases(["seqboat", "mega"], [16], SETTINGS)
    found = list(run_bench(made, tmp_path))
    assert [row["reasons"] for row in map(make_row, found)] == [{}, {"training": "out of memory"}, {}]
    # once with the Transformer, once more without
    assert [paired for model, _, phase, paired in asked if (model, phase) == ("seqboat", "training")] == [True, False]
    row = make_row(found[1])
    assert row["training_seconds"] is None and row["inference_seconds"] == 1.0
    asked.clear()
    assert list(run_bench(made, tmp_path)) == found
    assert not asked


def test_where_the_transformer_fails_models_are_timed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(case: Case, phase: str, paired: bool) -> dict[str, Any]:
        if (case.model, case.length, phase) == ("transformer", 32, "inference"):
            return {"reason": "stopped at its time limit of 1 s"}
        return figures(case, phase, paired)

    asked = install(monkeypatch, answer)
    seqboat = list(run_bench(make_cases(["seqboat"], [16, 32, 64], SETTINGS), tmp_path))[3]
    of_transformer = [("training", True), ("inference", True), ("inference", False)]
    assert [entry[2:] for entry in asked if entry[:2] == ("transformer", 32)] == of_transformer
    assert [entry[2:] for entry in asked if entry[:2] == ("seqboat", 32)] == [("training", True), ("inference", False)]
    assert all(paired for _, length, _, paired in asked if length != 32), "at other lengths they are timed together"
    row = make_row(seqboat)
    assert (row["inference_speed"], row["inference_seconds"], row["training_speed"]) == (None, 1.0, 5.0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged and cannot be read"),
        ("[]", "is not a measurement of schema 1"),
        ('{"schema": 1}', "is not a measurement of schema 1"),
    ],
)
def test_a_damaged_record_is_named(content: str, words: str, tmp_path: Path) -> None:
    (made,) = make_cases([], [16], SETTINGS)
    file_of(made, tmp_path).write_text(content)
    with pytest.raises(UsageError, match=f"{file_of(made, tmp_path).name} {words}.*remove it"):
        list(run_bench([made], tmp_path))


@pytest.mark.usefixtures("measured")
def test_a_record_of_something_else_is_named(tmp_path: Path) -> None:
    short, long = make_cases([], [16, 32], SETTINGS)
    list(run_bench([short], tmp_path))
    file_of(short, tmp_path).rename(file_of(long, tmp_path))
    with pytest.raises(UsageError, match="is a measurement of something else; remove it"):
        list(run_bench([long], tmp_path))


@pytest.mark.usefixtures("measured")
def test_a_folder_can_be_read_without_measuring(tmp_path: Path) -> None:
    found = list(run_bench(make_cases(["attention"], [32, 16], SETTINGS), tmp_path))
    assert read_measurements(tmp_path) == found
    for name, words in (("module", "or different code of attention"), ("source", "with different source")):
        other = {**found[-1], "identity": {**found[-1]["identity"], name: "edited"}}
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(UsageError, match=words):
            read_measurements(tmp_path)
    (tmp_path / "other.json").unlink()
    list(run_bench(make_cases([], [16], Settings(d_model=16, layers=1, repeats=2)), tmp_path))
    with pytest.raises(UsageError, match="were measured with different settings; keep them in separate folders"):
        read_measurements(tmp_path)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("hyper", [{"seqboat": {"window": 7}}, {"transformer": {"heads": 1}}], ids=str)
def test_measurements_of_a_model_with_different_settings_are_not_mixed(hyper: dict[str, Any], tmp_path: Path) -> None:
    for changes, length in (({}, 16), (hyper, 32)):
        list(run_bench(make_cases(["seqboat"], [length], SETTINGS, hyper=changes), tmp_path))
    with pytest.raises(UsageError, match=r"were measured with different .*separate folders"):
        read_measurements(tmp_path)


def test_diagnostics_that_are_not_finite_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = {"diagnostics": {"blocks.0": {"norm": float("nan"), "gate": 0.5}}}
    install(monkeypatch, lambda *words: {**figures(*words), **reports})
    made = make_cases([], [16], SETTINGS)
    (found,) = run_bench(made, tmp_path)
    assert found["training"]["diagnostics"] == {"blocks.0": {"norm": None, "gate": 0.5}}
    assert list(run_bench(made, tmp_path)) == [found]


@pytest.mark.parametrize("place", ["{}/layer_of_bench.py", "layer_of_bench"])
def test_a_model_that_is_edited_meanwhile_leaves_no_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = tmp_path / "layer_of_bench.py"
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\n\ndef mine(d_model):\n    return nn.Linear(d_model, d_model)\n"
    file.write_text(code)

    def edit(*words: Any) -> dict[str, Any]:
        if words[0].name != "transformer":
            file.write_text(f"{code}# edited\n")
        return figures(*words)

    install(monkeypatch, edit)
    with pytest.raises(UsageError, match="was edited while it was measured"):
        list(run_bench(make_cases([f"{place.format(tmp_path)}:mine"], [16], SETTINGS), tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("*.json"))) == 1


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file cannot be made"):
        list(run_bench([], tmp_path / "file"))
    with pytest.raises(UsageError, match="no measurements in"):
        read_measurements(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="time_limit must be above 0"):
        list(run_bench([], tmp_path, time_limit=0))


def test_one_at_a_time(tmp_path: Path) -> None:
    busy = pytest.raises(UsageError, match="another process is working on the measurements in")
    with paused.holding(tmp_path / ".lock"), busy:
        list(run_bench([], tmp_path))
    with held(tmp_path / ".lock", "x"):
        pass
