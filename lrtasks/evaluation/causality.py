"""Test whether the outputs of a trained model depend on later inputs, which a causal task does not allow."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import nn

from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import Replay
from lrtasks.generators.base import Task
from lrtasks.models.base import takes_mask

if TYPE_CHECKING:
    from lrtasks.evaluation.fabric import Fabric

ROUNDING = 1e-3
"""Largest change of an output that may be due to rounding in float32, relative to the largest output."""


def uses_future(fabric: Fabric, model: nn.Module, task: Task, batches: Replay) -> bool:
    """Return whether outputs change by more than rounding if only inputs after them change.

    The first batch is compared with a batch in which each sample continues like another sample. The result is also
    false if the comparison is impossible. This is so for a pooled target, for a single output or sample, and for a
    model that gives different outputs for the same input.
    """
    with closing(Replay(batches.stream, 1, workers=0).load()) as loaded:
        batch = next(loaded)
    mask = torch.ones(batch.x.shape[:2], dtype=torch.bool) if batch.mask is None else batch.mask
    begin, end = task.input.length - task.target.length, int(mask.any(0).nonzero().max()) + 1
    compared = (end - begin) // 2
    if task.target.pooled or compared < 1 or len(mask) == 1:
        return False
    changed = begin + compared
    x = batch.x.clone()
    x[:, changed:] = batch.x.roll(1, 0)[:, changed:]
    training, masked = model.training, takes_mask(model)
    given = [loop.to_device(one, fabric.device) for one in (batch, batch, batch._replace(x=x))]
    model.eval()
    with torch.no_grad():
        first, repeated, other = (loop.forward(model, one, masked) for one in given)
    model.train(training)
    valid = mask[:, begin:changed].to(first.device)
    before, again, after = (output[:, :compared][valid] for output in (first, repeated, other))
    allowed = ROUNDING * float(first.abs().max())
    if not len(before) or float((again - before).abs().max()) > allowed:
        return False
    return float((after - before).abs().max()) > allowed
