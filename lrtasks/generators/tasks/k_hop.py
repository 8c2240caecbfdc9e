from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, MajorityClass, octave
from lrtasks.generators.tokens import Uniforms, UniformTask, earlier, gathered, letter
from lrtasks.spec import IGNORED, Batch, Spec

TESTED_HOPS = 8


@registry.register("k-hop")
@dataclass(frozen=True)
class KHop(UniformTask):
    """At each position, make k hops: each goes from a letter to the letter that followed its last earlier occurrence.

    The first token is the hop count: token h stands for k = ``hops[0]`` + h. The other tokens are letters. There are
    A = ``letters`` letters, numbered from the token after the last hop count. Each letter of a sample is uniform among
    the letters that differ from the letter before. Let s be the letters of a sample. Then hop(i) = j + 1, where j is
    the largest index below i with s[j] = s[i]; the answer at i is s[hop^k(i)]. k is uniform over ``hops``, or over
    ``asked`` if given.

    ``law="sanford"``: classes 0..A-1 are the letters, class A is "none" (a hop does not exist), and class A + 1 is
    "blank" (the label of the first token). ``law="clean"``: these positions have no label. 26 % of the published labels
    are one of these two classes. Source: Sanford et al., "Transformers, parallel computation, and logarithmic depth"
    (arXiv:2402.09268), section 4, code chsanford/hop-induction-heads.

    >>> task = KHop(length=7, letters=3, hops=(1, 2), law="clean")
    >>> a, b, c = 2, 3, 4
    >>> [task.answer([hop, a, b, a, c, b, a]).tolist()[3:] for hop in (0, 1)]
    [[1, -100, 0, 2], [-100, -100, 1, -100]]
    """

    group: ClassVar[str] = "hops"
    presets: ClassVar[Presets] = {
        "small": {"law": "clean", "length": 64, "letters": 8, "hops": (1, 2)}
        | budget(batch_size=64, lr=3e-3, steps=1500),
        "small-hard": {"law": "clean", "length": 128, "letters": 8, "hops": (1, 4), **budget(batch_size=32)},
        "paper": {"length": 99, "letters": 4, "hops": (0, 16)}
        | budget(steps=100_000, batch_size=32, lr=1e-4, eval_every=5_000),
    }

    length: int = parameter(99, "sequence length, hop count included", at_least=2, at_most=MAX_LENGTH)
    letters: int = parameter(4, "number of letters A", at_least=2, at_most=2**16)
    hops: tuple[int, int] = parameter((0, 16), "minimum and maximum hop count", at_least=0, at_most=1024)
    law: Literal["sanford", "clean"] = parameter(
        "sanford", "labels of missing hops and of the first token: two extra classes (sanford), or none (clean)"
    )
    asked: tuple[int, int] | None = parameter(None, "minimum and maximum hop count of samples; none: hops", at_least=0)

    def check(self) -> None:
        self.span("hops")
        low, high = self.span("asked" if self.asked else "hops")
        if low < self.hops[0] or high > self.hops[1]:
            self.refuse(f"asked must lie in hops {list(self.hops)}, found [{low}, {high}]")
        if self.law == "clean" and low and self.length < low + 3:
            self.refuse(f"with law 'clean', length must be at least hops + 3 ({low + 3}), found {self.length}")

    @property
    def _first_letter(self) -> int:
        return self.hops[1] - self.hops[0] + 1

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self._first_letter + self.letters)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length, self.letters + (2 if self.law == "sanford" else 0))

    def made(self, u: Uniforms) -> Batch:
        low, high = self.asked or self.hops
        hop = low - self.hops[0] + u.whole(high - low + 1, 1)
        first, step = u.whole(self.letters, 1), 1 + u.whole(self.letters - 1, self.length - 2)
        letters = np.cumsum(np.concatenate([first, step], axis=1), axis=1) % self.letters
        x = np.concatenate([hop, self._first_letter + letters], axis=1)
        return Batch(x, self.label_all(x))

    def _ends(self, x: np.ndarray) -> np.ndarray:
        """Return for each letter the index hop^k(i) among the letters, or -1 if a hop does not exist."""
        last, _ = earlier(x[:, 1:])
        hop = np.where(last >= 0, last + 1, -1)
        k = self.hops[0] + x[:, :1]
        end = np.broadcast_to(np.arange(hop.shape[1]), hop.shape)
        for done in range(int(k.max())):
            end = np.where(done < k, gathered(hop, end, -1), end)
        return end

    def label_all(self, x: np.ndarray) -> np.ndarray:
        end = self._ends(x)
        missing, blank = (self.letters, self.letters + 1) if self.law == "sanford" else (IGNORED, IGNORED)
        y = np.full(x.shape, blank)
        y[:, 1:] = gathered(x[:, 1:] - self._first_letter, end, missing)
        return y

    def verify(self, tokens: np.ndarray) -> None:
        if len(tokens) < 2:
            self.refuse(f"an input is a hop count and at least one letter, found {len(tokens)} token")
        self.allow(tokens[:1], 0, self._first_letter, "the first token is a hop count and")
        self.allow(tokens[1:], self._first_letter, self.input.width, "letters", 1)

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent class, the same letter, the letter after it, and the best guess per hop count."""
        own, following = self.rule(lambda x: self._offset(x, 0)), self.rule(lambda x: self._offset(x, 1))
        return {**super().baselines(), "own-letter": own, "not-own": following, "by-hops": _ByHops(self)}

    def _offset(self, x: np.ndarray, offset: int | np.ndarray) -> np.ndarray:
        """Return the letter at each position, shifted by ``offset`` in the alphabet."""
        return (np.maximum(x - self._first_letter, 0) + offset) % self.letters

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by hop count, and by distance back to the letter that is the answer, in octaves."""
        end = self._ends(batch.x)
        distance = np.zeros(batch.y.shape, dtype=np.int64)
        distance[:, 1:] = octave(np.where(end >= 0, np.arange(end.shape[1]) - end, 0))
        return {"hops": self.hops[0] + batch.x[:, :1], "distance": distance}

    def tests(self) -> dict[str, Task]:
        """Return tests at 2 and 4 times the length, and tests of each single hop count up to 8."""
        counts = range(self.hops[0], min(self.hops[1], TESTED_HOPS) + 1)
        return {**self.scaled("length", by=(2, 4)), **self.further({f"hops-{k}": {"asked": (k, k)} for k in counts})}

    def text(self, batch: Batch, index: int) -> str:
        """Return the hop count, the letters and, after an arrow, their answers (a dot where there is none)."""
        x, y = batch.x[index], batch.y[index]
        names = [*map(letter, range(self.letters)), "~", "_"]
        asked = " ".join(letter(token - self._first_letter) for token in x[1:].tolist())
        return f"k={self.hops[0] + x[0]}: {asked} => " + " ".join("." if t < 0 else names[t] for t in y[1:].tolist())


class _ByHops(MajorityClass):
    """Predictor of the most frequent answer per hop count: an offset from the letter itself, or another class."""

    def __init__(self, task: KHop) -> None:
        super().__init__(task.target.width, groups=task._first_letter, group=lambda x: x[:, :1])
        self._task = task

    def fit(self, batches: Iterable[Batch]) -> None:
        super().fit(batch._replace(x=batch.x[:, :-1], y=self._offsets(batch)) for batch in batches)

    def _offsets(self, batch: Batch) -> np.ndarray:
        y, letters = batch.y[:, 1:], self._task.letters
        offset = (y - self._task._offset(batch.x[:, 1:], 0)) % letters
        return np.where((y >= 0) & (y < letters), offset, y)

    def predict(self, batch: Batch) -> np.ndarray:
        task, best = self._task, super().predict(batch)
        guess = np.where(best < task.letters, task._offset(batch.x, best), best)
        if task.law == "sanford":
            guess[:, 0] = task.letters + 1
        return guess
