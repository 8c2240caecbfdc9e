"""Going through all cases: nothing is measured twice, nothing that fails stops the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lrtasks.bench import case as cases
from lrtasks.bench import run
from lrtasks.bench.apart import Outcome
from lrtasks.bench.case import Bench, Case, Settings, make_cases
from lrtasks.bench.record import Measurement, read_measurements
from lrtasks.bench.run import run_bench
from lrtasks.errors import UsageError
from lrtasks.files import held

BENCH = Bench(Settings(d_model=8, layers=1, repeats=2))
FIGURES = {"peak_bytes": 7, "cpu_seconds": [2.0, 1.0], "wall_seconds": [4.0, 3.0]}
PAIRED = {**FIGURES, "baseline_cpu_seconds": [5.0, 6.0], "baseline_wall_seconds": [9.0, 9.0]}

Answer = Callable[[Case, str, bool], Outcome]


def figures(_: Case, __: str, paired: bool) -> Outcome:
    return Outcome(PAIRED if paired else FIGURES)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str, bool]]:
    """What was asked of processes, which answer at once with :func:`figures`."""
    return install(monkeypatch, figures)


def install(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[str, int, str, bool]]:
    asked: list[tuple[str, int, str, bool]] = []

    def run_apart(_: Any, case: Case, *rest: Any, **__: Any) -> Outcome:
        if not rest:
            return Outcome({"parameters": 10, "state_bytes": 20})
        phase, paired = rest
        asked.append((case.model, case.length, phase, paired))
        return answer(case, phase, paired)

    monkeypatch.setattr(run, "run_apart", run_apart)
    return asked


def test_each_case_leaves_a_record(measured: list[Any], tmp_path: Path) -> None:
    made = make_cases(BENCH, ["seqboat"], [16, 32])
    found = run_bench(made, tmp_path / "new" / "out")
    assert [(entry.model, entry.length) for entry in found] == [(case.model, case.length) for case in made]
    assert len(measured) == 8
    for case, entry in zip(made, found, strict=True):
        content = json.loads(case.file(tmp_path / "new" / "out").read_text())
        assert content["identity"] == case.identity()
        assert content["training"] == PAIRED and content["sizes"] == {"parameters": 10, "state_bytes": 20}
        assert {"commit", "torch", "processor", "threads"} <= content["environment"].keys()
        assert (entry.seconds("training"), entry.speed("training")) == (1.0, 5.0)
        assert (entry.parameters, entry.state_bytes, entry.peak_bytes("inference")) == (10, 20, 7)
    assert not list((tmp_path / "new" / "out").glob(".*"))


def test_a_gpu_is_timed_by_the_clock_on_the_wall() -> None:
    entry = Measurement({"device": "cuda"}, {}, {}, PAIRED, PAIRED)
    assert (entry.seconds("inference"), entry.speed("inference")) == (3.0, 3.0)


def test_what_is_finished_is_not_measured_again(measured: list[Any], tmp_path: Path) -> None:
    made = make_cases(BENCH, ["seqboat"], [16, 32])
    first = run_bench(made[:2], tmp_path)
    measured.clear()
    ended: list[tuple[str, int, bool]] = []
    again = run_bench(made, tmp_path, on_end=lambda case, _, kept: ended.append((case.model, case.length, kept)))
    assert again[:2] == first
    assert {length for _, length, _, _ in measured} == {32}
    assert ended == [
        ("transformer", 16, True),
        ("seqboat", 16, True),
        ("transformer", 32, False),
        ("seqboat", 32, False),
    ]


def test_other_code_measures_anew(measured: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_cases(BENCH, [], [16])
    run_bench(made, tmp_path)
    monkeypatch.setattr(cases, "source_digest", lambda: "other")
    measured.clear()
    run_bench(made, tmp_path)
    assert len(measured) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failure_is_kept_with_its_reason_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(case: Case, phase: str, paired: bool) -> Outcome:
        if case.model == "seqboat" and phase == "training":
            return Outcome(reason="out of memory")
        return figures(case, phase, paired)

    asked = install(monkeypatch, answer)
    made = make_cases(BENCH, ["seqboat", "mega"], [16])
    found = run_bench(made, tmp_path)
    assert [entry.reasons() for entry in found] == [{}, {"training": "out of memory"}, {}]
    # once with the Transformer, once more without
    assert [paired for model, _, phase, paired in asked if (model, phase) == ("seqboat", "training")] == [True, False]
    assert found[1].seconds("training") is None and found[1].seconds("inference") == 1.0
    asked.clear()
    assert run_bench(made, tmp_path) == found
    assert not asked


def test_where_the_transformer_fails_models_are_timed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(case: Case, phase: str, paired: bool) -> Outcome:
        if case.model == "transformer" and phase == "inference":
            return Outcome(reason="stopped at its time limit of 1 s")
        return figures(case, phase, paired)

    asked = install(monkeypatch, answer)
    _, seqboat = run_bench(make_cases(BENCH, ["seqboat"], [16]), tmp_path)
    assert [entry[2:] for entry in asked if entry[0] == "seqboat"] == [("training", True), ("inference", False)]
    assert seqboat.speed("inference") is None and seqboat.seconds("inference") == 1.0
    assert seqboat.speed("training") == 5.0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is damaged and cannot be read"),
        ("[]", "is not a measurement of schema 1"),
        ('{"schema": 1}', "is not a measurement of schema 1"),
    ],
)
def test_a_damaged_record_is_named(content: str, words: str, tmp_path: Path) -> None:
    (made,) = make_cases(BENCH, [], [16])
    made.file(tmp_path).write_text(content)
    with pytest.raises(UsageError, match=f"{made.file(tmp_path).name} {words}.*remove it"):
        run_bench([made], tmp_path)


@pytest.mark.usefixtures("measured")
def test_a_record_of_something_else_is_named(tmp_path: Path) -> None:
    short, long = make_cases(BENCH, [], [16, 32])
    run_bench([short], tmp_path)
    short.file(tmp_path).rename(long.file(tmp_path))
    with pytest.raises(UsageError, match="is a measurement of something else; remove it"):
        run_bench([long], tmp_path)


@pytest.mark.usefixtures("measured")
def test_a_folder_can_be_read_without_measuring(tmp_path: Path) -> None:
    found = run_bench(make_cases(BENCH, ["attention"], [32, 16]), tmp_path)
    assert read_measurements(tmp_path) == found
    run_bench(make_cases(Bench(Settings(d_model=16, layers=1, repeats=2)), [], [16]), tmp_path)
    with pytest.raises(UsageError, match="were measured with different settings; keep them in folders of their own"):
        read_measurements(tmp_path)


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file cannot be made"):
        run_bench([], tmp_path / "file")
    with pytest.raises(UsageError, match="no measurements in"):
        read_measurements(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="time_limit must be above 0"):
        run_bench([], tmp_path, time_limit=0)


def test_one_at_a_time(tmp_path: Path) -> None:
    holder = "import sys, time; from pathlib import Path; from lrtasks.files import held\n"
    holder += "with held(Path(sys.argv[1]), 'x'): print(flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", holder, str(tmp_path / ".lock")], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(UsageError, match="another process is working on the measurements in"):
            run_bench([], tmp_path)
    finally:
        other.kill()
        other.wait()
    with held(tmp_path / ".lock", "x"):
        pass
