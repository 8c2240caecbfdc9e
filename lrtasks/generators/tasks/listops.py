"""ListOps-SubTrees: evaluate every sub-expression of a long nested expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.generators import tables
from lrtasks.generators.base import Task, registry, stack
from lrtasks.generators.baselines import Baseline
from lrtasks.generators.listops import grammar, lengths, tree
from lrtasks.generators.octaves import octave
from lrtasks.spec import IGNORED, Batch, Sample, Spec

SETTINGS = {
    "small": lengths.Limits(min_length=63, max_length=257, max_depth=6, max_args=10),
    "lra-like": lengths.Limits(min_length=1500, max_length=2000, max_depth=10, max_args=10),
    "paper": lengths.Limits(min_length=7000, max_length=8180, max_depth=15, max_args=9),
}
ROUNDED_TO = 64


@registry.register("listops")
@dataclass(frozen=True)
class ListOps(Task):
    """At every closing bracket, give the value of the sub-expression that it closes.

    Expressions are nested MIN, MAX, MED (median, rounded down) and SM (sum modulo 10) of digits. A node above the depth
    limit is an operator with probability 1/4, all other choices are uniform, and of all expressions those within the
    length limits are kept. Tokens: 0..9 are the digits, 10..13 ``[MIN`` ``[MAX`` ``[MED`` ``[SM``, 14 ``]``, 15 padding
    (on the right, to a multiple of 64). Sources: Nangia and Bowman 2018 (ListOps); Long Range Arena; DLR paper, section
    3.2 (a label for every sub-expression, and the setting ``paper``).

    >>> task = ListOps(setting="small", min_length=10, max_length=13)
    >>> task.input.length, task.limits.max_depth
    (64, 6)
    >>> text = "[MAX 2 6 [MED [SM 3 1 6 ] 8 3 ] 4 5 ]"
    >>> found = grammar.operators(grammar.parse(text)[None])
    >>> dict(zip(found.close.tolist(), found.value.tolist()))
    {8: 0, 11: 3, 14: 6}
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"

    presets: ClassVar[Presets] = {
        "small": {"setting": "small"},
        # DLR paper, Table 3.
        "paper": {
            "setting": "paper",
            "budget.steps": 300000,
            "budget.batch_size": 32,
            "budget.schedule": "cosine",
            "budget.warmup_steps": 5000,
            "budget.eval_every": 3000,
            "budget.test_batches": 63,
        },
    }

    setting: str = parameter("paper", "limits on length, depth and arguments by name", choices=(*SETTINGS,))
    min_length: int | None = parameter(
        None, "expressions have more tokens than this (exclusive); none: the setting's", at_least=1
    )
    max_length: int | None = parameter(
        None, "expressions have fewer tokens than this (exclusive); none: the setting's", at_most=2**15
    )
    max_depth: int | None = parameter(
        None, "depth at which every node is a digit, the root having 1; none: the setting's", at_least=2, at_most=64
    )
    max_args: int | None = parameter(
        None, "most arguments of an operator, the least being 2; none: the setting's", at_least=2, at_most=16
    )

    def check(self) -> None:
        for field, default in SETTINGS[self.setting]._asdict().items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, default)
        lengths.check(self._title(), self.limits)

    @property
    def limits(self) -> lengths.Limits:
        """Length, depth and arguments as they are after the setting has filled in what was not given."""
        return lengths.Limits(*(getattr(self, field) for field in lengths.Limits._fields))

    @property
    def input(self) -> Spec:
        longest = self.limits.max_length - 1
        return Spec("token", -(-longest // ROUNDED_TO) * ROUNDED_TO, len(grammar.VOCABULARY))

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, 10)

    def sample(self, rng: np.random.Generator) -> Sample:
        return self._samples([rng])[0]

    def samples(self, rngs: Iterable[np.random.Generator]) -> Batch:
        """As the base class says; expressions are drawn one by one and evaluated together.

        ``meta`` has, for the labelled positions of each sample in order, ``operator`` (0..3: MIN, MAX, MED, SM),
        ``height`` (1: all arguments are digits) and ``subtree_length`` (tokens, brackets included).
        """
        return stack(self._samples(rngs))

    def _samples(self, rngs: Iterable[np.random.Generator]) -> list[Sample]:
        expressions = [tree.draw(rng, self.limits) for rng in rngs]
        x = np.full((len(expressions), self.input.length), grammar.PAD)
        for row, tokens in enumerate(expressions):
            x[row, : len(tokens)] = tokens
        found = grammar.operators(x)
        y = np.full(x.shape, IGNORED)
        y[found.row, found.close] = found.value
        ends = np.searchsorted(found.row, np.arange(1, len(x)))
        columns = [np.split(values, ends) for values in (found.kind, found.height, found.length)]
        names = ("operator", "height", "subtree_length")
        meta = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        return [Sample(*arrays) for arrays in zip(x, y, x != grammar.PAD, meta, strict=True)]

    def baselines(self) -> Mapping[str, Baseline]:
        return {**super().baselines(), "majority-per-operator": MajorityPerGroup(4, 10, self._operators)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By operator, height, length of the sub-expression (bins from each power of two), and root (1) or not (0)."""
        found = grammar.operators(batch.x)
        last = (batch.x != grammar.PAD).sum(axis=1) - 1
        labels = {
            "operator": np.array(grammar.OPERATORS)[found.kind],
            "height": found.height,
            "subtree_length": octave(found.length),
            "root": (found.close == last[found.row]).astype(np.int64),
        }
        return {name: _at_brackets(batch, found, values) for name, values in labels.items()}

    def text(self, batch: Batch, index: int) -> str:
        return grammar.render(batch.x[index])

    def to_row(self, batch: Batch, index: int) -> dict[str, str]:
        """The columns of the Long Range Arena and, for every sub-expression, those of the DLR paper's code."""
        return grammar.subtree_columns(batch.x[index])

    def from_row(self, row: tables.Row) -> Sample:
        tokens = grammar.parse(tables.cell(row, "Source"))
        sample = tables.padded(tokens, *self._labels(row, tokens), self.input, self.target, grammar.PAD)
        return sample._replace(mask=sample.x != grammar.PAD)

    def _labels(self, row: tables.Row, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels and their positions."""
        labels, places = tables.numbers(row, "SubTreeEvals"), tables.numbers(row, "SubTreeInds")
        if not np.array_equal(np.sort(places), np.flatnonzero(tokens == grammar.CLOSE)):
            raise UsageError("SubTreeInds must be the positions of the closing brackets")
        return labels, places

    def fingerprint(self, batch: Batch, index: int) -> bytes:
        """The expression without its digits: the published data sets keep one expression of each such template."""
        return grammar.template(batch.x[index])

    def _operators(self, batch: Batch) -> np.ndarray:
        found = grammar.operators(batch.x)
        return _at_brackets(batch, found, found.kind)


class MajorityPerGroup:
    """The most frequent class of the training targets within each group of positions.

    Args:
        groups: number of groups.
        classes: number of classes.
        group: gives, for a batch, the group 0..groups-1 of each element of ``y``; ignored elements may have any.
    """

    def __init__(self, groups: int, classes: int, group: Callable[[Batch], np.ndarray]) -> None:
        self._counts = np.zeros((groups, classes), dtype=np.int64)
        self._group = group

    def fit(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            labelled = batch.y >= 0
            np.add.at(self._counts, (self._group(batch)[labelled], batch.y[labelled]), 1)

    def predict(self, batch: Batch) -> np.ndarray:
        prediction: np.ndarray = self._counts.argmax(axis=1)[self._group(batch)]
        return prediction


def _at_brackets(batch: Batch, found: grammar.Operators, values: np.ndarray) -> np.ndarray:
    """Spread values of the operators over an array like ``batch.x``, each at its closing bracket; zeros elsewhere."""
    spread: np.ndarray = np.zeros(batch.x.shape, dtype=values.dtype)
    spread[found.row, found.close] = values
    return spread
