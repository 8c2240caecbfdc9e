"""Batches depend on their number alone, not on who makes them."""

from __future__ import annotations

import multiprocessing.connection
import re
import time
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from toys import Labels

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.evaluation import batches as loader
from lrtasks.evaluation.batches import BatchStream, Loaded, Replay, load, make_streams, worker_count
from lrtasks.run_config import RunConfig

TASK = lrtasks.make("shift", length=16, shifts=2)


def equal(one: Loaded, other: Loaded) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("samples", [None, 10])
def test_batches_do_not_depend_on_workers(workers: int, samples: int | None) -> None:
    stream = BatchStream(TASK, 7, "train", 4, samples=samples)
    made = list(load(stream, range(3, 9), workers=workers))
    assert len(made) == 6
    assert all(equal(found, stream[number]) for number, found in enumerate(made, start=3))


@pytest.mark.parametrize(
    ("version", "several", "workers", "expected"),
    [
        ((3, 11, 9), True, 1, [loader.SECONDS_TO_CALM]),
        ((3, 11, 9), True, 0, []),
        ((3, 11, 9), False, 1, []),
        ((3, 11, 10), True, 1, []),
    ],
)
def test_workers_are_forked_once_other_threads_are_calm_where_python_needs_that(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], several: bool, workers: int, expected: list[float]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(loader.sys, "version_info", version)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: several)
    monkeypatch.setattr(loader.time, "sleep", slept.append)
    monkeypatch.setattr(loader, "SECONDS_TO_START", 0)
    batches = load(BatchStream(TASK, 7, "train", 4), range(2), workers=workers)
    monkeypatch.setattr(loader, "DataLoader", lambda *_, **__: slept.append(-1) or [])
    assert len(list(batches)) == min(workers, 1)
    assert slept == [*expected, -1]


def test_a_worker_prints_nothing_when_its_parent_is_interrupted_while_it_fetches_a_batch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(connection: Connection, _: bytes) -> None:
        connection.close()
        time.sleep(0.5)  # time for the worker to see it
        raise KeyboardInterrupt

    monkeypatch.setattr(loader, "SECONDS_TO_START", 0)
    batches = load(BatchStream(TASK, 7, "train", 4), range(3), workers=1)
    next(batches)  # made here
    monkeypatch.setattr(multiprocessing.connection, "answer_challenge", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert capfd.readouterr() == ("", "")


def test_a_batch_is_the_tasks() -> None:
    found = BatchStream(TASK, 7, "val", 4)[2]
    expected = TASK.batch(range(8, 12), seed=7, split="val")
    np.testing.assert_array_equal(found.batch.x, expected.x)
    np.testing.assert_array_equal(found.batch.y, expected.y)


@pytest.mark.parametrize("samples", [None, 10])
def test_processes_share_each_batch(samples: int | None) -> None:
    whole = BatchStream(TASK, 7, "train", 6, samples=samples)
    parts = [BatchStream(TASK, 7, "train", 6, samples=samples, rank=rank, world=3) for rank in range(3)]
    for number in range(4):
        assert torch.equal(torch.cat([part[number].x for part in parts]), whole[number].x)


def test_every_epoch_of_a_finite_set_is_a_permutation() -> None:
    stream = BatchStream(TASK, 7, "train", 4, samples=12)
    epochs = [np.concatenate([stream.indices(3 * epoch + part) for part in range(3)]) for epoch in range(3)]
    for order in epochs:
        assert sorted(order) == list(range(12))
    assert not np.array_equal(epochs[0], epochs[1])
    # out of order, and again, it is the same
    assert np.array_equal(stream.indices(1), epochs[0][4:8])
    other = BatchStream(TASK, 8, "train", 4, samples=12)
    assert not np.array_equal(other.indices(0), stream.indices(0))


def test_an_epoch_ends_where_no_whole_batch_is_left() -> None:
    stream = BatchStream(TASK, 7, "train", 4, samples=10)
    for epoch in range(5):
        visited = np.concatenate([stream.indices(2 * epoch), stream.indices(2 * epoch + 1)])
        assert len(set(visited)) == 8


def test_a_finite_set_is_the_same_samples_for_every_seed() -> None:
    found = {}
    for seed in (1, 2):
        stream = BatchStream(TASK, seed, "train", 4, samples=12)
        batches = [stream[number].x.numpy() for number in range(3)]
        found[seed] = {row.tobytes() for row in np.concatenate(batches)}
    assert found[1] == found[2]


def test_a_finite_evaluation_set_is_read_in_order_to_its_last_sample() -> None:
    stream = BatchStream(TASK, 7, "val", 4, samples=10)
    assert [stream.indices(number).tolist() for number in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(stream[2].x) == 2


def test_a_replay_can_be_gone_through_again() -> None:
    replay = Replay(BatchStream(TASK, 7, "test", 4), 3, 0)
    first, second = list(replay), list(replay)
    assert len(first) == 3
    assert all(np.array_equal(one.x, other.x) for one, other in zip(first, second, strict=True))


def test_loading_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    list(load(BatchStream(TASK, 7, "train", 4), range(2), workers=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_few_quick_batches_are_made_without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = BatchStream(TASK, 7, "train", 4)
    monkeypatch.setattr(loader, "SECONDS_TO_START", 10.0)
    assert all(equal(found, stream[number]) for number, found in enumerate(load(stream, range(5), workers=2)))
    assert not multiprocessing.active_children()
    assert list(load(stream, range(0), workers=2)) == []


class Failing(Labels):
    """Its samples raise an error in a worker; the first batch is made in the main process."""

    error: ClassVar[Exception] = KeyError("lost")

    def sample(self, rng: np.random.Generator) -> Any:
        if multiprocessing.parent_process() is not None:
            raise self.error
        return super().sample(rng)


def test_an_error_in_a_worker_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SECONDS_TO_START", 0)
    batches = load(BatchStream(Failing(), 0, "train", 1), range(50), workers=1)
    with pytest.raises(RuntimeError) as caught:
        list(batches)
    assert re.fullmatch(r"KeyError: 'lost' \(line \d+ of test_loader\.py\)", str(caught.value))
    assert "raise self.error" in caught.value.__notes__[0]


class Refusing(Failing):
    error = UsageError("these parameters leave nothing to draw")


def test_a_users_mistake_in_a_worker_comes_without_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SECONDS_TO_START", 0)
    with pytest.raises(UsageError, match=r"^these parameters leave nothing to draw$"):
        list(load(BatchStream(Refusing(), 0, "train", 1), range(50), workers=1))


def test_workers_end_with_the_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SECONDS_TO_START", 0)
    before = set(multiprocessing.active_children())
    batches = load(BatchStream(TASK, 7, "train", 4), range(1000), workers=2)
    next(batches)  # made here
    next(batches)
    assert len(set(multiprocessing.active_children()) - before) == 2
    batches.close()
    assert not set(multiprocessing.active_children()) - before


def test_what_cannot_be_divided() -> None:
    with pytest.raises(UsageError, match=r"multiple of the number of processes \(3\), found 4"):
        BatchStream(TASK, 0, "train", 4, world=3)
    with pytest.raises(UsageError, match=r"at least batch_size \(4\) samples, found 3"):
        BatchStream(TASK, 0, "train", 4, samples=3)


@pytest.mark.parametrize("workers", [-1, "two", 1.5, True])
def test_bad_worker_counts(workers: object) -> None:
    with pytest.raises(UsageError, match="workers must be 'auto' or a whole number"):
        worker_count(workers)  # type: ignore[arg-type]


def test_automatic_workers_leave_a_core() -> None:
    assert 1 <= worker_count("auto") <= 8


def test_each_process_must_be_able_to_split_its_part_of_a_batch() -> None:
    config = RunConfig.make("cumsum", "gru", settings={"batch_size": 4, "accumulate": 4})
    fabric: Any = SimpleNamespace(world_size=2, global_rank=0)
    with pytest.raises(UsageError, match=r"accumulate must divide .*, found 4; each of 2 processes has 2"):
        make_streams(config, 0, fabric)
