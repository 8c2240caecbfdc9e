"""Datasets of a task's samples for PyTorch's ``DataLoader``; :meth:`Task.torch_dataset` imports this module."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from lrtasks.generators.base import Split, Task
from lrtasks.spec import Batch

Item = tuple[Tensor, ...]


class TaskSamples(Dataset[Item]):
    """Map-style dataset of samples 0 to ``samples - 1`` of a split."""

    def __init__(self, task: Task, split: Split, seed: int, samples: int) -> None:
        self.task, self.split, self.seed, self.samples = task, split, seed, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Item:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Draw several samples together; ``DataLoader`` fetches each batch with this method."""
        for index in indices:
            if not 0 <= index < self.samples:
                raise IndexError(f"sample {index} of {self.samples}")
        batch = self.task.batch(indices, self.seed, self.split)
        return list(zip(*_tensors(batch), strict=True))


class TaskStream(IterableDataset[Item]):
    """Iterable dataset of samples 0, 1, 2, ... without end; each item is a sample, or a batch of ``batch_size``.

    Each new iterator begins at sample 0.

    In a process group of ``torch.distributed`` with R processes, process r yields items r, r + R, r + 2R, ... With n
    workers in a ``DataLoader``, each worker yields every n-th of these items, so no item comes twice. The loader takes
    items from the workers in turn: with ``batch_size=None`` in the loader, the order does not depend on n.
    """

    def __init__(self, task: Task, split: Split, seed: int, batch_size: int | None) -> None:
        self.task, self.split, self.seed, self.batch_size = task, split, seed, batch_size
        self.place: tuple[int, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with rank and world size: a worker that is not forked has no process group."""
        return {**vars(self), "place": _place() or self.place}

    def __iter__(self) -> Iterator[Item]:
        rank, ranks = _place() or self.place or (0, 1)
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        size = int(self.batch_size or 1)  # a whole number of eight bits would overflow
        for number in itertools.count(rank + first * ranks, every * ranks):
            drawn = _tensors(self.task.batch(range(number * size, (number + 1) * size), self.seed, self.split))
            yield drawn if self.batch_size else tuple(array[0] for array in drawn)


def _place() -> tuple[int, int] | None:
    """Return rank and size of this process's group; ``None`` if it is in no group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else None


def _tensors(batch: Batch) -> Item:
    """Return ``x``, ``y`` and, if there is one, the mask as tensors."""
    return tuple(torch.from_numpy(array) for array in (batch.x, batch.y, batch.mask) if array is not None)
