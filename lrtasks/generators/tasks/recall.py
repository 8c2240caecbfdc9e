from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask
from lrtasks.spec import IGNORED, Batch, Sample, Spec

WINDOW = 64


@registry.register("recall")
@dataclass(frozen=True)
class Recall(TokenTask):
    """Read many pairs of a key and a value; return the value of the queried key.

    Let V = ``vocab``. Keys are tokens 1..V/2-1, values V/2..V-2, the query mark is V-1, and 0 is not used. Each sample
    has its own value for every key, drawn with replacement. The keys of its pairs are also drawn with replacement; the
    queried key is drawn among the keys that occurred. Input: ``length`` tokens of pairs, the mark, the queried key.
    Target: the value, at the last position; in training, by default, the next token at every position. Source: Poli et
    al., "Hyena Hierarchy: Towards Larger Convolutional Language Models" (arXiv:2302.10866), section 4.1; the
    Focus paper, Table 1.

    The task is local, because keys recur often. At any length, the last occurrence of the queried key is at most 64
    tokens before the query in 90 % of the samples, and at most 128 tokens before it in 99 %. The score at a great
    ``length`` therefore says little about long memory. With ``distance`` the queried key occurs once, at that distance.

    >>> [round(Recall(length=1024).share_within(tokens), 2) for tokens in (64, 128)]
    [0.9, 0.99]
    >>> Recall(length=4, vocab=8, supervise="answer").answer(np.array([3, 5, 1, 4, 7, 3])).tolist()
    [-100, -100, -100, -100, -100, 5]
    """

    group: ClassVar[str] = "retrieval"
    grows: ClassVar[tuple[str, ...]] = ("length",)
    any_length: ClassVar[bool] = False
    presets: ClassVar[Presets] = {
        # Fresh samples, not the papers' 2,000 samples: models of this size memorise those.
        "small": {"length": 64, **budget(batch_size=64, steps=1500)},
        # Focus and Hyena papers: 2,000 samples, 200 epochs (10 of warm-up) of 62 batches, about 500 test sequences.
        "paper": {"length": 1024, **budget(steps=12400, batch_size=32, weight_decay=0.1, betas=(0.9, 0.98))}
        | budget(schedule="cosine", warmup_steps=620, train_samples=2000)
        | budget(eval_every=620, val_batches=16, test_batches=16),
    }

    length: int = parameter(1024, "tokens in the section of pairs, two per pair", at_least=2, at_most=MAX_LENGTH - 2)
    vocab: int = parameter(30, "vocabulary size V: V/2 - 1 keys, V/2 - 1 values, two others", at_least=6, at_most=2**20)
    supervise: Literal["all", "answer"] = parameter(
        "all", "training labels: the next token at every position, or the answer alone; val and test: the answer"
    )
    distance: tuple[int, int] | None = parameter(
        None, "the queried key occurs once, this many tokens before the query (log-uniform); none: as in the papers"
    )

    def check(self) -> None:
        for name in ("length", "vocab"):
            if getattr(self, name) % 2:
                self.refuse(f"{name} must be even, found {getattr(self, name)}")
        if self.distance is None:
            return
        nearest, farthest = self.distance
        if not 3 <= nearest <= farthest <= self.length + 1 or (nearest == farthest and nearest % 2 == 0):
            limits = f"3..{self.length + 1}, in ascending order, with an odd number in their range"
            self.refuse(f"distance must be two numbers in {limits}, found {list(self.distance)}")

    @property
    def keys(self) -> int:
        """Number of different keys, and of different values."""
        return self.vocab // 2 - 1

    @property
    def input(self) -> Spec:
        return Spec("token", self.length + 2, self.vocab)

    def share_within(self, tokens: int) -> float:
        """Return the share of samples whose queried key last occurred at most ``tokens`` tokens before the query.

        This holds for ``distance=None``, up to the chance that a key does not occur at all, (1 - 1/keys)^(length/2).
        """
        return 1 - (1 - 1 / self.keys) ** min((tokens - 1) // 2, self.length // 2)

    def sample(self, rng: np.random.Generator) -> Sample:
        pairs = self.length // 2
        values = rng.integers(self.keys + 1, 2 * self.keys + 1, size=self.keys)
        if self.distance is None:
            keys = rng.integers(1, self.keys + 1, size=pairs)
            present = np.flatnonzero(np.bincount(keys))
            # equivalent: draw from all keys; if that key is absent, draw from the present keys
            query = present[rng.integers(len(present))]
        else:
            query = rng.integers(1, self.keys + 1)
            keys = rng.integers(1, self.keys, size=pairs)
            keys += keys >= query
            # the key is j pairs before the mark, at distance 2j + 1
            low, high = self.distance[0] // 2, (self.distance[1] - 1) // 2
            distance = (2 * low + 1) * ((2 * high + 3) / (2 * low + 1)) ** rng.random()
            keys[pairs - min(int(distance - 1) // 2, high)] = query
        x = np.empty(self.length + 2, dtype=np.int64)
        x[0 : self.length : 2] = keys
        x[1 : self.length : 2] = values[keys - 1]
        x[-2:] = self.vocab - 1, query
        y = self.label(x)
        if self.supervise == "all" and not self.testing:
            y[:-1] = x[1:]
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the answer alone as label, without the training labels that ``supervise="all"`` adds."""
        y = np.full(self.length + 2, IGNORED)
        (last,), _ = _last_occurrence(x[None])
        y[-1] = x[last + 1]
        return y

    def verify(self, tokens: np.ndarray) -> None:
        keys, values = tokens[:-2:2], tokens[1:-2:2]
        if tokens[-2] != self.vocab - 1 or tokens[-1] not in keys:
            self.refuse(f"the last two tokens are the mark {self.vocab - 1} and one of the sample's keys")
        if len(np.unique(np.stack([keys, values]), axis=1).T) != len(np.unique(keys)):
            self.refuse("a key occurs with two values")
        self.allow(keys, 1, self.keys + 1, "keys", 0, 2)
        self.allow(values, self.keys + 1, 2 * self.keys + 1, "values", 1, 2)

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent answer and, from length 256, the answer looked up in the last 64 tokens alone.

        The second baseline shows how local the samples are. In shorter samples, its window covers almost everything.
        """
        local = {f"window-{WINDOW}": self.rule(window_lookup)} if self.length >= 4 * WINDOW else {}
        return {"majority": self.majority(), **local}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance to the key's last occurrence and by its occurrences, both in octaves."""
        last, occurrences = _last_occurrence(batch.x)
        distance = batch.x.shape[1] - 1 - last
        return {"distance": octave(distance)[:, None], "occurrences": octave(occurrences)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """Return the pairs as ``key:value`` (keys k1, k2, ..., values v1, v2, ...), then the query and its answer."""
        x, answer = batch.x[index], batch.y[index, -1]
        pairs = (f"k{key}:v{value - self.keys}" for key, value in zip(x[:-2:2], x[1:-2:2], strict=True))
        return f"{' '.join(pairs)} => k{x[-1]} : v{answer - self.keys}"


def window_lookup(x: np.ndarray) -> np.ndarray:
    """Return the value at the queried key's last occurrence within 64 tokens, or the last value if there is none."""
    last, _ = _last_occurrence(x)
    found = x.shape[1] - 1 - last <= WINDOW
    return np.where(found, x[np.arange(len(last)), last + 1], x[:, -3])[:, None]


def _last_occurrence(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the position of the queried key's last occurrence in the pairs, and its occurrences; ``(batch,)`` each."""
    hits = x[:, :-2:2] == x[:, -1:]
    return 2 * (hits.shape[1] - 1 - hits[:, ::-1].argmax(axis=1)), hits.sum(axis=1)
