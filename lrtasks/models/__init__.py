"""Sequence models: an encoder, blocks and a decoder, built from input and target specs alone.

    model = lrtasks.models.build("dlr", task.input, task.target, causal=True, d_state=512)
"""

from lrtasks.models.base import Backbone, Block, ModelConfig, build, names, registry

__all__ = ["Backbone", "Block", "ModelConfig", "build", "names", "registry"]
