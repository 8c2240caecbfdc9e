"""Lightning Fabric, imported without torchmetrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import ModuleType


@contextmanager
def _version_alone(package: str) -> Iterator[None]:
    """Let an import of ``package`` in this context find nothing but its version, unless it is loaded already.

    Fabric imports torchmetrics to learn its version. torchmetrics loads SciPy's signal processing and matplotlib, which
    takes as much processor time as loading torch.
    """
    if package in sys.modules:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__dict__["__version__"] = metadata.version(package)
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        del sys.modules[package]


with _version_alone("torchmetrics"):
    from lightning_fabric import Fabric

__all__ = ["Fabric"]
