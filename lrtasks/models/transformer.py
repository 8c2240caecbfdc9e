"""The Transformer with rotary positions (Vaswani et al., arXiv:1706.03762; Su et al., arXiv:2104.09864), pre-norm and
initialised as GPT-2: weights N(0, 0.02²), those of the output maps divided by sqrt(2 · layers), biases 0.

A layer is two residual blocks: ``x + mixer(norm(x))``, then ``x + FeedForward(norm(x))``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import Backbone, ModelConfig, ResidualBlock
from lrtasks.models.ops.attention import MultiHeadAttention, check_heads
from lrtasks.models.ops.layers import FeedForward
from lrtasks.spec import Spec

WEIGHT_STD = 0.02


@dataclass(frozen=True)
class TransformerLike(ModelConfig):
    """Layers of a mixer and a feed-forward map; subclasses say which mixer, whose output map is called ``out``."""

    prenorm: bool = parameter(True, "normalise before mixer and feed-forward instead of after the residual")
    expansion: int = parameter(4, "hidden width of the feed-forward map, in d_model", at_least=1, at_most=64)

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        blocks: list[nn.Module] = []
        for _ in range(self.layers):
            mixer = self.mixer(input.length, causal)
            blocks.append(ResidualBlock(mixer, self.d_model, self.norm, self.prenorm, self.dropout))
            feedforward = FeedForward(self.d_model, self.expansion * self.d_model)
            blocks.append(ResidualBlock(feedforward, self.d_model, self.norm, self.prenorm, self.dropout))
        return blocks

    def build(self, input: Spec, target: Spec, *, causal: bool) -> Backbone:
        model = super().build(input, target, causal=causal)
        model.apply(_initialise)
        with torch.no_grad():
            for block in model.blocks:
                block.mixer.out.weight /= math.sqrt(2 * self.layers)  # type: ignore[union-attr, operator]
        return model


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=WEIGHT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@registry.register("transformer")
@dataclass(frozen=True)
class Transformer(TransformerLike):
    """Pre-norm Transformer: rotary multi-head attention, then a feed-forward map, in every layer."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset.
        "small": {"d_model": 72, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Recall takes two layers (one to join a value to the key before it, one to look the key up).
        "small/recall": {"d_model": 64, "layers": 2},
        "small/mqar": {"d_model": 64, "layers": 2},
        # The budget of the DLR paper's atomic tasks.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Hyena paper, associative recall: 2,000 samples, 200 epochs of which 10 warm up, 500 test sequences.
        "paper/recall": {"d_model": 64, "layers": 2, "budget.lr": 0.0005},
    }

    heads: int = parameter(4, "attention heads", at_least=1, at_most=1024)

    def check(self) -> None:
        check_heads(self.d_model, self.heads)

    def mixer(self, length: int, causal: bool) -> MultiHeadAttention:
        return MultiHeadAttention(self.d_model, self.heads, causal=causal)
