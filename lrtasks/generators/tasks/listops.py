"""ListOps: evaluate every sub-expression of a long nested expression (ListOps-SubTrees), or the whole one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError, require_whole
from lrtasks.generators import listops, tables
from lrtasks.generators.base import Rngs, Task, budget, column, registry
from lrtasks.generators.baselines import Baseline, MajorityClass, octave
from lrtasks.spec import IGNORED, Batch, Sample, Spec

SETTINGS = {
    "small": listops.Limits(min_length=63, max_length=257, max_depth=6, max_args=10),
    "lra-like": listops.Limits(min_length=1500, max_length=2000, max_depth=10, max_args=10),
    "paper": listops.Limits(min_length=7000, max_length=8180, max_depth=15, max_args=9),
}
ROUNDED_TO = 64
LIMIT = 2**15


@registry.register("listops")
@dataclass(frozen=True)
class ListOps(Task):
    """At every closing bracket, give the value of the sub-expression that it closes.

    Expressions are nested operators MIN, MAX, MED (median, rounded down) and SM (sum modulo 10) of digits. A node above
    the depth limit is an operator with probability 1/4; all other choices are uniform. Only expressions within the
    length limits are kept. Tokens: 0..9 are the digits, 10..13 ``[MIN`` ``[MAX`` ``[MED`` ``[SM``, 14 ``]``, 15 padding
    (on the right, to a multiple of 64). The further tests have longer expressions with the same limit on arguments.
    They are deeper only if their length needs it; the smallest length grows with the largest. Sources: Nangia and
    Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning" (arXiv:1804.06028); Tay et al., "Long Range Arena"
    (arXiv:2011.04006), section 2.2.1; DLR paper (arXiv:2212.00768), section 3.2 (a label for every sub-expression, and
    the setting ``paper``).

    >>> task = ListOps(setting="small", min_length=10, max_length=13)
    >>> task.input.length, task.limits.max_depth
    (64, 6)
    >>> x = np.full(64, listops.PAD)
    >>> x[:15] = listops.parse("[MAX 2 6 [MED [SM 3 1 6 ] 8 3 ] 4 5 ]")
    >>> y = task.answer(x)
    >>> {int(position): int(y[position]) for position in np.flatnonzero(y >= 0)}
    {8: 0, 11: 3, 14: 6}
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"
    group: ClassVar[str] = "structure"

    presets: ClassVar[Presets] = {
        "small": {"setting": "small", "min_length": 6, "max_length": 12, "max_depth": 3, "max_args": 2}
        | budget(batch_size=64, steps=3000, schedule="linear"),
        "small-hard": {"setting": "small"},
        # DLR paper, Table 3.
        "paper": {"setting": "paper", **budget(steps=300_000, batch_size=32, schedule="cosine", warmup_steps=5000)}
        | budget(eval_every=3000, test_batches=63),
    }

    setting: str = parameter("paper", "named set of limits on length, depth and arguments", choices=(*SETTINGS,))
    min_length: int | None = parameter(None, "exclusive lower limit of tokens; none: that of `setting`", at_least=1)
    max_length: int | None = parameter(None, "exclusive upper limit of tokens; none: that of `setting`", at_most=LIMIT)
    max_depth: int | None = parameter(
        None, "depth where all nodes are digits; the root has depth 1; none: that of `setting`", at_least=2, at_most=64
    )
    max_args: int | None = parameter(
        None, "maximum number of arguments per operator; none: that of `setting`", at_least=2, at_most=16
    )

    def check(self) -> None:
        for field, default in SETTINGS[self.setting]._asdict().items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, default)
        tiny = ListOps.presets["small"]
        if self.setting != tiny["setting"] and all(getattr(self, name) == tiny[name] for name in self.limits._fields):
            hint = f"take a preset without limits, such as {self._title()}@small-hard"
            raise UsageError(f"setting={self.setting} has no effect on the limits that preset small gives; {hint}")
        listops.check_limits(self._title(), self.limits)

    @property
    def limits(self) -> listops.Limits:
        """Limits on length, depth and arguments in use; the setting provides those that were not given."""
        return listops.Limits(*(getattr(self, field) for field in listops.Limits._fields))

    @property
    def pad(self) -> int:
        return listops.PAD

    @property
    def input(self) -> Spec:
        longest = self.limits.max_length - 1
        return Spec("token", -(-longest // ROUNDED_TO) * ROUNDED_TO, len(listops.VOCABULARY))

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, 10)

    @property
    def nominal_length(self) -> int:
        """Number of tokens of the longest expression."""
        return self.limits.max_length - 1

    def at_length(self, length: int) -> ListOps:
        """Return the task for expressions of at most ``length`` tokens, with ``min_length`` scaled in proportion.

        Expressions are deeper than in this task only if ``length`` tokens need more depth.
        """
        require_whole("length", length, 2, LIMIT - 1)
        min_length = self.limits.min_length * length // self.nominal_length
        limits = self.limits._replace(min_length=max(1, min_length), max_length=int(length) + 1)
        return replace(self, **listops.deep_enough(limits)._asdict())

    def tests(self) -> dict[str, Task]:
        return self.longer()

    def samples(self, rngs: Rngs) -> Batch:
        """Return a batch as the base class does. Expressions are drawn one by one and evaluated together.

        ``meta`` has, for the labelled positions of each sample in order, ``operator`` (0..3: MIN, MAX, MED, SM),
        ``height`` (1: all arguments are digits) and ``subtree_length`` (tokens, brackets included).
        """
        x = np.full((len(rngs), self.input.length), listops.PAD)
        for row, tokens in zip(x, listops.draw(rngs, self.limits), strict=True):
            row[: len(tokens)] = tokens
        return self._evaluated(x)

    def _evaluated(self, x: np.ndarray) -> Batch:
        """Return inputs ``(batch, length)`` with their targets and ``meta``."""
        found = listops.operators(x)
        y = np.full(x.shape, IGNORED)
        y[found.row, found.close] = found.value
        ends = np.searchsorted(found.row, np.arange(1, len(x)))
        details = {"operator": found.kind, "height": found.height, "subtree_length": found.length}
        meta = {name: column(np.split(values, ends)) for name, values in details.items()}
        return Batch(x, y, x != listops.PAD, meta)

    def answer(self, x: np.ndarray) -> np.ndarray:
        tokens = self.checked_input(x)
        length = int((tokens != listops.PAD).sum())
        if (tokens[:length] == listops.PAD).any() or length < 2:
            self.refuse("an input begins with an operator and has all padding on the right")
        listops.check(tokens[:length])
        return self._evaluated(tokens[None]).sample(0).y

    def baselines(self) -> dict[str, Baseline]:
        return {**super().baselines(), "majority-per-operator": MajorityClass(10, groups=4, group=self._operators)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by operator, height, length (octaves) of the sub-expression, and root (1) or not (0)."""
        found = listops.operators(batch.x)
        last = (batch.x != listops.PAD).sum(axis=1) - 1
        labels = {"operator": np.array(listops.OPERATORS)[found.kind], "height": found.height}
        labels |= {"subtree_length": octave(found.length), "root": (found.close == last[found.row]).astype(np.int64)}
        return {name: _at_brackets(batch.x, found, values) for name, values in labels.items()}

    def text(self, batch: Batch, index: int) -> str:
        return listops.render(batch.x[index])

    def to_row(self, batch: Batch, index: int) -> dict[str, str]:
        """Return the columns of the Long Range Arena and the columns for sub-expressions of the DLR paper's code."""
        return listops.subtree_columns(batch.x[index])

    def from_row(self, row: tables.Row) -> Sample:
        tokens = listops.parse(tables.cell(row, "Source"))
        return tables.padded(tokens, *self._labels(row, tokens), self.input, self.target, self.pad)

    def _labels(self, row: tables.Row, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and their positions."""
        labels, places = tables.numbers(row, "SubTreeEvals"), tables.numbers(row, "SubTreeInds")
        if not np.array_equal(np.sort(places), np.flatnonzero(tokens == listops.CLOSE)):
            raise UsageError("SubTreeInds must be the positions of the closing brackets")
        return labels, places

    def duplicate_key(self, batch: Batch, index: int) -> bytes:
        """Return the expression without its digits; the published data sets keep one expression per such template."""
        return listops.template(batch.x[index])

    def _operators(self, x: np.ndarray) -> np.ndarray:
        found = listops.operators(x)
        return _at_brackets(x, found, found.kind)


@registry.register("listops-root")
@dataclass(frozen=True)
class ListOpsRoot(ListOps):
    """Give the value of a long nested expression; tokens and expressions as in ``listops``.

    Source: Tay et al., "Long Range Arena: A Benchmark for Efficient Transformers" (arXiv:2011.04006), section 2.2.1.
    ``setting="lra-like"`` has the lengths of this paper.

    >>> task = ListOpsRoot(setting="small", min_length=10, max_length=13)
    >>> x = np.full(64, listops.PAD)
    >>> x[:15] = listops.parse("[MAX 2 6 [MED [SM 3 1 6 ] 8 3 ] 4 5 ]")
    >>> task.answer(x).tolist()
    [6]
    """

    @property
    def target(self) -> Spec:
        return Spec("token", 1, 10, pooled=True)

    def _evaluated(self, x: np.ndarray) -> Batch:
        _, y, mask, meta = super()._evaluated(x)
        root = {name: np.array([entries[-1] for entries in values]) for name, values in (meta or {}).items()}
        return Batch(x, _at_root(x, y), mask, root)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by operator, height and length (in octaves) of the whole expression."""
        labels = super().slices(batch)
        return {name: _at_root(batch.x, values) for name, values in labels.items() if name != "root"}

    def _operators(self, x: np.ndarray) -> np.ndarray:
        return _at_root(x, super()._operators(x))

    def _labels(self, row: tables.Row, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tables.numbers(row, "Target"), np.zeros(1, np.int64)


def _at_brackets(x: np.ndarray, found: listops.Operators, values: np.ndarray) -> np.ndarray:
    """Spread values of the operators over an array like ``x``, each at its closing bracket; zeros elsewhere."""
    spread: np.ndarray = np.zeros(x.shape, dtype=values.dtype)
    spread[found.row, found.close] = values
    return spread


def _at_root(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Pick, from an array like ``x``, the column of the last tokens: ``(batch, 1)``."""
    last = (x != listops.PAD).sum(axis=1, keepdims=True) - 1
    return np.take_along_axis(values, last, axis=1)
