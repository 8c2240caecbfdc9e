"""What is measured: one model at one length, under settings that all models of a bench share."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from lrtasks import models
from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError, unknown
from lrtasks.evaluation import optimiser
from lrtasks.evaluation.environment import device_name
from lrtasks.generators.base import MAX_LENGTH
from lrtasks.models.base import Backbone, ModelConfig
from lrtasks.spec import Spec

BASELINE = "transformer"
UNFUSED = "transformer-unfused"
"""The baseline with its attention weights held as an array, as the papers' Transformer holds them."""
VOCABULARY, CLASSES = 256, 2
MEASURING = ("apart.py", "case.py", "measure.py", "resident.py")
"""Files of this package on which figures depend."""
OWN = ("d_model", "layers")
"""Parameters of every model that the settings give."""


@dataclass(frozen=True)
class Settings(Config):
    """What all measurements of a bench share."""

    name: ClassVar[str] = "bench"

    d_model: int = parameter(64, "width of the residual stream", at_least=1, at_most=65536)
    layers: int = parameter(2, "layers", at_least=1, at_most=256)
    batch: int = parameter(1, "sequences in a batch", at_least=1, at_most=2**20)
    bidirectional: bool = parameter(False, "bidirectional models, which have no streaming state")
    repeats: int = parameter(5, "timed repeats, after one that does not count", at_least=1, at_most=10_000)
    patience: float = parameter(20.0, "seconds of timed work after which no repeat begins", above=0)
    threads: int = parameter(1, "threads of a process", at_least=1, at_most=1024)


@dataclass(frozen=True)
class Bench:
    """Settings, device, and hyper-parameters of single models.

    Attributes:
        settings: shared settings.
        device: ``"cpu"`` or ``"cuda"``.
        hyper: hyper-parameters that differ from a model's defaults, by model.
    """

    settings: Settings
    device: str = "cpu"
    hyper: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the hyper-parameters; ``transformer-unfused`` has those of ``transformer``."""
        for model, values in self.hyper.items():
            if model not in models.names():
                raise unknown("model", model, models.names())
            for name in OWN:
                if name in values:
                    raise UsageError(f"{model}.{name} cannot differ between models; give {name} for all of them")
            self.config(model)
        self.config(BASELINE)

    def config(self, model: str) -> ModelConfig:
        """The configuration of ``model``."""
        shared = {name: getattr(self.settings, name) for name in OWN}
        return models.registry.get(model).make(**shared, **self.hyper.get(model, {}))


@dataclass(frozen=True)
class Case:
    """One measurement: ``model`` is a registered name or :data:`UNFUSED`."""

    bench: Bench
    model: str
    length: int

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.bench.config(BASELINE if self.model == UNFUSED else self.model)

    @property
    def baseline(self) -> Case:
        """The Transformer at the same length."""
        return Case(self.bench, BASELINE, self.length)

    def build(self) -> Backbone:
        """The model: tokens in, one class per sequence out."""
        input, target = Spec("token", self.length, VOCABULARY), Spec("token", 1, CLASSES, pooled=True)
        return self.config.build(input, target, causal=not self.bench.settings.bidirectional)

    def identity(self) -> dict[str, Any]:
        """All that decides what is measured, JSON-ready."""
        return {
            "model": self.model,
            "hyper": self.config.parameters(),
            "baseline": self.bench.config(BASELINE).parameters(),
            "length": self.length,
            "settings": self.bench.settings.parameters(),
            "device": self.bench.device,
            "device_name": device_name(torch.device(self.bench.device)),
            "torch": torch.__version__,
            "source": source_digest(),
            "module": _digest([Path(inspect.getfile(type(self.config)))]),
        }

    def file(self, out: Path) -> Path:
        """Where its record is kept: the same file for the same identity, and for nothing else."""
        text = json.dumps(self.identity(), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        readable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.model)
        return out / f"{readable}-{self.length}-{digest}.json"


def all_models() -> list[str]:
    """What can be measured: the registered models, and the baseline with its attention unfused."""
    return sorted([*models.names(), UNFUSED])


def make_cases(bench: Bench, names: Iterable[str], lengths: Iterable[int]) -> list[Case]:
    """Every model at every length, short ones first, and the baseline first at each length, asked for or not.

    Raises:
        UsageError: for an unknown model, one that the settings do not fit, or a length out of range.
    """
    names, lengths = list(names), sorted(set(lengths))
    for name in names:
        if name not in all_models():
            raise unknown("model", name, all_models())
    for length in lengths:
        if not 1 <= length <= MAX_LENGTH:
            raise UsageError(f"a length must be at least 1 and at most {MAX_LENGTH:_}, found {length}")
    ordered = dict.fromkeys([BASELINE, *names])
    cases = [Case(bench, name, length) for length in lengths for name in ordered]
    for case in cases[: len(ordered)]:
        _ = case.config  # raises
    return cases


@cache
def source_digest() -> str:
    """Digest of what is measured and what measures: all built-in models, the optimiser, part of this package."""
    measured = [*Path(inspect.getfile(models)).parent.rglob("*.py"), Path(inspect.getfile(optimiser))]
    return _digest(sorted({*measured, *(Path(__file__).with_name(name) for name in MEASURING)}))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
