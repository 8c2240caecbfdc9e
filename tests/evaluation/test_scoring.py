"""Scores against their plain definitions."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import Labels, Segments

import lrtasks
from lrtasks.check.task import check_task
from lrtasks.errors import UsageError
from lrtasks.evaluation.scoring import Scorer, baseline_scores
from lrtasks.generators import Task
from lrtasks.metrics import scaled_score
from lrtasks.metrics.r2 import R2
from lrtasks.spec import Batch

RNG = np.random.default_rng(3)


def real_stream(batches: int, channels: int = 2, length: int = 64) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of prediction and target whose mean is large beside their spread, which is what float32 sums lose."""
    stream = []
    for number in range(batches):
        target = (30 + RNG.normal(size=(4, length, channels)) * (1 + number % 3)).astype(np.float32)
        stream.append(((target + 0.3 * RNG.normal(size=target.shape)).astype(np.float32), target))
    return stream


def r2(prediction: np.ndarray, target: np.ndarray) -> float:
    prediction, target = prediction.astype(np.float64), target.astype(np.float64)
    return float(1 - np.mean((prediction - target) ** 2) / np.mean((target - target.mean()) ** 2))


def score_real(stream: list[tuple[np.ndarray, np.ndarray]], task: Task | None = None):
    scorer = Scorer(task or lrtasks.make("shift", length=64, shifts=2))
    for prediction, target in stream:
        scorer.update(prediction, Batch(np.zeros((*target.shape[:2], 3), np.float32), target))
    return scorer


def test_r2_is_pooled_over_the_whole_stream() -> None:
    stream = real_stream(300)
    predictions, targets = (np.concatenate(part) for part in zip(*stream, strict=True))
    found = score_real(stream).scores()["r2"]
    assert found == pytest.approx(r2(predictions, targets), abs=1e-10)


def test_r2_batch_mean_and_spread() -> None:
    stream = real_stream(7)
    each = [r2(*pair) for pair in stream]
    scores = score_real(stream).scores()
    assert scores["r2_batch_mean"] == pytest.approx(np.mean(each), abs=1e-10)
    assert scores["r2_batch_std"] == pytest.approx(np.std(each), abs=1e-10)
    assert abs(scores["r2_batch_mean"] - scores["r2"]) > 1e-3  # the two are not the same figure


@pytest.mark.parametrize("case", ["random", "close", "mean_pred", "const_target", "lenM"])
def test_r2_of_a_batch_equals_the_reference(case: str, data: Path) -> None:
    arrays = np.load(data / "dlr" / "r2_score.npz")
    prediction, target = arrays[f"{case}_pred"], arrays[f"{case}_target"]
    metric = R2(classes=target.shape[2])
    sums = metric.sums(prediction, Batch(np.zeros(target.shape, np.float32), target))
    found = metric.batch_value(sums.reshape(-1, sums.shape[-1]).sum(axis=0))["r2"]
    assert found == pytest.approx(float(arrays[f"{case}_r2_f64"]), abs=1e-9)


def test_targets_without_a_score_are_an_error_in_words() -> None:
    target = np.ones((4, 64, 2), np.float32)
    with pytest.raises(UsageError, match=r"shift: all targets are equal in 512 elements"):
        score_real([(target, target)]).scores()
    rounded = np.array([3, 3, 3 * (1 + 1e-14), 0])  # as sums of equal targets can be
    assert math.isnan(R2(classes=1).value(rounded)["r2"])
    scorer, batch = Scorer(Labels()), Labels().batch(range(4))
    scorer.update(batch.x, batch._replace(y=np.full_like(batch.y, -100)))
    with pytest.raises(UsageError, match="labels: no position is labelled"):
        scorer.scores()


def test_slices_of_a_signal_add_up_to_the_whole() -> None:
    stream = real_stream(5)
    slices = score_real(stream).slices()
    predictions, targets = (np.concatenate(part) for part in zip(*stream, strict=True))
    assert set(slices) == {"position", "shift"}
    for rows in slices.values():
        assert sum(row["elements"] for row in rows) == targets.size
    for row in slices["position"]:
        part = slice(row["label"], row["label"] + 8)
        assert row["r2"] == pytest.approx(r2(predictions[:, part], targets[:, part]), abs=1e-7)
    for channel, row in enumerate(slices["shift"]):
        assert row["r2"] == pytest.approx(r2(predictions[..., channel], targets[..., channel]), abs=1e-7)


def test_a_group_with_equal_targets_has_no_score() -> None:
    ((prediction, target),) = real_stream(1)
    target[..., 1] = 30
    whole, constant = score_real([(prediction, target)]).slices()["shift"]
    assert (whole["r2"] > 0, constant["r2"], constant["elements"]) == (True, None, target[..., 1].size)


def labelled(task: Labels, batches: int) -> list[tuple[np.ndarray, Batch]]:
    stream = []
    for number in range(batches):
        batch = task.batch(range(4 * number, 4 * number + 4))
        wrong = RNG.random(batch.y.shape) < 0.15 + 0.1 * number
        stream.append((np.where(wrong, RNG.integers(task.classes, size=batch.y.shape), batch.x), batch))
    # one sequence with every labelled position right, and the others wrong
    first, batch = stream[0]
    first[0] = np.where(batch.y[0] >= 0, batch.y[0], (batch.x[0] + 1) % task.classes)
    return stream


def scored(task: Task, stream: list[tuple[np.ndarray, Batch]]) -> Scorer:
    scorer = Scorer(task)
    for prediction, batch in stream:
        scorer.update(prediction, batch)
    return scorer


def joined(stream: list[tuple[np.ndarray, Batch]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([pair[0] for pair in stream]), np.concatenate([pair[1].y for pair in stream])


def test_accuracy_leaves_unlabelled_positions_out() -> None:
    stream = labelled(Labels(), 5)
    prediction, y = joined(stream)
    scores = scored(Labels(), stream).scores()
    assert scores["accuracy"] == pytest.approx((prediction == y)[y >= 0].mean(), abs=1e-6)
    whole = [bool((row == target)[target >= 0].all()) for row, target in zip(prediction, y, strict=True)]
    assert scores["sequence_accuracy"] == pytest.approx(np.mean(whole))
    assert 0 < scores["sequence_accuracy"] < scores["accuracy"] < 1


def test_a_sequence_without_a_label_counts_neither_as_right_nor_as_wrong() -> None:
    task, scorer = Labels(), Scorer(Labels())
    batch = task.batch(range(4))
    batch.y[0] = -100
    batch.y[1, np.flatnonzero(batch.y[1] >= 0)[1:]] = -100  # a single label is enough
    prediction = (batch.y + 1) % task.classes
    prediction[1] = np.maximum(batch.y[1], 0)
    scorer.update(prediction, batch)
    assert scorer.scores()["sequence_accuracy"] == pytest.approx(1 / 3)
    last = task.batch([3])  # a sample counts once, also in a smaller batch
    scorer.update(np.maximum(last.y, 0), last)
    assert scorer.scores()["sequence_accuracy"] == pytest.approx(2 / 4)
    right = Scorer(task)
    right.update(np.maximum(batch.y, 0), batch)
    assert right.scores()["sequence_accuracy"] == 1


def test_the_standard_error_is_that_of_a_mean_over_samples() -> None:
    task, scorer = Labels(), Scorer(Labels())
    for first in (0, 200):
        batch = task.batch(range(first, first + 200))
        wrong = np.arange(200)[:, None] % 4 == 0  # a whole sample is right or wrong, so its positions are no samples
        scorer.update((batch.x + wrong) % task.classes, batch._replace(y=batch.x))
    assert scorer.scores()["accuracy"] == 0.75
    assert scorer.error() == pytest.approx((0.75 * 0.25 / 400) ** 0.5, rel=0.1)
    assert scorer.error() == scorer.error()
    two = task.batch([0, 1])
    two.y[1] = -100
    scorer = Scorer(task)
    scorer.update(two.x, two)
    assert scorer.error() is None  # some resamples have no label


DERIVED = {
    "word-problem": ({"length": 8}, "last_accuracy", 0.0),
    "dyck": ({"kinds": 2, "depth": 2, "length": 32}, "distance_mean", None),
    "compression": ({"length": 11, "vocab": 5}, "bits", 8 * math.log2(4)),
    "memorization": ({"facts": 16, "pairs": 8}, "facts_stored", None),
}


@pytest.mark.parametrize("name", DERIVED)
def test_scores_that_tasks_derive(name: str) -> None:
    """A model that is right everywhere but at the last two labelled positions of each sample."""
    parameters, score, expected = DERIVED[name]
    task = lrtasks.make(name, **parameters)
    batch, scorer = task.batch(range(64)), Scorer(task)
    prediction = np.maximum(batch.y, 0)
    for row, y in zip(prediction, batch.y, strict=True):
        last = np.flatnonzero(y >= 0)[-2:]
        row[last] = (y[last] + 1) % task.target.width
    scorer.update(prediction, batch)
    scores = scorer.scores()
    if name == "dyck":
        # a bracket closes one that is 1, 2 to 3, 4 to 7 or 8 to 15 tokens before, ...: octaves count alike
        rows = scorer.slices()["distance"]
        assert len({row["accuracy"] for row in rows}) > 1
        assert sum(row["accuracy"] * row["elements"] for row in rows) / sum(row["elements"] for row in rows) == (
            pytest.approx(scores["accuracy"])
        )
        expected = float(np.mean([row["accuracy"] for row in rows]))
    elif name == "memorization":
        expected = 16 * (6 / 8 - 1 / 64) / (63 / 64)  # 64 classes
    assert scores[score] == pytest.approx(expected)


def test_slices_of_labels_add_up_to_the_whole() -> None:
    stream = labelled(Labels(), 5)
    scorer = scored(Labels(), stream)
    prediction, y = joined(stream)
    for rows in scorer.slices().values():
        assert sum(row["elements"] for row in rows) == (y >= 0).sum()
        right = sum(row["accuracy"] * row["elements"] for row in rows)
        assert right == pytest.approx(((prediction == y) & (y >= 0)).sum())
    odd = np.concatenate([np.asarray(batch.meta["odd"]) for _, batch in stream if batch.meta])
    chosen = y[odd == 1] >= 0
    expected = (prediction == y)[odd == 1][chosen].mean()
    assert scorer.slices()["odd"][1] == {"label": 1, "accuracy": pytest.approx(expected), "elements": chosen.sum()}


def test_a_group_without_a_label_has_no_row() -> None:
    task, scorer = Labels(), Scorer(Labels())
    batch = task.batch(range(16))
    batch.y[:, 3] = -100
    scorer.update(batch.x, batch)
    assert [row["label"] for row in scorer.slices()["position"]] == [0, 1, 2, *range(4, task.length)]


def macro(prediction: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    """Means of 2·TP / (2·TP + FP + FN) over classes that occur at all, of TP / (TP + FN) over classes of the target."""
    prediction, y = prediction[y >= 0], y[y >= 0]
    f1, recall = [], []
    for label in range(classes):
        hit = ((prediction == label) & (y == label)).sum()
        false, missed = ((prediction == label) & (y != label)).sum(), ((prediction != label) & (y == label)).sum()
        if hit + false + missed:
            f1.append(2 * hit / (2 * hit + false + missed))
        if hit + missed:
            recall.append(hit / (hit + missed))
    return {"macro_f1": float(np.mean(f1)), "macro_accuracy": float(np.mean(recall))}


@pytest.mark.parametrize("missing", [None, "in the target", "in both"])
def test_segmentation_scores_pooled_and_by_batch(missing: str | None) -> None:
    task = Segments()
    stream = labelled(task, 5)
    if missing is not None:  # one batch lacks class 3
        prediction, batch = stream[1]
        predicted = np.where(prediction == 3, 0, prediction) if missing == "in both" else prediction
        stream[1] = (predicted, batch._replace(y=np.minimum(batch.y, 2)))
    scorer = scored(task, stream)
    scores = scorer.scores()
    pooled = macro(*joined(stream), task.classes)
    batches = [macro(prediction, batch.y, task.classes) for prediction, batch in stream]
    for name, value in pooled.items():
        mean = np.mean([entry[name] for entry in batches])
        assert scores[name] == pytest.approx(value, abs=1e-6)
        assert scores[f"{name}_batch_mean"] == pytest.approx(mean, abs=1e-6)
        assert abs(mean - value) > 1e-4
    by_class = [row["f1"] for row in scorer.slices()["class"]]
    assert np.mean(by_class) == pytest.approx(scores["macro_f1"], abs=1e-6)


def test_a_derived_score_does_not_replace_the_main_one() -> None:
    class Clash(Segments):
        def derived_scores(self, scores: Any, slices: Any) -> dict[str, float]:
            return {"macro_f1": 1.0}

    scorer = scored(Clash(), labelled(Segments(), 2))
    with pytest.raises(UsageError, match=r"derived_scores\(\) must not replace the score 'macro_f1'"):
        scorer.scores()


@pytest.mark.parametrize(
    ("found", "message"),
    [([1], r"numbers by name, found \[1\]"), ({"grade": "good"}, "found 'good' for 'grade'"), ({1: 2.0}, "2.0 for 1")],
)
def test_derived_scores_that_no_record_can_hold_are_refused(found: Any, message: str) -> None:
    class Strange(Segments):
        def derived_scores(self, scores: Any, slices: Any) -> Any:
            return found

    scorer = scored(Strange(), labelled(Segments(), 2))
    with pytest.raises(UsageError, match=message):
        scorer.scores()
    with pytest.raises(UsageError, match=message):
        check_task(Strange())


def test_derived_scores_are_plain_numbers() -> None:
    class Counting(Segments):
        def derived_scores(self, scores: Any, slices: Any) -> Any:
            return {"best": np.argmax([0, 1]), "none": None}

    scorer = scored(Counting(), labelled(Segments(), 2))
    assert json.loads(json.dumps(scorer.scores()))["best"] == 1


def test_segmentation_is_broken_down_by_what_the_task_declares() -> None:
    class Halves(Segments):
        def slices(self, batch: Batch) -> dict[str, np.ndarray]:
            return {"half": (np.arange(batch.y.shape[1]) >= batch.y.shape[1] // 2).astype(int)}

    task = Halves()
    stream = labelled(task, 5)
    scorer = scored(task, stream)
    prediction, y = joined(stream)
    middle = y.shape[1] // 2
    for row, part in zip(scorer.slices()["half"], (slice(None, middle), slice(middle, None)), strict=True):
        assert row["macro_f1"] == pytest.approx(macro(prediction[:, part], y[:, part], task.classes)["macro_f1"])
        assert row["elements"] == (y[:, part] >= 0).sum()


@pytest.mark.parametrize("task", [Labels(), Segments(), lrtasks.make("shift", length=12, shifts=4)])
def test_scores_do_not_depend_on_slices(task: Task) -> None:
    batch = task.batch(range(4))
    prediction = np.maximum(batch.y, 0)
    with_slices, without = Scorer(task), Scorer(task, slices=False)
    for scorer in (with_slices, without):
        scorer.update(prediction, batch)
    assert with_slices.scores() == without.scores()
    assert with_slices.slices() and not without.slices()


def test_a_class_that_is_neither_there_nor_predicted_has_no_score() -> None:
    task = Segments()
    stream = [(np.minimum(found, 1), batch._replace(y=np.minimum(batch.y, 1))) for found, batch in labelled(task, 5)]
    scorer = scored(task, stream)
    by_class = [row["f1"] for row in scorer.slices()["class"]]
    assert len(by_class) == task.classes and all(f1 is None for f1 in by_class[2:])
    assert np.mean(by_class[:2]) == pytest.approx(scorer.scores()["macro_f1"], abs=1e-6)


@pytest.mark.parametrize("part", [(..., slice(1)), (0,), (..., 0)])
def test_a_prediction_of_another_shape_is_refused(part: tuple[object, ...]) -> None:
    task = lrtasks.make("shift", length=16, shifts=2)
    batch = task.batch(range(4))
    with pytest.raises(UsageError, match=r"must have the shape of batch\.y, \(4, 16, 2\), found"):
        Scorer(task).update(batch.y[part], batch)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_prediction_that_is_not_finite_is_refused(value: float) -> None:
    task = lrtasks.make("shift", length=16, shifts=2)
    batch = task.batch(range(4))
    prediction = batch.y.copy()
    prediction[2, 3, 1] = value
    with pytest.raises(UsageError, match=f"a prediction must be finite, found {value}"):
        Scorer(task).update(prediction, batch)


def test_a_single_sample_has_no_standard_error() -> None:
    prediction, target = real_stream(2)[0]
    assert score_real([(prediction[:1], target[:1])]).error() is None
    assert score_real([(prediction[:2], target[:2])]).error() is not None


@pytest.mark.parametrize("given", [np.ndarray.tolist, torch.from_numpy])
def test_predictions_of_other_frameworks_have_the_same_score(given: Callable[[np.ndarray], Any]) -> None:
    task = lrtasks.make("shift", length=16, shifts=2)
    batch, scorers = task.batch(range(3), split="test"), (Scorer(task), Scorer(task))
    prediction = batch.y + np.float32(1e-3)
    for scorer, values in zip(scorers, (prediction, given(prediction)), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scorer.update(values, batch)
    assert scorers[0].scores() == scorers[1].scores()


def test_a_floor_that_is_not_a_number_gives_no_scaled_score() -> None:
    assert math.isnan(scaled_score(1.0, math.nan)) and math.isnan(scaled_score(0.5, math.nan))


def test_without_a_batch_there_is_no_score() -> None:
    task = lrtasks.make("shift", length=16)
    assert Scorer(task).error() is None
    with pytest.raises(UsageError, match="shift: no batch was added"):
        Scorer(task).scores()
    with pytest.raises(UsageError, match="shift: no batch was added"):
        baseline_scores(task, [task.batch(range(4))], iter(()))
