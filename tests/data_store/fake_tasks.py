"""Small tasks for the tests of stored datasets; a module of its own, so that worker processes can import it."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lrtasks.config import parameter
from lrtasks.generators.base import Task
from lrtasks.generators.tables import from_bytes
from lrtasks.spec import IGNORED, Batch, Sample, Spec

HOLD = "LRTASKS_TEST_HOLD"
"""Variable with a number; a process that has drawn as many samples of :class:`Few` draws no more until it is killed."""

_drawn = itertools.count()


@dataclass(frozen=True)
class Few(Task):
    """Sequences with few different contents, no two of which may be alike in a stored set."""

    name: ClassVar[str] = "few"
    kinds: int = parameter(64, "number of different samples")
    pause: float = parameter(0.0, "seconds per sample")

    @property
    def input(self) -> Spec:
        return Spec("token", 4, max(100, self.kinds // 64))

    target = input

    def sample(self, rng: np.random.Generator) -> Sample:
        time.sleep(self.pause)
        if HOLD in os.environ and next(_drawn) >= int(os.environ[HOLD]):
            time.sleep(600)  # a test that fails leaves it behind for no longer
        kind = int(rng.integers(self.kinds))
        digits = np.array([kind // 64, kind // 8 % 8, kind % 8])
        length = int(rng.integers(3, 5))
        x = np.append(digits, 0)
        return Sample(
            x, np.append(digits, IGNORED), np.arange(4) < length, {"kind": kind, "digits": digits[: length - 2]}
        )

    def duplicate_key(self, batch: Batch, index: int) -> bytes:
        return batch.x[index].tobytes()


@dataclass(frozen=True)
class Blot(Task):
    """An image of noise with a label map, and metadata of every type."""

    name: ClassVar[str] = "blot"
    rows: int = parameter(6, "height in pixels")

    @property
    def input(self) -> Spec:
        return Spec("real", self.rows * 5, 1)

    @property
    def target(self) -> Spec:
        return Spec("token", self.rows * 5, 3)

    def image_shape(self) -> tuple[int, int]:
        return (self.rows, 5)

    def sample(self, rng: np.random.Generator) -> Sample:
        pixels = rng.integers(0, 256, self.rows * 5, dtype=np.uint8)
        labels = rng.integers(0, 3, self.rows * 5)
        labels[0] = IGNORED
        marks = rng.integers(0, 9, (int(rng.integers(0, 3)), 2))
        meta = {"label": int(labels[1]), "ink": float(rng.random()), "word": "ab"[: labels[2]], "marks": marks}
        return Sample(from_bytes(pixels)[:, None], labels, None, {**meta, "flag": bool(labels[3] == 1)})


@dataclass(frozen=True)
class Grey(Blot):
    """An image whose values are no bytes."""

    name: ClassVar[str] = "grey"

    def sample(self, rng: np.random.Generator) -> Sample:
        return super().sample(rng)._replace(x=rng.random((self.rows * 5, 1)).astype(np.float32))
