"""External packages, written to a folder as pip would install them: modules, presets and entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lrtasks import generators, models
from lrtasks.registry import Registry

WAVE = """
from dataclasses import dataclass
import numpy as np
from lrtasks.generators import Sample, Spec, Task
from lrtasks.config import parameter

@dataclass(frozen=True)
class Wave(Task):
    '''A wave to copy.'''
    length: int = parameter(8, "number of values", at_least=1)

    @property
    def input(self):
        return Spec("real", self.length, 1)

    target = input

    def sample(self, rng):
        wave = rng.standard_normal((self.length, 1)).astype(np.float32)
        return Sample(wave, wave)

number = 3
"""

IDENTITY = """
from dataclasses import dataclass
from torch import nn
from lrtasks.models import ModelConfig

class Same(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        return self.map(x)

@dataclass(frozen=True)
class Identity(ModelConfig):
    '''Each position by itself.'''

    def mixer(self, length, causal):
        return Same(self.d_model)
"""


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write ``files``, texts by their paths in ``folder``."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def write_package(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    tasks: Mapping[str, str] | None = None,
    models: Mapping[str, str] | None = None,
) -> None:
    """Write ``files``, and the metadata from which importlib learns the entry points of the distribution ``name``."""
    write_files(folder, files)
    said = folder / f"{name}-1.0.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = {"lrtasks.tasks": tasks or {}, "lrtasks.models": models or {}}
    lines = [line for group, points in groups.items() for line in _section(group, points)]
    (said / "entry_points.txt").write_text("\n".join([*lines, ""]))


def _section(group: str, points: Mapping[str, str]) -> Iterator[str]:
    yield f"[{group}]"
    yield from (f"{name} = {value}" for name, value in points.items())


@contextmanager
def importable(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process import the packages in ``folder`` within the context, and forget them afterwards."""
    registries: tuple[Registry, ...] = (generators.registry, models.registry)
    before = set(sys.modules)
    known = [set(registry._classes) for registry in registries]
    patch.syspath_prepend(str(folder))
    Registry._entry_points.cache_clear()
    try:
        yield
    finally:
        Registry._entry_points.cache_clear()
        for registry, names in zip(registries, known, strict=True):
            for name in set(registry._classes) - names:
                if name not in registry.built_in():
                    del registry._classes[name]
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
