"""Floors, as the loop computes them, at the small preset."""

from __future__ import annotations

import numpy as np
import pytest
from toys import Labels

import lrtasks
from lrtasks.evaluation.batches import BatchStream, Replay
from lrtasks.evaluation.scoring import BASELINE_BATCHES, baseline_scores
from lrtasks.generators.base import Task


def floors_of(task: Task, test_batches: int = 50) -> dict[str, dict[str, float]]:
    train, test = (BatchStream(task, 0, split, 16) for split in ("train", "test"))
    return baseline_scores(task, Replay(train, BASELINE_BATCHES, 0), Replay(test, test_batches, 0))


def test_shift_copy_scores_a_delayed_copy_out_of_many() -> None:
    floors = floors_of(lrtasks.make("shift", length=256))
    # eight copies of which the delays lose 0, 1/8, ... 7/8: the undelayed one has 1 / 4.5 of the variance
    assert floors["copy"]["r2"] == pytest.approx(1 / 4.5, abs=0.003)
    assert floors["constant"]["r2"] == pytest.approx(0, abs=0.005)


def test_cummax_constant_per_position() -> None:
    assert 0.43 < floors_of(lrtasks.make("cummax", length=256))["constant"]["r2"] < 0.48


def test_every_floor_is_fitted_on_the_training_stream() -> None:
    task = Labels()
    streams = {split: Replay(BatchStream(task, 0, split, 16), 20, 0) for split in ("train", "test")}
    labels = np.concatenate([batch.y[batch.y >= 0] for batch in streams["train"]])
    tested = np.concatenate([batch.y[batch.y >= 0] for batch in streams["test"]])
    expected = (tested == np.bincount(labels).argmax()).mean()
    scores = baseline_scores(task, streams["train"], streams["test"])
    assert scores["majority"]["accuracy"] == pytest.approx(expected, abs=1e-6)
