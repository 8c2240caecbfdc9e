"""Test whether the outputs of a trained model depend on later inputs, which a causal task does not allow."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import Loaded, Replay
from lrtasks.generators.base import Task
from lrtasks.models.base import takes_mask

if TYPE_CHECKING:
    from lrtasks.evaluation.fabric import Fabric

ROUNDING = 1e-3
"""Largest change of an output that may be due to rounding in float32, relative to the largest output."""


def uses_future(fabric: Fabric, model: nn.Module, task: Task, batches: Replay) -> bool:
    """Return whether outputs change by more than rounding if only inputs after them change.

    The first batch is compared with a batch in which each sample continues like another sample. The result is also
    false if the comparison is impossible: with a pooled target, one output or one sample, and if the model gives
    different outputs for the same input.
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
    first, repeated, other = (_outputs(fabric, model, given) for given in (batch, batch, batch._replace(x=x)))
    valid = mask[:, begin:changed].to(first.device)
    before, again, after = (output[:, :compared][valid] for output in (first, repeated, other))
    allowed = ROUNDING * float(first.abs().max())
    if not len(before) or float((again - before).abs().max()) > allowed:
        return False
    return float((after - before).abs().max()) > allowed


def _outputs(fabric: Fabric, model: nn.Module, batch: Loaded) -> Tensor:
    """Return the outputs in evaluation mode; a model that draws random numbers draws the same ones at each call."""
    training, device = model.training, fabric.device
    batch = batch._replace(x=batch.x.to(device), mask=None if batch.mask is None else batch.mask.to(device))
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            return loop.forward(model, batch, takes_mask(model))
    finally:
        model.train(training)
