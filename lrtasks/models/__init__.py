"""Sequence models: an encoder, blocks and a decoder, built from input and target specs alone.

    model = lrtasks.models.build("dlr", task.input, task.target, causal=True, d_state=512)

Listing the models does not import torch; building a model does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lrtasks.lazy import lazy_names
from lrtasks.registry import Registry
from lrtasks.spec import Spec

if TYPE_CHECKING:
    from lrtasks.models.base import Backbone, Block, ModelConfig

__all__ = ["Backbone", "Block", "ModelConfig", "build", "names", "registry"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {name: f"lrtasks.models.base:{name}" for name in ("Backbone", "Block", "ModelConfig")},
)

registry: Registry[ModelConfig] = Registry("model", base="lrtasks.models.base:ModelConfig", package="lrtasks.models")


def names() -> list[str]:
    """Return the names of all models, built in and installed, without importing them."""
    return registry.names()


def build(name: str, input: Spec, target: Spec, *, causal: bool = True, **hyper: Any) -> Backbone:
    """Build the model called ``name`` for the given specs; initial weights are drawn from torch's global generator.

    Raises:
        UsageError: for an unknown name or hyper-parameter (similar names are suggested) or a value out of range.
    """
    return registry.get(name).make(**hyper).build(input, target, causal=causal)
