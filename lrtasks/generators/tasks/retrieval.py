"""Retrieval: recall, mqar, overwrite and joint-recall give the value that belongs to a key."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, MajorityClass, octave
from lrtasks.generators.tokens import TokenTask, Uniforms, UniformTask, earlier, gathered, spread
from lrtasks.spec import IGNORED, Batch, Sample, Spec

WINDOW = 64
BEGIN, SEP, PAD, FIRST = 0, 1, 2, 3
"""Tokens of ``joint-recall``; values begin with FIRST."""


@registry.register("recall")
@dataclass(frozen=True)
class Recall(TokenTask):
    """Read many pairs of a key and a value; return the value of the queried key.

    With V = ``vocab``: keys are tokens 1..V/2-1, values V/2..V-2, the query mark is V-1, and 0 is not used. Each sample
    has its own value for every key, drawn with replacement; the keys of its pairs are drawn with replacement as well,
    the queried key among those that occurred. Input: ``length`` tokens of pairs, the mark, the key. Target: the value,
    at the last position; in training, by default, the next token at every position. Source: Poli et al., "Hyena
    Hierarchy: Towards Larger Convolutional Language Models" (arXiv:2302.10866), section 4.1; Focus, Table 1.

    How local it is: keys recur so often that, whatever the length, the queried key last occurred at most 64 tokens
    before the query in 90 % of the samples and at most 128 tokens before it in 99 %. The score at a great ``length``
    therefore says little of long memory; ``distance`` asks for samples in which the key occurs once, that far away.

    >>> [round(Recall(length=1024).share_within(tokens), 2) for tokens in (64, 128)]
    [0.9, 0.99]
    >>> Recall(length=4, vocab=8, supervise="answer").answer(np.array([3, 5, 1, 4, 7, 3])).tolist()
    [-100, -100, -100, -100, -100, 5]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    presets: ClassVar[Presets] = {
        # Fresh samples, unlike the papers' 2,000: at this size those are learned by heart.
        "small": {"length": 64, **budget(batch_size=64, steps=1500)},
        # Focus and Hyena papers: 2,000 samples, 200 epochs of 62 batches of which 10 warm up, about 500 test sequences.
        "paper": {
            "length": 1024,
            **budget(steps=12400, batch_size=32, weight_decay=0.1, betas=(0.9, 0.98)),
            **budget(schedule="cosine", warmup_steps=620, train_samples=2000),
            **budget(eval_every=620, val_batches=16, test_batches=16),
        },
    }

    length: int = parameter(1024, "tokens of the pairs section, two per pair", at_least=2, at_most=MAX_LENGTH - 2)
    vocab: int = parameter(
        30, "vocabulary size V: V/2 - 1 keys, as many values, two special tokens", at_least=6, at_most=2**20
    )
    supervise: Literal["all", "answer"] = parameter(
        "all", "training labels: the next token at every position, or the answer alone; val and test: the answer"
    )
    distance: tuple[int, int] | None = parameter(
        None,
        "the queried key occurs once, this many tokens before the query (log-uniform); none: as the papers",
    )

    def check(self) -> None:
        for name in ("length", "vocab"):
            if getattr(self, name) % 2:
                self.refuse(f"{name} must be even, found {getattr(self, name)}")
        if self.distance is None:
            return
        nearest, farthest = self.distance
        if not 3 <= nearest <= farthest <= self.length + 1 or (nearest == farthest and nearest % 2 == 0):
            self.refuse(
                f"distance must be two numbers, the first not above the second, that hold an odd one"
                f" and lie in 3..{self.length + 1}, found {list(self.distance)}"
            )

    @property
    def keys(self) -> int:
        """Number of different keys, and of different values."""
        return self.vocab // 2 - 1

    @property
    def input(self) -> Spec:
        return Spec("token", self.length + 2, self.vocab)

    def share_within(self, tokens: int) -> float:
        """Share of samples, at ``distance=None``, whose queried key last occurred at most ``tokens`` before the query.

        Exact up to the chance that a key does not occur at all, (1 - 1/keys)^(length/2).
        """
        return 1 - (1 - 1 / self.keys) ** min((tokens - 1) // 2, self.length // 2)

    def sample(self, rng: np.random.Generator) -> Sample:
        pairs = self.length // 2
        values = rng.integers(self.keys + 1, 2 * self.keys + 1, size=self.keys)
        if self.distance is None:
            keys = rng.integers(1, self.keys + 1, size=pairs)
            present = np.flatnonzero(np.bincount(keys))
            # uniform over the keys, redrawn among those present if it is absent, is uniform over those present
            query = present[rng.integers(len(present))]
        else:
            query = rng.integers(1, self.keys + 1)
            keys = rng.integers(1, self.keys, size=pairs)
            keys += keys >= query
            keys[pairs - _pairs_back(rng, *self.distance)] = query
        x = np.empty(self.length + 2, dtype=np.int64)
        x[0 : self.length : 2] = keys
        x[1 : self.length : 2] = values[keys - 1]
        x[-2:] = self.vocab - 1, query
        return Sample(x, self.label(x))

    def label(self, x: np.ndarray) -> np.ndarray:
        """As in training."""
        y = np.full(self.length + 2, IGNORED)
        if self.supervise == "all" and not self.testing:
            y[:-1] = x[1:]
        (last,), _ = _last_occurrence(x[None])
        y[-1] = x[last + 1]
        return y

    sequence = Task.checked_input  # of this length

    def verify(self, tokens: np.ndarray) -> None:
        keys, values = tokens[:-2:2], tokens[1:-2:2]
        if tokens[-2] != self.vocab - 1 or tokens[-1] not in keys:
            self.refuse(f"the last two tokens are the mark {self.vocab - 1} and one of the sample's keys")
        if len(np.unique(np.stack([keys, values]), axis=1).T) != len(np.unique(keys)):
            self.refuse("a key comes with two values")

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent answer and, from length 256, the answer looked up in the last 64 tokens alone.

        The latter says how local the samples are; in shorter samples it sees so much that it is the solution itself.
        """
        answers = MajorityClass(self.vocab, lambda x: x[np.arange(len(x)), _last_occurrence(x)[0] + 1])
        local = {f"window-{WINDOW}": self.rule(window_lookup)} if self.length >= 4 * WINDOW else {}
        return {"majority": answers, **local}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance from the query back to the key's last occurrence, and by its occurrences, both in octaves."""
        last, occurrences = _last_occurrence(batch.x)
        distance = batch.x.shape[1] - 1 - last
        return {"distance": octave(distance)[:, None], "occurrences": octave(occurrences)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """The pairs as ``key:value``, keys k1, k2, ... and values v1, v2, ..., then the query and its answer."""
        x, answer = batch.x[index], batch.y[index, -1]
        pairs = (f"k{key}:v{value - self.keys}" for key, value in zip(x[:-2:2], x[1:-2:2], strict=True))
        return f"{' '.join(pairs)} => k{x[-1]} : v{answer - self.keys}"


def window_lookup(x: np.ndarray) -> np.ndarray:
    """The value beside the queried key's last occurrence within 64 tokens; the last value if there is none."""
    last, _ = _last_occurrence(x)
    found = x.shape[1] - 1 - last <= WINDOW
    return np.where(found, x[np.arange(len(last)), last + 1], x[:, -3])[:, None]


def _pairs_back(rng: np.random.Generator, nearest: int, farthest: int) -> int:
    """How many pairs before the mark the key stands: distance 2j + 1, log-uniform over nearest..farthest tokens."""
    low, high = nearest // 2, (farthest - 1) // 2
    distance = (2 * low + 1) * ((2 * high + 3) / (2 * low + 1)) ** rng.random()
    return min(int(distance - 1) // 2, high)


def _last_occurrence(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position of the queried key's last occurrence among the pairs, and its occurrences; ``(batch,)`` each."""
    hits = x[:, :-2:2] == x[:, -1:]
    return 2 * (hits.shape[1] - 1 - hits[:, ::-1].argmax(axis=1)), hits.sum(axis=1)


@registry.register("mqar")
@dataclass(frozen=True)
class Mqar(TokenTask):
    """Read K pairs of a key and a value; when a key comes again, return its value.

    With V = ``vocab`` and L = ``length``: K distinct keys of 1..V/2-1, each followed by one of K distinct values of
    V/2..V-1, make the first 2K tokens. The rest is (L - 2K)/2 slots of two tokens; distinct slots are drawn one after
    another with probability proportional to (i+1)^(``power_a`` - 1), i = 0, 1, ..., and the n-th key goes to the first
    token of the n-th slot drawn. All other tokens are fillers. Labelled: the K repeated keys. The further tests keep K,
    so that longer ones have more fillers. Source: Arora et al., "Zoology: Measuring and Improving Recall in Efficient
    Language Models" (arXiv:2312.04927), section 3 and appendix.

    One difference by default: fillers never equal a key or value of their own sample, which would make a query
    ambiguous; ``fillers="zoology"`` draws them from the whole vocabulary as the paper's code does, ``"zero"`` leaves 0.

    >>> task = Mqar(length=8, pairs=2, vocab=8, fillers="zero")
    >>> task.answer(np.array([1, 6, 3, 5, 3, 0, 1, 0])).tolist()
    [-100, -100, -100, -100, 5, -100, 6, -100]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    presets: ClassVar[Presets] = {
        "small": {"length": 64, "pairs": (4, 8), "vocab": 256, **budget(batch_size=64, steps=1500)},
        "paper": {"length": 512, "pairs": 64},
    }

    length: int = parameter(512, "sequence length L, even", at_least=4, at_most=MAX_LENGTH)
    pairs: int | tuple[int, int] = parameter(
        64, "number of pairs K, at most L/4; two numbers: drawn uniformly between them for each sample", at_least=1
    )
    vocab: int = parameter(8192, "vocabulary size V, even: V/2 - 1 keys and V/2 values", at_least=4, at_most=2**20)
    power_a: float = parameter(0.01, "exponent of the law of query positions, towards 0: early; 1: uniform", above=0)
    fillers: Literal["safe", "zoology", "zero"] = parameter(
        "safe", "tokens between queries: none of the sample's keys and values, the whole vocabulary, or 0"
    )

    def check(self) -> None:
        for name in ("length", "vocab"):
            if getattr(self, name) % 2:
                self.refuse(f"{name} must be even, found {getattr(self, name)}")
        _, most = self.span("pairs")
        if 4 * most > self.length:
            self.refuse(f"pairs must be at most length / 4 ({self.length // 4}), found {most}")
        if most > self.vocab // 2 - 1:
            self.refuse(
                f"vocab {self.vocab} has {self.vocab // 2 - 1} keys, too few for {most} pairs;"
                f" take vocab of at least {2 * most + 2}"
            )

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

    sequence = Task.checked_input  # of this length

    def label(self, x: np.ndarray) -> np.ndarray:
        """As the base class says. Where ``pairs`` is a range, the input does not tell how many pairs there are.

        With ``fillers="zoology"``, an input in which a filler could be taken for a query is refused.
        """
        pairs, most = self.span("pairs")
        if pairs != most:
            self.refuse(f"there is no exact answer with pairs={[pairs, most]}: the input does not tell how many")
        keys, values, rest = x[0 : 2 * pairs : 2], x[1 : 2 * pairs : 2], x[2 * pairs :: 2]
        row, slot = np.nonzero(keys[:, None] == rest)
        if not np.array_equal(row, np.arange(pairs)):
            self.refuse(f"each of the first {pairs} keys must come once more, at an even position")
        y = np.full(self.length, IGNORED)
        y[2 * pairs + 2 * slot] = values
        return y

    def _slots(self, rng: np.random.Generator, pairs: int) -> np.ndarray:
        """Slots in the order in which they are drawn without replacement.

        Exponential waiting times of rate w_i end in the order of successive draws with weights w_i (Efraimidis and
        Spirakis, "Weighted random sampling with a reservoir", 2006), so the first ``pairs`` to end are the draw.
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

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value, and one of the sample's own values: 1/K for knowing which values were given."""
        return {**super().baselines(), "own-value": self.rule(lambda x: x[:, 1:2])}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance from the query back to its key (bins from each power of two), and by number of pairs."""
        pairs = (batch.y >= 0).sum(axis=1)
        home = np.zeros((len(batch.x), self.vocab), dtype=np.int64)  # where each key of each sample was given
        row, pair = np.nonzero(np.arange(pairs.max()) < pairs[:, None])
        home[row, batch.x[row, 2 * pair]] = 2 * pair
        row, query = np.nonzero(batch.y >= 0)
        distance = np.zeros(batch.y.shape, dtype=np.int64)
        distance[row, query] = octave(query - home[row, batch.x[row, query]])
        return {"distance": distance, "pairs": pairs[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """The pairs as ``key:value``, then each query with its position and answer; fillers are left out."""
        x, y = batch.x[index], batch.y[index]
        queries = np.flatnonzero(y >= 0)
        given = " ".join(f"{x[2 * pair]}:{x[2 * pair + 1]}" for pair in range(len(queries)))
        return f"{given} | " + " ".join(f"@{query} {x[query]}:{y[query]}" for query in queries)


@functools.lru_cache(maxsize=32)
def _mean_waiting(slots: int, power_a: float) -> np.ndarray:
    return np.arange(1, slots + 1) ** (1 - power_a)


@registry.register("overwrite")
@dataclass(frozen=True)
class Overwrite(UniformTask):
    """Keys get values, and some get new ones: return the present value of each key.

    With V = ``vocab``, K = ``keys`` and U = ``updates``: keys are tokens 1..V/2-1, values V/2..V-1. A sample writes K
    distinct keys once, in random order, then updates them U times; each pair takes two tokens. Queries follow, each a
    key and a 0. The label at the key of a query is the value written last for it, or with ``back=n`` the n-th last,
    where there are n.

    ``law="mixed"``: the updated key is uniform over the K keys each time, a new value is uniform over all values but
    the key's present one, and all keys are asked once in random order: 2(K + U) + 2K tokens. ``law="zoology"``: the K
    first values are distinct, U distinct keys are updated once, and the queries stand among zeros as in ``mqar``
    (``power_a``) up to ``length``. Source: HazyResearch/zoology, ``forgetting_mqar.py``, where a new value is kept
    apart from the old value of another key by mistake, so that some updates change nothing; the task of mixed updates
    is ours. ``back`` follows the N-back recall of Yang et al., "PaTH Attention" (arXiv:2505.16381).

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
    back: int = parameter(1, "give the value written last (1), the one before (2), ...; zoology: 1", at_least=1)
    law: Literal["mixed", "zoology"] = parameter("mixed", "how updates and queries are drawn")
    length: int | None = parameter(
        None, "zoology: sequence length, even; none: 2(K + U) + 2K, the least", at_least=4, at_most=MAX_LENGTH
    )
    power_a: float = parameter(0.01, "zoology: exponent of the law of query positions, as in mqar", above=0)

    def check(self) -> None:
        if self.vocab % 2:
            self.refuse(f"vocab must be even, found {self.vocab}")
        if self.keys > self.vocab // 2 - 1:
            self.refuse(f"vocab {self.vocab} has {self.vocab // 2 - 1} keys, too few for keys={self.keys}")
        least = 4 * self.keys + 2 * self.updates
        if least > MAX_LENGTH:
            self.refuse(f"2(K + U) + 2K must be at most {MAX_LENGTH:_}, found {least:_}")
        if self.law == "mixed":
            if self.length not in (None, least):
                self.refuse(f"length belongs to law 'zoology'; with law 'mixed' it is {least}, found {self.length}")
            return
        if self.updates > self.keys or self.back != 1:
            self.refuse(
                f"with law 'zoology' updates must be at most keys ({self.keys}) and back 1,"
                f" found {self.updates} and {self.back}"
            )
        if self.length is not None and (self.length < least or self.length % 2):
            self.refuse(f"length must be even and at least 2(K + U) + 2K = {least}, found {self.length}")

    @property
    def written(self) -> int:
        """Number of writes K + U of a sample; its queries begin at twice this position."""
        return self.keys + self.updates

    @property
    def input(self) -> Spec:
        return Spec("token", self.length or 2 * (self.written + self.keys), self.vocab)

    @property
    def draws(self) -> int:
        queries = self.keys if self.law == "mixed" else self.input.length // 2 - self.written
        return 2 * self.keys + 2 * self.updates + queries

    def made(self, u: Uniforms) -> Batch:
        half, rows = self.vocab // 2, np.arange(len(u))[:, None]
        names = 1 + u.distinct(half - 1, self.keys)
        if self.law == "mixed":
            first, which = u.whole(half, self.keys), u.whole(self.keys, self.updates)
        else:
            first, which = u.distinct(half, self.keys), u.distinct(self.keys, self.updates)
        key = np.concatenate([np.broadcast_to(np.arange(self.keys), first.shape), which], axis=1)
        # a new value is the present one moved on by 1..V/2-1, cyclically: each write adds to the key's running sum
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
        """For each slot of two tokens, the slot of its key's ``back``-th last write, and the key's writes."""
        return earlier(x[:, ::2], np.arange(x.shape[1] // 2) < self.written, back)

    def verify(self, tokens: np.ndarray) -> None:
        """K + U pairs, then slots that hold a key and a 0, or two zeros."""
        self.divide(tokens, 2)
        begin, half = 2 * self.written, self.vocab // 2
        if len(tokens) < begin:
            self.refuse(f"an input begins with {self.written} pairs, {begin} tokens, found {len(tokens)} tokens")
        self.allow(tokens[0:begin:2], 1, half, "keys of pairs", 0, 2)
        self.allow(tokens[1:begin:2], half, self.vocab, "values of pairs", 1, 2)
        self.allow(tokens[begin::2], 0, half, "queries", begin, 2)
        self.allow(tokens[begin + 1 :: 2], 0, 1, "tokens after queries", begin + 1, 2)

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value; the value that the key had first; the value that was written last for any key."""
        last = 2 * self.written - 1
        return {
            **super().baselines(),
            "first-value": self.rule(self._first),
            "last-written": self.rule(lambda x: x[:, last : last + 1]),
        }

    def _first(self, x: np.ndarray) -> np.ndarray:
        slot, _ = self._last(x, self._last(x, 1)[1])
        return np.repeat(gathered(x[:, 1::2], slot), 2, axis=1)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By the writes of the asked key, and by the writes of any key since the one asked for, in octaves."""
        last, writes = self._last(batch.x, self.back)
        even = slice(0, None, 2)
        return {
            "writes": spread(writes, batch.y.shape, even),
            "since": spread(octave(self.written - 1 - last), batch.y.shape, even),
        }

    def tests(self) -> Mapping[str, Task]:
        """With 2, 4 and 8 times the updates; law ``zoology``: 2, 4 and 8 times the length."""
        if self.law == "zoology":
            return dataclasses.replace(self, length=self.input.length).scaled("length")
        return dataclasses.replace(self, length=None).scaled("updates")

    def text(self, batch: Batch, index: int) -> str:
        """The pairs as ``key:value``, then each query with its answer."""
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        begin = 2 * self.written
        given = " ".join(f"{x[t]}:{x[t + 1]}" for t in range(0, begin, 2))
        return f"{given} | " + " ".join(f"{x[t]}={y[t]}" for t in range(begin, len(x), 2) if y[t] >= 0)


def _running_sums(key: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Sum of ``step`` over this and all earlier positions of the row that have the same key."""
    order = np.argsort(key, axis=1, kind="stable")
    sums = np.cumsum(np.take_along_axis(step, order, axis=1), axis=1)
    begins = np.diff(np.take_along_axis(key, order, axis=1), axis=1, prepend=-1) != 0
    begin = np.maximum.accumulate(np.where(begins, np.arange(key.shape[1]), 0), axis=1)
    before = np.where(begin > 0, np.take_along_axis(sums, np.maximum(begin - 1, 0), axis=1), 0)
    found = np.empty_like(sums)
    np.put_along_axis(found, order, sums - before, axis=1)
    return found


@registry.register("joint-recall")
@dataclass(frozen=True)
class JointRecall(UniformTask):
    """Read a table of values by context and key; then return each value when it is queried in another order.

    Tokens: BEGIN 0, SEP 1, PAD 2, V = ``values`` values from 3, keys from 3 + V, contexts after the ``room`` of keys. C
    contexts and K keys are drawn, their numbers uniform over ``contexts`` and ``keys`` and their tokens distinct, and
    a value for each pair of them, independent and uniform. A sample is BEGIN; for every context in random order its
    token, then for every key in random order the key and the value; SEP; the same once more in new orders; and padding
    on the right. Labels: at each key of the second part the value, which follows in the input.

    Source: Zhan et al., "Overcoming Long-Context Limitations of State-Space Models via Context-Dependent Sparse
    Attention" (arXiv:2507.00449), section 3, code DeepGraphLearning/HAX. It numbers tokens otherwise (BEGIN 1, PAD 3,
    SEP 4, values from 10) and always takes the first C contexts and the first K keys of the room.

    >>> task = JointRecall(contexts=2, keys=2, values=8, room=(2, 2))
    >>> BEGIN, SEP, k0, k1, c0, c1 = 0, 1, 11, 12, 13, 14
    >>> x = [BEGIN, c0, k1, 7, k0, 10, c1, k0, 5, k1, 7, SEP, c1, k1, 7, k0, 5, c0, k0, 10, k1, 7]
    >>> task.answer(x)[-10:].tolist()
    [-100, 7, -100, 5, -100, -100, 10, -100, 7, -100]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"contexts": 4, "keys": 4, "values": 16, "room": (8, 8)},
        "paper": {"contexts": (5, 16), "keys": (5, 16)}
        | budget(steps=400_000, batch_size=64, lr=2e-3, eval_every=10_000),
    }

    contexts: int | tuple[int, int] = parameter(
        (5, 16), "number of contexts C; two numbers: drawn uniformly between them for each sample", at_least=1
    )
    keys: int | tuple[int, int] = parameter((5, 16), "number of keys K, likewise", at_least=1)
    values: int = parameter(16, "number of values V", at_least=2, at_most=2**16)
    room: tuple[int, int] = parameter((16, 16), "tokens for contexts and for keys", at_least=1, at_most=1024)

    def check(self) -> None:
        for name, room in zip(("contexts", "keys"), self.room, strict=True):
            if self.span(name)[1] > room:
                self.refuse(f"{name} must be at most their room ({room}), found {getattr(self, name)}")

    @property
    def _first_key(self) -> int:
        return FIRST + self.values

    @property
    def _first_context(self) -> int:
        return self._first_key + self.room[1]

    @property
    def input(self) -> Spec:
        contexts, keys = self.span("contexts")[1], self.span("keys")[1]
        return Spec("token", 2 * contexts * (2 * keys + 1) + 2, self._first_context + self.room[0])

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, FIRST + self.values)

    @property
    def draws(self) -> int:
        contexts, keys = self.span("contexts")[1], self.span("keys")[1]
        return 2 + sum(self.room) + contexts * keys + 2 * contexts * (1 + keys)

    def made(self, u: Uniforms) -> Batch:
        (low_c, contexts), (low_k, keys) = self.span("contexts"), self.span("keys")
        rows = len(u)
        count_c = low_c + u.whole(contexts - low_c + 1, 1)
        count_k = low_k + u.whole(keys - low_k + 1, 1)
        context = self._first_context + u.order(self.room[0])[:, :contexts]
        key = self._first_key + u.order(self.room[1])[:, :keys]
        value = (FIRST + u.whole(self.values, contexts * keys)).reshape(rows, contexts, keys)
        row = np.arange(rows)[:, None]
        parts = []
        for _ in range(2):
            # orders of the greatest numbers, those beyond a sample's own last
            c = np.argsort(u.take(contexts) + (np.arange(contexts) >= count_c), axis=1)
            noise = u.take(contexts * keys).reshape(rows, contexts, keys)
            k = np.argsort(noise + (np.arange(keys) >= count_k)[:, None], axis=2)
            part = np.empty((rows, contexts, 2 * keys + 1), dtype=np.int64)
            part[..., 0] = context[row, c]
            part[..., 1::2] = key[row[..., None], k]
            part[..., 2::2] = value[row[..., None], c[..., None], k]
            there = (np.arange(contexts) < count_c)[..., None] & (np.arange(2 * keys + 1) < 2 * count_k[..., None] + 1)
            parts += [(part.reshape(rows, -1), there.reshape(rows, -1))]
        one = np.ones((rows, 1), dtype=np.int64)
        padded = np.concatenate([BEGIN * one, parts[0][0], SEP * one, parts[1][0]], axis=1)
        mask = np.concatenate([one > 0, parts[0][1], one > 0, parts[1][1]], axis=1)
        # what is there moves to the front, in its order
        x = np.take_along_axis(np.where(mask, padded, PAD), np.argsort(~mask, axis=1, kind="stable"), axis=1)
        if low_c == contexts and low_k == keys:
            return Batch(x, self.label_all(x))
        return Batch(x, self.label_all(x), np.arange(x.shape[1]) < mask.sum(axis=1, keepdims=True))

    def _cells(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At each position: the cell of the table (0 where there is no key), whether it is written, whether asked."""
        is_context = x >= self._first_context
        is_key = (x >= self._first_key) & ~is_context
        where = np.maximum.accumulate(np.where(is_context, np.arange(x.shape[1]), 0), axis=1)
        context = np.take_along_axis(x, where, axis=1)
        second = np.cumsum(x == SEP, axis=1) > 0
        return np.where(is_key, context * self.input.width + x, 0), is_key & ~second, is_key & second

    def label_all(self, x: np.ndarray) -> np.ndarray:
        cell, written, asked = self._cells(x)
        last, _ = earlier(cell, written)
        following = np.concatenate([x[:, 1:], np.full((len(x), 1), IGNORED)], axis=1)
        return np.where(asked, gathered(following, last), IGNORED)

    def verify(self, tokens: np.ndarray) -> None:
        """BEGIN, contexts that are followed by keys and values, SEP, the same, padding; no cell has two values."""
        kinds = np.searchsorted([SEP, PAD, FIRST, self._first_key, self._first_context], tokens, side="right")
        names = ("BEGIN", "SEP", "PAD", "a value", "a key", "a context")
        begin, sep, pad, value, key, context = range(6)
        follow = {begin: {context}, sep: {context}, pad: {pad}, key: {value}, context: {key}}
        if kinds[0] != begin:
            self.refuse(f"an input begins with BEGIN (0), found {names[kinds[0]]}")
        seen_sep = False
        for at, (one, two) in enumerate(zip(kinds[:-1].tolist(), kinds[1:].tolist(), strict=True), 1):
            allowed = follow.get(one, {key, context, pad} if seen_sep else {key, context, sep})
            if two not in allowed:
                listed = " or ".join(names[kind] for kind in sorted(allowed))
                self.refuse(f"{listed} must follow {names[one]}, found {names[two]} at position {at}")
            seen_sep = seen_sep or two == sep
        cell, written, asked = self._cells(tokens[None])
        last, _ = earlier(cell, written)
        given, now = gathered(tokens[None], np.where(last >= 0, last + 1, -1))[0], np.append(tokens[1:], IGNORED)
        changed = (written | asked)[0] & (given >= 0) & (now >= 0) & (given != now)
        if changed.any():
            at = int(changed.argmax())
            self.refuse(f"key {tokens[at]} at position {at} has two values in its context, {given[at]} and {now[at]}")

    def baselines(self) -> Mapping[str, Baseline]:
        """The most frequent value; a value drawn at random among those of the key, or among those of the context."""
        return {
            **super().baselines(),
            "same-key": self.rule(functools.partial(self._alike, key=True)),
            "same-context": self.rule(functools.partial(self._alike, key=False)),
        }

    def _alike(self, x: np.ndarray, key: bool) -> np.ndarray:
        cell, written, _ = self._cells(x)
        cue = np.where(cell > 0, cell % self.input.width if key else cell // self.input.width, 0)
        _, count = earlier(cue, written)
        back = 1 + (np.random.default_rng(0).random(x.shape) * count).astype(np.int64)
        last, _ = earlier(cue, written, np.minimum(back, count))
        return gathered(x, np.where(last >= 0, last + 1, -1))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance back to the cell in the first part, in octaves, and by the number of cells, C·K."""
        cell, written, asked = self._cells(batch.x)
        last, _ = earlier(cell, written)
        distance = np.where(asked & (last >= 0), np.arange(batch.x.shape[1]) - last, 0)
        return {"distance": octave(distance), "cells": asked.sum(axis=1, keepdims=True)}

    def tests(self) -> Mapping[str, Task]:
        """Twice the keys, twice the contexts, and both, named ``CxK``, as far as there is room."""
        contexts, keys = self.span("contexts")[1], self.span("keys")[1]
        sizes = [(contexts, 2 * keys), (2 * contexts, keys), (2 * contexts, 2 * keys)]
        return self.further({f"{c}x{k}": {"contexts": c, "keys": k} for c, k in sizes})

    def text(self, batch: Batch, index: int) -> str:
        """The table as ``c0 k1:v4 k0:v7``, then the questions with their answers as ``k0=v7``."""
        x, words, sign = batch.x[index].tolist(), [], ":"
        for at, token in enumerate(x):
            if token >= self._first_context:
                words.append(f"c{token - self._first_context}")
            elif token >= self._first_key:
                words.append(f"k{token - self._first_key}{sign}v{x[at + 1] - FIRST}")
            elif token == SEP:
                words.append("|")
                sign = "="
        return " ".join(words)
