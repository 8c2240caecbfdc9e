"""Attention models: the attention baselines of the DLR paper, and the Transformer.

``attention`` and ``local-attention`` (Simplifying and Understanding State Space Models with Diagonal Linear RNNs,
section 3.3 and appendix A.5) are the DLR layer with multi-head attention in place of the long convolution. A query sees
all keys, or the keys in its own and the neighbouring chunks. ``u`` is the input of the layer and ``y`` its output; the
heads have rotary positions and share one learned scale.

``transformer`` is the Transformer with rotary positions (Vaswani et al., arXiv:1706.03762; Su et al.,
arXiv:2104.09864), pre-norm and initialised as GPT-2: weights N(0, 0.02²), the weights of output maps also divided by
sqrt(2 · layers), biases 0. A layer is two residual blocks: ``x + mixer(norm(x))``, then ``x + FeedForward(norm(x))``.
Options: no position encoding (NoPE), a penalty on distance (ALiBi; Press et al., arXiv:2108.12409), a sliding window,
short convolutions of queries, keys and values, and canon layers (Allen-Zhu, arXiv:2512.17351), which are short
convolutions with a residual.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import ATOMIC, CAREFUL, RECALL, Backbone, ModelConfig, TwoForms, computed
from lrtasks.models.ops.attention import KVCache, MultiHeadAttention, check_heads
from lrtasks.models.ops.layers import WEIGHT_STD, FeedForward, check_canon
from lrtasks.models.recurrent import shrink_outputs
from lrtasks.spec import Spec


class AttentionLayer(TwoForms):
    """``y = linear(u + GELU(attention(u)))``, then ``y <- y + FeedForward(LayerNorm(y))`` for each part.

    With ``glu`` the linear map is gated: ``first half * sigmoid(second half)`` of a map twice as wide.
    """

    def __init__(self, config: Attention, causal: bool) -> None:
        super().__init__()
        d_model, width = config.d_model, config.expansion * config.d_model
        chunk = config.chunk if isinstance(config, LocalAttention) else None
        self.attention = MultiHeadAttention(d_model, config.heads, causal=causal, learned_scale=True, chunk=chunk)
        self.output: nn.Module = nn.Linear(d_model, d_model)
        if config.glu:
            self.output = nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GLU())
        parts = ((nn.LayerNorm(d_model), FeedForward(d_model, width)) for _ in range(config.feedforward))
        self.parts = nn.ModuleList(nn.Sequential(*part) for part in parts)

    def initial_state(self, batch: int) -> KVCache:
        return self.attention.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        attended, state = computed(self.attention, x, state=state, mask=mask)
        y: Tensor = self.output(x + F.gelu(attended))
        for part in self.parts:
            y = y + part(y)
        return y, state


@registry.register("attention")
@dataclass(frozen=True)
class Attention(ModelConfig):
    """Multi-head attention with rotary positions and one learned scale, in the layer of the DLR paper.

    Source: the DLR paper (arXiv:2212.00768), section 3.3 and appendix A.5.
    """

    presets: ClassVar[Presets] = {
        # Trains in minutes on two CPU cores. As wide as dlr's small preset, with fewer parameters but slower steps.
        "small": {"d_model": 64, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # DLR paper, Table 1: atomic tasks at L = 4096. Table 6 adds feedforward = 2.
        "paper": {"d_model": 128, "layers": 1, "norm": "scalar", "budget.lr": 0.001},
        "paper/mips": {"budget.lr": 0.0001},
    }

    heads: int = parameter(4, "attention heads", at_least=1, at_most=1024)
    glu: bool = parameter(False, "use a gated output map (GLU) in each layer")
    feedforward: int = parameter(0, "residual feed-forward parts after the output map", at_least=0, at_most=64)
    expansion: int = parameter(
        4, "hidden width of a feed-forward part, in multiples of d_model", at_least=1, at_most=64
    )

    def check(self) -> None:
        check_heads(self.d_model, self.heads)

    def mixer(self, length: int, causal: bool) -> AttentionLayer:
        return AttentionLayer(self, causal)


@registry.register("local-attention")
@dataclass(frozen=True)
class LocalAttention(Attention):
    """The attention model with each query limited to its own chunk and the neighbouring ones.

    Source: the DLR paper (arXiv:2212.00768), the baseline of its Table 3.
    """

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset. Three layers let a query look
        # back three chunks. A sequence has eight chunks, as in the DLR paper's ListOps run.
        "small": {"d_model": 64, "layers": 3, "chunk": 32, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, on which the paper does not run local attention.
        "paper": {"d_model": 128, "layers": 1, "chunk": 1024, "norm": "scalar", "budget.lr": 0.001},
        # DLR paper, Table 3: ListOps-SubTrees, and Pathfinder-Segmentation at 128 x 128.
        "paper/listops": {"layers": 6, "glu": True, "budget.lr": 0.001, "budget.weight_decay": 0.01},
        "paper/pathfinder": {"layers": 5, "glu": True, "prenorm": True, "budget.lr": 0.001},
    }

    chunk: int = parameter(1024, "positions in a chunk", at_least=1, at_most=2**20)


@dataclass(frozen=True)
class TransformerLike(ModelConfig):
    """Layers of a mixer and a feed-forward map; subclasses choose the mixer, whose output map is called ``out``."""

    prenorm: bool = parameter(True, "normalise before mixer and feed-forward instead of after the residual")
    expansion: int = parameter(
        4, "hidden width of the feed-forward map, in multiples of d_model", at_least=1, at_most=64
    )
    canon: str = parameter("", "sites of canon layers, some of the letters ACD", later=True)

    def check(self) -> None:
        check_canon(self.name, self.canon, "ACD")

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        width = self.expansion * self.d_model
        feedforward = functools.partial(FeedForward, self.d_model, width, canon="D" in self.canon)
        blocks = []
        for _ in range(self.layers):
            blocks += self.layer_blocks(self.mixer(input.length, causal), feedforward, self.canon)
        return blocks

    def build(self, input: Spec, target: Spec, *, causal: bool) -> Backbone:
        model = super().build(input, target, causal=causal)
        model.apply(_initialise)
        shrink_outputs(model)
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
        # As many parameters as the other models' small presets. Of the two layers, the first can join a value to the
        # key before it, and the second can look it up. Short convolutions, which most recurrent layers of the field
        # have too, let the model find this solution sooner.
        "small": {**CAREFUL, "d_model": 56, "layers": 2, "heads": 2, "expansion": 3, "conv": True, "norm": "layer"},
        # In mips a key's score does not depend on its position. With rotary positions the result is 0.950 at lr 3e-3.
        "small/mips": {"conv": False, "positions": "nope", "budget.schedule": "linear"},
        # With a constant learning rate the last percent of the labels stays wrong.
        "small/joint-recall": {"budget.schedule": "linear"},
        "small/variable-tracking": {"budget.schedule": "linear"},
        # Short convolutions are causal; the models of these tasks are bidirectional.
        "small/pathfinder": {"conv": False},
        "small/pathfinder-classification": {"conv": False},
        "paper": ATOMIC,
        "paper/recall": RECALL,
    }

    heads: int = parameter(4, "attention heads", at_least=1, at_most=1024)

    positions: Literal["rope", "nope", "alibi"] = parameter(
        "rope", "position encoding of attention: rotary, none, or a penalty on distance (ALiBi)", later=True
    )
    window: int | None = parameter(
        None,
        "a query sees keys fewer than this many positions away; none: all keys",
        at_least=1,
        at_most=1 << 24,
        later=True,
    )
    conv: bool = parameter(False, "apply short convolutions to queries, keys and values", later=True)
    canon: str = parameter("", "sites of canon layers, some of the letters ABCD", later=True)

    def check(self) -> None:
        check_heads(self.d_model, self.heads, self.positions)
        check_canon(self.name, self.canon)
        if self.conv and "B" in self.canon:
            raise UsageError(f"{self.name}: conv and canon site B both convolve queries, keys and values; take one")

    def mixer(self, length: int, causal: bool) -> MultiHeadAttention:
        if self.conv or self.canon:
            self.require_causal(causal, "conv or canon")
        make = functools.partial(MultiHeadAttention, self.d_model, self.heads, causal=causal, positions=self.positions)
        conv: Literal["silu", "canon", "none"] = "silu" if self.conv else "canon" if "B" in self.canon else "none"
        return make(window=self.window, conv=conv)
