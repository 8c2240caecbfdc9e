"""Batches for the loop, addressed by number and made ahead of time in worker processes.

Batch ``k`` of a stream depends only on task, seed, split and ``k``. Workers affect when it is made, never its content.
"""

from __future__ import annotations

import functools
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lrtasks.errors import UsageError, first_line, with_line
from lrtasks.generators.base import SPLITS, Split, Task, mislabelled
from lrtasks.generators.randomness import epoch_order
from lrtasks.machine import MAX_WORKERS, cores
from lrtasks.registry import is_own
from lrtasks.run_config import RunConfig
from lrtasks.spec import Batch, misfit

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from lrtasks.data import StoredDataset

HELD_OUT_SEED = 0
"""Seed of the validation and test streams; these streams are the same for every run and every seed."""
SECONDS_TO_CALM = 0.1
"""Seconds that other threads get to free their tensors: they need far less, and an evaluation takes far more."""
SECONDS_TO_START = 0.5
"""Approximate seconds that processes take to start, to hand over some dozens of batches, and to end."""


_order = functools.lru_cache(2)(epoch_order)  # most batches ask for the order of the same epoch again


class Loaded(NamedTuple):
    """A :class:`Batch` as tensors."""

    x: Tensor
    y: Tensor
    mask: Tensor | None
    meta: dict[str, Any] | None

    @property
    def batch(self) -> Batch:
        """Return the batch as NumPy arrays that share memory with the tensors; the tensors must be on the CPU."""
        return Batch(self.x.numpy(), self.y.numpy(), None if self.mask is None else self.mask.numpy(), self.meta)


@dataclass(frozen=True)
class BatchStream(Dataset[Loaded]):
    """Batches 0, 1, 2, ... of one stream.

    Attributes:
        batch_size: samples per batch over all processes.
        samples: size of a finite set, or ``None`` for fresh samples. A finite ``train`` set is repeated, in a new order
            in each epoch. Other splits are read once; their last batch has the remaining samples.
        rank: number of this process.
        world: number of processes; each process takes an equal part of every batch.
    """

    source: Task | StoredDataset
    seed: int
    split: Split
    batch_size: int
    samples: int | None = None
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        size, world, samples = self.batch_size, self.world, self.samples
        if size % world:
            raise UsageError(f"batch_size must be a multiple of the number of processes ({world}), found {size}")
        if self.split == "train" and samples is not None and samples < size:
            raise UsageError(f"the training set must have at least batch_size ({size}) samples, found {samples}")

    def indices(self, number: int) -> np.ndarray:
        """Return the sample indices of batch ``number``, over all processes."""
        size, samples = self.batch_size, self.samples
        first = number * size
        if samples is None:
            return np.arange(first, first + size)
        if self.split != "train":
            return np.arange(first, min(first + size, samples))
        # An epoch ends when no whole batch is left, so that no batch mixes the orders of two epochs.
        epoch, position = divmod(number, samples // size)
        return _order(samples, self.seed, epoch)[position * size : (position + 1) * size]

    def __getitem__(self, number: int) -> Loaded:
        # A finite set always consists of the same samples (seed 0); the run's seed only changes their order.
        seed = self.seed if self.samples is None else 0
        part = self.batch_size // self.world
        own = self.indices(number)[self.rank * part : (self.rank + 1) * part]
        batch = self.source.batch(own.tolist(), seed, self.split)
        if isinstance(self.source, Task) and is_own(type(self.source)):
            require_fit(batch, self.source)  # a mistake in a user's task may affect only a few samples
        mask = None if batch.mask is None else torch.from_numpy(batch.mask)
        return Loaded(torch.from_numpy(batch.x), torch.from_numpy(batch.y), mask, batch.meta)


@dataclass(frozen=True)
class Replay:
    """The first ``count`` batches of a stream in NumPy; ``workers`` background processes remake them in each pass."""

    stream: BatchStream
    count: int
    workers: int

    def __iter__(self) -> Iterator[Batch]:
        return (loaded.batch for loaded in self.load())

    def load(self, *, pin: bool = False) -> Generator[Loaded, None, None]:
        """Yield the batches of one pass (:func:`load`)."""
        return load(self.stream, range(self.count), workers=self.workers, pin=pin)


@dataclass
class Streams:
    """Training, validation and test batches of a run, and the digest of its stored dataset, if there is one."""

    train: BatchStream
    val: Replay
    test: Replay
    workers: int
    digest: str | None = None

    @property
    def finite(self) -> bool:
        """Return whether the training set is finite; if so, the weights with the best validation score are tested."""
        return self.train.samples is not None

    def training(self, count: int) -> Replay:
        """Return the first ``count`` training batches as whole batches for a single process."""
        return Replay(replace(self.train, rank=0, world=1), count, self.workers)


def make_streams(config: RunConfig, workers: int | str, fabric: Fabric) -> Streams:
    """Return the streams of a run: fresh samples, or the stored dataset that ``config.data`` names.

    The processes of ``fabric`` share each training batch.

    Raises:
        UsageError: if the dataset cannot be read or does not fit the task, or if a size does not fit (batch size,
            ``train_samples``, number of workers).
    """
    task, budget, count = config.task, config.budget, worker_count(workers)
    part = budget.batch_size // fabric.world_size
    if part % budget.accumulate:
        found = f"found {budget.accumulate}; each of {fabric.world_size} processes has {part}"
        raise UsageError(f"accumulate must divide the samples of a process in a batch, {found}")
    source: Task | StoredDataset = task
    samples, digest = budget.train_samples, None
    if config.data is not None:
        if budget.train_samples is not None:
            raise UsageError("train_samples belongs to fresh samples; a stored dataset has its own size")
        from lrtasks.data import open_dataset

        source = dataset = open_dataset(config.data)
        dataset.check_task(task)
        samples = dataset.counts["train"]
        for split in SPLITS:
            if not dataset.counts[split]:
                raise UsageError(f"{config.data} has no {split} samples; generate it with a --split that leaves some")
        digest = dataset.manifest.digest
    share = {"rank": fabric.global_rank, "world": fabric.world_size}
    train = BatchStream(source, config.seed, "train", budget.batch_size, samples, **share)
    val = held_out(source, "val", budget.batch_size, budget.val_batches, count)
    test = held_out(source, "test", budget.batch_size, budget.test_batches, count)
    return Streams(train, val, test, count, digest)


def held_out(source: Task | StoredDataset, split: Split, size: int, batches: int, workers: int) -> Replay:
    """Return held-out batches of ``size`` samples: all of a stored split, or the first ``batches`` of a task."""
    samples = None if isinstance(source, Task) else source.counts[split]
    count = batches if samples is None else -(-samples // size)
    return Replay(BatchStream(source, HELD_OUT_SEED, split, size, samples), count, workers)


def require_fit(batch: Batch, task: Task) -> None:
    """Raise :class:`UsageError` unless the types, shapes and labels of a batch match its task's specs."""
    problem = misfit(batch, task.input, task.target)
    if problem:
        raise UsageError(f"{task.name}: in its samples {problem}")


def check_batch(loaded: Loaded, task: Task) -> None:
    """Call :func:`require_fit`, and raise :class:`UsageError` for a slice that does not fit the target."""
    require_fit(loaded.batch, task)
    for problem in mislabelled(task.slices(loaded.batch), tuple(loaded.y.shape)):
        raise UsageError(f"{task.name}: {problem}")


def load(stream: BatchStream, numbers: range, *, workers: int, pin: bool = False) -> Generator[Loaded, None, None]:
    """Yield the batches ``numbers`` of a stream, made ahead of time by background processes.

    The processes end when the iterator is exhausted, closed or dropped. No processes are started if all batches of a
    task take less time than the start of processes.

    Args:
        workers: largest number of processes; with 0, this process makes the batches.
        pin: put batches into page-locked memory, from which the copy to a GPU is faster.
    """
    if workers and numbers and isinstance(stream.source, Task):  # a process may be forked after it drew a sample
        began = time.monotonic()
        first = stream[numbers[0]]
        if (time.monotonic() - began) * len(numbers) < SECONDS_TO_START:
            workers = 0
        yield first
        numbers = numbers[1:]
    workers = min(workers, len(numbers))
    if workers and sys.version_info < (3, 11, 10) and torch.distributed.is_initialized():
        # Before a worker is forked, let torch's threads free the tensors that they have just shared. To free a tensor,
        # a thread briefly holds a lock of the interpreter. A process forked in this moment waits forever (gh-112275).
        time.sleep(SECONDS_TO_CALM)
    loader = DataLoader(
        _ErrorsAsValues(stream),
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        collate_fn=_unchanged,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        worker_init_fn=_leave_interrupts_to_parent,
        # a separate generator: the loader draws a base seed, which must not advance torch's global generator
        generator=torch.Generator(),
    )
    try:
        for loaded in loader:
            if isinstance(loaded, Exception):
                raise loaded
            yield loaded
    except (ConnectionError, EOFError) as error:
        if not workers:
            raise
        # the worker died while it sent a batch; its own errors arrive as values
        raise RuntimeError(f"DataLoader worker (pid unknown) is lost: {first_line(error)}") from error


def worker_count(workers: int | str) -> int:
    """Return the number of background processes; ``"auto"`` means all cores but one, in the range 1 to 8.

    Raises:
        UsageError: for anything but ``"auto"`` or a whole number in 0..1024.
    """
    if workers == "auto":
        return max(1, min(8, cores() - 1))
    if type(workers) is not int or not 0 <= workers <= MAX_WORKERS:
        raise UsageError(f"workers must be 'auto' or a whole number in 0..{MAX_WORKERS}, found {workers!r}")
    return workers


class _ErrorsAsValues(Dataset[Loaded | Exception]):
    """A stream that returns errors as values: DataLoader adds the worker's traceback to the message of a raised one."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def __getitem__(self, number: int) -> Loaded | Exception:
        try:
            return self._stream[number]
        except UsageError as error:
            return error
        except Exception as error:
            if get_worker_info() is None:
                raise
            failure = RuntimeError(with_line(error))  # other types may not survive the way to the parent process
            failure.add_note(traceback.format_exc())
            return failure


def _unchanged(loaded: Any) -> Any:
    return loaded


def _leave_interrupts_to_parent(_number: int) -> None:
    """Let a worker ignore Ctrl-C, and print nothing if its parent process ends while it fetches a batch.

    The thread that sends the batch then reports a broken connection to ``sys.excepthook``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def report(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
        if not isinstance(error, (ConnectionError, EOFError)):
            sys.__excepthook__(kind, error, place)

    sys.excepthook = report
