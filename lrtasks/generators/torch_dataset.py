"""A task's samples for PyTorch's ``DataLoader``; imported when :meth:`Task.torch_dataset` is first called."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lrtasks.errors import UsageError, require_whole
from lrtasks.generators.base import MAX_SEED, Split, Task
from lrtasks.spec import Batch

Item = tuple[Tensor, ...]


class TaskSamples(Dataset[Item]):
    """Samples 0 to ``samples - 1`` of a split, by index: the map-style dataset."""

    def __init__(self, task: Task, split: Split, seed: int, samples: int) -> None:
        self.task, self.split, self.seed, self.samples = task, split, seed, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Several samples, drawn together; ``DataLoader`` asks for each batch so."""
        for index in indices:
            if not 0 <= index < self.samples:
                raise IndexError(f"sample {index} of {self.samples}")
        return list(
            zip(*_tensors(self.task.batch([int(index) for index in indices], self.seed, self.split)), strict=True)
        )


class TaskStream(IterableDataset[Item]):
    """Samples 0, 1, 2, ... without end, or batches of ``batch_size`` of them: the iterable dataset.

    Each worker of a ``DataLoader`` takes every n-th item, so that no item comes twice. The loader takes from the
    workers in turn: with ``batch_size=None`` in the loader the order is the same for every number of workers.
    """

    def __init__(self, task: Task, split: Split, seed: int, batch_size: int | None) -> None:
        self.task, self.split, self.seed, self.batch_size = task, split, seed, batch_size

    def __iter__(self) -> Iterator[Item]:
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        size = self.batch_size or 1
        for number in itertools.count(first, every):
            drawn = _tensors(self.task.batch(range(number * size, (number + 1) * size), self.seed, self.split))
            yield drawn if self.batch_size else tuple(array[0] for array in drawn)


def make_dataset(
    task: Task, split: Split, *, seed: int, samples: int | None, batch_size: int | None
) -> TaskSamples | TaskStream:
    """The dataset that :meth:`Task.torch_dataset` describes."""
    task.key(seed, split)  # an error now rather than in a worker
    for name, value in (("samples", samples), ("batch_size", batch_size)):
        if value is not None:
            require_whole(name, value, 1, MAX_SEED)
    if samples is None:
        return TaskStream(task, split, seed, batch_size)
    if batch_size is not None:
        raise UsageError("batch_size belongs to the endless stream; with samples, give it to the DataLoader")
    return TaskSamples(task, split, seed, samples)


def _tensors(batch: Batch) -> Item:
    """``x``, ``y`` and, if the task has one, the mask."""
    return tuple(torch.from_numpy(array) for array in (batch.x, batch.y, batch.mask) if array is not None)
