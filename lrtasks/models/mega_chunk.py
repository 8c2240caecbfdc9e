"""MEGA-chunk: attention inside blocks of the sequence, at linear cost; the moving average spans them all."""

from __future__ import annotations

from dataclasses import dataclass

from lrtasks.models.mega import Mega
from lrtasks.models.ops.scoped_attention import Scope, warn_of_padding
from lrtasks.models.registration import registry
from lrtasks.parameters import parameter


@registry.register("mega-chunk")
@dataclass(frozen=True)
class MegaChunk(Mega):
    """MEGA with attention inside chunks; the moving average spans the sequence."""

    chunk: int = parameter(128, "positions per chunk; the last one is padded", at_least=1)

    def attention_scope(self, length: int, causal: bool) -> Scope:
        warn_of_padding(self.name, length, self.chunk)
        return Scope(causal, chunk=self.chunk)
