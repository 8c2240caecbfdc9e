"""Where models are registered by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrtasks.registry import Registry

if TYPE_CHECKING:
    from lrtasks.models.base import ModelConfig

registry: Registry[ModelConfig] = Registry(
    "model", "lrtasks.models", "lrtasks.models", base="lrtasks.models:ModelConfig"
)


def names() -> list[str]:
    """Names of all models, built in and installed; imports none of them."""
    return registry.names()
