from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import Slices, budget, registry
from lrtasks.generators.baselines import Baseline, MajorityClass, bin_starts
from lrtasks.generators.tokens import MAD_PROTOCOL, Uniforms, UniformTask
from lrtasks.spec import Batch, Spec

RECENT = 8


@registry.register("compression")
@dataclass(frozen=True)
class Compression(UniformTask):
    """At the end of a sequence, return all of its tokens from one vector.

    Let V = ``vocab``. The input is ``length`` - 1 tokens, independent and uniform over 0..V-2, then the mark V-1. The
    target is these tokens in order. The decoder computes all of them from one vector: the vector of the last position
    (causal models) or the mean over all positions (bidirectional models). Source: Poli et al., "Mechanistic Design and
    Scaling of Hybrid Architectures" (MAD, arXiv:2403.17844), section 3. MAD also scores the mark, which is constant,
    and its decoder is an MLP that receives the vector and a position. Here the decoder is linear, so compare ranks, not
    numbers.

    >>> Compression(length=4, vocab=4).answer([2, 0, 1, 3]).tolist()
    [2, 0, 1]
    """

    group: ClassVar[str] = "capacity"
    presets: ClassVar[Presets] = {
        "small": {"length": 16, "vocab": 8, **budget(batch_size=64, lr=3e-3, steps=3000)},
        "small-hard": {"length": 32, "vocab": 16, **budget(batch_size=64)},
        "paper": {"length": 32, "vocab": 16, **MAD_PROTOCOL},
    }

    length: int = parameter(32, "sequence length, mark included", at_least=2, at_most=2**16)
    vocab: int = parameter(16, "vocabulary size V, mark included", at_least=3, at_most=2**16)

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.vocab)

    @property
    def target(self) -> Spec:
        return Spec("token", self.length - 1, self.vocab - 1, pooled=True)

    def made(self, u: Uniforms) -> Batch:
        x = np.full((len(u), self.length), self.vocab - 1)
        x[:, :-1] = u.whole(self.vocab - 1, self.length - 1)
        return Batch(x, self.label_all(x))

    def label_all(self, x: np.ndarray) -> np.ndarray:
        return x[:, :-1].copy()

    def verify(self, tokens: np.ndarray) -> None:
        if len(tokens) < 2:
            self.refuse(f"an input is at least one token and the mark, found {len(tokens)} token")
        self.allow(tokens[:-1], 0, self.vocab - 1, "tokens before the mark")
        self.allow(tokens[-1:], self.vocab - 1, self.vocab, "the last token is the mark and", len(tokens) - 1)

    def bits(self, accuracy: Sequence[float] | np.ndarray) -> float:
        """Return the bits that one vector stored: the sum over positions of log2(V-1) times the scaled accuracy.

        The scaled accuracy is 0 at chance and below, and 1 if every token is right.

        Args:
            accuracy: accuracy per position ``(length - 1,)``, or one number for all positions.

        Raises:
            UsageError: if there is another number of accuracies.
        """
        if np.shape(accuracy) not in ((), (self.length - 1,)):
            self.refuse(f"bits needs {self.length - 1} accuracies or one, found {np.size(accuracy)}")
        chance = 1 / (self.vocab - 1)
        scaled = (np.broadcast_to(accuracy, self.length - 1) - chance) / (1 - chance)
        return float(math.log2(self.vocab - 1) * np.maximum(scaled, 0).sum())

    def baselines(self) -> dict[str, Baseline]:
        """Return the most frequent token, and the last eight tokens with the most frequent token before them."""
        recent = {f"recent-{RECENT}": _Recent(self.target.width)} if self.length > 2 * RECENT else {}
        return {**super().baselines(), **recent}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by position: eight equal parts, each labelled with its first position."""
        return {"position": bin_starts(np.arange(self.length - 1), self.length - 1)}

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Return ``bits``: the result of :meth:`bits` for the accuracies of the parts of the positions."""
        rows = sorted(slices["position"], key=lambda row: int(row["label"]))
        sizes = np.diff([*(row["label"] for row in rows), self.length - 1])
        return {"bits": self.bits(np.repeat([row["accuracy"] for row in rows], sizes))}

    def text(self, batch: Batch, index: int) -> str:
        """Return the tokens, then the mark as ``?``."""
        return " ".join(map(str, batch.y[index].tolist())) + " ? => all of them"


class _Recent(MajorityClass):
    """Predictor that copies the last eight tokens and gives the most frequent class at all positions before them."""

    def predict(self, batch: Batch) -> np.ndarray:
        guess = super().predict(batch)
        guess[:, -RECENT:] = batch.x[:, -1 - RECENT : -1]
        return guess
