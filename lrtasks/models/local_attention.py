"""Local attention, the baseline of the DLR paper's higher-order tasks (its Table 3): the layer of the attention model,
with each query limited to its own chunk and the neighbouring ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.attention import Attention
from lrtasks.models.ops.attention import MultiHeadAttention
from lrtasks.models.ops.local_attention import MultiHeadLocalAttention


@registry.register("local-attention")
@dataclass(frozen=True)
class LocalAttention(Attention):
    """The attention model with each query limited to its own chunk and the neighbouring ones."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset (63,563 on shift against 71,688): three layers let a query look
        # back six chunks; eight chunks in a sequence, as in the DLR paper's ListOps run.
        "small": {"d_model": 64, "layers": 3, "chunk": 32, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, which has no local attention there.
        "paper": {"d_model": 128, "layers": 1, "chunk": 1024, "norm": "scalar", "budget.lr": 0.001},
        # DLR paper, Table 3: ListOps-SubTrees, and Pathfinder-Segmentation at 128 x 128.
        "paper/listops": {"layers": 6, "glu": True, "budget.lr": 0.001, "budget.weight_decay": 0.01},
        "paper/pathfinder": {"layers": 5, "glu": True, "prenorm": True, "budget.lr": 0.001},
    }

    chunk: int = parameter(1024, "positions in a chunk", at_least=1, at_most=2**20)

    def attention(self, causal: bool) -> MultiHeadAttention:
        return MultiHeadLocalAttention(self.d_model, self.heads, self.chunk, causal=causal, learned_scale=True)
