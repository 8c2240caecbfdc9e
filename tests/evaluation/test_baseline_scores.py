"""Floors, as the loop computes them, at the small preset."""

from __future__ import annotations

import numpy as np
import pytest
from toys import Labels

from lrtasks.evaluation.batches import BatchStream, Replay
from lrtasks.evaluation.scoring import baseline_scores


def test_every_floor_is_fitted_on_the_training_stream() -> None:
    task = Labels()
    streams = {split: Replay(BatchStream(task, 0, split, 16), 20, 0) for split in ("train", "test")}
    labels = np.concatenate([batch.y[batch.y >= 0] for batch in streams["train"]])
    tested = np.concatenate([batch.y[batch.y >= 0] for batch in streams["test"]])
    expected = (tested == np.bincount(labels).argmax()).mean()
    scores = baseline_scores(task, streams["train"], streams["test"])
    assert scores["majority"]["accuracy"] == pytest.approx(expected, abs=1e-6)
