from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Slices, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask
from lrtasks.spec import IGNORED, Batch, Sample, Spec

WINDOW = 8
MAX_ORDER = 2**16

# DeltaProduct (arXiv:2502.10297) and its code: 100 epochs of 100,000 sequences in batches of 2,048.
SMALL = budget(batch_size=64)
PAPER = {"length": 128, **budget(steps=4883, batch_size=2048, lr=1e-3, schedule="cosine", train_samples=100_000)}
PAPER |= budget(eval_every=488, val_batches=4, test_batches=20)


@registry.register("word-problem")
@dataclass(frozen=True)
class WordProblem(TokenTask):
    """Multiply group elements from left to right; at every position give the product so far.

    ``length`` elements of ``group`` are drawn independently and uniformly, and ``y[t] = x[0] · x[1] · … · x[t]``.
    Elements of Zn are 0..n-1 with addition. Elements of Sn are the permutations of (1..n) in lexicographic order;
    number 0 is the identity, and the product is (a · b)(i) = a(b(i)). Elements of An are the even permutations in the
    same order. Element i·|B| + j of AxB is the pair (i, j). With ``tokens="generators"`` only generators are drawn,
    numbered in the order of the elements: for Sn the identity and the transpositions, for An the identity and the
    3-cycles. For Zn they are the steps -1, 0, 1 as tokens 0, 1, 2; for AxB the pairs of both.

    Source: Merrill et al., "The Illusion of State in State-Space Models" (arXiv:2404.08819), section 5; lengths and
    groups of Siems et al., "DeltaProduct" (arXiv:2502.10297), section 5.

    On a task object, ``group`` is the parameter. On the class it is the capability, as for all tasks.

    >>> S3 = WordProblem(length=3)
    >>> S3.answer([1, 2, 1]).tolist(), S3.named([1, 4, 5])
    ([1, 4, 5], ['132', '312', '321'])
    """

    grows: ClassVar[tuple[str, ...]] = ("length",)

    presets: ClassVar[Presets] = {
        "small": {"group": "S3", "length": 64, **SMALL},
        **{name.lower(): {"group": name, "length": 64, **SMALL} for name in ("Z2", "Z60", "S3", "A4", "S4", "S5")},
        # an LSTM can solve this; on a5-hard it has 0.03 after 2,000 steps
        "a5": {"group": "A5", "length": 12, "tokens": "generators", **budget(batch_size=64, lr=3e-3, steps=4000)},
        "a5-hard": {"group": "A5", "length": 64, **SMALL},
        "a4xz5": {"group": "A4xZ5", "length": 64, **SMALL},
        "paper": {"group": "S3", **PAPER},
        **{f"paper-{name.lower()}": {"group": name, **PAPER} for name in ("S3", "S4", "A5", "S5")},
    }

    group: str = parameter(  # type: ignore[misc]
        "S3", "group: Zn (n = 2..120), Sn or An (n = 3..5), or a product of some, such as A4xZ5"
    )
    length: int = parameter(128, "number of elements", at_least=1, at_most=MAX_LENGTH)
    tokens: Literal["all", "generators"] = parameter("all", "input elements: the whole group, or generators only")
    labels: Literal["every", "last"] = parameter("every", "labelled positions: all, or only the last")

    def check(self) -> None:
        if self.order > MAX_ORDER:
            self.refuse(f"group {self.group} has {self.order} elements, at most {MAX_ORDER} are allowed")

    @functools.cached_property
    def _factors(self) -> list[str]:
        """Names of the groups of the product."""
        factors = self.group.split("x")
        for factor in factors:
            kind, size = factor[:1], factor[1:]
            smallest, largest = (2, 120) if kind == "Z" else (3, 5)
            if not re.fullmatch(r"[ZSA][1-9][0-9]{0,2}", factor) or not smallest <= int(size) <= largest:
                groups = "Zn (n = 2..120), Sn or An (n = 3..5), or a product of these such as A4xZ5"
                self.refuse(f"group must be {groups}, found {self.group!r}")
        return factors

    @functools.cached_property
    def order(self) -> int:
        """Number of elements of the group."""
        return math.prod(self._orders)

    @functools.cached_property
    def _orders(self) -> tuple[int, ...]:
        """Number of elements of each group of the product; the elements are numbered in C order."""
        return tuple(len(_table(factor)) for factor in self._factors)

    @functools.cached_property
    def _alphabet(self) -> np.ndarray:
        """The element that each token stands for."""
        if self.tokens == "all":
            return np.arange(self.order)
        generators = np.ix_(*(_generators(factor) for factor in self._factors))
        return np.ravel_multi_index(generators, self._orders).ravel()

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, len(self._alphabet))

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, self.order)

    def sample(self, rng: np.random.Generator) -> Sample:
        x = rng.integers(len(self._alphabet), size=self.length)
        return Sample(x, self.label(x))

    def label(self, x: np.ndarray) -> np.ndarray:
        elements = self._alphabet[x]
        parts = []
        for factor, part in zip(self._factors, np.unravel_index(elements, self._orders), strict=True):
            if factor[0] == "Z":
                parts.append(np.cumsum(part) % int(factor[1:]))
            else:
                rows = _rows(factor)
                state, products = 0, []  # element 0 is the identity
                for element in part.tolist():
                    state = rows[state][element]
                    products.append(state)
                parts.append(np.array(products))
        y = np.ravel_multi_index(tuple(parts), self._orders)
        if self.labels == "last":
            y[:-1] = IGNORED
        return y

    def _multiplied(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Multiply two arrays of elements entry by entry."""
        pairs = zip(np.unravel_index(left, self._orders), np.unravel_index(right, self._orders), strict=True)
        products = [_table(factor)[pair] for factor, pair in zip(self._factors, pairs, strict=True)]
        return np.ravel_multi_index(tuple(products), self._orders)

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent element, and the product of the last 8, which is right at the first 8 positions.

        Sequences of at most 8 elements have no such product: it would always be right.
        """
        local = {f"window-{WINDOW}": self.rule(self._window)} if self.length > WINDOW else {}
        return {**super().baselines(), **local}

    def _window(self, x: np.ndarray) -> np.ndarray:
        elements = self._alphabet[x]
        products: np.ndarray = elements
        for back in range(1, min(WINDOW, elements.shape[1])):
            # padding is element 0, the identity, which does not change shorter products
            products = self._multiplied(np.pad(elements, ((0, 0), (back, 0)))[:, : elements.shape[1]], products)
        return products

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by position, from 1, in octaves, and by last position (1) or other position (0)."""
        positions = np.arange(1, batch.x.shape[1] + 1)
        return {"position": octave(positions), "last": (positions == len(positions)).astype(np.int64)}

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Return ``last_accuracy``: the accuracy at the last position."""
        return {"last_accuracy": next(row["accuracy"] for row in slices["last"] if row["label"] == 1)}

    def named(self, elements: Any) -> list[str]:
        """Return elements in usual notation: a number for Zn, a permutation's second row for Sn and An."""
        parts = np.unravel_index(np.asarray(elements), self._orders)
        columns = [_names(factor)[part].tolist() for factor, part in zip(self._factors, parts, strict=True)]
        return [",".join(row) for row in zip(*columns, strict=True)]

    def text(self, batch: Batch, index: int) -> str:
        """Return the elements, then the products that are asked."""
        x, y = self._alphabet[batch.x[index]], batch.y[index]
        return f"{' '.join(self.named(x))} | {' '.join(self.named(y[y >= 0]))}"


@functools.lru_cache(maxsize=64)
def _permutations(name: str) -> np.ndarray:
    """Return the permutations of Sn or An in lexicographic order, entries from 0."""
    every = np.array(list(itertools.permutations(range(int(name[1:])))))
    if name[0] == "S":
        return every
    above = np.triu(np.ones((every.shape[1], every.shape[1]), dtype=bool))
    inversions = ((every[:, :, None] > every[:, None, :]) & above).sum(axis=(1, 2))
    return every[inversions % 2 == 0]


@functools.lru_cache(maxsize=64)
def _table(name: str) -> np.ndarray:
    """Return the products of all pairs of elements of one group, ``(order, order)``."""
    if name[0] == "Z":
        steps = np.arange(int(name[1:]))
        return np.asarray((steps[:, None] + steps) % len(steps))
    permutations = _permutations(name)
    weights = permutations.shape[1] ** np.arange(permutations.shape[1])[::-1]
    return np.asarray(np.searchsorted(permutations @ weights, permutations[:, permutations] @ weights))


@functools.lru_cache(maxsize=64)
def _rows(name: str) -> list[list[int]]:
    """Return :func:`_table` as lists, which a loop in Python reads faster."""
    return _table(name).tolist()


def _generators(name: str) -> list[int]:
    """Return elements that generate one group, including the identity."""
    if name[0] == "Z":
        return [int(name[1:]) - 1, 0, 1]
    permutations = _permutations(name)
    moved = (permutations != np.arange(permutations.shape[1])).sum(axis=1)
    return np.flatnonzero((moved == 0) | (moved == (2 if name[0] == "S" else 3))).tolist()


@functools.lru_cache(maxsize=64)
def _names(name: str) -> np.ndarray:
    if name[0] == "Z":
        return np.arange(int(name[1:])).astype(str)
    return np.array(["".join(str(entry + 1) for entry in row) for row in _permutations(name)])


WordProblem.group = "state"  # the capability; the parameter of a task object hides it
