"""Small tasks and models for the tests of the evaluation loop; also imported by address, such as ``toys:droppy``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from lrtasks.config import parameter
from lrtasks.generators.base import Task
from lrtasks.generators.baselines import Baseline, MajorityClass
from lrtasks.spec import IGNORED, Batch, Sample, Spec

BUDGET: dict[str, Any] = {
    "steps": 12,
    "batch_size": 4,
    "eval_every": 4,
    "val_batches": 2,
    "test_batches": 3,
    "lr": 0.02,
}
"""Budget of a run that takes a fraction of a second."""


@dataclass(frozen=True)
class Labels(Task):
    """Tokens to classes: ``y = x``, but each position is unlabelled with probability 0.2."""

    name: ClassVar[str] = "labels"
    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"

    length: int = parameter(12, "positions", at_least=1)
    classes: int = parameter(4, "classes", at_least=2)

    @property
    def input(self) -> Spec:
        return Spec("token", self.length, self.classes)

    target = input

    def sample(self, rng: np.random.Generator) -> Sample:
        x = rng.integers(self.classes, size=self.length)
        y = np.where(rng.random(self.length) < 0.2, IGNORED, x)
        return Sample(x, y, meta={"odd": int(x[0] % 2)})

    def baselines(self) -> Mapping[str, Baseline]:
        return {"majority": MajorityClass(self.classes)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        return {"odd": np.asarray(batch.meta["odd"])[:, None], "position": np.arange(self.length)}


@dataclass(frozen=True)
class Segments(Labels):
    """The same task, scored as a segmentation."""

    name: ClassVar[str] = "segments"
    loss: ClassVar[str] = "balanced-cross-entropy"
    metric: ClassVar[str] = "macro_f1"


class Net(nn.Module):
    """Position by position: encoder, GELU, dropout, decoder."""

    def __init__(self, input: Spec, target: Spec, width: int = 8, dropout: float = 0.0, *, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal
        self.encoder = nn.Linear(input.width, width) if input.kind == "real" else nn.Embedding(input.width, width)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(width, target.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.dropout(nn.functional.gelu(self.encoder(x))))


def plain(input: Spec, target: Spec, *, causal: bool, width: int = 8) -> nn.Module:
    """Build a net without randomness."""
    return Net(input, target, width, causal=causal)


def droppy(input: Spec, target: Spec, *, causal: bool, width: int = 8) -> nn.Module:
    """Build a net whose training draws random numbers at every step."""
    return Net(input, target, width, dropout=0.5, causal=causal)


class Exploding(Net):
    """A net whose output is NaN after ``healthy`` training steps."""

    def __init__(self, input: Spec, target: Spec, healthy: int, *, causal: bool = True) -> None:
        super().__init__(input, target, causal=causal)
        self.healthy = healthy

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.healthy -= 1
        return super().forward(x) * (1.0 if self.healthy >= 0 else float("nan"))


def exploding(input: Spec, target: Spec, *, causal: bool, healthy: int = 0) -> nn.Module:
    """Build a net that diverges after ``healthy`` training steps."""
    return Exploding(input, target, healthy, causal=causal)


def exploding_elsewhere(input: Spec, target: Spec, *, causal: bool) -> nn.Module:
    """Build a net that diverges in the tenth step, in all processes except the first."""
    return Exploding(input, target, 10_000 if os.environ.get("RANK", "0") == "0" else 9, causal=causal)


class Ranked(Net):
    """A net that stores the rank of its process."""

    def __init__(self, input: Spec, target: Spec, *, causal: bool = True) -> None:
        super().__init__(input, target, causal=causal)
        self.rank = int(os.environ.get("RANK", "0"))


class Idle(Net):
    """A net with a parameter that it does not use."""

    def __init__(self, input: Spec, target: Spec, *, causal: bool = True) -> None:
        super().__init__(input, target, causal=causal)
        self.spare = nn.Linear(1, 1)


def misshapen(input: Spec, target: Spec, *, causal: bool) -> nn.Module:
    """Build a net with one output channel too many."""
    return Net(input, Spec(target.kind, target.length, target.width + 1), causal=causal)


class Reporting(Net):
    """A net with an extra loss and a diagnostic."""

    def extra_losses(self) -> dict[str, Tensor]:
        return {"pull": 3.0 * (self.decoder.bias - 7.0).square().sum()}

    def diagnostics(self) -> dict[str, float]:
        return {"bias": self.decoder.bias.mean().item()}
