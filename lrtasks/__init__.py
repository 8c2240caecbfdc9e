"""lrtasks: the diagnostic gym for long-range sequence models.

Importing this package imports nothing heavy; its names load what they need when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_LAZY = {
    "make": ("lrtasks.generators", "make"),
    "generators": ("lrtasks.generators", None),
    "models": ("lrtasks.models", None),
    "evaluate": ("lrtasks.evaluation", "evaluate"),
    "check_task": ("lrtasks.generators.checks", "check_task"),
    "check_model": ("lrtasks.models.checks", "check_model"),
    "UsageError": ("lrtasks.errors", "UsageError"),
}

__all__ = ["UsageError", "check_model", "check_task", "evaluate", "generators", "make", "models"]

if TYPE_CHECKING:
    from lrtasks import generators, models
    from lrtasks.errors import UsageError
    from lrtasks.evaluation import evaluate
    from lrtasks.generators import make
    from lrtasks.generators.checks import check_task
    from lrtasks.models.checks import check_model


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'lrtasks' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    return module if attribute is None else getattr(module, attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
