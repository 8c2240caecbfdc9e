"""MIPS: maximum inner product search, the hard form of causal attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, registry
from lrtasks.generators.signals import unit_vectors, with_positions
from lrtasks.spec import Sample, Spec

BLOCK = 2**17
"""Inner products held at once; this many float64 fit into a core's own cache."""


@registry.register("mips")
@dataclass(frozen=True)
class Mips(Task):
    """At each position, find among the keys so far the one nearest to the query and give the value beside it.

    Each position holds a query q, a key k and a value v, random unit vectors of dimension D = ``dim``;
    ``y[t] = v[argmax_{j <= t} q_t·k_j]``. Source: DLR paper, section 3.1.
    """

    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        # DLR paper: batches of 4 where the other atomic tasks have 16, over as many samples.
        "paper": {
            "length": 4096,
            "budget.steps": 172800,
            "budget.batch_size": 4,
            "budget.eval_every": 14400,
            "budget.val_batches": 160,
            "budget.test_batches": 1600,
        },
    }

    length: int = parameter(4096, "sequence length L", at_least=2, at_most=MAX_LENGTH)
    dim: int = parameter(4, "dimension D of queries, keys and values", at_least=1, at_most=4096)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3 * self.dim + 2)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.dim)

    def sample(self, rng: np.random.Generator) -> Sample:
        vectors = unit_vectors(rng, self.length, 3, self.dim).astype(np.float32)
        queries, keys, values = vectors.transpose(1, 0, 2)
        return Sample(with_positions(vectors.reshape(self.length, -1)), values[nearest_so_far(queries, keys)])


def nearest_so_far(queries: np.ndarray, keys: np.ndarray, block: int = BLOCK) -> np.ndarray:
    """``argmax_{j <= t} q_t·k_j`` for each t, the first of equal ones; ``(length,)`` from two ``(length, dim)``.

    Queries are taken a few at a time, so that about ``block`` inner products are held at once (``length`` if that is
    more). Computed in float64: with float32 products, near ties would depend on the platform's summation.
    """
    length = len(queries)
    rows = max(1, min(length, block // length))
    queries = queries.astype(np.float64)
    keys = np.ascontiguousarray(keys.T, dtype=np.float64)
    future = np.triu(np.ones((rows, rows), bool), 1)
    best = np.empty(length, np.int64)
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        scores = queries[start:stop] @ keys[:, :stop]
        scores[:, start:][future[: stop - start, : stop - start]] = -np.inf
        scores.argmax(axis=1, out=best[start:stop])
    return best
