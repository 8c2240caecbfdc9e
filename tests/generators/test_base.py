"""The contract of every task: streams keyed by (task, parameters, version, seed, split, index), and its errors."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lrtasks.errors import UsageError
from lrtasks.generators import Sample, Task, make
from lrtasks.generators import randomness as rng
from lrtasks.generators.base import MAX_SEED, SPLITS, Rngs, Split, stack
from lrtasks.generators.baselines import MajorityClass, PositionMean, Rule, ScaledFirstValue, bin_starts
from lrtasks.generators.signals import noise
from lrtasks.spec import Batch, Spec

SEEDS = st.integers(0, MAX_SEED)


@dataclass(frozen=True)
class Words(Task):
    """Eight raw random words for each sample."""

    name = "words"

    @property
    def input(self) -> Spec:
        return Spec("token", 8, 2**63 - 1)

    target = input

    def sample(self, rng: np.random.Generator) -> Sample:
        words = rng.integers(MAX_SEED, size=8)
        return Sample(words, words)


def test_philox_streams_are_numpys_own() -> None:
    key = np.array([3, 4], np.uint64)
    expected = np.random.Philox(key=key, counter=[0, 0, 7, 2]).random_raw(6)
    assert np.array_equal(rng.generator(key, 7, 2).bit_generator.random_raw(6), expected)


@given(indices=st.lists(st.integers(0, MAX_SEED), min_size=1, max_size=5), attempt=st.integers(0, 3))
def test_one_reused_generator_equals_one_generator_each(indices: list[int], attempt: int) -> None:
    key = rng.derive_key(a=1)
    for index, shared in zip(indices, rng.Generators(key, indices, attempt), strict=True):
        own = rng.generator(key, index, attempt)
        for draw in range(3):  # 32-bit draws leave half a word buffered, which the next sample must not see
            assert shared.integers(2**31, dtype=np.int32) == own.integers(2**31, dtype=np.int32), draw
        assert np.array_equal(shared.standard_normal(5), own.standard_normal(5))


def test_keys_depend_on_every_part_and_not_on_their_order() -> None:
    assert np.array_equal(rng.derive_key(a=1, b=2), rng.derive_key(b=2, a=1))
    keys = [rng.derive_key(a=1, b=2), rng.derive_key(a=2, b=1), rng.derive_key(a=1), rng.derive_key(a="1", b=2)]
    assert len({key.tobytes() for key in keys}) == len(keys)


def test_neighbouring_seeds_splits_samples_and_attempts_share_no_word() -> None:
    words = [
        Words().batch(range(16), seed, split, attempt=attempt).x
        for seed in (0, 1, 2, 3, MAX_SEED)
        for split in SPLITS
        for attempt in (0, 1)
    ]
    assert len(np.unique(words)) == np.size(words)


def test_version_and_parameters_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make("cumsum", length=8)
    before = task.batch([0])
    assert not np.array_equal(before.x[0], make("cumsum", length=9).batch([0]).x[0, :8])
    assert not np.array_equal(task.key(0, "train"), make("cummax", length=8).key(0, "train"))
    monkeypatch.setattr(type(task), "version", 2)
    assert not np.array_equal(before.x, task.batch([0]).x)


@given(seed=SEEDS, batch_size=st.integers(1, 5), start=st.integers(0, 1000), split=st.sampled_from(SPLITS))
def test_stream_equals_batches(seed: int, batch_size: int, start: int, split: Split) -> None:
    streamed = itertools.islice(Words().stream(batch_size, seed, split, start=start), 2)
    x = np.concatenate([batch.x for batch in streamed])
    first = start * batch_size
    assert np.array_equal(x, Words().batch(range(first, first + 2 * batch_size), seed, split).x)


@given(seed=SEEDS, order=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_sample_does_not_depend_on_its_batch(seed: int, order: list[int]) -> None:
    task = make("context-shift", length=6)
    together = task.batch(order, seed)
    for row, index in enumerate(order):
        alone = task.batch([index], seed)
        assert np.array_equal(together.x[row], alone.x[0])
        assert np.array_equal(together.y[row], alone.y[0])
        assert together.meta is not None and alone.meta is not None
        assert together.meta["shift"][row] == alone.meta["shift"][0]


def test_draws_are_uniform_and_normal() -> None:
    key = rng.derive_key(test="statistics")
    uniform = np.array([generator.random() for generator in rng.Generators(key, range(20_000))])
    normal = np.array([generator.standard_normal() for generator in rng.Generators(key, range(20_000, 40_000))])
    counts = np.histogram(uniform, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-squared with 19 degrees of freedom: p = 0.001
    assert abs(normal.mean()) < 4 / np.sqrt(20_000)
    assert abs(normal.var() - 1) < 4 * np.sqrt(2 / 20_000)
    # the first draws of neighbouring samples are not correlated
    assert abs(np.corrcoef(normal[:-1], normal[1:])[0, 1]) < 4 / np.sqrt(20_000)


def test_layout_depends_on_task_and_parts_alone() -> None:
    task = make("cumsum", length=8)
    draw = task.layout_rng(seed=1).random()
    assert draw == make("cumsum", length=9).layout_rng(seed=1).random()
    assert draw != task.layout_rng(seed=2).random()
    assert draw != make("cummax", length=8).layout_rng(seed=1).random()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task: task.batch([]), "at least one index"),
        (lambda task: task.batch(i for i in range(3)), "takes a list of sample numbers such as range"),
        (lambda task: task.batch(None), "takes a list of sample numbers.* found None"),
        (lambda task: task.batch(np.array([[0, 1]])), "takes a list of sample numbers"),
        (lambda task: task.batch([0], seed=np.array([0, 1])), "seed must be a whole number"),
        (lambda task: task.batch([0, -1]), r"sample index must be a whole number in 0\.\.2\^63-1, found -1"),
        (lambda task: task.batch([0.5]), "sample index must be a whole number"),
        (lambda task: task.batch([True]), "sample index must be a whole number"),
        (lambda task: task.batch(torch.tensor([0.5])), "sample index must be a whole number"),
        (lambda task: task.batch([2**63]), "sample index must be"),
        (lambda task: task.batch([0], seed=-1), r"seed must be a whole number in 0\.\.2\^63-1, found -1"),
        (lambda task: task.batch([0], seed=2**63), "seed must be"),
        (lambda task: task.batch([0], seed=1.5), "seed must be"),
        (lambda task: task.batch([0], seed=True), "seed must be"),
        (lambda task: task.batch([0], split="valid"), "unknown split 'valid'.* Allowed: test, train, val"),
        (lambda task: task.batch([0], attempt=-1), "attempt must be"),
        (lambda task: task.stream(0), r"batch_size must be a whole number in 1\.\."),
        (lambda task: task.stream(1, start=-1), "start must be"),
        (lambda task: task.stream(1, seed=-1), "seed must be"),
        (lambda task: task.stream(1, split="dev"), "unknown split"),
    ],
)
def test_bad_arguments(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        call(Words())


def test_numbers_of_other_frameworks_are_indices_and_seeds() -> None:
    class Number:  # as those of JAX, which cannot be compared with 2^63-1
        def __init__(self, value: int) -> None:
            self.value = value

        def __index__(self) -> int:
            return self.value

    found = Words().batch([Number(3), torch.tensor(1)], seed=Number(2))  # type: ignore[list-item, arg-type]
    assert np.array_equal(found.x, Words().batch([3, 1], seed=2).x)


def test_pickle_and_copy_keep_parameters_and_drop_caches() -> None:
    task = make("select-fixed", length=10, marks=3, layout_seed=5)
    expected = task.batch(range(3))
    for other in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):
        assert other == task
        assert vars(other) == task.parameters()
        assert np.array_equal(other.batch(range(3)).x, expected.x)


OWN_SCRIPT = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from lrtasks.generators import registry
from lrtasks.generators.tasks.shift import Shift

@registry.register("mine")
@dataclass(frozen=True)
class Mine(Shift):
    pass

def draw(task):
    return task.batch([0]).x.tolist()

if __name__ == "__main__":
    task = Mine(length=8, shifts=2)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(draw, task).result() == draw(task)
"""


def test_a_task_of_the_main_script_reaches_spawned_processes(tmp_path: Path) -> None:
    (script := tmp_path / "own.py").write_text(OWN_SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_stack_keeps_masks_and_meta() -> None:
    samples = [
        Sample(np.zeros(2), np.ones(1), np.array([True, index > 0]), {"size": index, "path": list(range(index))})
        for index in range(3)
    ]
    batch = stack(samples)
    assert batch.mask is not None and batch.meta is not None
    assert batch.mask.tolist() == [[True, False], [True, True], [True, True]]
    assert batch.meta["size"].tolist() == [0, 1, 2]
    assert batch.meta["path"] == [[], [0], [0, 1]]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"mask": None}, "either all samples have a mask or none"),
        ({"meta": None}, r"the same names in all samples, found \[\] and \['size'\]"),
        ({"meta": {"other": 1}}, r"the same names in all samples, found \['other'\] and \['size'\]"),
        ({"y": np.zeros(3)}, r"found \[\(2,\), \(1,\), \(2,\)\] and \[\(2,\), \(3,\), \(2,\)\]"),
    ],
)
def test_samples_that_are_unlike_are_no_batch(second: dict[str, object], message: str) -> None:
    first = Sample(np.zeros(2), np.zeros(1), np.ones(2, bool), {"size": 2})
    with pytest.raises(UsageError, match=message):
        stack([first, first._replace(**second)])
    with pytest.raises(UsageError):
        stack([first._replace(**second), first])


@given(seed=SEEDS, length=st.integers(1, 100))
def test_noise_is_normalised(seed: int, length: int) -> None:
    signal = noise(np.random.default_rng(seed), length)
    assert signal.dtype == np.float32
    assert signal.shape == (length,)
    assert np.abs(signal).max() == 1


@given(limit=st.integers(1, 1000), bins=st.integers(1, 10))
def test_bins_start_where_their_label_says(limit: int, bins: int) -> None:
    labels = bin_starts(np.arange(limit), limit, bins)
    starts, sizes = np.unique(labels, return_counts=True)
    assert len(starts) == min(bins, limit)
    assert labels.tolist() == sorted(labels)
    assert all(labels[start] == start for start in starts)
    assert sizes.max() - sizes.min() <= 1


def test_floors_fit_what_they_say() -> None:
    task = make("shift", length=6, shifts=3)
    train = [task.batch(range(5)), task.batch(range(5, 12))]
    batch = task.batch(range(4), split="test")
    targets = np.concatenate([train[0].y, train[1].y]).astype(np.float64)
    first = np.concatenate([train[0].x, train[1].x])[:, 0, 0].astype(np.float64)

    mean = PositionMean()
    mean.fit(train)
    np.testing.assert_allclose(mean.predict(batch), np.broadcast_to(targets.mean(axis=0), batch.y.shape))

    assert np.array_equal(Rule(lambda x: x[..., :1]).predict(batch)[..., 2], batch.x[..., 0])

    labels = Batch(np.zeros((1, 3)), np.zeros((1, 3), dtype=np.int64))
    assert Rule(lambda _: np.array([[3, -1, 2]]), 3).predict(labels).tolist() == [[0, 0, 2]]

    scaled = ScaledFirstValue()
    scaled.fit(train)
    slopes = [[np.linalg.lstsq(first[:, None], targets[:, t, c])[0][0] for c in range(3)] for t in range(6)]
    np.testing.assert_allclose(scaled.predict(batch), batch.x[:, :1, :1] * np.array(slopes), atol=1e-12)


def test_majority_floor_ignores_ignored_labels() -> None:
    labels = np.array([[2, 2, -100, -100, -100], [1, 2, -100, -100, -100]])
    batch = stack([Sample(row, row) for row in labels])
    floor = MajorityClass(4)
    floor.fit([batch])
    assert np.array_equal(floor.predict(batch), np.full((2, 5), 2))


def test_a_further_test_is_a_possible_task_and_not_the_task_itself() -> None:
    task = make("cumsum", length=8)
    found = task.further({"same": {"length": 8}, "longer": {"length": 16}, "refused": {"length": 0}})
    assert found == {"longer": make("cumsum", length=16)}


def test_a_task_defines_how_one_sample_or_many_are_drawn() -> None:
    @dataclass(frozen=True)
    class Batched(Words):
        name = "words"
        sample = Task.sample

        def samples(self, rngs: Rngs) -> Batch:
            return stack([Words.sample(self, rng) for rng in rngs])

    @dataclass(frozen=True)
    class Neither(Words):
        sample = Task.sample

    one, two = Words().batch([3, 5]), Batched().batch([3, 5])
    assert np.array_equal(one.x, two.x)
    generator = rng.generator(Batched().key(0, "train"), 5)
    assert np.array_equal(Batched().sample(generator).x, one.x[1])
    with pytest.raises(UsageError, match=r"sample\(\) is missing"):
        Neither().batch([0])
