"""lrtasks: the diagnostic gym for long-range sequence models.

Importing this package imports nothing heavy; its names load what they need when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__version__ = "0.1.0"
__all__ = ["UsageError", "check_model", "check_task", "evaluate", "generators", "make", "models"]

if TYPE_CHECKING:
    from lrtasks import generators, models
    from lrtasks.check.model import check_model
    from lrtasks.check.task import check_task
    from lrtasks.errors import UsageError
    from lrtasks.evaluation import evaluate
    from lrtasks.generators import make

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "UsageError": "lrtasks.errors:UsageError",
        "check_model": "lrtasks.check.model:check_model",
        "check_task": "lrtasks.check.task:check_task",
        "evaluate": "lrtasks.evaluation:evaluate",
        "generators": "lrtasks.generators",
        "make": "lrtasks.generators:make",
        "models": "lrtasks.models",
    },
)
