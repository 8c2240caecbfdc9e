"""Local attention, the baseline of the DLR paper's higher-order tasks (its Table 3): the layer of the attention model,
with each query limited to its own chunk and the neighbouring ones."""

from __future__ import annotations

from dataclasses import dataclass

from lrtasks.models.attention import Attention
from lrtasks.models.ops.attention import MultiHeadAttention
from lrtasks.models.ops.local_attention import MultiHeadLocalAttention
from lrtasks.models.registration import registry
from lrtasks.parameters import parameter


@registry.register("local-attention")
@dataclass(frozen=True)
class LocalAttention(Attention):
    """The attention model with each query limited to its own chunk and the neighbouring ones."""

    chunk: int = parameter(1024, "positions in a chunk", at_least=1, at_most=2**20)

    def attention(self, causal: bool) -> MultiHeadAttention:
        return MultiHeadLocalAttention(self.d_model, self.heads, self.chunk, causal=causal, learned_scale=True)
