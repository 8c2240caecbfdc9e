"""Further tests of a trained model: the task at other lengths or with another distribution, or stored samples.

One more test asks whether outputs depend on later inputs, which a causal task does not allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from lrtasks.errors import LostDataError, UsageError, is_lost_worker, with_line
from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import BatchStream, Replay, held_out
from lrtasks.evaluation.scoring import BASELINE_BATCHES, baseline_scores
from lrtasks.generators.base import SPLITS, Task
from lrtasks.metrics import scaled_score
from lrtasks.models.base import Backbone, takes_mask, uncompiled
from lrtasks.record import RunRecord, name_of_test_set
from lrtasks.run_config import RunConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from lrtasks.data import StoredDataset

SHARE = 4
"""A further test has ``1 / SHARE`` of the test's batches."""
GENERALISES = 0.9
"""Smallest scaled score with which a length counts for the generalisation length."""
ROUNDING = 1e-3
"""Largest change of an output that may be due to rounding in float32, relative to the largest output."""


class FurtherTest(NamedTuple):
    """A test that a model takes after ``test``: on a task, with its stored samples or with fresh ones."""

    task: Task
    data: StoredDataset | None = None


def further_tests(config: RunConfig) -> Mapping[str, FurtherTest]:
    """Return the further tests of a run by name.

    These are the task at each length in ``budget.test_lengths`` (if ``None``: the task's own further tests), and the
    datasets in ``budget.test_data``, each under the name of its folder.

    Raises:
        UsageError: if the task is not possible at one of the lengths; if one of the task's own tests needs another
            model; if two tests have the same name; or if a dataset cannot be read, has no test samples or does not fit.
    """
    lengths = config.budget.test_lengths
    tasks = config.task.checked_tests() if lengths is None else {str(n): config.task.at_length(n) for n in lengths}
    found = {name: FurtherTest(task) for name, task in tasks.items()}
    for address in config.budget.test_data or ():
        from lrtasks.data import open_dataset

        data, name = open_dataset(address), name_of_test_set(address)
        if name in found or name in SPLITS:
            raise UsageError(f"two tests are called {name!r}; copy {address} to a folder of another name")
        if not data.counts.get("test"):
            raise UsageError(f"{address} has no test samples")
        if data.manifest.digest != config.test_digests[name]:
            raise UsageError(f"{address} was replaced by another dataset; start the run again")
        same = data.manifest.task == config.task.name  # the task may be the user's own
        task = data.task_as(type(config.task)) if same else data.task
        config.task.require_same_widths(task, address)
        found[name] = FurtherTest(task, data)
    return found


def score_further(
    fabric: Fabric,
    model: nn.Module,
    config: RunConfig,
    tests: Mapping[str, FurtherTest],
    workers: int,
    record: RunRecord,
) -> None:
    """Score a trained model on its further tests; record scores, slices and baselines by the test's name.

    The number of positions in a batch stays about the same. If a model cannot run at a length, the record gets a note
    instead of a score.
    """
    for name, further in tests.items():
        task = further.task
        batch_size = max(1, round(config.budget.batch_size * config.task.input.length / task.input.length))
        source, batches = further.data or task, max(1, config.budget.test_batches // SHARE)
        test = held_out(source, "test", batch_size, batches, workers)
        train = Replay(BatchStream(task, config.seed, "train", batch_size), BASELINE_BATCHES, workers)
        record.scores[name] = {}
        try:
            with _at_specs_of(model, task):
                scorer = loop.score(fabric, model, task, test)
            record.scores[name], record.errors[name] = scorer.scores(), scorer.error()
            record.further_slices[name] = scorer.slices()
        except Exception as error:  # a model may raise anything at a length that it was not built for
            if isinstance(error, LostDataError) or is_lost_worker(error):
                raise
            reason = error if isinstance(error, loop.DivergedError) else with_line(error)
            record.notes.append(f"test {name}: not possible: {reason}")
            continue
        record.further_baselines[name] = baseline_scores(task, train, test)


def note_summary(task: Task, further: Mapping[str, FurtherTest], record: RunRecord, val_floor: float | None) -> None:
    """Record scaled scores, generalisation length and steps to solve; ``val_floor`` is the floor on validation."""
    lengths = {"test": task.input.length, **{name: test.task.input.length for name, test in further.items()}}
    for name in lengths:
        score, floor = record.scores[name].get(task.metric), record.floor(name)
        record.scaled[name] = None if score is None or floor is None else scaled_score(score, floor)
    reached = None
    # tests that differ from the task only in their length: ``test``, ``4x`` or ``512``, but no stored dataset
    fresh = [name for name, test in further.items() if test.data is None]
    by_length = ["test", *(name for name in fresh if name.rstrip("x").isdigit())]
    # padded inputs may have equal lengths: the trained length then comes first, since ``sorted`` keeps the order
    for name in sorted(by_length, key=lengths.__getitem__):
        value = record.scaled[name]
        if value is None or value < GENERALISES or not math.isfinite(value):
            break
        reached = lengths[name]
    # if only shorter lengths are reached, none counts: the model fails at its trained length
    record.generalisation_length = reached if reached is not None and reached >= task.input.length else None
    record.steps_to_solve = loop.steps_to_solve(record.curve, task.metric, val_floor)


def uses_future(fabric: Fabric, model: nn.Module, task: Task, batches: Replay) -> bool:
    """Return whether outputs change by more than rounding if only inputs after them change.

    The first batch is compared with batches in which each sample continues like another sample from some position on.
    There are several such positions, since a layer that looks ahead only inside chunks is causal where a chunk ends.
    The result is also false if the comparison is impossible. This is so for a pooled target, for a single output or
    sample, and for a model that gives different outputs for the same input.
    """
    with closing(Replay(batches.stream, 1, workers=0).load()) as loaded:
        batch = next(loaded)
    mask = torch.ones(batch.x.shape[:2], dtype=torch.bool) if batch.mask is None else batch.mask
    begin, end = task.input.length - task.target.length, int(mask.any(0).nonzero().max()) + 1
    middle = (begin + end) // 2
    # chunks do not end at both of two neighbouring positions, and chunks of even length do not end at an odd position
    cuts = [cut for cut in (middle - 1, middle, (begin + (end - begin) // 3) | 1) if cut > begin]
    if task.target.pooled or not cuts or len(mask) == 1:
        return False
    given = [batch, batch]
    for cut in cuts:
        given.append(batch._replace(x=batch.x.clone()))
        given[-1].x[:, cut:] = batch.x.roll(1, 0)[:, cut:]
    training, masked = model.training, takes_mask(model)
    model.eval()
    with torch.no_grad():
        first, repeated, *others = (loop.forward(model, loop.to_device(one, fabric.device), masked) for one in given)
    model.train(training)
    allowed = ROUNDING * float(first.abs().max())

    def changed(found: Tensor, cut: int) -> bool:
        """Return whether valid outputs before position ``cut`` differ from the first ones."""
        gap = (found - first)[:, : cut - begin][mask[:, begin:cut].to(first.device)]
        return bool((gap.abs() > allowed).any())

    return not changed(repeated, middle) and any(map(changed, others, cuts))


@contextmanager
def _at_specs_of(model: nn.Module, task: Task) -> Iterator[None]:
    """Set the input and target specs of a model of this package to those of ``task`` for the ``with`` block."""
    model = uncompiled(model)
    if not isinstance(model, Backbone):
        yield
        return
    before = model.input, model.target
    model.input, model.target = task.input, task.target
    try:
        yield
    finally:
        model.input, model.target = before
