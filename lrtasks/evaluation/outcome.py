"""What comes out of a trained model: test scores, breakdowns, diagnostics, floors, a picture of predictions."""

from __future__ import annotations

from pathlib import Path

from lightning.fabric import Fabric
from torch import nn

from lrtasks.budget import Budget
from lrtasks.evaluation import loop
from lrtasks.evaluation.baselines import FIT_BATCHES, baseline_scores
from lrtasks.evaluation.batches import Replay
from lrtasks.generators.base import Task
from lrtasks.models.base import offered
from lrtasks.record import PANEL, RunRecord


def note_outcome(
    fabric: Fabric,
    model: nn.Module,
    task: Task,
    budget: Budget,
    streams: loop.Streams,
    record: RunRecord,
    folder: Path,
) -> None:
    """Test a trained model, and note in ``record`` what it gives.

    Args:
        fabric: device and processes.
        model: with the weights that are tested.
        task: says what is scored, and which floors there are.
        budget: a model is scored on no more training batches than it has seen.
        streams: where batches come from.
        record: gets scores, slices, diagnostics and floors.
        folder: the run's own, for the picture of an image task.
    """
    _save_panel(fabric, model, task, streams, folder)
    scorer = loop.score(fabric, model, task, *streams.test, streams.workers)
    record.scores["test"], record.slices = scorer.scores(), scorer.slices()
    # now, as they speak of the batch that the model saw last
    record.diagnostics = {name or "model": report() for name, report in offered(model, "diagnostics")}
    train = streams.train.whole()
    if streams.finite:
        count = min(streams.test[1], budget.steps)
        record.scores["train"] = loop.score(fabric, model, task, train, count, streams.workers, slices=False).scores()
    record.baselines = baseline_scores(
        task, Replay(train, FIT_BATCHES, streams.workers), Replay(*streams.test, streams.workers)
    )


def _save_panel(fabric: Fabric, model: nn.Module, task: Task, streams: loop.Streams, folder: Path) -> None:
    """For image tasks with a class per pixel, draw image, target and prediction of a few test samples."""
    shape = task.image_shape()
    if shape is None or task.target.pooled or task.target.length != task.input.length or not fabric.is_global_zero:
        return
    from lrtasks.results import plots

    stream, _ = streams.test
    for loaded, prediction in loop.predictions(fabric, model, task, stream, 1, 0):
        batch = loaded.batch
        plots.save(plots.draw_predictions(batch.x, batch.y, prediction, shape, task.target.width), folder / PANEL)
