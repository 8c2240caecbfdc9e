"""The Transformer with rotary positions (Vaswani et al., arXiv:1706.03762; Su et al., arXiv:2104.09864), pre-norm and
initialised as GPT-2: weights N(0, 0.02²), those of the output maps divided by sqrt(2 · layers), biases 0.

A layer is two residual blocks: ``x + mixer(norm(x))``, then ``x + FeedForward(norm(x))``. Options: no positions (NoPE),
a penalty on distance (ALiBi; Press et al., arXiv:2108.12409), a sliding window, short convolutions of queries, keys and
values, and canon layers (Allen-Zhu, arXiv:2512.17351), which are short convolutions with a residual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import Backbone, ModelConfig, ResidualBlock
from lrtasks.models.ops.attention import MultiHeadAttention, check_heads
from lrtasks.models.ops.layers import FeedForward, check_canon
from lrtasks.spec import Spec

WEIGHT_STD = 0.02


@dataclass(frozen=True)
class TransformerLike(ModelConfig):
    """Layers of a mixer and a feed-forward map; subclasses say which mixer, whose output map is called ``out``."""

    prenorm: bool = parameter(True, "normalise before mixer and feed-forward instead of after the residual")
    expansion: int = parameter(4, "hidden width of the feed-forward map, in d_model", at_least=1, at_most=64)
    canon: str = parameter("", "sites of canon layers, some of the letters ABCD", later=True)

    def check(self) -> None:
        check_canon(self.name, self.canon, "ACD")

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        blocks: list[nn.Module] = []
        for _ in range(self.layers):
            blocks.append(ResidualBlock(self.mixer(input.length, causal), *self.around, canon="A" in self.canon))
            feedforward = FeedForward(self.d_model, self.expansion * self.d_model, canon="D" in self.canon)
            blocks.append(ResidualBlock(feedforward, *self.around, canon="C" in self.canon))
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
    """Pre-norm Transformer: rotary multi-head attention, then a feed-forward map, in every layer.

    Sources: Vaswani et al. (arXiv:1706.03762), with the rotary positions of Su et al. (arXiv:2104.09864).
    """

    presets: ClassVar[Presets] = {
        # As many parameters as the other models' small presets, in two layers: one can join a value to the key before
        # it, one can look it up. Short convolutions, as in most of the field's recurrent layers, shorten the search.
        "small": {
            "d_model": 56,
            "layers": 2,
            "heads": 2,
            "expansion": 3,
            "conv": True,
            "norm": "layer",
            "budget.lr": 0.001,
            "budget.clip": 1.0,
            "budget.warmup_steps": 100,
        },
        # Short convolutions are causal; these tasks are not.
        "small/pathfinder": {"conv": False},
        "small/pathfinder-classification": {"conv": False},
        # The budget of the DLR paper's atomic tasks.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Hyena paper, associative recall: 2,000 samples, 200 epochs of which 10 warm up, 500 test sequences.
        "paper/recall": {"d_model": 64, "layers": 2, "budget.lr": 0.0005},
    }

    heads: int = parameter(4, "attention heads", at_least=1, at_most=1024)

    positions: Literal["rope", "nope", "alibi"] = parameter(
        "rope", "how attention is told positions: rotary, nothing, or a penalty on distance (ALiBi)", later=True
    )
    window: int | None = parameter(
        None, "keys that a query sees, its own and those before it; none for all", at_least=1, later=True
    )
    conv: bool = parameter(False, "short convolutions of queries, keys and values", later=True)

    def check(self) -> None:
        check_heads(self.d_model, self.heads, self.positions)
        check_canon(self.name, self.canon)
        if self.conv and "B" in self.canon:
            raise UsageError(f"{self.name}: conv and canon site B both convolve queries, keys and values; take one")

    def mixer(self, length: int, causal: bool) -> MultiHeadAttention:
        if not causal and (self.conv or self.canon):
            raise UsageError(f"{self.name}: conv and canon are causal: build it with causal=True")
        return MultiHeadAttention(
            self.d_model,
            self.heads,
            causal=causal,
            window=self.window,
            positions=self.positions,
            conv="silu" if self.conv else "canon" if "B" in self.canon else "none",
        )
