from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Slices, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask, gathered, last_where, padded_sample
from lrtasks.spec import IGNORED, Batch, Sample, Spec

# Hewitt et al.: batches of 10, Adam at 1e-2, one of their training sets (2 million tokens).
GENERIC = {"kinds": 8, "length": 128, "stay": 0.7, "close": "generic"}
PAPER = {"close": "typed", "stay": 0.5}
PAPER |= budget(batch_size=10, lr=1e-2, steps=20_000, eval_every=1000, test_batches=200)

PAIRS = "()[]{}<>"

MAX_WHOLE = 2**16

MIN_SHARE = 0.05
"""Smallest allowed share of strings that are short enough; longer strings are drawn again."""


@registry.register("dyck")
@dataclass(frozen=True)
class Dyck(TokenTask):
    """Say which kind of bracket closes next.

    A sample is a string of brackets of K = ``kinds`` kinds; at most ``depth`` brackets are open at once. At depth 0 the
    next bracket opens, and at the largest depth it closes. At other depths it does the same as the bracket before
    (opens or closes) with probability ``stay``. The kind of an opening bracket is uniform. The string is cut at
    ``length``, so brackets may stay open.

    An opening bracket of kind k is token k. With ``close="typed"`` a closing bracket of kind k is token K + k, and the
    label is at each token before a closing bracket: the kind of that bracket. With ``close="generic"`` all closing
    brackets are token K, and the label is at the closing bracket itself: the kind that it closes.

    With ``whole=(lo, hi)`` a string of at least lo tokens ends with probability 1/2 wherever no bracket is open; a
    string of more than hi tokens is drawn again. The token END, 2K, and padding, 2K + 1, follow the string.

    Source: Hewitt et al., "RNNs can generate bounded hierarchical languages with optimal memory" (arXiv:2010.07515),
    sections 2 and 5. The paper has ``whole``, ``typed`` and ``stay=0.5``.

    >>> Dyck(kinds=2, close="generic").answer([0, 1, 2, 0, 2, 2]).tolist()
    [-100, -100, 1, -100, 0, 0]
    >>> task = Dyck(kinds=2)
    >>> task.answer([0, 1, 3, 0, 2, 2]).tolist()
    [-100, 1, -100, 0, 0, -100]
    """

    group: ClassVar[str] = "structure"
    presets: ClassVar[Presets] = {
        "small": {**GENERIC, "depth": 4, **budget(batch_size=64)},
        "small-hard": {**GENERIC, "depth": 8, **budget(batch_size=64)},
        "paper": {"kinds": 8, "depth": 5, "whole": (2, 180), **PAPER},
        "paper-3": {"kinds": 8, "depth": 3, "whole": (2, 84), **PAPER},
    }

    kinds: int = parameter(8, "number of bracket kinds K", at_least=1, at_most=2**19)
    depth: int = parameter(8, "maximum number of brackets open at once", at_least=1, at_most=4096)
    length: int = parameter(128, "sequence length; not used with whole", at_least=2, at_most=MAX_LENGTH)
    stay: float = parameter(0.5, "probability of repeating the previous step (open or close)", at_least=0, at_most=1)
    close: Literal["typed", "generic"] = parameter("typed", "closing tokens: one for each kind, or one for all kinds")
    whole: tuple[int, int] | None = parameter(
        None, "minimum and maximum length of strings that end with no open bracket; none: cut at length"
    )

    def check(self) -> None:
        if self.whole is None:
            if self.stay == 1 and self.depth >= self.length:
                self.refuse(f"with stay 1 and depth {self.depth}, no bracket closes in {self.length} tokens")
            return
        shortest, longest = self.span("whole")
        if shortest < 2 or longest > MAX_WHOLE or shortest == longest == shortest // 2 * 2 + 1:
            limits = f"2..{MAX_WHOLE}, with an even number in their range"
            self.refuse(f"whole must be two numbers in {limits}, found {list(self.whole)}")
        share = _share_within(self.whole, self.depth, self.stay)
        if share < MIN_SHARE:
            found = f"{share:.1%} of those of at least {shortest}, {MIN_SHARE:.0%} are needed"
            where = f"at depth {self.depth} and stay {self.stay}"
            self.refuse(f"{where} too few strings have {shortest} to {longest} tokens: {found}")

    @property
    def _end(self) -> int:
        """The token END."""
        return 2 * self.kinds

    @property
    def pad(self) -> int:
        return self._end + 1

    @property
    def input(self) -> Spec:
        return Spec("token", self.length if self.whole is None else self.whole[1] + 1, self._end + 2)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, self.kinds)

    @property
    def nominal_length(self) -> int | None:
        """The length, or None for whole strings, whose lengths differ."""
        return self.length if self.whole is None else None

    def sample(self, rng: np.random.Generator) -> Sample:
        opens = self._opens(rng)
        length = len(opens)
        x, closed = self._typed(opens, rng.integers(self.kinds, size=length).tolist())
        y = self._labels(closed)
        if self.whole is None:
            return Sample(x, y)
        return padded_sample(np.append(x, self._end), y, self.input.length, self.pad)

    def _opens(self, rng: np.random.Generator) -> list[bool]:
        """Draw a string: for each bracket, whether it opens."""
        shortest, count = (math.inf, self.length) if self.whole is None else (self.whole[0], self.whole[1] + 1)
        while True:
            opens: list[bool] = []
            depth, opening = 0, True
            for chance in rng.random(count).tolist():
                if depth == 0 and chance < 0.5 and len(opens) >= shortest:
                    return opens
                opening = depth == 0 or (depth < self.depth and opening == (chance < self.stay))
                depth += 1 if opening else -1
                opens.append(opening)
            if self.whole is None:
                return opens

    def _typed(self, opens: list[bool], kinds: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of brackets, and the kind that each token closes (or IGNORED)."""
        tokens, closed, stack = [], [], []
        for opening, kind in zip(opens, kinds, strict=True):
            if opening:
                stack.append(kind)
                tokens.append(kind)
                closed.append(IGNORED)
            else:
                closed.append(stack.pop())
                tokens.append(self.kinds + (closed[-1] if self.close == "typed" else 0))
        return np.array(tokens), np.array(closed)

    def _labels(self, closed: np.ndarray) -> np.ndarray:
        """Return labels: the kind that a token closes, at this token (generic) or one token before (typed)."""
        return closed if self.close == "generic" else np.append(closed[1:], IGNORED)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the labels of brackets, which END (2K) and padding (2K + 1) may follow; refuse other strings."""
        count = int((x < self._end).argmin()) if (x >= self._end).any() else len(x)
        if (x[count:] < self._end).any():
            self.refuse(f"no bracket may follow END or padding, found {x[count]} at position {count}")
        closed, stack = np.full(len(x), IGNORED), []
        for place, token in enumerate(x[:count].tolist()):
            if token < self.kinds:
                stack.append(token)
                if len(stack) > self.depth:
                    self.refuse(f"more than {self.depth} brackets are open at position {place}")
                continue
            if self.close == "generic" and token != self.kinds:
                self.refuse(f"a closing is token {self.kinds}, found {token} at position {place}")
            if not stack:
                self.refuse(f"the bracket at position {place} closes nothing")
            closed[place] = stack.pop()
            kind = token - self.kinds
            if self.close == "typed" and kind != closed[place]:
                self.refuse(f"the bracket at position {place} must close kind {closed[place]}, found kind {kind}")
        return self._labels(closed)

    def tests(self) -> dict[str, Task]:
        """Return tests at 2, 4 and 8 times the length; for whole strings, one test with hi + 1 to 2 hi tokens."""
        if self.whole is None:
            return self.longer()
        most = self.whole[1]
        return self.further({"2x": {"whole": (most + 1, 2 * most)}})

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent kind, and the kind of the last opening bracket so far, closed or not."""
        last = self.rule(lambda x: gathered(x, last_where(x < self.kinds)))
        return {**super().baselines(), "last-opening": last}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance from closing to opening bracket, in octaves, and by number of open brackets."""
        step = np.where(batch.x < self.kinds, 1, np.where(batch.x < self._end, -1, 0))
        after = np.cumsum(step, axis=1)
        open_at = np.where(step < 0, after + 1, after)  # open brackets, with the bracket itself
        distance = np.zeros(batch.x.shape, dtype=np.int64)
        positions = np.arange(batch.x.shape[1])
        for depth in range(1, int(open_at.max()) + 1):
            closing = (step < 0) & (open_at == depth)
            opening = last_where((step > 0) & (open_at == depth))
            distance[closing] = (positions - opening)[closing]
        if self.close == "typed":
            distance, open_at = (np.pad(array[:, 1:], ((0, 0), (0, 1))) for array in (distance, open_at))
        return {"distance": octave(distance), "depth": open_at}

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Return ``distance_mean``: the mean of the accuracies over the octaves of the distance."""
        return {"distance_mean": float(np.mean([row["accuracy"] for row in slices["distance"]]))}

    def text(self, batch: Batch, index: int) -> str:
        """Return the brackets, with numbers if over four kinds; generic closings as ``)``, then what they close."""
        x, y = batch.x[index], batch.y[index]
        names = [PAIRS[2 * k] if self.kinds <= 4 else f"({k}" for k in range(self.kinds)]
        names += [PAIRS[2 * k + 1] if self.kinds <= 4 else f"{k})" for k in range(self.kinds)]
        if self.close == "generic":
            names[self.kinds] = ")"
        asked = f" | {' '.join(map(str, y[y >= 0]))}" if self.close == "generic" else ""
        return " ".join(names[token] for token in x[x < self._end]) + asked


@functools.lru_cache(maxsize=64)
def _share_within(lengths: tuple[int, int], most: int, stay: float) -> float:
    """Return the share of strings with at most ``lengths[1]`` tokens among those with at least ``lengths[0]``."""
    shortest, longest = lengths
    opened, closed = np.zeros((2, most + 1))  # probability of each depth after an opening or a closing bracket
    opened[1] = 1.0
    ended = 0.0
    for length in range(2, longest + 1):
        up = opened * stay + closed * (1 - stay)
        up[0], up[most] = closed[0], 0.0
        down = opened + closed - up
        opened, closed = np.append(0.0, up[:-1]), np.append(down[1:], 0.0)
        if length >= shortest:
            closed[0] /= 2
            ended += float(closed[0])
    return ended
