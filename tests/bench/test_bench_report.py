"""Ratios and exponents from made-up measurements whose answers are known."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lrtasks.bench import BASELINE, UNFUSED
from lrtasks.bench.measure import Case, Settings
from lrtasks.bench.report import Report, Row, growth, make_row, ratios
from lrtasks.bench.run import identity
from lrtasks.results import formats


def made(model: str, length: int, seconds: float, peak: int, **changes: Any) -> dict[str, Any]:
    """A measurement beside a Transformer that takes a second for 1,024 positions, and four times that for twice."""
    phase = {
        "cpu_seconds": [2 * seconds, seconds],
        "wall_seconds": [9.0, 9.0],
        "baseline_cpu_seconds": [(length / 1024) ** 2, 99.0],
        "baseline_wall_seconds": [1.0, 1.0],
        "peak_bytes": peak,
    }
    parts = {"training": phase, "inference": {**phase, "peak_bytes": peak // 2}, **changes}
    sizes = {"parameters": 1000, "state_bytes": 8 * length}
    known = identity(Case(model, length, Settings()))
    return {"schema": 1, "identity": known, "environment": {"commit": "abc"}, "sizes": sizes, **parts}


def some() -> list[dict[str, Any]]:
    """A Transformer, fused and not, and a seqboat of linear cost, at two lengths."""
    return [
        entry
        for length in (1024, 4096)
        for entry in (
            made(BASELINE, length, (length / 1024) ** 2, 1000 * length),
            made(UNFUSED, length, 5 * (length / 1024) ** 2, 10 * length**2),
            made("seqboat", length, 0.5 * length / 1024, 2000 * length),
        )
    ]


def some_rows() -> list[Row]:
    """The rows at 4,096 positions: Transformer, unfused Transformer, seqboat."""
    return [make_row(entry) for entry in some()[3:]]


def test_against_the_transformer_the_times_of_the_same_process_count() -> None:
    transformer, _, seqboat = some_rows()
    assert ratios(seqboat, transformer) == {
        "training_speed": 8.0,
        "inference_speed": 8.0,
        "training_memory": 2.0,
        "inference_memory": 2.0,
        "state": 1.0,
        "parameters": 1.0,
    }


def test_what_is_missing_gives_no_ratio() -> None:
    transformer, *_ = some_rows()
    failed = make_row(made("mega", 4096, 1, 1, training={"reason": "out of memory"}))
    assert ratios(failed, transformer)["training_speed"] is None
    assert ratios(failed, transformer)["training_memory"] is None
    assert ratios(failed, transformer)["inference_speed"] is not None
    assert ratios(failed, {**transformer, "inference_bytes": 0})["inference_memory"] is None


def test_a_gpu_is_timed_by_the_clock_on_the_wall() -> None:
    entry = some()[0]
    row = make_row({**entry, "identity": {**entry["identity"], "device": "cuda"}})
    assert (row["inference_seconds"], row["inference_speed"]) == (9.0, 1 / 9)


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power(power: float) -> None:
    found = growth([(length, 3 * length**power) for length in (4096, 1024, 16384)])
    assert found == {"slope": power, "last": power, "points": 3}


def test_the_slope_is_the_least_squares_one_and_the_last_is_local() -> None:
    # a fixed cost of 1000: the local exponents are 0.5 between 500 and 3000, then nearer to 1
    costs = [(length, 1000.0 + length) for length in (500, 2000, 8000)]
    found = growth(costs)
    x = [math.log(length) for length, _ in costs]
    y = [math.log(cost) for _, cost in costs]
    mean_x, mean_y = sum(x) / 3, sum(y) / 3
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    assert found is not None
    assert found["slope"] == pytest.approx(slope, abs=1e-6)
    assert found["last"] == pytest.approx(math.log(9000 / 3000) / math.log(4), abs=1e-6)


def test_one_length_has_no_exponent_and_missing_costs_do_not_count() -> None:
    assert growth([(1024, 1.0)]) is None
    assert growth([(1024, 0.0), (2048, 1.0), (4096, 2.0), (8192, None)]) == {"slope": 1.0, "last": 1.0, "points": 2}


def test_rows_and_growth_for_programs() -> None:
    content = Report(some()).content()
    json.dumps(content, allow_nan=False)
    row = content["rows"][5]
    assert (row["model"], row["length"]) == ("seqboat", 4096)
    assert (row["training_seconds"], row["training_bytes"], row["inference_bytes"]) == (2.0, 2000 * 4096, 1000 * 4096)
    assert (row["relative_training_speed"], row["relative_state"], row["reasons"]) == (8.0, 1.0, {})
    grown = {(entry["model"], entry["cost"]): entry for entry in content["growth"]}
    assert grown["seqboat", "training_seconds"]["slope"] == 1.0
    assert grown[UNFUSED, "training_bytes"]["last"] == 2.0
    assert grown["transformer", "parameters"]["slope"] == 0.0
    assert content["settings"]["d_model"] == 64


def test_tables_for_people() -> None:
    report = Report(some())
    costs, against, grown = report.tables()
    assert ["seqboat", "4,096", "2,000", "2,000", "8.19", "4.1", "32.8", "1,000"] in costs.lines
    assert ["seqboat", "4,096", "8×", "8×", "2×", "2×", "1×", "1×"] in against.lines
    assert ["seqboat", *["1.00, 1.00"] * 5] in grown.lines
    assert [line[0] for line in costs.lines] == [m for m in (BASELINE, UNFUSED, "seqboat") for _ in range(2)]
    for form in ("text", "markdown", "latex", "html"):
        assert "seqboat" in formats.render(form, report.tables(), report.notes())
    assert "seqboat,4096,2.0" in formats.render("csv", content=report.rows())


def test_the_growth_of_a_constant_cost_is_zero_without_a_sign() -> None:
    found = [growth([(1024, cost), (4096, cost), (16384, cost)]) for cost in range(2, 200)]
    assert {str(grown["slope"]) for grown in found if grown is not None} == {"0.0"}


def test_growth_from_fewer_lengths_says_so() -> None:
    failed = made("seqboat", 16384, 1, 1, training={"reason": "out of memory"})
    (line,) = [line for line in Report([*some(), failed]).tables()[2].lines if line[0] == "seqboat"]
    assert line[1] == "1.00, 1.00 (of 2)" and "(of" not in line[2]


def test_one_length_has_no_table_of_growth() -> None:
    assert len(Report(some()[:3]).tables()) == 2


def test_the_share_of_active_positions_is_told() -> None:
    rates = {"blocks.0.sparse": {"activation_rate": 0.25}, "blocks.1.sparse": {"activation_rate": 0.5}, "other": {}}
    phase = some()[2]["training"]
    notes = Report([some()[0], made("seqboat", 1024, 1, 1, training={**phase, "diagnostics": rates})]).notes()
    assert "seqboat at 1,024: 0.25, 0.50 of the positions active" in notes


def test_other_diagnostics_of_the_users_layer_are_not_shares() -> None:
    reports = {f"blocks.{i}": {"activation_rate": value} for i, value in enumerate(([0.5], None, "half"))}
    entry = some()[2]
    phase = {**entry["training"], "diagnostics": reports}
    assert Report([{**entry, "training": phase}]).notes() == Report([entry]).notes()


def test_notes_say_what_was_measured_and_what_is_missing() -> None:
    alone = {"cpu_seconds": [1.0], "wall_seconds": [1.0], "peak_bytes": 1}
    failed = made("mega", 4096, 1, 1, training={"reason": "out of memory"}, inference=alone)
    notes = Report([*some(), failed]).notes()
    text = "\n".join(notes)
    assert "batch 1, float32" in text and "CPU time" in text and "causal" in text
    assert "mega at 4,096: no training: out of memory" in notes
    assert "mega at 4,096: inference was timed alone: the Transformer failed, or both together" in notes
    assert any(note.startswith("seqboat: norm layer, ") and "window none" in note for note in notes)
    assert sum(note.startswith("mega: norm layer, ") for note in notes) == 1, "a model without the shortest length"
    assert "fused kernel" in text and "fused kernel" not in "\n".join(Report([some()[0]]).notes())
