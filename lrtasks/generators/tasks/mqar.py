from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, earlier
from lrtasks.spec import IGNORED, Batch, Sample, Spec


@registry.register("mqar")
@dataclass(frozen=True)
class Mqar(TokenTask):
    """Read K pairs of a key and a value; when a key comes again, return its value.

    Let V = ``vocab``, K = ``pairs`` and L = ``length``. The first 2K tokens are K pairs: K distinct keys of 1..V/2-1,
    each followed by one of K distinct values of V/2..V-1. The rest is (L - 2K)/2 slots of two tokens. K distinct slots
    are drawn one after another; slot i = 0, 1, ... has probability proportional to (i+1)^(``power_a`` - 1). The n-th
    key goes to the first token of the n-th slot drawn. All other tokens are fillers. The K repeated keys are labelled
    with their values. The further tests keep K, so longer tests have more fillers. Source: Arora et al., "Zoology:
    Measuring and Improving Recall in Efficient Language Models" (arXiv:2312.04927), section 3 and appendix.

    The default differs from the paper in one point: fillers never equal a key or value of their sample, because this
    would make a query ambiguous. ``fillers="zoology"`` draws fillers from the whole vocabulary, as the paper's code
    does. With ``fillers="zero"`` all fillers are 0.

    >>> task = Mqar(length=8, pairs=2, vocab=8, fillers="zero")
    >>> task.answer(np.array([1, 6, 3, 5, 3, 0, 1, 0])).tolist()
    [-100, -100, -100, -100, 5, -100, 6, -100]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    any_length: ClassVar[bool] = False
    presets: ClassVar[Presets] = {
        "small": {"length": 64, "pairs": (4, 8), "vocab": 256, **budget(batch_size=64, steps=1500)},
        "paper": {"length": 512, "pairs": 64},
    }

    length: int = parameter(512, "sequence length L, even", at_least=4, at_most=MAX_LENGTH)
    pairs: int | tuple[int, int] = parameter(
        64, "number of pairs K, at most L/4; two numbers: drawn uniformly between them for each sample", at_least=1
    )
    vocab: int = parameter(8192, "vocabulary size V, even: V/2 - 1 keys and V/2 values", at_least=4, at_most=2**20)
    power_a: float = parameter(
        0.01,
        "number a: slot i of the queries has weight (i+1)^(a-1); near 0: early queries, 1: uniform",
        above=0,
        at_most=32,
    )
    fillers: Literal["safe", "zoology", "zero"] = parameter(
        "safe", "fillers between queries: tokens other than keys and values of the sample, the whole vocabulary, or 0"
    )

    def check(self) -> None:
        for name in ("length", "vocab"):
            if getattr(self, name) % 2:
                self.refuse(f"{name} must be even, found {getattr(self, name)}")
        _, most = self.span("pairs")
        if 4 * most > self.length:
            self.refuse(f"pairs must be at most length / 4 ({self.length // 4}), found {most}")
        if most > self.vocab // 2 - 1:
            self.refuse(f"vocab must be at least {2 * most + 2} for {most} pairs, found {self.vocab}")

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.vocab)

    def sample(self, rng: np.random.Generator) -> Sample:
        fewest, most = self.span("pairs")
        pairs = fewest if fewest == most else int(rng.integers(fewest, most + 1))
        keys = 1 + rng.choice(self.vocab // 2 - 1, pairs, replace=False)
        values = self.vocab // 2 + rng.choice(self.vocab // 2, pairs, replace=False)
        queries = 2 * pairs + 2 * self._slots(rng, pairs)
        x = self._fillers(rng, keys, values)
        x[0 : 2 * pairs : 2] = keys
        x[1 : 2 * pairs : 2] = values
        x[queries] = keys
        y = np.full(self.length, IGNORED)
        y[queries] = values
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the labels; refuse any input if ``pairs`` is a range: the input does not show how many pairs it has.

        With ``fillers="zoology"``, also refuse an input in which a filler could be taken for a query.
        """
        pairs, most = self.span("pairs")
        if pairs != most:
            self.refuse(f"there is no exact answer with pairs={[pairs, most]}: the input does not tell how many")
        keys, values, rest = x[0 : 2 * pairs : 2], x[1 : 2 * pairs : 2], x[2 * pairs :: 2]
        self.allow(keys, 1, self.vocab // 2, "keys of pairs", 0, 2)
        self.allow(values, self.vocab // 2, self.vocab, "values of pairs", 1, 2)
        row, slot = np.nonzero(keys[:, None] == rest)
        if len(np.unique(keys)) < pairs or not np.array_equal(row, np.arange(pairs)):
            self.refuse(f"the first {pairs} keys must differ, and each must come once more, at an even position")
        y = np.full(self.length, IGNORED)
        y[2 * pairs + 2 * slot] = values
        return y

    def _slots(self, rng: np.random.Generator, pairs: int) -> np.ndarray:
        """Draw slots without replacement and return them in the order in which they are drawn.

        Exponential waiting times of rate w_i end in the order of successive draws with weights w_i (Efraimidis and
        Spirakis, "Weighted random sampling with a reservoir", 2006), so the first ``pairs`` to end are the slots drawn.
        """
        slots = self.length // 2 - pairs
        waiting = rng.standard_exponential(slots) * _mean_waiting(slots, self.power_a)
        first = np.argpartition(waiting, pairs - 1)[:pairs]
        return first[np.argsort(waiting[first])]

    def _fillers(self, rng: np.random.Generator, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        if self.fillers == "zero":
            return np.zeros(self.length, dtype=np.int64)
        if self.fillers == "zoology":
            return rng.integers(self.vocab, size=self.length)
        free = np.ones(self.vocab, dtype=bool)
        free[keys] = free[values] = False
        allowed = np.flatnonzero(free)
        return allowed[rng.integers(len(allowed), size=self.length)]

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent value, and a value of the sample: knowing the sample's values gives accuracy 1/K."""
        return {**super().baselines(), "own-value": self.rule(lambda x: x[:, 1:2])}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance from the query back to its key, in octaves, and by number of pairs."""
        asked, places = batch.y >= 0, np.arange(self.length)
        pairs = asked.sum(axis=1, keepdims=True)
        given, _ = earlier(batch.x, (places < 2 * pairs) & (places % 2 == 0))
        return {"distance": np.where(asked, octave(places - given), 0), "pairs": pairs}

    def text(self, batch: Batch, index: int) -> str:
        """Return the pairs as ``key:value``, then each query with its position and answer; fillers are left out."""
        x, y = batch.x[index], batch.y[index]
        queries = np.flatnonzero(y >= 0)
        given = " ".join(f"{x[2 * pair]}:{x[2 * pair + 1]}" for pair in range(len(queries)))
        return f"{given} | " + " ".join(f"@{query} {x[query]}:{y[query]}" for query in queries)


@functools.lru_cache(maxsize=32)
def _mean_waiting(slots: int, power_a: float) -> np.ndarray:
    return np.arange(1, slots + 1) ** (1 - power_a)
