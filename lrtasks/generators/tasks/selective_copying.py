from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, budget, registry
from lrtasks.generators.baselines import Baseline, octave
from lrtasks.generators.tokens import TokenTask
from lrtasks.spec import Batch, Sample, Spec

NOISE = 0
NOISE_WINDOW = 16


@registry.register("selective-copying")
@dataclass(frozen=True)
class SelectiveCopying(TokenTask):
    """Return, in order, the tokens that are not noise.

    Let M = ``memorise`` and A = ``alphabet``. M data tokens, independent and uniform over 1..A-2, are at M of the first
    ``noise`` + M positions, drawn without repetition. The other positions hold the noise, token 0. Then M marks, token
    A-1, follow; the labels at the marks are the data tokens, in order. With ``spread=False`` the data tokens are at the
    first M positions (copy memory). Source: Gu and Dao, "Mamba" (arXiv:2312.00752), section 4.1.1; Arjovsky et al.,
    "Unitary Evolution Recurrent Neural Networks" (arXiv:1511.06464), for copy memory.

    ``law="mad"`` is the distribution of Poli et al., "Mechanistic Design and Scaling of Hybrid Architectures"
    (arXiv:2403.17844). ``noise`` - 1 noise tokens are distributed over the gaps before the data tokens, each
    independently and uniformly; no noise follows the last data token. One mark and M noise tokens follow; the labels at
    these noise tokens are the data tokens, in order. So the last data token is always directly before the mark.

    >>> task = SelectiveCopying(noise=4, memorise=3, alphabet=9)
    >>> task.answer([0, 3, 0, 0, 7, 1, 0, 8, 8, 8]).tolist()
    [3, 7, 1]
    """

    group: ClassVar[str] = "copying"
    grows: ClassVar[tuple[str, ...]] = ("noise",)
    presets: ClassVar[Presets] = {
        **{name: {"noise": 56, "memorise": 4, "alphabet": 8, **budget(lr=3e-3)} for name in ("small", "spread")},
        "small-hard": {"noise": 112, "memorise": 8, "alphabet": 16, **budget(lr=3e-3)},
        "delay": {"noise": 44, "memorise": 10, "alphabet": 10, "spread": False, **budget(lr=3e-3)},
        # Mamba paper: 400,000 steps of 64 samples at a constant learning rate.
        "paper": budget(steps=400_000, batch_size=64, lr=1e-4, eval_every=8000, val_batches=10, test_batches=50),
        # Copy memory as in the papers of uRNN and TCN.
        "paper-delay": {"noise": 1000, "memorise": 10, "alphabet": 10, "spread": False}
        | budget(steps=400_000, batch_size=64, lr=1e-4, eval_every=8000),
        # One of MAD's settings; the paper averages over several.
        "mad": {"noise": 224, "memorise": 16, "alphabet": 16, "law": "mad"}
        | budget(steps=20_000, batch_size=128, lr=5e-4),
    }

    noise: int = parameter(4096, "number of noise tokens", at_least=1, at_most=MAX_LENGTH)
    memorise: int = parameter(16, "number of data tokens M", at_least=1, at_most=MAX_LENGTH // 2)
    alphabet: int = parameter(16, "alphabet size A: noise, A - 2 data tokens, mark", at_least=3, at_most=2**20)
    spread: bool = parameter(True, "true: data tokens anywhere among the noise; false: at the beginning")
    law: Literal["uniform", "mad"] = parameter("uniform", "data positions: uniform, or as in MAD's code")

    def check(self) -> None:
        if self.noise + 2 * self.memorise > MAX_LENGTH:
            self.refuse(f"noise + 2 memorise must be at most {MAX_LENGTH}, found {self.noise + 2 * self.memorise}")
        if self.law == "mad" and not self.spread:
            self.refuse("spread=false goes with law 'uniform' only")

    @property
    def input(self) -> Spec:
        return Spec("token", self.noise + 2 * self.memorise, self.alphabet)

    @property
    def target(self) -> Spec:
        return Spec("token", self.memorise, self.alphabet)

    def sample(self, rng: np.random.Generator) -> Sample:
        count = self.memorise
        y = rng.integers(1, self.alphabet - 1, size=count)
        x = np.zeros(self.input.length, dtype=np.int64)
        if self.law == "mad":
            gaps = np.bincount(rng.integers(count, size=self.noise - 1), minlength=count)
            x[np.cumsum(gaps + 1) - 1] = y
            x[-count - 1] = self.alphabet - 1
        else:
            places = np.sort(rng.choice(self.noise + count, count, replace=False)) if self.spread else np.arange(count)
            x[places] = y
            x[-count:] = self.alphabet - 1
        return Sample(x, y)

    def label(self, x: np.ndarray) -> np.ndarray:
        """Return the data tokens in order, ``(memorise,)``; marks may stand anywhere or be absent."""
        data = np.flatnonzero((x != NOISE) & (x != self.alphabet - 1))
        if len(data) != self.memorise:
            self.refuse(f"an input must hold {self.memorise} data tokens (1..{self.alphabet - 2}), found {len(data)}")
        if data[-1] >= len(x) - self.memorise:
            found = f"a data token at position {data[-1]} of {len(x)}"
            self.refuse(f"the last {self.memorise} positions are for the answer, found {found}")
        return x[data]

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent token and, in texts of at least 32 tokens, the data in the last 16 of them."""
        long = self.noise + self.memorise >= 2 * NOISE_WINDOW
        return {**super().baselines(), **({f"window-{NOISE_WINDOW}": self.rule(self._window)} if long else {})}

    def _window(self, x: np.ndarray) -> np.ndarray:
        prediction = np.ones((len(x), self.memorise), dtype=np.int64)
        text = x[:, : -self.memorise - (self.law == "mad")]
        for row, seen in enumerate(text[:, -NOISE_WINDOW:]):
            data = seen[seen != NOISE][-self.memorise :]
            prediction[row, self.memorise - len(data) :] = data
        return prediction

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by number of the token, from 1, and by distance to its question, in octaves."""
        data = (batch.x != NOISE) & (batch.x != self.alphabet - 1)
        places = np.nonzero(data)[1].reshape(len(batch.x), self.memorise)
        asked = np.arange(batch.x.shape[1] - self.memorise, batch.x.shape[1])
        return {"ordinal": np.arange(1, self.memorise + 1), "distance": octave(asked - places)}

    def text(self, batch: Batch, index: int) -> str:
        """Return the tokens, noise as dots and marks as question marks, then the answer."""
        signs = {NOISE: ".", self.alphabet - 1: "?"}
        x, y = batch.x[index].tolist(), batch.y[index].tolist()
        return f"{' '.join(signs.get(token, str(token)) for token in x)} | {' '.join(map(str, y))}"
