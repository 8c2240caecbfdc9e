"""A task as a PyTorch dataset: the generator's samples, whatever the number of workers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import lrtasks

TASK = lrtasks.make("shift", length=16, shifts=2)


def loaded(dataset: Any, count: int, workers: int, **options: Any) -> list[list[torch.Tensor]]:
    return list(islice(DataLoader(dataset, num_workers=workers, **options), count))


def test_samples_are_those_of_the_generator() -> None:
    dataset = TASK.torch_dataset("val", samples=6, seed=3)
    assert len(dataset) == 6 and not isinstance(dataset, IterableDataset)  # type: ignore[arg-type]
    x, y = next(iter(DataLoader(dataset, batch_size=6)))
    expected = TASK.batch(range(6), seed=3, split="val")
    assert x.dtype == torch.float32
    assert np.array_equal(x.numpy(), expected.x) and np.array_equal(y.numpy(), expected.y)
    assert torch.equal(dataset[5][0], x[5])  # type: ignore[index]
    for index in (-1, 6):
        with pytest.raises(IndexError):
            dataset[index]  # type: ignore[index]


@pytest.mark.parametrize(
    ("of_dataset", "of_loader"),
    [({"samples": 10}, {"batch_size": 3, "shuffle": True}), ({"batch_size": 3}, {"batch_size": None})],
    ids=["map-style", "iterable"],
)
def test_two_workers_give_the_same_batches_as_none(of_dataset: dict[str, Any], of_loader: dict[str, Any]) -> None:
    both = []
    for workers in (0, 2):
        torch.manual_seed(0)  # of the shuffling
        both.append(loaded(TASK.torch_dataset(**of_dataset), 4, workers, **of_loader))
    assert len(both[0]) == 4
    for one, other in zip(*both, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_iterator_of_an_endless_dataset_begins_at_the_first_sample() -> None:
    loader = DataLoader(TASK.torch_dataset(batch_size=3), batch_size=None)
    first, again = next(iter(loader)), next(iter(loader))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_endless_dataset_of_samples_repeats_none_over_workers() -> None:
    alone, shared = (loaded(TASK.torch_dataset(), 4, workers, batch_size=2) for workers in (0, 2))
    drawn = [{tuple(x.flatten().tolist()) for batch, _ in batches for x in batch} for batches in (alone, shared)]
    assert len(drawn[0]) == 8 and drawn[0] == drawn[1]
    x, y = next(islice(TASK.torch_dataset("test", seed=3, batch_size=1), 1, None))
    expected = TASK.batch([1], 3, "test")
    assert np.array_equal(x.numpy(), expected.x) and np.array_equal(y.numpy(), expected.y)


def _of_rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    dataset = TASK.torch_dataset(batch_size=3)
    found = [
        [x for x, _ in loaded(dataset, 4, workers, batch_size=None, multiprocessing_context=context)]
        for workers, context in ((0, None), (2, "fork"), (1, "spawn"))
    ]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.e2e
def test_processes_of_a_group_share_the_endless_dataset(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_of_rank, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        for batches in torch.load(tmp_path / f"{rank}.pt"):
            for number, x in zip((rank, rank + 2, rank + 4, rank + 6), batches, strict=True):
                assert np.array_equal(x.numpy(), TASK.batch(range(3 * number, 3 * number + 3)).x)


def test_tokens_and_padding() -> None:
    x, y, mask = TASK_WITH_PADDING.torch_dataset(samples=2)[1]  # type: ignore[index]
    assert x.dtype == y.dtype == torch.int64 and mask.dtype == torch.bool
    assert mask.shape == x.shape


TASK_WITH_PADDING = lrtasks.make("listops", preset="small")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "tets"}, "unknown split"),
        ({"samples": 0}, "samples must be"),
        ({"samples": 3, "batch_size": 2}, "give it to the DataLoader"),
    ],
)
def test_mistakes_are_told_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(lrtasks.UsageError, match=message):
        TASK.torch_dataset(**arguments)


def test_small_whole_numbers_do_not_overflow() -> None:
    task = lrtasks.make("shift", length=16)
    (later,) = islice(task.stream(np.uint8(64), start=np.uint8(20)), 1)  # type: ignore[arg-type]
    assert np.array_equal(later.x, task.batch(range(1280, 1344)).x)
    *_, (x, _) = islice(task.torch_dataset(batch_size=np.uint8(64)), 5)  # type: ignore[arg-type]
    assert np.array_equal(x, task.batch(range(256, 320)).x)


def test_the_number_of_a_sample_is_whole() -> None:
    with pytest.raises(lrtasks.UsageError, match="sample index must be a whole number"):
        lrtasks.make("shift", length=16).torch_dataset(samples=4)[1.5]  # type: ignore[index]
