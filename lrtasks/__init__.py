"""lrtasks: the diagnostic gym for long-range sequence models.

Importing this package imports no heavy module; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names

__version__ = "0.1.0"
__all__ = [
    "Budget",
    "UsageError",
    "build_model",
    "check_model",
    "check_task",
    "evaluate",
    "generators",
    "list_models",
    "list_tasks",
    "load_model",
    "make",
    "models",
    "results",
]

if TYPE_CHECKING:
    from lrtasks import generators, models, results
    from lrtasks.budget import Budget
    from lrtasks.check.model import check_model
    from lrtasks.check.task import check_task
    from lrtasks.errors import UsageError
    from lrtasks.evaluation.run import evaluate, load_model
    from lrtasks.generators import make
    from lrtasks.generators import names as list_tasks
    from lrtasks.models import names as list_models
    from lrtasks.run_config import build_model

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Budget": "lrtasks.budget:Budget",
        "UsageError": "lrtasks.errors:UsageError",
        "build_model": "lrtasks.run_config:build_model",
        "check_model": "lrtasks.check.model:check_model",
        "check_task": "lrtasks.check.task:check_task",
        "evaluate": "lrtasks.evaluation.run:evaluate",
        "generators": "lrtasks.generators",
        "list_models": "lrtasks.models:names",
        "list_tasks": "lrtasks.generators:names",
        "load_model": "lrtasks.evaluation.run:load_model",
        "make": "lrtasks.generators:make",
        "models": "lrtasks.models",
        "results": "lrtasks.results",
    },
)
