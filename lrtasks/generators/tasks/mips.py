from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import budget, registry
from lrtasks.generators.signals import SignalTask, unit_vectors
from lrtasks.spec import Spec

MIPS_BLOCK = 2**17
"""Number of inner products that ``mips`` holds at once: this many float64 values fit into the cache of one core."""

MIPS_LONGEST = 2**17
"""Largest length of ``mips``, which compares all pairs of positions: a sample then takes several seconds."""


@registry.register("mips")
@dataclass(frozen=True)
class Mips(SignalTask):
    """At each position, give the value whose key is nearest to the query among the keys so far.

    Each position holds a query q, a key k and a value v, random unit vectors of dimension D = ``dim``;
    ``y[t] = v[argmax_{j <= t} q_t·k_j]``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> q, k, v = [1, 1, -1], [1, -1, -1], [0.5, 0.25, 0.75]
    >>> x = np.column_stack([q, k, v, np.zeros((3, 2))])
    >>> Mips(length=3, dim=1).answer(x)[:, 0].tolist()  # keys 0, 0 and 1
    [0.5, 0.5, 0.25]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"length": 64, **budget(batch_size=32)},
        "small-hard": {"length": 256},
        # DLR paper: batches of 4, but 16 for the other atomic tasks; the number of samples is the same.
        "paper": {"length": 4096}
        | budget(steps=172800, batch_size=4, eval_every=14400, val_batches=160, test_batches=1600),
    }

    length: int = parameter(4096, "sequence length L; time grows with its square", at_least=2, at_most=MIPS_LONGEST)
    dim: int = parameter(4, "dimension D of queries, keys and values", at_least=1, at_most=4096)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3 * self.dim + 2)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.dim)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        x[:, :-2] = unit_vectors(rng, self.length, 3, self.dim).reshape(self.length, -1)
        self.respond(x, y)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        queries, keys, values = x[:, :-2].reshape(self.length, 3, self.dim).transpose(1, 0, 2)
        y[:] = values[nearest_so_far(queries, keys)]


def nearest_so_far(queries: np.ndarray, keys: np.ndarray, block: int = MIPS_BLOCK) -> np.ndarray:
    """Return ``argmax_{j <= t} q_t·k_j`` for each t, ``(length,)``, from two ``(length, dim)``; the first of ties.

    A few queries are processed at a time, so that about ``block`` inner products are held at once (``length`` if this
    is more). Products are float64: with float32, near ties would depend on the platform's order of summation.
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
