"""A good task and what can be wrong with one: a module of its own, since a second process imports it as well."""

from __future__ import annotations

import itertools
import random
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import lrtasks
from lrtasks.config import parameter
from lrtasks.generators import Batch, Sample, Spec, Task
from lrtasks.generators.base import Split

CALLS = itertools.count()
KEPT: dict[Any, Batch] = {}
KEPT_TARGETS: dict[Any, np.ndarray] = {}
POOL = np.random.default_rng(0).integers(2, size=(64, 12))


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
        size = int(rng.integers(self.length // 2, self.length + 1))
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


def failing(*_: Any) -> Any:
    """A method that fails."""
    raise KeyError("oops")


def samples_of(edit: Any) -> Any:
    """A ``sample`` method that edits the good sample."""

    def sample(self: Parity, rng: np.random.Generator) -> Any:
        return edit(Parity.sample(self, rng))

    return sample


class BadBaseline:
    """Predicts what it is told to."""

    def __init__(self, predict: Any, fit: Any = None) -> None:
        self.predict, self.fit = predict, fit or returning(None)


def baselines_of(predict: Any, fit: Any = None) -> Any:
    return returning({"bad": BadBaseline(predict, fit)})


def shifted(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    batch = Task.samples(self, rngs)
    return batch._replace(x=batch.x[::-1])


def sizing(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    batch = Task.samples(self, rngs)
    return batch._replace(meta={"of": np.full(len(batch.x), len(batch.x))})


def gathering(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    return Task.samples(self, list(rngs))


def flipping(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
    batch = Task.samples(self, rngs)
    return batch._replace(x=1 - batch.x)


def frozen(field: str) -> Any:
    """A ``samples`` method one of whose arrays is read-only."""

    def samples(self: Parity, rngs: Iterable[np.random.Generator]) -> Batch:
        batch = Task.samples(self, rngs)
        getattr(batch, field).setflags(write=False)
        return batch

    return samples


def drifting(self: Parity, rng: np.random.Generator) -> Sample:
    return Parity.sample(self, rng)._replace(meta={"call": next(CALLS)})


def unseeded(self: Parity, _: np.random.Generator) -> Sample:
    return Parity.sample(self, np.random.default_rng())


def global_numpy(self: Parity, rng: np.random.Generator) -> Sample:
    return Parity.sample(self, rng)._replace(meta={"noise": np.random.rand()})


def global_python(self: Parity, rng: np.random.Generator) -> Sample:
    return Parity.sample(self, rng)._replace(meta={"noise": random.random()})


def hashing(self: Parity, rng: np.random.Generator) -> Sample:
    return Parity.sample(self, rng)._replace(meta={"size": hash("word")})


def heavy(framework: str) -> Any:
    """A ``sample`` method that imports a framework."""

    def sample(self: Parity, rng: np.random.Generator) -> Sample:
        sys.modules.setdefault(framework, types.ModuleType(framework))  # what an import would leave behind
        return Parity.sample(self, rng)

    return sample


def stuck(self: Parity, _: np.random.Generator) -> Sample:
    return Parity.sample(self, np.random.default_rng(0))


def pooled(_: Parity, rng: np.random.Generator) -> Sample:
    bits = POOL[rng.integers(len(POOL))]
    return Sample(bits, np.cumsum(bits) % 2)


def one_stream(self: Parity, seed: int, _: str) -> np.ndarray:
    return Task.key(self, seed, "train")


def one_seed(self: Parity, _: int, split: str) -> np.ndarray:
    return Task.key(self, 0, split)


def batch_of(edit: Any) -> Any:
    """A ``batch`` method that edits the good batch of these indices."""

    def batch(self: Parity, indices: Any, seed: int = 0, split: Split = "train", *, attempt: int = 0) -> Batch:
        return edit(Parity.batch(self, indices, seed, split, attempt=attempt), tuple(indices), split, attempt)

    return batch


def kept(batch: Batch, *which: Any) -> Batch:
    return KEPT.setdefault(which, batch)


def kept_targets(batch: Batch, *which: Any) -> Batch:
    return batch._replace(y=KEPT_TARGETS.setdefault(which, batch.y))


def repeated(batch: Batch, indices: tuple[int, ...], *_: Any) -> Batch:
    assert batch.meta is not None
    return batch._replace(meta={**batch.meta, "twice": np.full(len(indices), len(set(indices)) < len(indices))})


def padded_alone(batch: Batch, indices: tuple[int, ...], *_: Any) -> Batch:
    return batch if len(indices) == 1 else batch._replace(mask=np.ones_like(batch.x, bool))


def one_attempt(self: Parity, indices: Any, seed: int = 0, split: Split = "train", **_: int) -> Batch:
    return Parity.batch(self, indices, seed, split)


def sometimes(**fields: Any) -> Any:
    """A ``sample`` method that replaces fields of every other sample or so."""

    def sample(self: Parity, rng: np.random.Generator) -> Sample:
        good = Parity.sample(self, rng)
        return good._replace(**fields) if rng.random() < 0.5 else good

    return sample


def signals_of(edit: Any) -> dict[str, Any]:
    """Members of a task of signals whose samples ``edit`` makes of noise."""
    spec = Spec("real", 12, 1)

    def sample(_: Parity, rng: np.random.Generator) -> Sample:
        return Sample(*edit(rng.standard_normal((12, 1)).astype(np.float32)))

    return {"input": spec, "target": spec, "loss": "mse", "metric": "r2", "slices": Task.slices, "sample": sample}


def spoilt(signal: np.ndarray) -> np.ndarray:
    """The signal with a value that is not finite."""
    return np.where(np.arange(12)[:, None] == 2, np.float32(np.nan), signal)


def sometimes_empty(sample: Sample) -> Sample:
    """The sample, with a mask that is False everywhere if it is short."""
    assert sample.mask is not None
    return sample if sample.mask[8] else sample._replace(mask=sample.mask & False, y=np.full_like(sample.y, -100))


def first_answer(self: Parity, x: np.ndarray) -> np.ndarray:
    first = self.batch([0], 0, "test")
    return first.y[0] if np.array_equal(x, first.x[0]) else np.zeros_like(x)


def one_batch(batches: Iterable[Batch]) -> None:
    (_,) = batches


def unlabelled_test(self: Parity, indices: Any, seed: int = 0, split: Any = "train", *, attempt: int = 0) -> Batch:
    batch = Task.batch(self, indices, seed, split, attempt=attempt)
    return batch._replace(y=np.full_like(batch.y, -100)) if split == "test" else batch


IN_BATCH = "split 'train': "
RAISED = r"failing\(\) raised KeyError: 'oops' \(line \d+ of broken_tasks.py\)"

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "FailingSpec": ({"input": property(failing)}, RAISED),
    **{f"Failing{name}": ({name: failing}, RAISED) for name in ("sample", "samples", "baselines", "slices", "text")},
    # what is declared
    "NoInput": ({"input": Task.input}, "input is missing: write a property that returns a lrtasks.generators.Spec"),
    "NoSpec": ({"input": 12}, "input must be a Spec, found 12"),
    "NoProperty": (
        {"target": returning(Spec("token", 12, 2))},
        "target must be a property, found a method; put @property above it",
    ),
    "NoMethod": (
        {"image_shape": property(returning((3, 4)))},
        "image_shape must be a method, found a property; remove @property",
    ),
    "NumberForMethod": ({"batch": 3}, "batch must be a method, found 3; use another name for it"),
    "NoDecorator": (
        {"width": parameter(3, "forgotten"), "__annotations__": {"width": int}},
        r"put @dataclass\(frozen=True\) on top of class NoDecorator, .*, to make width parameters",
    ),
    "PlainField": (
        {"width": 3, "SIZES": (1, 2), "__annotations__": {"width": int, "SIZES": ClassVar[tuple[int, ...]]}},
        r"put @dataclass\(frozen=True\) on top of class PlainField, .*, to make width parameters",
    ),
    "LostDefault": ({"length": 24}, r"class LostDefault, and a type after each name, to make length parameters"),
    "TooLong": ({"target": Spec("token", 13, 2)}, r"longer \(13 against 12\)"),
    "WrongLoss": (
        {"loss": "mse"},
        "loss of a token target must be 'cross-entropy' or .*, found 'mse'; write loss = 'cross-entropy'",
    ),
    "WrongMetric": ({"metric": "r2"}, "metric of a token target must be 'accuracy' or 'macro_f1', found 'r2'"),
    "WrongVersion": ({"version": 0}, "version must be a whole number of at least 1, found 0"),
    "WrongCausal": ({"causal": "yes"}, "causal must be True or False, found 'yes'"),
    "Forgetful": ({"parameters": returning({"length": 20})}, "parameters.. does not rebuild the task"),
    # samples, one by one
    "Unfinished": ({"sample": Task.sample}, r"sample\(\) is missing: write sample\(self, rng\)"),
    "NoSample": (
        {"sample": samples_of(tuple)},
        r"sample\(\) must return lrtasks.generators.Sample\(x, y\), found tuple",
    ),
    "WrongDtype": (
        {"sample": samples_of(lambda s: s._replace(x=s.x.astype(np.int32)))},
        IN_BATCH + r"x must be int64 of shape \(12,\), found int32; use \.astype\(np\.int64\)",
    ),
    "WrongShape": (
        {"sample": samples_of(lambda s: s._replace(y=s.y[:5]))},
        IN_BATCH + r"y must be int64 of shape \(12,\), found int64 of shape \(5,\)$",
    ),
    "WrongToken": ({"sample": samples_of(lambda s: s._replace(x=s.x + 1))}, r"x holds 2; allowed: 0\.\.1$"),
    "IgnoredInput": ({"sample": samples_of(lambda s: s._replace(x=s.x - 100))}, r"x holds -(99|100); allowed: 0\.\.1$"),
    "WrongClass": (
        {"sample": samples_of(lambda s: s._replace(y=np.where(s.y < 0, -1, s.y)))},
        r"y holds -1; allowed: 0\.\.1, and -100 where a label is ignored",
    ),
    "ScoredPadding": (
        {"sample": samples_of(lambda s: s._replace(y=np.maximum(s.y, 0)))},
        r"y must be -100 at padding \(mask False\), which is not scored, found 0 at y\[\d+, \d+\]",
    ),
    "ScoredPaddingOfAShorterTarget": (
        {
            "target": Spec("token", 4, 2),
            "sample": samples_of(lambda s: s._replace(y=np.maximum(s.y[-4:], 0))),
        },
        r"y must be -100 at padding \(mask False\), which is not scored, found 0 at y\[\d+, \d+\]",
    ),
    "RealPadding": (
        {
            "target": Spec("real", 12, 1),
            "loss": "mse",
            "metric": "r2",
            "sample": samples_of(lambda s: s._replace(y=s.x[:, None].astype(np.float32))),
        },
        r"mask is False at positions of a real target, which is scored everywhere: pad what comes before",
    ),
    "WrongMask": (
        {"sample": samples_of(lambda s: s._replace(mask=s.mask * 1.0))},
        r"mask must be bool of shape \(12,\), found float64",
    ),
    "EmptyMask": (
        {"sample": samples_of(lambda s: s._replace(mask=s.mask & False, y=s.y * 0 - 100))},
        "mask is False at every position",
    ),
    "SomeEmptyMasks": ({"sample": samples_of(sometimes_empty)}, "mask is False at every position of a sample"),
    "EmptyMaskOfAPooledTarget": (
        {
            "target": Spec("token", 1, 2, pooled=True),
            "sample": samples_of(lambda s: s._replace(mask=s.mask & False, y=s.y[:1])),
        },
        "mask is False at every position",
    ),
    "SomeMasks": ({"sample": sometimes(mask=None)}, "either all samples have a mask or none"),
    "NoMeta": ({"sample": samples_of(lambda s: s._replace(meta=3))}, "meta must be a dictionary or None, found int"),
    "OddMeta": (
        {"sample": samples_of(lambda s: s._replace(meta={"odd": {1, 2}}))},
        "meta 'odd' must be a number, a string, an array or a list of them, found set",
    ),
    "SomeMeta": (
        {"sample": sometimes(meta={"size": 3})},
        r"meta must have the same names in all samples, found \['.*\] and \['",
    ),
    "GlobalNumpy": ({"sample": global_numpy}, r"draws from something other than rng \(np\.random, random, "),
    "GlobalPython": ({"sample": global_python}, r"draws from something other than rng \(np\.random, random, "),
    "InputNan": (signals_of(lambda x: (spoilt(x), x)), IN_BATCH + r"x holds .* not finite, first at x\[0, 2, 0\]$"),
    "TargetNan": (signals_of(lambda x: (x, spoilt(x))), IN_BATCH + r"y holds .* not finite, first at y\[0, 2, 0\]$"),
    "ConstantTarget": (
        signals_of(lambda x: (x, np.full_like(x, 3))),
        r"y is constant in split 'train' \(3 everywhere\), so R2 is undefined$",
    ),
    "SameTarget": (
        signals_of(lambda x: (x, np.arange(12, dtype=np.float32)[:, None])),
        "y is the same in all of 8 samples",
    ),
    "UnlabelledTest": ({"batch": unlabelled_test}, "y has no label in split 'test'"),
    # batches
    **{
        f"ReadOnly{name}": ({"samples": frozen(name)}, f"{name} of a batch must be writable, found a read-only array; ")
        for name in "xy"
    },
    "NoLabel": (
        {"sample": samples_of(lambda s: s._replace(y=s.y * 0 - 100))},
        r"y has no label in split 'train' \(all are -100\)",
    ),
    # what samples depend on
    "Drifting": ({"sample": drifting}, "same call twice gives different samples: .* keeps state between calls"),
    "Unseeded": ({"sample": unseeded}, "same call twice gives different samples: .* an unseeded generator"),
    "Keeping": ({"batch": batch_of(kept)}, "same call twice gives different samples: .* an array that it keeps"),
    "KeepingTargets": ({"batch": batch_of(kept_targets)}, "same call twice gives different samples: .* that it keeps"),
    "Repeated": ({"batch": batch_of(repeated)}, "sample 6 depends on the order, the size or the repeats"),
    "OtherMask": ({"batch": batch_of(padded_alone)}, "depends on the order, the size or the repeats"),
    "OtherBatch": ({"samples": shifted}, "depends on the order, the size or the repeats"),
    "BatchSize": ({"samples": sizing}, "depends on the order, the size or the repeats"),
    "Gathering": ({"samples": gathering}, r"the batch it is in \(samples\(\) must take all draws from one generator"),
    "Flipping": ({"samples": flipping}, r"samples\(\) gives other arrays than sample\(\), one by one"),
    "OneLabel": (
        {"sample": samples_of(lambda sample: sample._replace(y=np.minimum(sample.y, 0)))},
        "y has only the label 0 in 64 samples, so there is nothing to learn",
    ),
    "Stuck": ({"sample": stuck}, r"all samples are equal: sample\(\) does not draw from rng"),
    "OneStream": ({"key": one_stream}, "split 'val' gives the same samples as seed 0, .*; split 'test' gives"),
    "OneSeed": ({"key": one_seed}, "seed 1 gives the same samples as seed 0, "),
    "OneAttempt": ({"batch": one_attempt}, "attempt 1 gives the same samples as seed 0, "),
    "Pooled": (
        {"sample": pooled},
        r"4\d of 64 test inputs are among 64 training inputs: .* splits draw from one pool",
    ),
    "Hashing": ({"sample": hashing}, "a second process gives other samples"),
    **{
        f"Heavy{name}": ({"sample": heavy(name)}, f"making a batch imports {name}, .*; put the task into a separate")
        for name in ("torch", "tensorflow", "jax")
    },
    # baselines
    "ListOfBaselines": (
        {"baselines": returning([3])},
        r"baselines\(\) must return a dictionary of predictors by name, found list",
    ),
    "NumberAsBaseline": ({"baselines": returning({"one": 1})}, "baseline one must have the methods fit and predict"),
    "NoBaseline": ({"baselines": returning({})}, r"baselines\(\) is empty"),
    "BaselineFit": (
        {"baselines": baselines_of(returning(0), fit=lambda batches: [np.bincount(batch.y[0]) for batch in batches])},
        r"<lambda>\(\) raised ValueError: .*\(line \d+ of broken_tasks.py\)",
    ),
    "BaselineOfOneBatch": (
        {"baselines": baselines_of(returning(0), fit=one_batch)},
        r"one_batch\(\) raised ValueError: too many values",
    ),
    "BaselinePredict": ({"baselines": baselines_of(failing)}, r"failing\(\) raised KeyError: 'oops' \(line"),
    "BaselineShape": (
        {"baselines": baselines_of(returning(np.zeros(3)))},
        r"baseline 'bad' must predict the shape of y, \(8, 12\), found \(3,\)",
    ),
    "BaselineNan": (
        {"baselines": baselines_of(returning(np.full((8, 12), np.nan)))},
        "baseline 'bad' predicts values that are not finite",
    ),
    "BaselineClass": (
        {"baselines": baselines_of(returning(np.full((8, 12), 2)))},
        r"baseline 'bad' must predict classes in 0\.\.1, found 2",
    ),
    "BaselinePeeks": (
        {"baselines": baselines_of(lambda batch: np.maximum(batch.y, 0))},
        "baseline 'bad' looks at the targets that it predicts",
    ),
    # slices and pictures
    "ListOfSlices": ({"slices": returning([3])}, r"slices\(\) must return a dictionary of labels by name, found list"),
    "SliceShape": (
        {"slices": returning({"odd": np.zeros(5)})},
        r"slice 'odd' must broadcast to y, \(8, 12\), found \(5,\)$",
    ),
    "SliceOfSamples": (
        {"slices": returning({"odd": np.zeros(8)})},
        r"slice 'odd' must broadcast to y, \(8, 12\), found \(8,\); .*: labels\[:, None\]",
    ),
    "SliceNan": (
        {"slices": returning({"odd": np.full(12, np.nan)})},
        "slice 'odd' must be labelled by finite numbers or strings, found float64 ",
    ),
    "WrongAnswer": (
        {"answer": lambda _, x: np.where(np.arange(len(x)) == 3, 1 - x, np.cumsum(x) % 2)},
        r"answer\(x\) must return the y of x in split 'test', -?\d+ at y\[\d, \d+\], found \d$",
    ),
    "WrongLaterAnswer": (
        {"answer": first_answer},
        r"answer\(x\) must return the y of x .* at y\[[1-7], \d+\], found 0",
    ),
    "MisshapenAnswer": (
        {"answer": lambda _, x: x[None]},
        r"answer\(x\) must return the shape of one target, \(12,\), found \(1, 12\)$",
    ),
    "NoArray": ({"answer": returning([0])}, r"answer\(x\) must return .*, \(12,\), found list$"),
    "WrongTests": (
        {"tests": lambda _: {"other": lrtasks.make("mqar")}},
        "test other of test-wrongtests needs another model: ",
    ),
    "NoTests": ({"tests": returning([lrtasks.make("mqar")])}, r"tests\(\) must map names to tasks, found \["),
    "NoTask": ({"tests": returning({"other": "mqar"})}, "test other must be a task, found 'mqar'"),
    "WrongTextOfALaterSample": (
        {"text": lambda *given: 3 if given[-1] else ""},
        r"text\(\) must return a string or None, found 3",
    ),
    "WrongText": ({"text": returning(3)}, r"text\(\) must return a string or None, found 3"),
    "WrongKey": ({"duplicate_key": returning(3)}, r"duplicate_key\(\) must return bytes or None, found 3"),
    "WrongImage": (
        {"image_shape": returning((5, 5))},
        r"image_shape.. must hold the 12 positions .*, found \(5, 5\)",
    ),
}
"""By name of the class: its members, and what the check says."""

for _name, (_members, _) in BROKEN.items():
    variant(_name, **_members)
