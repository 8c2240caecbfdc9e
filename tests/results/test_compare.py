"""Pairs of runs: which runs match, and what the comparison says about them."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_records import framed, made, stored
from scipy import stats

from lrtasks.errors import UsageError
from lrtasks.record import NOT_CAUSAL
from lrtasks.registry import file_digest
from lrtasks.results import RunRecord
from lrtasks.results.compare import Comparison, compare, compare_with_each, model_runs

A, B = (0.9, 0.8, 0.95), (0.7, 0.75, 0.8)


def runs(model: str, scores: Sequence[float | None], **settings: Any) -> list[RunRecord]:
    """One run per score, with seeds 0, 1, ..."""
    return [made(model=model, seed=seed, score=score, **settings) for seed, score in enumerate(scores)]


def compared(a: list[RunRecord], b: list[RunRecord]) -> Comparison:
    return compare(framed(a), framed(b), ("one", "other"))


def test_the_differences_of_a_task_go_into_a_paired_test() -> None:
    found = compared(runs("dlr", A), list(reversed(runs("dss", B))))
    (entry,) = found.differences
    content = entry
    assert (content["seeds"], content["a"], content["b"]) == ([0, 1, 2], list(A), list(B))
    expected = stats.ttest_rel(A, B)
    assert content["difference"] == pytest.approx(0.4 / 3)
    # of three pairs the bootstrap's interval reaches from the least difference to the largest
    assert (content["difference_low"], content["difference_high"]) == pytest.approx((0.05, 0.2))
    assert content["p"] == content["p_holm"] == pytest.approx(expected.pvalue)
    line = ["shift", "r2", "0.883", "0.750", "+0.133", "+0.050 to +0.200", "3", "0.094", "0.094"]
    assert found.table().lines[0] == line


def test_the_interval_is_that_of_the_mean_difference() -> None:
    (entry,) = compared(runs("dlr", [0.5, 0.7] * 6), runs("dss", [0.5] * 12)).differences
    assert entry["p"] == pytest.approx(stats.ttest_1samp([0.0, 0.2] * 6, 0).pvalue)
    half = 1.96 * 0.1 / 12**0.5
    assert (entry["difference_low"], entry["difference_high"]) == pytest.approx((0.1 - half, 0.1 + half), abs=0.01)


def test_one_pair_is_too_few_for_a_test() -> None:
    found = compared(runs("dlr", [0.9]), runs("dss", [0.7]))
    assert found.table().lines[0] == ["shift", "r2", "0.900", "0.700", "+0.200", "", "1", "too few pairs", ""]
    assert found.notes() == [
        "A: one; B: other",
        "over 1 task A is better on 1, B on 0; too few tasks for a test",
        "no verdict: no p (Holm) is below 0.05 with an interval that excludes 0",
        "95 % interval: bootstrap over seeds and test samples; too narrow for few seeds",
    ]
    content = json.loads(json.dumps(found.content(), allow_nan=False))
    assert content["differences"][0]["p"] is content["differences"][0]["difference_low"] is None


def test_test_samples_widen_the_interval_of_one_pair() -> None:
    found = compared(runs("dlr", [0.9], errors={"test": 0.03}), runs("dss", [0.7], errors={"test": 0.04}))
    entry = found.differences[0]
    assert (entry["difference_low"], entry["difference_high"]) == pytest.approx((0.1, 0.3), abs=0.01)


def test_a_perfect_score_has_an_error_of_zero() -> None:
    found = compared(runs("dlr", [1.0], errors={"test": 0.0}), runs("dss", [0.5], errors={"test": 0.05}))
    entry = found.differences[0]
    assert (entry["difference_low"], entry["difference_high"]) == pytest.approx((0.4, 0.6), abs=0.01)


def test_who_is_ahead_where_is_said_in_words() -> None:
    scores = {"shift": ((0.9, 0.91, 0.92), (0.1, 0.1, 0.1)), "mips": ((0.1, 0.1, 0.1), (0.8, 0.81, 0.82))}
    a = [run for task, (one, _) in scores.items() for run in runs("dlr", one, task=task)]
    b = [run for task, (_, other) in scores.items() for run in runs("dss", other, task=task)]
    close = [runs("dlr", A, task="sort"), runs("dss", B, task="sort")]
    found = compared([*a, *close[0]], [*b, *close[1]])
    assert found.verdicts() == ["A is ahead on shift; B is ahead on mips; no verdict on 1 task (p (Holm) < 0.05)"]
    each = compare_with_each(framed(a), framed([*b, *runs("s4d", [0.5] * 3)]), ("own", "published"))
    assert each.verdicts()[0] == "dss: A is ahead on shift; B is ahead on mips (p (Holm) < 0.05)"
    assert each.verdicts()[1] == "s4d: A is ahead on shift (p (Holm) < 0.05)"
    assert len(each.differences) == 3
    assert each.content()["overall"] is None and found.content()["overall"]["tasks"] == 3


def selected(record: RunRecord) -> RunRecord:
    return dataclasses.replace(record, selection={"by": "val", "values": {"lr": [0.001, 0.003]}, "chosen": True})


def test_unequal_numbers_of_candidates_are_named() -> None:
    """The best of more settings has a higher score on average."""
    sides: list[dict[str, Any]] = [{}, {"model": "dss", "budget": {"lr": 0.003}}]
    few, many = ([selected(made(task=task, **how)) for task in ("shift", "mips")] for how in sides)
    assert not any("validation chose" in note for note in compared(few, many).notes())
    values = {"lr": [0.001, 0.003, 0.01, 0.03]}
    more = [dataclasses.replace(one, selection={**one.selection, "values": values}) for one in many]
    (note,) = (note for note in compared(few, more).notes() if "validation chose" in note)
    assert note.startswith("validation chose from 2 settings of one and from 4 of other on 2 tasks, which favours")


def test_selected_runs_are_not_compared_with_others() -> None:
    with pytest.raises(UsageError, match=r"on shift differ in settings selected on validation \(lr and none\)"):
        compared([selected(made())], [made(model="dss")])
    assert compared([selected(made())], [selected(made(model="dss", budget={"lr": 0.003}))]).differences


def test_equal_differences_have_no_test() -> None:
    found = compared(runs("dlr", [1.0, 0.8]), runs("dss", [0.9, 0.7]))  # which are unequal in the last bits
    assert found.table().lines[0][-2:] == ["equal differences", ""]


def test_several_tests_are_corrected() -> None:
    tasks = {"shift": ((0.9, 0.8, 0.95), (0.7, 0.75, 0.8)), "mips": ((0.5, 0.52, 0.51), (0.1, 0.11, 0.12))}
    a = [run for task, (scores, _) in tasks.items() for run in runs("dlr", scores, task=task)]
    b = [run for task, (_, scores) in tasks.items() for run in runs("dss", scores, task=task)]
    a += runs("dlr", [0.3], task="sort")  # a single pair adds no test
    b += runs("dss", [0.2], task="sort")
    mips, shift, sort = compared(a, b).differences
    assert tuple(entry["task"] for entry in (mips, shift, sort)) == ("mips", "shift", "sort")
    assert mips["p"] < shift["p"]
    assert [entry["p_holm"] for entry in (mips, shift, sort)] == [
        pytest.approx(2 * mips["p"]),
        pytest.approx(shift["p"]),
        None,
    ]


def test_a_verdict_needs_a_p_value_that_is_low_after_the_correction() -> None:
    a, b = (
        [run for task in ("shift", "mips") for run in runs(model, scores, task=task)]
        for model, scores in (("dlr", (0.6, 0.65, 0.7)), ("dss", (0.5, 0.5, 0.5)))
    )
    found = compared(a, b)
    assert all(entry["p"] < 0.05 < entry["p_holm"] for entry in found.differences)
    assert found.verdicts() == ["no verdict: no p (Holm) is below 0.05 with an interval that excludes 0"]


def over_tasks(differences: dict[str, float], **last: Any) -> Comparison:
    a = [made(model="dlr", task=task, score=0.5 + value, **last) for task, value in differences.items()]
    return compared(a, [made(model="dss", task=task, score=0.5, **last) for task in differences])


def test_tests_over_tasks_take_one_difference_per_task() -> None:
    differences = {"a": 0.1, "b": 0.2, "c": -0.05, "d": 0.3}
    overall = over_tasks(differences).overall()
    assert (overall["tasks"], overall["a_better"], overall["b_better"]) == (4, 3, 1)
    assert overall["p_signed_rank"] == pytest.approx(stats.wilcoxon(list(differences.values())).pvalue)
    assert overall["p_sign"] == pytest.approx(stats.binomtest(3, 4).pvalue)
    note = over_tasks(differences).notes()[1]
    assert note == (
        "over 4 tasks A is better on 3, B on 1; Wilcoxon's signed-rank test p = 0.25; sign test p = 0.62; "
        "with 4 tasks that differ, p cannot be below 0.12"
    )
    six = over_tasks({name: 0.1 * number for number, name in enumerate("abcdef", 1)})
    assert six.notes()[1].endswith("Wilcoxon's signed-rank test p = 0.031; sign test p = 0.031")


def test_equal_tasks_do_not_make_a_test_over_tasks_stronger() -> None:
    found = over_tasks({"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.0, "e": 0.0, "f": 0.0})
    assert found.notes()[1] == (
        "over 6 tasks A is better on 3, B on 0; Wilcoxon's signed-rank test p = 0.25; sign test p = 0.25; "
        "with 3 tasks that differ, p cannot be below 0.25"
    )


def test_a_task_at_several_lengths_is_one_task() -> None:
    lengths = (64, 128, 256)
    a = [made(model="dlr", length=length, score=0.6) for length in lengths]
    b = [made(model="dss", length=length, score=0.5) for length in lengths]
    found = compared(a, b)
    assert [entry["label"] for entry in found.differences] == [f"shift (length={length})" for length in lengths]
    assert found.by_task() == {"shift": pytest.approx(0.1)}
    assert found.overall()["p_sign"] is None
    scores = zip(lengths, (0.6, 0.7, 0.2), strict=True)  # 0.1 + 0.2 - 0.3 is not 0 in floating point
    even = compared([made(model="dlr", length=length, score=score) for length, score in scores], b).overall()
    assert (even["a_better"], even["b_better"]) == (0, 0)


def test_differences_of_unlike_scores_are_not_ranked_together() -> None:
    def labelled(model: str, score: float) -> RunRecord:
        record = made(model=model, task="listops", score=score)
        return dataclasses.replace(
            record, task={**record.task, "metric": "accuracy"}, scores={"test": {"accuracy": score}}
        )

    a, b = [*runs("dlr", [0.5]), labelled("dlr", 0.9)], [*runs("dss", [0.4]), labelled("dss", 0.8)]
    overall = compared(a, b).overall()
    assert (overall["p_signed_rank"], overall["p_sign"]) == (None, 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"length": 512}, "length (256 and 512)"),
        ({"budget": {"steps": 5}}, "steps (2000 and 5)"),
        ({"budget": {"stop_at": 0.5}}, "stop_at (none and 0.5)"),
        ({"seed": 7}, "seed (0 and 7)"),
    ],
)
def test_matching_runs_share_task_parameters_budget_and_seed(change: dict[str, Any], said: str) -> None:
    far = made(model="dss", **{"seed": 9, "length": 64, "budget": {"steps": 9}} | change)
    near = made(model="dss", **change)
    with pytest.raises(UsageError) as caught:
        compared([made()], [far, near])
    assert str(caught.value) == (
        "no run of one matches a run of other in task, parameters, budget and seed; "
        f"dlr seed 0 and dss seed {near.seed} on shift differ in {said}"
    )


def test_a_message_names_a_few_of_many_differences() -> None:
    budget = {"steps": 5, "batch_size": 3, "val_batches": 4, "test_batches": 7, "stop_at": 0.5}
    with pytest.raises(
        UsageError, match=r"differ in batch_size \(16 and 3\), seed \(0 and 1\), steps \(.*\) and 3 more$"
    ):
        compared([made()], [made(model="dss", seed=1, budget=budget)])
    budgets = [
        {"lr": x, "clip": x, "weight_decay": x, "warmup_steps": round(9 * x), "betas": (x, x)} for x in (0.1, 0.2)
    ]
    with pytest.raises(UsageError, match="which differ in betas, clip, lr and 2 more; a run can match only one run"):
        compared([made(budget=each) for each in budgets], [made()])


@pytest.mark.parametrize("change", [{"version": 2}, {"data": "ab"}, {"source": "ab"}])
def test_matching_runs_share_version_and_data(change: dict[str, Any]) -> None:
    other = dataclasses.replace(made(model="dss"), task={**made().task, **change})
    with pytest.raises(UsageError, match=f"differ in {next(iter(change))} "):
        compared([made()], [other])


def test_matching_runs_may_differ_in_their_tuning() -> None:
    assert len(compared([made()], [made(model="dss", budget={"lr": 0.5})]).differences) == 1


def test_sides_without_a_common_task_or_model() -> None:
    with pytest.raises(UsageError, match=r"they share no task$"):
        compared([made()], [made(task="mips")])
    with pytest.raises(UsageError, match=r"they share no model$"):
        compared([made(), made(model="dss")], [made(model="s4d")])


def test_two_folders_of_several_models_are_compared_model_by_model() -> None:
    a = [*runs("dlr", A), *runs("dss", B)]
    b = [*runs("dlr", [0.6, 0.5, 0.4]), *runs("dss", [0.7, 0.75, 0.9]), *runs("s4d", [0.1])]
    found = compared(a, b)
    assert [(entry["model"], entry["label"]) for entry in found.differences] == [("dlr", "shift"), ("dss", "shift")]
    assert found.differences[0]["difference"] == pytest.approx(1.15 / 3)
    assert found.table().header[:2] == ["task", "model"]
    assert [line[1] for line in found.table().lines] == ["dlr", "dss"]
    assert found.left_out == ["without a match: 1 of other on shift"]
    assert found.overall()["tasks"] == 1


def test_a_model_beside_several_others_is_matched_by_its_name() -> None:
    several, one = [*runs("dlr", A), *runs("dss", A)], runs("dlr", B)
    for found, expected in ((compared(several, one), 0.4 / 3), (compared(one, several), -0.4 / 3)):
        (entry,) = found.differences
        assert (entry["model"], entry["difference"]) == ("dlr", pytest.approx(expected))


def test_runs_without_a_match_or_a_score_are_left_out_and_named() -> None:
    lost = made(model="dlr", seed=1, score=None, status="diverged", cost={})
    a = [made(seed=0), lost, made(seed=2, score=0.8), made(seed=3), made(task="mips")]
    found = compared(a, runs("dss", [0.5, 0.6, 0.7]))
    assert found.differences[0]["seeds"] == [0, 2]
    assert found.left_out == [
        "dlr seed 1 on shift: diverged",
        "without a match: 1 of one on mips",
        "without a match: 1 of one on shift",
    ]
    assert found.notes()[-3:] == [f"left out: {reason}" for reason in found.left_out]
    unscored = made(seed=1, score=math.nan)
    failed = made(seed=2, status="failed")
    found = compared([made(), unscored, failed], runs("dss", [0.5, 0.6, 0.7]))
    assert found.differences[0]["seeds"] == [0]
    assert found.left_out == ["dlr seed 1 on shift: no score", "dlr seed 2 on shift: failed"]
    found = compared(runs("dss", [0.5, 0.6, 0.7]), [made(), unscored, failed])
    assert found.differences[0]["seeds"] == [0]
    with pytest.raises(UsageError, match="no pair of one and other has two scores: dlr seed 1 on shift: diverged"):
        compared([lost], runs("dss", [0.5, 0.6]))


def test_a_run_matches_one_run() -> None:
    two = [made(score=0.5), made(score=0.6, hyper={"layers": 2}, budget={"lr": 0.5})]
    message = "^one holds two runs of dlr seed 0 on shift, which differ in lr, layers; a run can match only one run$"
    with pytest.raises(UsageError, match=message):
        compared(two, runs("dss", [0.5]))
    with pytest.raises(UsageError, match="which have the same settings"):
        compared([made(score=0.5), made(score=0.6)], runs("dss", [0.5]))
    a_copy = compared([made(), made()], runs("dss", [0.5]))
    assert a_copy.differences[0]["seeds"] == [0]


def test_versions_of_lrtasks_against_each_other_are_named() -> None:
    found = compared([made(environment={"lrtasks": "0.1.0"})], [made(model="dss", environment={"lrtasks": "0.2.0"})])
    assert "made by lrtasks 0.1.0 and 0.2.0, whose models may differ" in found.notes()


def test_a_side_is_not_compared_with_itself() -> None:
    with pytest.raises(UsageError, match="one and other are the same runs"):
        compared(runs("dlr", A), runs("dlr", A))


def test_a_model_is_named_as_tables_name_it() -> None:
    records = [
        made(score=0.5),
        made(score=0.6, hyper={"kernel": "prod"}),
        made(model="dss", score=0.4),
        made(model="dss", task="mips", budget={"lr": 0.5, "steps": 5}),
    ]
    assert list(model_runs("dlr (kernel=prod)", framed(records))[1].index) == [1]
    assert list(model_runs("dss", framed(records))[1].index) == [2, 3]
    with pytest.raises(
        UsageError, match=r"'dlr' has several settings; name one of: dlr \(kernel=prod\), dlr \(kernel=r"
    ):
        model_runs("dlr", framed(records))
    with pytest.raises(UsageError, match="unknown model 'dsss'; did you mean 'dss'"):
        model_runs("dsss", framed(records))


def test_an_address_means_the_present_content_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("present")
    earlier, present = (made(model="Own", source=source) for source in ("of an earlier content", file_digest(file)))
    for record in (earlier, present):
        record.model["address"] = f"{file}:Own"
    assert list(model_runs(f"{file}:Own", framed([earlier, present]))[1].index) == [1]
    file.write_text("later")
    with pytest.raises(UsageError, match="has several settings"):
        model_runs(f"{file}:Own", framed([earlier, present]))


def test_a_published_run_that_was_repeated_counts_once() -> None:
    again = [made(model="dss", score=0.1), made(model="dss", score=0.2, budget={"lr": 0.003})]
    published = [*runs("dss", B), *again, *runs("s4d", B, task="mips")]
    own, others = (framed([selected(run) for run in side]) for side in (runs("own", A), published))
    found = compare_with_each(own, others, ("own", "published"))
    (entry,) = found.differences
    assert (entry["model"], entry["seeds"], entry["b"]) == ("dss", [0, 1, 2], list(B))
    assert found.left_out == ["no matching run of s4d", "repeated runs except the first: dss"]


def test_a_model_is_not_compared_with_its_own_published_runs() -> None:
    own = runs("dlr", A)
    others = framed([*own, *runs("dlr", A, task="mips"), *runs("dss", B)])
    found = compare_with_each(framed(own), others, ("dlr", "published"))
    assert [entry["model"] for entry in found.differences] == ["dss"]
    assert found.left_out == ["the same runs: dlr"]


def test_the_reason_against_all_models_names_the_differences() -> None:
    own = framed([made(model="own", budget={"steps": 5})])
    others = framed([made(model="a", task="mips"), made(model="b", budget={"steps": 7})])
    with pytest.raises(UsageError, match=r"own seed 0 and b seed 0 on shift differ in steps \(5 and 7\)$"):
        compare_with_each(own, others, ("own", "published"))


@pytest.fixture
def folders(command: Callable[..., Any]) -> Callable[..., Any]:
    """``lrtasks compare ...`` with the folders ``runs`` and ``later`` of two models each."""
    for folder, extra in (("runs", 0.0), ("later", 0.01)):
        for model, scores in (("dlr", A), ("dss", B)):
            for record in runs(model, scores):
                record.scores = {"test": {"r2": record.scores["test"]["r2"] + extra * record.seed}}
                stored(record, Path(folder) / f"{model}-{record.seed}")
    return lambda *words: command("compare", *words)


def test_a_folder_with_the_name_of_a_model_does_not_hide_the_model(folders: Callable[..., Any]) -> None:
    before = folders("dlr", "dss", "--json")
    Path("dlr").mkdir()
    assert (before.code, folders("dlr", "dss", "--json")) == (0, before)


def test_models_of_a_folder(folders: Callable[..., Any]) -> None:
    said = folders("dlr", "dss")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[1].split()[:4] == ["shift", "r2", "0.883", "0.750"]
    assert "A: dlr; B: dss" in said.out
    found = json.loads(folders("dlr", "dss", "--folder", "later", "--json").out)
    assert found["differences"][0]["a"] == pytest.approx([0.9, 0.81, 0.97])
    assert folders("dlr", "dss", "--format", "markdown").out.startswith("| task | metric | A | B | A - B |")


def test_a_model_by_its_address_against_the_published_ones(folders: Callable[..., Any]) -> None:
    record = made(model="Own", score=0.8)
    record.model["address"] = "path/own.py:Own"
    stored(record, Path("mine/own"))
    words = ("path/own.py:Own", "published", "--folder", "mine", "--published")
    found = json.loads(folders(*words, "runs", "--json").out)
    assert [(entry["model"], entry["difference"]) for entry in found["differences"]] == [
        ("dlr", pytest.approx(-0.1)),
        ("dss", pytest.approx(0.1)),
    ]
    said = folders(*words, "runs")
    assert "no verdict on any task against dlr, dss: no p (Holm) is below 0.05 with" in said.out
    assert "the same runs: dlr" in folders("dlr", "published", "--published", "runs").out
    said = folders("dlr", "dss", "--published", "runs")
    assert (said.code, said.out) == (2, "")


def test_folders_against_each_other(folders: Callable[..., Any]) -> None:
    found = json.loads(folders("later", "runs", "--json").out)
    assert [(entry["model"], entry["difference"]) for entry in found["differences"]] == [
        ("dlr", pytest.approx(0.01)),
        ("dss", pytest.approx(0.01)),
    ]
    runs = json.loads(folders("runs/dlr-0", "runs/dss-0", "--json").out)
    assert (runs["differences"][0]["model"], runs["differences"][0]["seeds"]) == (None, [0])
    stored(dataclasses.replace(made(), schema=9), Path("runs/old"))
    said = folders("later", "runs")
    assert said.code == 0
    assert said.err == (
        "lrtasks: left out: runs/old/record.json has schema 9; this version of lrtasks reads schemas 1 to 3\n"
    )


def test_a_folder_that_is_given_twice_names_a_damaged_record_once(folders: Callable[..., Any]) -> None:
    Path("runs/dlr-0/record.json").write_text("{")
    said = folders("runs", "runs")
    assert said.code == 2 and said.err.count("is damaged") == 1


def test_the_json_tells_tasks_of_one_name_apart() -> None:
    sides = []
    for model, score in (("dlr", 0.9), ("dss", 0.7)):
        own = [made(model=model, score=score) for _ in range(2)]
        for record, letter in zip(own, "ab", strict=True):
            record.task["source"] = letter * 32
        sides.append(own)
    found = json.loads(json.dumps(compared(*sides).content()))
    labels = [entry["label"] for entry in found["differences"]]
    assert labels == [f"shift (source={letter * 8})" for letter in "ab"]


def test_a_folder_may_contain_a_colon_and_a_label_a_slash(folders: Callable[..., Any]) -> None:
    shutil.copytree("later", "at 12:30")
    assert folders("at 12:30", "runs").code == 0
    made(hyper={"kernel": "a/b"}).write(Path("runs"))
    found = json.loads(folders("dlr (kernel=a/b)", "dss", "--json").out)
    assert found["a"] == "dlr (kernel=a/b)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("runs", "dss"),
            "compare takes two models or two folders, found the folder runs and 'dss', which is no folder",
        ),
        (("dlr", "d" * 300), f"unknown model '{'d' * 300}'. Allowed: dlr, dss"),
        (
            ("dlr", "runs/dss-0"),
            "compare takes two models or two folders, found the folder runs/dss-0 and 'dlr', which is no folder",
        ),
        (
            ("runs", "published"),
            "with published, compare takes a model, found the folder runs; write MODEL --folder runs",
        ),
        (("dlr", "dsss"), "unknown model 'dsss'; did you mean 'dss'? Allowed: dlr, dss"),
        (("runs", "nowhere/at-all"), "no results folder at nowhere/at-all"),
        (("runs", "dss", "--folder", "later"), "unknown model 'runs'. Allowed: dlr, dss"),
        (("dlr", "dss", "--folder", "nowhere"), "no results folder at nowhere"),
        (("runs", "runs"), "runs and runs are the same runs"),
        (("dlr", "dss", "--format", "csv"), "unknown format 'csv'. Allowed: html, json, latex, markdown, text"),
    ],
)
def test_mistakes(folders: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    said = folders(*words)
    assert (said.code, said.out, said.err) == (2, "", f"lrtasks: {message}\n")


def test_many_runs_without_a_partner_are_refused_at_once() -> None:
    one, other = made(model="a"), made(model="b")
    a, b = (
        [dataclasses.replace(one, seed=seed) for seed in range(2000)],
        [dataclasses.replace(other, seed=seed) for seed in range(2000, 4000)],
    )
    with pytest.raises(UsageError, match=r"a seed 0 and b seed 2000 on shift differ in seed \(0 and 2000\)"):
        compared(a, b)


def test_no_side_is_ahead_by_less_than_the_error_over_test_samples() -> None:
    """All seeds share the test stream, so they agree on a difference that is due to its samples."""
    high, low = [0.700, 0.701, 0.702], [0.690, 0.690, 0.691]
    found = compared(runs("dlr", high, errors={"test": 0.015}), runs("dss", low, errors={"test": 0.015}))
    assert found.differences[0]["p_holm"] < 0.002
    assert found.verdicts() == ["no verdict: no p (Holm) is below 0.05 with an interval that excludes 0"]
    sure = compared(runs("dlr", high, errors={"test": 0.001}), runs("dss", low, errors={"test": 0.001}))
    assert sure.verdicts() == ["A is ahead on shift (p (Holm) < 0.05)"]


def test_seeds_with_unequal_settings_are_named() -> None:
    """A table shows them in two columns; in a comparison of folders, they are one sample."""
    one = [made(seed=seed, score=A[seed], budget={"lr": lr}) for seed, lr in enumerate([1e-4, 1e-3, 1e-3])]
    assert "the seeds of one on shift differ in lr" in compared(one, runs("dss", B)).notes()
    assert not any("differ in" in note for note in compared(runs("dlr", A), runs("dss", B)).notes())


def test_a_model_that_is_not_causal_gets_no_verdict() -> None:
    notes = [f"{NOT_CAUSAL}: outputs change"]
    high, low = [0.9, 0.92, 0.91], [0.1, 0.11, 0.12]
    ahead = runs("dlr", high) + runs("dlr", high, task="cumsum", notes=notes)
    behind = runs("dss", low) + runs("dss", low, task="cumsum")
    found = compared(ahead, behind)
    assert found.by_task().keys() == {"shift"}
    assert [entry["not_causal"] for entry in found.differences] == [["a"], []]
    assert found.verdicts() == ["A is ahead on shift; no verdict on 1 task (p (Holm) < 0.05)"]
    assert "not comparable: not causal on a causal task: A on cumsum" in found.notes()
    assert not any(note.startswith("over") for note in compared(ahead[3:], behind[3:]).notes())
    one_seed = [*ahead[:3], dataclasses.replace(ahead[3], notes=notes), *runs("dlr", high, task="cumsum")[1:]]
    assert compared(one_seed, behind).by_task().keys() == {"shift"}
