"""Batches for the loop, made ahead of time in worker processes and addressed by number.

Batch ``k`` of a stream is a function of task, seed, split and ``k``: workers decide when it is made, never what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lrtasks.errors import UsageError
from lrtasks.evaluation.environment import cores
from lrtasks.generators.base import Batch, Split


class Source(Protocol):
    """What a stream draws from: a task, or a stored dataset."""

    def batch(self, indices: Sequence[int] | range, seed: int = 0, split: Split = "train") -> Batch:
        """Samples ``indices`` of ``split``."""


class Loaded(NamedTuple):
    """One batch on its way to the model: tensors for the loss, and the NumPy batch for scoring."""

    x: Tensor
    y: Tensor
    mask: Tensor | None
    batch: Batch


class BatchStream(Dataset[Loaded]):
    """Batches 0, 1, 2, ... of one stream.

    Args:
        source: task or stored dataset.
        seed: seed of the stream.
        split: ``"train"``, ``"val"`` or ``"test"``.
        batch_size: samples per batch over all processes.
        samples: size of a finite set, or ``None`` for fresh samples. A finite ``train`` set is gone through again and
            again, each time in a new order; other splits are read once, the last batch being what is left.
        rank: this process.
        world: number of processes; each takes an equal part of every batch.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        split: Split,
        batch_size: int,
        *,
        samples: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size % world:
            raise UsageError(f"batch_size must be a multiple of the number of processes ({world}), found {batch_size}")
        if split == "train" and samples is not None and samples < batch_size:
            raise UsageError(f"the training set must have at least batch_size ({batch_size}) samples, found {samples}")
        self._source, self._seed, self._split = source, seed, split
        self._batch_size, self._samples = batch_size, samples
        part = batch_size // world
        self._part = slice(rank * part, (rank + 1) * part)

    def indices(self, number: int) -> np.ndarray:
        """Sample indices of batch ``number``, of all processes."""
        first = number * self._batch_size
        if self._samples is None:
            return np.arange(first, first + self._batch_size)
        if self._split != "train":
            return np.arange(first, min(first + self._batch_size, self._samples))
        from lrtasks.data import epoch_order

        # An epoch ends when no whole batch is left, so that no batch straddles two orders.
        epoch, position = divmod(number, self._samples // self._batch_size)
        order = epoch_order(self._samples, self._seed, epoch)
        return order[position * self._batch_size : (position + 1) * self._batch_size]

    def __getitem__(self, number: int) -> Loaded:
        # A finite set is always the same samples (seed 0): the run's seed changes their order alone.
        seed = self._seed if self._samples is None else 0
        batch = self._source.batch(self.indices(number)[self._part].tolist(), seed, self._split)
        mask = None if batch.mask is None else torch.from_numpy(batch.mask)
        return Loaded(torch.from_numpy(batch.x), torch.from_numpy(batch.y), mask, batch)


def load(stream: BatchStream, numbers: range, *, workers: int) -> Iterator[Loaded]:
    """Yield the batches ``numbers`` of a stream, made by ``workers`` background processes (0: in this one)."""
    workers = min(workers, len(numbers))
    loader = DataLoader(
        stream,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        collate_fn=_unchanged,
        prefetch_factor=4 if workers else None,
        pin_memory=torch.cuda.is_available(),
        # its own: the loader's draw of a base seed would move torch's global generator, and with it dropout
        generator=torch.Generator(),
    )
    yield from loader


def worker_count(workers: int | str) -> int:
    """Number of background processes: ``"auto"`` leaves one core to the model, up to 8 workers."""
    if workers == "auto":
        return max(1, min(8, cores() - 1))
    if not isinstance(workers, int) or workers < 0:
        raise UsageError(f"workers must be 'auto' or a whole number of at least 0, found {workers!r}")
    return workers


def _unchanged(loaded: Any) -> Any:
    return loaded
