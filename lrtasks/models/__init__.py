"""Sequence models: an encoder, blocks and a decoder, built from input and target specs alone.

    model = lrtasks.models.build("dlr", task.input, task.target, causal=True, d_state=512)

Listing the models imports no torch; building one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.lazy import lazy_names
from lrtasks.models.registration import names, registry

__all__ = ["Backbone", "Block", "ModelConfig", "build", "names", "registry"]

if TYPE_CHECKING:
    from lrtasks.models.base import Backbone, Block, ModelConfig, build

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Backbone": "lrtasks.models.base:Backbone",
        "Block": "lrtasks.models.base:Block",
        "ModelConfig": "lrtasks.models.base:ModelConfig",
        "build": "lrtasks.models.base:build",
    },
)
