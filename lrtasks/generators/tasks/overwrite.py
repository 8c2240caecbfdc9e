from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, earlier, gathered, spread
from lrtasks.spec import IGNORED, Batch, Spec


@registry.register("overwrite")
@dataclass(frozen=True)
class Overwrite(UniformTask):
    """Keys get values, and some later get new values: return the current value of each key.

    Let V = ``vocab``, K = ``keys`` and U = ``updates``. Keys are tokens 1..V/2-1, values V/2..V-1. A sample writes K
    distinct keys once, in random order, then makes U updates. Each write is a pair of two tokens: key and value.
    Queries follow, each a key and a 0. The label at the key of a query is the value written last for this key, or with
    ``back=n`` the n-th last value. A key written fewer than n times has no label.

    ``law="mixed"``: each update draws its key uniformly from the K keys, and its value uniformly from all values except
    the key's current value. All keys are queried once in random order; the length is 2(K + U) + 2K tokens.
    ``law="zoology"``: the K first values are distinct, U distinct keys are updated once, and the queries are placed
    among zeros as in ``mqar`` (``power_a``) up to ``length``. Source: HazyResearch/zoology, ``forgetting_mqar.py``. By
    mistake, that code makes a new value different from the old value of another key, so some of its updates change
    nothing. ``law="mixed"`` is ours. ``back`` follows the N-back recall of Yang et al., "PaTH Attention"
    (arXiv:2505.16381).

    >>> task = Overwrite(keys=2, updates=1, vocab=64)
    >>> task.answer([3, 40, 5, 41, 3, 44, 5, 0, 3, 0]).tolist()
    [-100, -100, -100, -100, -100, -100, 41, -100, 44, -100]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"keys": 8, "updates": 16, "vocab": 32, **budget(batch_size=64, steps=1500)},
        "small-hard": {"keys": 16, "updates": 32, "vocab": 64, **budget(batch_size=64, steps=1500)},
        # the sizes that Zoology's code proposes; it publishes no figures
        "paper": {"keys": 36, "updates": 18, "vocab": 8192, "law": "zoology", "length": 256},
    }

    keys: int = parameter(16, "number of keys K", at_least=1, at_most=2**19)
    updates: int = parameter(32, "number of later writes U; zoology: at most K", at_least=0, at_most=MAX_LENGTH // 4)
    vocab: int = parameter(64, "vocabulary size V, even: V/2 - 1 keys and V/2 values", at_least=6, at_most=2**20)
    back: int = parameter(
        1, "requested value of a key: last (1), second last (2), ...; zoology: 1", at_least=1, at_most=MAX_LENGTH
    )
    law: Literal["mixed", "zoology"] = parameter("mixed", "distribution of updates and queries")
    length: int | None = parameter(None, "zoology: length, even; none: 2(K + U) + 2K", at_least=4, at_most=MAX_LENGTH)
    power_a: float = parameter(
        0.01, "zoology: number a in the weights (i+1)^(a-1) of query slots, as in mqar", above=0, at_most=32
    )

    def check(self) -> None:
        if self.vocab % 2:
            self.refuse(f"vocab must be even, found {self.vocab}")
        if self.keys > self.vocab // 2 - 1:
            self.refuse(f"vocab {self.vocab} has {self.vocab // 2 - 1} keys, too few for keys={self.keys}")
        shortest = 4 * self.keys + 2 * self.updates
        if self.law == "mixed":
            if self.length not in (None, shortest):
                self.refuse(f"length belongs to law 'zoology'; with law 'mixed' it is {shortest}, found {self.length}")
            if self.back > self.updates + 1:
                self.refuse(
                    f"back must be at most updates + 1 = {self.updates + 1}, the writes of a key, found {self.back}"
                )
            return
        if self.updates > self.keys or self.back != 1:
            found = f"{self.updates} and {self.back}"
            self.refuse(f"with law 'zoology' updates must be at most keys ({self.keys}) and back 1, found {found}")
        if self.length is not None and (self.length < shortest or self.length % 2):
            self.refuse(f"length must be even and at least 2(K + U) + 2K = {shortest}, found {self.length}")

    @property
    def written(self) -> int:
        """Number of writes of a sample, K + U; the queries begin at position 2(K + U)."""
        return self.keys + self.updates

    @property
    def input(self) -> Spec:
        return Spec("token", self.length or 2 * (self.written + self.keys), self.vocab)

    def made(self, u: Uniforms) -> Batch:
        half, rows = self.vocab // 2, np.arange(len(u))[:, None]
        names = 1 + u.distinct(half - 1, self.keys)
        if self.law == "mixed":
            first, which = u.whole(half, self.keys), u.whole(self.keys, self.updates)
        else:
            first, which = u.distinct(half, self.keys), u.distinct(self.keys, self.updates)
        key = np.concatenate([np.broadcast_to(np.arange(self.keys), first.shape), which], axis=1)
        # a new value is the current value plus 1..V/2-1, cyclically: each write adds to the key's running sum
        step = np.concatenate([first, 1 + u.whole(half - 1, self.updates)], axis=1)
        x = np.zeros((len(u), self.input.length), dtype=np.int64)
        x[:, 0 : 2 * self.written : 2] = names[rows, key]
        x[:, 1 : 2 * self.written : 2] = half + _running_sums(key, step) % half
        slots = self.input.length // 2 - self.written
        if self.law == "mixed":
            query = u.order(self.keys)
        else:  # as mqar draws its slots: exponential waiting times, the shortest first
            waiting = -np.log1p(-u.take(slots)) * np.arange(1, slots + 1) ** (1 - self.power_a)
            query = np.argsort(waiting, axis=1, kind="stable")[:, : self.keys]
        x[rows, 2 * (self.written + query)] = names
        return Batch(x, self.label_all(x))

    def label_all(self, x: np.ndarray) -> np.ndarray:
        last, _ = self._last(x, self.back)
        y = np.full(x.shape, IGNORED)
        y[:, 2 * self.written :: 2] = gathered(x[:, 1::2], last)[:, self.written :]
        return y

    def _last(self, x: np.ndarray, back: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return for each slot the slot of its key's ``back``-th last write, and the key's number of writes."""
        return earlier(x[:, ::2], np.arange(x.shape[1] // 2) < self.written, back)

    def verify(self, tokens: np.ndarray) -> None:
        """Check for K + U pairs, then slots that hold a key and a 0, or two zeros."""
        self.divide(tokens, 2)
        begin, half = 2 * self.written, self.vocab // 2
        if len(tokens) < begin:
            self.refuse(f"an input begins with {self.written} pairs, {begin} tokens, found {len(tokens)} tokens")
        self.allow(tokens[0:begin:2], 1, half, "keys of pairs", 0, 2)
        self.allow(tokens[1:begin:2], half, self.vocab, "values of pairs", 1, 2)
        self.allow(tokens[begin::2], 0, half, "queries", begin, 2)
        self.allow(tokens[begin + 1 :: 2], 0, 1, "tokens after queries", begin + 1, 2)

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent value, the first value of the key, and the last value written for any key."""
        last = 2 * self.written - 1

        def first(x: np.ndarray) -> np.ndarray:
            slot, _ = self._last(x, self._last(x, 1)[1])
            return np.repeat(gathered(x[:, 1::2], slot), 2, axis=1)

        rules = {"first-value": self.rule(first), "last-written": self.rule(lambda x: x[:, last : last + 1])}
        return {**super().baselines(), **rules}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by writes of the queried key, and by writes of any key after the answer, in octaves."""
        last, writes = self._last(batch.x, self.back)
        labels = {"writes": writes, "since": octave(self.written - 1 - last)}
        return {name: spread(values, batch.y.shape, slice(0, None, 2)) for name, values in labels.items()}

    def tests(self) -> dict[str, Task]:
        """Return tests with 2, 4 and 8 times the updates; with ``law="zoology"``, 2, 4 and 8 times the length."""
        if self.law == "zoology":
            return dataclasses.replace(self, length=self.input.length).scaled("length")
        return dataclasses.replace(self, length=None).scaled("updates")

    def text(self, batch: Batch, index: int) -> str:
        """Return the pairs as ``key:value``, then each query with its answer."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        begin = 2 * self.written
        given = " ".join(f"{x[t]}:{x[t + 1]}" for t in range(0, begin, 2))
        return f"{given} | " + " ".join(f"{x[t]}={y[t]}" for t in range(begin, len(x), 2) if y[t] >= 0)


def _running_sums(key: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return at each position the sum of ``step`` over this and all earlier positions of the row with the same key."""
    order = np.argsort(key, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(step, order, axis=1), axis=1)
    begins = np.diff(np.take_along_axis(key, order, axis=1), axis=1, prepend=-1) != 0
    begin = np.maximum.accumulate(np.where(begins, np.arange(key.shape[1]), 0), axis=1)
    before = np.where(begin > 0, np.take_along_axis(sums, np.maximum(begin - 1, 0), axis=1), 0)
    found = np.empty_like(sums)
    np.put_along_axis(found, order, sums - before, axis=1)
    return found
