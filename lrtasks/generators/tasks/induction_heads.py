from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Task, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask
from lrtasks.spec import IGNORED, Batch, Sample, Spec

WINDOW = 32


@registry.register("induction-heads")
@dataclass(frozen=True)
class InductionHeads(TokenTask):
    """A mark occurs once in the text and again at the end: return the token that followed it.

    Let V = ``vocab``. ``length`` tokens are drawn independently and uniformly from 0..V-3. The token at position p,
    uniform over 0..length-3, is replaced by the mark V-1. The mark follows once more at the end. The label, at the last
    position, is x[p+1]. Token V-2 is not used, as in the published code. Source: Gu and Dao, "Mamba: Linear-Time
    Sequence Modeling with Selective State Spaces" (arXiv:2312.00752), section 4.1.2; Fu et al., "Hungry Hungry Hippos"
    (arXiv:2212.14052), section 3.1.

    >>> InductionHeads(length=5).answer([4, 9, 15, 3, 8, 15]).tolist()
    [-100, -100, -100, -100, -100, 3]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        "small": {"length": 64, **budget(batch_size=64, steps=1500)},
        # Mamba paper: trained at 256 in batches of 8 for at most 409,600 steps, tested at 2^6 to 2^20.
        "paper": {"length": 256, "tested": "far"}
        | budget(steps=409_600, batch_size=8, lr=1e-3, eval_every=8192, val_batches=64, test_batches=512),
    }

    length: int = parameter(256, "tokens before the final mark", at_least=3, at_most=MAX_LENGTH - 1)
    vocab: int = parameter(16, "vocabulary size V: V - 2 symbols, an unused token, the mark", at_least=3, at_most=2**20)
    supervise: Literal["answer", "all"] = parameter(
        "answer", "training labels: the answer alone, or the next token at every position; val and test: the answer"
    )
    tested: Literal["near", "far"] = parameter(
        "near", "lengths of the further tests: 2, 4, 8, 16 times the length, or the powers of two from 64 to 2^20"
    )

    @property
    def input(self) -> Spec:
        return Spec("token", self.length + 1, self.vocab)

    def sample(self, rng: np.random.Generator) -> Sample:
        mark = self.vocab - 1
        x = rng.integers(self.vocab - 2, size=self.length + 1)
        x[rng.integers(self.length - 2)] = x[-1] = mark
        y = self.label(x)
        if self.supervise == "all" and not self.testing:
            y[:-1] = x[1:]
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the label at the last position alone, for every ``supervise``. The first of several marks counts."""
        marks = np.flatnonzero(x == self.vocab - 1)
        if len(marks) < 2 or marks[-1] != len(x) - 1:
            found = f"found it at {marks.tolist()} of {len(x)} positions"
            self.refuse(f"the mark ({self.vocab - 1}) must stand at the last position and once before, {found}")
        if marks[1] == marks[0] + 1:
            self.refuse(f"a token must stand after the first mark, found another mark at position {marks[1]}")
        y = np.full(len(x), IGNORED)
        y[-1] = x[marks[0] + 1]
        return y

    def tests(self) -> dict[str, Task]:
        """Return tests at other lengths, named by the factor or, with ``tested="far"``, by the length."""
        if self.tested == "near":
            return self.scaled("length", by=(2, 4, 8, 16))
        return self.further({str(2**power): {"length": 2**power} for power in range(6, 21)})

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent answer and, from length 64, the answer if the mark is in the last 32 tokens."""
        local = {f"window-{WINDOW}": self.rule(self._window)} if self.length >= 2 * WINDOW else {}
        return {"majority": self.majority(), **local}

    def _window(self, x: np.ndarray) -> np.ndarray:
        text = x[:, -1 - WINDOW : -1]
        marks = text == self.vocab - 1
        # a token stands after the mark
        following = np.take_along_axis(text, marks.argmax(axis=1)[:, None] + 1, axis=1)
        return np.where(marks.any(axis=1)[:, None], following, 0)

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by distance from the end back to the mark, in octaves."""
        place = (batch.x == self.vocab - 1).argmax(axis=1)
        return {"distance": octave(batch.x.shape[1] - 1 - place)[:, None]}

    def text(self, batch: Batch, index: int) -> str:
        """Return the tokens, with the mark as ``=>``, then the answer after a colon."""
        x, answer = batch.x[index], batch.y[index, -1]
        return " ".join("=>" if token == self.vocab - 1 else str(token) for token in x) + f" : {answer}"
