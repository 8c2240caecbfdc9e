from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, Slices, budget, registry
from lrtasks.generators.tokens import MAD_PROTOCOL, Uniforms, UniformTask
from lrtasks.spec import IGNORED, Batch, Spec

CLASSES = 64


@registry.register("memorization")
@dataclass(frozen=True)
class Memorization(UniformTask):
    """Give the value of a pair of tokens under one fixed map that all samples share.

    ``law="pair"``: let s = √``facts``. First tokens are 0..s-1, second tokens s..2s-1, and the mark is 2s. A sample is
    ``pairs`` times first token, second token, mark; each pair is uniform with replacement. The label at the mark is
    map[first, second], one of 64 classes. The map is uniform and determined by ``facts`` alone: training, validation
    and test ask the same facts under every seed.

    ``law="mad"``: let F = ``facts``. Keys are 0..F-1, their values are a permutation of the tokens F..2F (one token is
    left over), and the mark is 2F + 1. A sample is ``pairs`` times key, mark. One-token keys are a weaker test: the
    embedding can store the map, and the layers only pass it on. Source: Poli et al., "Mechanistic Design and Scaling of
    Hybrid Architectures" (MAD, arXiv:2403.17844), section 3, where the vocabulary is 2F + 2.

    >>> task = Memorization(facts=4096)
    >>> y = task.answer([5, 70, 128])
    >>> y[:2].tolist(), bool(y[2] == task.table()[5, 70 - 64])
    ([-100, -100], True)
    """

    group: ClassVar[str] = "capacity"
    presets: ClassVar[Presets] = {
        "small": {"facts": 4096, "pairs": 32, **budget(batch_size=32, lr=3e-3)},
        "small-hard": {"facts": 16_384, "pairs": 32, **budget(batch_size=32, lr=3e-3)},
        # vocabulary 256; 256 samples in batches of 128, 200 epochs
        "paper": {"law": "mad", "facts": 127, "pairs": 16}
        | MAD_PROTOCOL
        | budget(steps=400, train_samples=256, eval_every=50),
    }

    pairs: int = parameter(32, "facts asked in a sample, drawn with replacement", at_least=1, at_most=MAX_LENGTH // 3)
    facts: int = parameter(4096, "number of facts of the map; pair: a square number", at_least=2, at_most=2**22)
    law: Literal["pair", "mad"] = parameter("pair", "form of a key: two tokens, or one")

    def check(self) -> None:
        if self.law == "pair" and self._side**2 != self.facts:
            side = max(self._side, 2)  # 1 is not allowed
            near = f"{side**2} or {(side + 1) ** 2}"
            self.refuse(f"facts must be a square number with law 'pair', such as {near}, found {self.facts}")

    @property
    def _side(self) -> int:
        return math.isqrt(self.facts)

    @property
    def _mark(self) -> int:
        return 2 * self._side if self.law == "pair" else 2 * self.facts + 1

    @property
    def _slot(self) -> int:
        """Number of tokens of a slot, including the mark."""
        return 3 if self.law == "pair" else 2

    @property
    def input(self) -> Spec:
        return Spec("token", self._slot * self.pairs, self._mark + 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.input.length, CLASSES if self.law == "pair" else self.input.width)

    @functools.lru_cache(maxsize=16)  # noqa: B019 - it keeps at most 16 tasks alive
    def table(self) -> np.ndarray:
        """Return the map, read-only int64: ``(s, s)`` classes by first and second token, or ``(F,)`` values by key."""
        rng = self.layout_rng(law=self.law, facts=self.facts)
        if self.law == "pair":
            table = rng.integers(CLASSES, size=(self._side, self._side))
        else:
            table = self.facts + rng.permutation(self.facts + 1)[: self.facts]
        table.setflags(write=False)
        return table

    def made(self, u: Uniforms) -> Batch:
        x = np.full((len(u), self.pairs, self._slot), self._mark)
        if self.law == "pair":
            x[..., 0] = u.whole(self._side, self.pairs)
            x[..., 1] = self._side + u.whole(self._side, self.pairs)
        else:
            x[..., 0] = u.whole(self.facts, self.pairs)
        tokens = x.reshape(len(u), -1)
        return Batch(tokens, self.label_all(tokens))

    def label_all(self, x: np.ndarray) -> np.ndarray:
        values = self.table()
        y = np.full(x.shape, IGNORED)
        if self.law == "pair":
            y[:, 2::3] = values[x[:, ::3], x[:, 1::3] - self._side]
        else:
            y[:, 1::2] = values[x[:, ::2]]
        return y

    def verify(self, tokens: np.ndarray) -> None:
        self.divide(tokens, self._slot)
        if self.law == "pair":
            self.allow(tokens[::3], 0, self._side, "first tokens", 0, 3)
            self.allow(tokens[1::3], self._side, 2 * self._side, "second tokens", 1, 3)
        else:
            self.allow(tokens[::2], 0, self.facts, "keys", 0, 2)
        last = self._slot - 1
        self.allow(tokens[last :: self._slot], self._mark, self._mark + 1, "marks", last, self._slot)

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Return ``facts_stored``: the number of facts times the scaled accuracy (0 at chance, 1 if all are right)."""
        chance = 1 / (CLASSES if self.law == "pair" else self.facts)
        return {"facts_stored": self.facts * max(0.0, (scores["accuracy"] - chance) / (1 - chance))}

    def text(self, batch: Batch, index: int) -> str:
        """Return the facts as ``key=value``, the tokens of a key joined by a comma."""
        slots = batch.x[index].reshape(-1, self._slot).tolist()
        values = batch.y[index, self._slot - 1 :: self._slot].tolist()
        return " ".join(f"{','.join(map(str, slot[:-1]))}={v}" for slot, v in zip(slots, values, strict=True))
