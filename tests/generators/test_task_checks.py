"""check_task: says nothing about a good task, and names what is wrong with a bad one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import Batch, Sample, Task
from lrtasks.parameters import parameter
from lrtasks.specs import Spec

CALLS = itertools.count()


@dataclass(frozen=True)
class Parity(Task):
    """Running parity of bits, with padding, meta, text and a picture: a good task."""

    name = "test-parity"
    loss = "cross-entropy"
    metric = "accuracy"

    length: int = parameter(12, "number of bits", at_least=2)

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, 2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, 2)

    def sample(self, rng: np.random.Generator) -> Sample:
        bits = rng.integers(2, size=self.length)
        size = int(rng.integers(1, self.length + 1))
        mask = np.arange(self.length) < size
        labels = np.where(mask, np.cumsum(bits) % 2, -100)
        return Sample(np.where(mask, bits, 0), labels, mask, {"size": size, "ones": np.flatnonzero(bits)})

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        return {"size": batch.meta["size"][:, None]}

    def text(self, batch: Batch, index: int) -> str | None:
        return " ".join(map(str, batch.x[index]))

    def image_shape(self) -> tuple[int, int] | None:
        return 2, self.length // 2


def variant(name: str, **members: Any) -> Task:
    """A :class:`Parity` with other members, importable under its name by a second process."""
    named = {"name": f"test-{name.lower()}", "__module__": __name__, "__qualname__": name}
    cls: type[Parity] = type(name, (Parity,), {**named, **members})
    globals()[name] = cls
    return cls()


def returning(value: Any) -> Any:
    """A method that returns ``value``."""
    return lambda *_: value


def samples_of(edit: Any) -> Any:
    """A ``sample`` method that edits the good sample."""

    def sample(self: Parity, rng: np.random.Generator) -> Sample:
        return Sample(*edit(Parity.sample(self, rng)))

    return sample


class BadFloor:
    def __init__(self, prediction: np.ndarray) -> None:
        self._prediction = prediction

    def fit(self, batches: Iterable[Batch]) -> None:
        list(batches)

    def predict(self, batch: Batch) -> np.ndarray:
        return self._prediction


def floors_of(prediction: np.ndarray) -> Any:
    return returning({"bad": BadFloor(prediction)})


def shared_samples(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    batch = Task.samples(self, rngs)
    return batch._replace(x=batch.x[::-1])


def drifting(self: Parity, rng: np.random.Generator) -> Sample:
    sample = Parity.sample(self, rng)
    return sample._replace(meta={"call": next(CALLS)})


def hashing(self: Parity, rng: np.random.Generator) -> Sample:
    sample = Parity.sample(self, rng)
    return sample._replace(meta={"hash": hash("word")})


def stuck(self: Parity, _: np.random.Generator) -> Sample:
    return Parity.sample(self, np.random.default_rng(0))


def batch_size(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    batch = Task.samples(self, rngs)
    return batch._replace(meta={"of": np.full(len(batch.x), len(batch.x))})


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "Unfinished": ({"sample": Task.sample}, "arrays: raised NotImplementedError"),
    "NoSpec": ({"input": 12}, "input must be a Spec, found 12"),
    "TooLong": ({"target": Spec("token", 13, 2)}, r"longer \(13 against 12\)"),
    "WrongLoss": ({"loss": "mse"}, "loss of a token target must be 'cross-entropy' or .*, found 'mse'"),
    "WrongMetric": ({"metric": "r2"}, "metric of a token target must be 'accuracy' or 'macro_f1', found 'r2'"),
    "WrongVersion": ({"version": 0}, "version must be a whole number of at least 1, found 0"),
    "Forgetful": ({"parameters": returning({"length": 20})}, "parameters.. does not rebuild the task"),
    "WrongDtype": (
        {"sample": samples_of(lambda s: (s.x.astype(np.int32), *s[1:]))},
        r"x must be \(8, 12\) int64 as its spec says, found \(8, 12\) int32",
    ),
    "WrongShape": ({"sample": samples_of(lambda s: (s.x, s.y[:5], *s[2:]))}, r"y must be \(8, 12\) int64"),
    "WrongToken": ({"sample": samples_of(lambda s: (s.x + 1, *s[1:]))}, r"x must be in 0\.\.1, found 1\.\.2"),
    "IgnoredInput": ({"sample": samples_of(lambda s: (s.x * 0 - 100, *s[1:]))}, r"x must be in 0\.\.1, found -100"),
    "WrongClass": (
        {"sample": samples_of(lambda s: (s.x, np.where(s.y < 0, -1, s.y), *s[2:]))},
        r"y must be in 0\.\.1 \(or -100\), found -1\.\.1",
    ),
    "NoLabel": ({"sample": samples_of(lambda s: (s.x, s.y * 0 - 100, *s[2:]))}, "y ignores every label"),
    "WrongMask": ({"sample": samples_of(lambda s: (s.x, s.y, s.mask * 1.0, s.meta))}, r"mask must be \(8, 12\) bool"),
    "EmptyMask": ({"sample": samples_of(lambda s: (s.x, s.y, s.mask & False, s.meta))}, "mask is False at every"),
    "Drifting": ({"sample": drifting}, "same call twice gives different samples"),
    "Stuck": ({"sample": stuck}, "all samples are equal; seed 1 gives the same samples as .*; split 'val' gives"),
    "OtherBatch": ({"samples": shared_samples}, "depends on the order, the size or the repeats"),
    "BatchSize": ({"samples": batch_size}, "depends on the order, the size or the repeats"),
    "Hashing": ({"sample": hashing}, "a second process gives other samples"),
    "FloorShape": ({"floors": floors_of(np.zeros(3))}, r"floor 'bad' must predict the shape of y, \(8, 12\), found"),
    "FloorNan": ({"floors": floors_of(np.full((8, 12), np.nan))}, "floor 'bad' predicts values that are not finite"),
    "FloorClass": ({"floors": floors_of(np.full((8, 12), 2))}, r"floor 'bad' must predict classes in 0\.\.1"),
    "SliceShape": (
        {"slices": returning({"odd": np.zeros(5)})},
        r"slice 'odd' must broadcast to y, \(8, 12\), found \(5,\)",
    ),
    "WrongText": ({"text": returning(3)}, "text.. must return a text or None, found 3"),
    "WrongFingerprint": ({"fingerprint": returning(3)}, "fingerprint.. must return bytes or None, found 3"),
    "WrongImage": (
        {"image_shape": returning((5, 5))},
        r"image_shape.. must hold the 12 positions .*, found \(5, 5\)",
    ),
}


def test_a_good_task_passes() -> None:
    lrtasks.check_task(Parity())


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(name: str) -> None:
    members, message = BROKEN[name]
    with pytest.raises(UsageError, match=f"task 'test-{name.lower()}' breaks the contract: .*{message}") as caught:
        lrtasks.check_task(variant(name, **members))
    assert "\n" not in str(caught.value)


# a second process imports this module: the broken tasks must be there to be found
for _name, (_members, _) in BROKEN.items():
    variant(_name, **_members)


class Unnamed(Task):
    """Registered nowhere."""


@dataclass(frozen=True)
class Endless(Task):
    """A signal that is not finite."""

    name = "test-endless"

    @property
    def input(self) -> Spec:
        return Spec("real", 4, 1)

    @property
    def target(self) -> Spec:
        return Spec("real", 4, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        signal = rng.standard_normal((4, 1)).astype(np.float32)
        return Sample(signal / 0, signal)


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_values_that_are_not_finite_are_found() -> None:
    with pytest.raises(UsageError, match=r"x holds values that are not finite$"):
        lrtasks.check_task(Endless())


def test_local_classes_cannot_be_pickled() -> None:
    class Local(Parity):
        name = "test-local"

    with pytest.raises(UsageError, match="cannot be pickled, as background workers need"):
        lrtasks.check_task(Local())


def test_a_task_without_a_name_is_told_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="task 'Unnamed' breaks the contract: it has no name; register the class with"):
        lrtasks.check_task(Unnamed())


def test_interactive_classes_are_checked_but_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Parity()
    monkeypatch.setattr(Parity, "__module__", "__main__")
    with pytest.warns(UserWarning, match="Parity is defined in __main__"):
        lrtasks.check_task(task)


@pytest.mark.parametrize("wrong", ["shift", Parity, None])
def test_only_instances_are_taken(wrong: Any) -> None:
    with pytest.raises(UsageError, match="check_task takes an instance"):
        lrtasks.check_task(wrong)


def test_one_sample_is_too_few() -> None:
    with pytest.raises(UsageError, match="samples must be at least 2, found 1"):
        lrtasks.check_task(Parity(), samples=1)


def test_a_second_process_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(UsageError, match="a second process cannot make a batch"):
        lrtasks.check_task(Parity())
